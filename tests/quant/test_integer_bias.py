"""Biases as integers: exact where they fit, and made to fit where weights are all but dead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.errors import InternalError
from edgefuse.graph import Model, Node, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant import Range, quantize_plan
from edgefuse.quant.integer_bias import integer_bias, smallest_scale, with_integer_biases
from edgefuse.quant.quantize import activation_parameters
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.weights import quantize_node_weight
from edgefuse.quantized import Quantized
from tests.passes.graphs import Build
from tests.quant.small_plans import plan_of

INT32 = Scheme(-128, 127, symmetric=False, weight_bits=8, per_channel=True, bias="int32")
INT64 = replace(INT32, activation_low=-32768, activation_high=32767, symmetric=True, bias="int64")
FLOAT = replace(INT32, bias="float")


def _quantized(model: Model, scheme: Scheme = INT32, high: float = 2.0) -> Quantized:
    names = [v.name or "" for v in model.graph.inputs]
    names += [v.name or "" for node in model.graph for v in node.outputs]
    return quantize_plan(model, plan_of(model), dict.fromkeys(names, Range(-1.0, high)), scheme)


def _conv(weight: Any, bias: Any, **attrs: Any) -> Model:
    b = Build()
    weight = np.asarray(weight, np.float32)
    x = b.x([1, weight.shape[1] * attrs.get("group", 1), 3, 3])
    b.y(b.op("Conv", x, b.w(weight), *([] if bias is None else [b.w(bias)]), name="n", **attrs))
    return b.model()


def _only(model: Model) -> Node:
    return next(iter(model.graph))


def test_a_bias_by_hand() -> None:
    q = _quantized(_conv([[[[1.27]]], [[[-2.54]]]], [1.0, -0.5]), high=1.55)
    bias = q.integer_biases["n"]
    np.testing.assert_allclose(bias.scale, [0.01 * 0.01, 0.01 * 0.02], rtol=1e-6)
    np.testing.assert_array_equal(bias.values, [10000, -2500])
    assert bias.values.dtype == np.int32
    np.testing.assert_allclose(bias.dequantized(), [1.0, -0.5], rtol=1e-6)


def test_float_biases_stay_out() -> None:
    model = _conv(np.ones((2, 3, 1, 1)), [1.0, 2.0])
    q = _quantized(model, FLOAT)
    assert not q.integer_biases
    assert with_integer_biases(model, q, FLOAT) is q


def test_a_node_without_a_bias_has_zeros() -> None:
    np.testing.assert_array_equal(
        _quantized(_conv(np.ones((2, 3, 1, 1)), None)).integer_biases["n"].values, [0, 0]
    )


def test_a_corrected_bias_takes_the_place_of_the_nodes_own() -> None:
    model = _conv(np.ones((2, 3, 1, 1)), [1.0, 2.0])
    q = replace(_quantized(model), biases={"n": np.array([3.0, -4.0], np.float32)})
    again = with_integer_biases(model, q, INT32).integer_biases["n"]
    np.testing.assert_allclose(again.dequantized(), [3.0, -4.0], rtol=1e-5)


def test_a_dead_channel_does_not_saturate_its_bias() -> None:
    """The bias of 5.0 would need 5e11 steps of 1e-11: silently 2^31 elsewhere."""
    weight = np.ones((3, 4, 1, 1), np.float32)
    weight[1], weight[2] = 1e-7 * 127, 0.0
    q = _quantized(_conv(weight, [0.1, 5e5, 1e12]))
    bias = q.integer_biases["n"]
    np.testing.assert_allclose(bias.dequantized(), [0.1, 5e5, 1e12], rtol=1e-3)
    assert (np.abs(bias.values.astype(np.int64)) <= 2**30 + 1).all()
    held = q.weights[("n", 1)]
    assert held.scale[0] == pytest.approx(1 / 127), "a live channel keeps its scale"
    assert not held.values[2].any()


@given(
    seed=st.integers(0, 10_000),
    large=st.floats(-20, 20),
    small=st.floats(-30, 3),
    high=st.floats(1e-6, 1e6),
    granularity=st.sampled_from([INT32, replace(INT32, per_channel=False), INT64]),
)
def test_every_bias_fits_and_is_itself(
    seed: int, large: float, small: float, high: float, granularity: Scheme
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((3, 2, 1, 1)) * 10.0**small
    bias = (rng.standard_normal(3) * 10.0**large).astype(np.float32)
    q = _quantized(_conv(weight, bias), granularity, high=high)
    found = q.integer_biases["n"]
    limit = 2**38 if granularity.bias == "int64" else 2**30
    assert np.abs(found.values.astype(np.float64)).max() <= limit * 1.001
    assert (np.abs(found.dequantized() - bias) <= np.abs(found.scale) * 0.5001).all()
    assert np.abs(q.weights[("n", 1)].values.astype(int)).max() <= 127
    product = np.float32(q.activations["x"].scale) * q.weights[("n", 1)].scale.astype(np.float32)
    assert (product >= np.finfo(np.float32).tiny * 0.99).all(), "the accumulator's scale is a normal float32"


def test_a_bias_that_cannot_fit_is_our_bug_not_a_wrong_number() -> None:
    model = _conv(np.full((1, 2, 1, 1), 1e-12), [5.0])
    node, read = _only(model), activation_parameters(Range(0, 1), INT32)
    with pytest.raises(InternalError, match="'n' does not fit in int32"):
        integer_bias(node, np.array([5.0], np.float32), read, quantize_node_weight(node, INT32), INT32)
    fits = quantize_node_weight(node, INT32, smallest=smallest_scale(node, read, INT32))
    integer_bias(node, np.array([5.0], np.float32), read, fits, INT32)


def test_16_bit_activations_have_64_bit_biases() -> None:
    bias = _quantized(_conv(np.ones((1, 2, 1, 1)), [1e6]), INT64).integer_biases["n"]
    assert bias.values.dtype == np.int64
    assert bias.values[0] > 2**31


def test_a_computed_bias_stays_float() -> None:
    b = Build()
    x = b.x([1, 3, 2, 2])
    b.y(b.op("Conv", x, b.rand(2, 3, 1, 1), b.x([2], name="bias"), name="n"))
    assert not _quantized(b.model()).integer_biases


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions_have_one_bias_an_output_channel(group: int, shared: bool) -> None:
    b = Build(seed=2)
    bias = [1.0, -2.0, 3e9] * group
    b.y(b.op("ConvTranspose", b.x([1, 4, 2, 2]), b.rand(4, 3, 2, 2), b.w(bias), name="n", group=group))
    q = _quantized(b.model(), replace(INT32, shared_groups=shared))
    np.testing.assert_allclose(q.integer_biases["n"].dequantized(), bias, rtol=1e-3)
    assert q.integer_biases["n"].values.shape == (3 * group,)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0), (-3.0, 0.25), (2.0, 0.0)])
@pytest.mark.parametrize("shape", [None, (), (1,), (4,), (1, 4), (1, 1)])
def test_gemm_in_all_its_forms_in_integers(
    trans_a: int, trans_b: int, alpha: float, beta: float, shape: tuple[int, ...] | None
) -> None:
    """alpha * A' @ B' + beta * C by integer accumulators, against the float Gemm on the rounded numbers."""
    rng = np.random.default_rng(9)
    a, w = rng.uniform(-1, 2, (3, 5)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32)
    c = None if shape is None else rng.standard_normal(shape)

    def gemm(held: np.ndarray) -> Model:
        b = Build()
        more = [] if c is None else [b.w(c)]
        attrs: dict[str, Any] = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
        b.y(b.op("Gemm", b.x([5, 3] if trans_a else [3, 5]), b.w(held), *more, name="n", **attrs))
        return b.model()

    q = _quantized(gemm(w.T if trans_b else w))
    read, weight, bias = q.activations["x"], q.weights[("n", 1)], q.integer_biases["n"]
    assert weight.axis == (0 if trans_b else 1)
    integers = np.clip(np.rint(a / read.scale) + read.zero_point, read.low, read.high).astype(np.int64)
    values = (weight.values.T if trans_b else weight.values).astype(np.int64)
    got = ((integers - read.zero_point) @ values + bias.values) * bias.scale
    rounded = ((integers - read.zero_point) * read.scale).astype(np.float32)
    session = judge_session(model_to_bytes(gemm(weight.dequantized())))
    expected = session.run(None, {"x": rounded.T if trans_a else rounded})[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(3, 1), (3, 4)])
def test_a_gemm_bias_that_differs_between_rows_stays_float(shape: tuple[int, int]) -> None:
    b = Build()
    b.y(b.op("Gemm", b.x([3, 5]), b.rand(5, 4), b.rand(*shape), name="n"))
    q = _quantized(b.model())
    assert ("n", 1) in q.weights
    assert not q.integer_biases


def test_the_add_behind_a_matmul_holds_its_bias() -> None:
    b = Build()
    b.y(b.op("Add", b.op("MatMul", b.x([3, 5]), b.rand(5, 4), name="n"), b.w([1, 2, 3, 4]), name="add"))
    q = _quantized(b.model())
    assert set(q.integer_biases) == {"add"}
    np.testing.assert_allclose(q.integer_biases["add"].dequantized(), [1, 2, 3, 4], rtol=1e-4)
