"""Weights as integers: axes, pairs, groups and bits, against loops written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.errors import InternalError
from edgefuse.graph import Node, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant.scheme import PAIR_SUM_LIMIT, SMALLEST_SCALE, Scheme
from edgefuse.quant.weights import (
    is_depthwise,
    largest_pair_sum,
    output_axis,
    quantize_node_weight,
    quantize_weight,
    weight_rule,
)
from tests.passes.graphs import Build

EIGHT = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True, depthwise_saturates=False)
SEVEN = replace(EIGHT, weight_bits=7)
PAIR = replace(EIGHT, pair_aware=True)


def _node(kind: str, weight: Any, x: Sequence[int], **attrs: Any) -> Node:
    b = Build()
    b.y(b.op(kind, b.x(x), b.w(weight), name="n", **attrs))
    return next(iter(b.model().graph))


def _conv(weight: np.ndarray, group: int = 1) -> Node:
    return _node("Conv", weight, [1, weight.shape[1] * group, 9, 9], group=group)


def _deconv(weight: np.ndarray, group: int = 1) -> Node:
    return _node("ConvTranspose", weight, [1, weight.shape[0], 5, 5], group=group)


def _random(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.uniform(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
    return (rng.standard_normal(shape) * spread).astype(np.float32)


# Which node is which


@pytest.mark.parametrize(
    ("shape", "group", "expected"),
    [
        ((8, 1, 3, 3), 8, True),
        ((8, 1, 3), 8, True),
        ((16, 1, 3, 3), 8, False),  # two outputs a channel
        ((8, 2, 3, 3), 4, False),
        ((8, 1, 3, 3), 1, False),  # one input channel in all
        ((1, 1, 3, 3), 1, False),
    ],
)
def test_depthwise_is_one_input_and_one_output_channel_a_group(
    shape: tuple[int, ...], group: int, expected: bool
) -> None:
    node = _node("Conv", np.ones(shape), [1, shape[1] * group, *[9] * (len(shape) - 2)], group=group)
    assert is_depthwise(node) is expected


def test_a_depthwise_weight_keeps_8_bits_only_where_its_kernel_does_not_saturate() -> None:
    node = _conv(_random(0, 6, 1, 3, 3), group=6)
    for scheme in (SEVEN, PAIR):
        assert quantize_node_weight(node, scheme).bits == 8
        careful = replace(scheme, depthwise_saturates=True)
        assert quantize_node_weight(node, careful).bits == 7
        assert np.abs(quantize_node_weight(node, careful).values.astype(int)).max() == 63
    assert quantize_node_weight(_conv(_random(0, 6, 2, 3, 3)), SEVEN).bits == 7


def test_one_input_channel_without_being_depthwise_has_no_known_pairs() -> None:
    for node in (_conv(_random(1, 4, 1, 3, 3)), _conv(_random(1, 8, 1, 3, 3), group=4)):
        rule = weight_rule(node, PAIR)
        assert (rule.bits, rule.limit, rule.pair_axis) == (7, 63, None)


@pytest.mark.parametrize(
    ("groups", "channels", "kernel", "bits"),
    [(4, 3, (3, 3), 7), (2, 33, (1, 5), 7), (4, 3, (1, 1), 8), (4, 2, (3, 3), 8), (1, 3, (3, 3), 8)],
)
def test_odd_groups_with_several_places_have_no_known_pairs(
    groups: int, channels: int, kernel: tuple[int, int], bits: int
) -> None:
    rule = weight_rule(_conv(np.zeros((4 * groups, channels, *kernel)), group=groups), PAIR)
    assert rule.bits == bits
    assert (rule.pair_axis is None) == (bits == 7)


def test_the_axis_that_pairs_is_the_one_summed_over() -> None:
    rows = {
        "conv": (_conv(np.ones((4, 6, 3, 3))), 0, 1),
        "deconv": (_deconv(np.ones((6, 4, 3, 3))), 1, 0),
        "matmul": (_node("MatMul", np.ones((6, 4)), [2, 6]), 1, 0),
        "batched": (_node("MatMul", np.ones((3, 6, 4)), [3, 2, 6]), 2, 1),
        "gemm": (_node("Gemm", np.ones((6, 4)), [2, 6]), 1, 0),
        "gemm_t": (_node("Gemm", np.ones((4, 6)), [2, 6], transB=1), 0, 1),
        "gemm_ta": (_node("Gemm", np.ones((6, 4)), [6, 2], transA=1), 1, 0),
        "vector": (_node("MatMul", np.ones(6), [2, 6]), None, 0),
    }
    for name, (node, axis, pairs) in rows.items():
        rule = weight_rule(node, PAIR)
        assert (output_axis(node), rule.axis, rule.pair_axis) == (axis, axis, pairs), name
        assert weight_rule(node, EIGHT).pair_axis is None


def test_operators_with_one_scale_a_tensor() -> None:
    scheme = replace(EIGHT, per_tensor_weights=("Conv",))
    weight = _random(2, 4, 3, 1, 1)
    q = quantize_node_weight(_conv(weight), scheme)
    assert (q.axis, q.scale.shape) == (None, (1,))
    assert q.scale[0] == pytest.approx(np.abs(weight).max() / 127)
    assert quantize_node_weight(_node("Gemm", np.ones((3, 4)), [2, 3]), scheme).axis == 1


def test_a_node_without_a_constant_weight_is_our_bug() -> None:
    b = Build()
    b.y(b.op("MatMul", b.x([2, 3]), b.x([3, 4], name="w"), name="n"))
    with pytest.raises(InternalError, match="no constant weight"):
        quantize_node_weight(next(iter(b.model().graph)), EIGHT)


# Pairs


def _worst(values: np.ndarray) -> int:
    """Return the largest |sum of two products| of a pair over all activations of 0 or 255, by loops."""
    worst = 0
    for output in values.reshape(values.shape[0], values.shape[1], -1).astype(int):
        for k in range(0, output.shape[0], 2):
            for position in range(output.shape[1]):
                pair = output[k : k + 2, position]
                for a in (0, 255):
                    for b in (0, 255):
                        worst = max(worst, abs(int(sum(x * w for x, w in zip((a, b), pair, strict=False)))))
    return worst


@given(seed=st.integers(0, 10_000), channels=st.integers(2, 7), per_channel=st.booleans())
def test_no_pair_of_a_pair_aware_weight_leaves_int16(seed: int, channels: int, per_channel: bool) -> None:
    weight = _random(seed, 3, channels, 2, 2)
    q = quantize_node_weight(_conv(weight), replace(PAIR, per_channel=per_channel))
    assert _worst(q.values) <= 2**15 - 1
    assert largest_pair_sum(q.values, 1) <= PAIR_SUM_LIMIT
    error = np.abs(q.dequantized().astype(np.float64) - weight)
    assert (error <= q.expanded_scale().astype(np.float64) * 0.500001).all(), "nothing is clipped"


@given(seed=st.integers(0, 10_000), channels=st.integers(2, 7))
def test_the_pair_scale_is_the_rule(seed: int, channels: int) -> None:
    """scale = max(max|w| / 127, max same-sign sum of a pair / 127.4), facts of the AVX2 kernels."""
    weight = _random(seed, 2, channels, 1, 3)
    q = quantize_node_weight(_conv(weight), PAIR)
    for channel in range(2):
        rows = weight[channel].reshape(channels, -1).astype(np.float64)
        wanted = np.abs(rows).max() / 127
        for k in range(0, channels - 1, 2):
            for a, b in zip(rows[k], rows[k + 1], strict=True):
                if a * b > 0:
                    wanted = max(wanted, abs(a + b) / 127.4)
        assert q.scale[channel] == pytest.approx(wanted, rel=1e-6)


def test_plain_8_bit_weights_do_leave_int16() -> None:
    q = quantize_node_weight(_conv(np.ones((1, 2, 1, 1), np.float32)), EIGHT)
    assert largest_pair_sum(q.values, 1) == 254
    assert _worst(q.values) > 2**15 - 1


def test_7_bit_weights_never_leave_int16() -> None:
    q = quantize_node_weight(_conv(np.ones((1, 2, 1, 1), np.float32)), SEVEN)
    assert _worst(q.values) == 255 * 126


def test_pair_aware_weights_are_finer_than_7_bit_and_opposite_signs_cost_nothing() -> None:
    weight = np.random.default_rng(3).standard_normal((16, 32, 3, 3)).astype(np.float32)
    errors = [
        float(np.square(quantize_node_weight(_conv(weight), scheme).dequantized() - weight).mean())
        for scheme in (EIGHT, PAIR, SEVEN)
    ]
    assert errors[0] < errors[1] < errors[2]
    apart = np.array([[1.0, -1.0]], np.float32).reshape(1, 2, 1, 1)
    np.testing.assert_array_equal(quantize_node_weight(_conv(apart), PAIR).values.ravel(), [127, -127])
    alone = np.array([[0.1, 0.1, 1.0]], np.float32).reshape(1, 3, 1, 1)  # the third has no neighbour
    assert quantize_node_weight(_conv(alone), PAIR).values.ravel()[2] == 127


def test_pairs_do_not_cross_groups() -> None:
    """Three input channels a group: channel 2 of a group and channel 0 of the next never meet."""
    weight = np.zeros((6, 2, 1, 1), np.float32)
    weight[2], weight[3] = 1.0, 1.0
    q = quantize_node_weight(_deconv(weight, group=2), PAIR)
    assert q.values.max() == 127
    assert largest_pair_sum(q.values, 0, groups=2) == 127
    weight[1] = 1.0
    q = quantize_node_weight(_deconv(weight, group=2), PAIR)
    assert q.values[2].max() == 127, "channels 1 and 2 are no pair"
    weight[0] = 1.0
    q = quantize_node_weight(_deconv(weight, group=2), PAIR)
    assert q.values[0].max() == 64


def test_pairs_need_the_node() -> None:
    with pytest.raises(InternalError, match="quantize_node_weight"):
        quantize_weight(np.ones((2, 2), np.float32), 0, PAIR)


def test_an_empty_weight_has_no_pairs() -> None:
    assert largest_pair_sum(np.zeros((0, 2), np.int8), 1) == 0


# Transposed convolutions


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_each_output_channel_of_a_transposed_convolution_has_its_scale(group: int, shared: bool) -> None:
    weight = _random(5, 6, 4, 2, 2)
    weight *= 10.0 ** np.arange(4, dtype=np.float32)[:, None, None]
    q = quantize_node_weight(_deconv(weight, group), replace(EIGHT, shared_groups=shared))
    rows = 6 // group
    wanted = np.array(
        [[np.abs(weight[g * rows : (g + 1) * rows, c]).max() / 127 for c in range(4)] for g in range(group)]
    )
    if shared:
        wanted = wanted.max(axis=0)
    assert q.axis == 1
    assert q.groups == (1 if shared else group)
    np.testing.assert_allclose(q.scale, wanted.reshape(-1), rtol=1e-6)
    error = np.abs(q.dequantized().astype(np.float64) - weight)
    assert (error <= q.expanded_scale().astype(np.float64) * 0.500001).all()
    assert q.expanded_scale().shape in ((6, 4, 1, 1), (1, 4, 1, 1))


def test_the_scales_of_a_grouped_transposed_convolution_are_in_output_order() -> None:
    """Integers by ConvTranspose, then one factor an output channel: equal to the dequantized weights."""
    weight = _random(6, 4, 3, 2, 2)
    q = quantize_node_weight(_deconv(weight, 2), EIGHT)
    x = np.random.default_rng(7).integers(0, 255, (1, 4, 5, 5)).astype(np.float32)

    def run(held: np.ndarray) -> np.ndarray:
        b = Build()
        b.y(b.op("ConvTranspose", b.x([1, 4, 5, 5]), b.w(held), group=2))
        found: np.ndarray = judge_session(model_to_bytes(b.model())).run(None, {"x": x})[0]
        return found

    scaled = run(q.values.astype(np.float32)) * q.scale.reshape(1, 6, 1, 1)
    np.testing.assert_allclose(scaled, run(q.dequantized()), rtol=1e-4, atol=1e-6 * np.abs(scaled).max())


# Ends of the number range


def test_tiny_weights_get_a_normal_scale() -> None:
    weight = np.array([[1e-40, -2e-40], [1e-38, 0.0], [0.0, 0.0]], np.float32)
    q = quantize_weight(weight, 0, EIGHT)
    assert (q.scale >= SMALLEST_SCALE).all()
    assert q.scale[2] == 1.0
    assert np.isfinite(q.dequantized()).all()


def test_a_smallest_scale_is_kept_and_only_costs_levels() -> None:
    weight = np.array([[1.0, -0.5], [1.0, -0.5]], np.float32)
    node = _node("Gemm", weight, [3, 2], transB=1)
    q = quantize_node_weight(node, EIGHT, smallest=np.array([0.0, 0.1]))
    np.testing.assert_allclose(q.scale, [1 / 127, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(q.values, [[127, -64], [10, -5]])
