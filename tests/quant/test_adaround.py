"""Rounding together: never worse in its own measure, within the scheme's limits, better on data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.graph import Model, constant, static_shape
from edgefuse.quant import Scheme
from edgefuse.quant.adaround import adaround, round_together, second_moments
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quant.scheme import PAIR_SUM_LIMIT
from edgefuse.quant.weights import largest_pair_sum
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import EIGHT, SEVEN, decibels, plan_of, quantized_of

# 16-bit activations, so that weights are what hurts.
FINE = replace(SEVEN, activation_high=65535)
PAIRS = replace(EIGHT, activation_high=65535, pair_aware=True)


def _moments(rng: np.random.Generator, columns: int, groups: int = 1) -> np.ndarray:
    """Return moments of strongly correlated channels."""
    x = rng.standard_normal((groups, 400, columns)) + 3 * rng.standard_normal((groups, 400, 1))
    found: np.ndarray = x.transpose(0, 2, 1) @ x / 400
    return found


def _objective(q: np.ndarray, steps: np.ndarray, moments: np.ndarray) -> np.ndarray:
    error = q - steps
    found: np.ndarray = np.einsum("gro,goc,grc->gr", error, moments, error)
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 9999), groups=st.integers(1, 3), rows=st.integers(1, 5), columns=st.integers(1, 12),
    pairs=st.booleans(),
)  # fmt: skip
def test_no_row_gets_worse_and_every_integer_is_beside_its_weight(
    seed: int, groups: int, rows: int, columns: int, pairs: bool
) -> None:
    rng = np.random.default_rng(seed)
    steps = rng.uniform(-80, 80, (groups, rows, columns))
    if pairs:
        steps *= 0.75  # so that nearest rounding keeps every pair
    start = np.clip(np.rint(steps), -63, 63)
    moments = _moments(rng, columns, groups)
    q = round_together(steps, start, moments, 63, pairs=1 if pairs else None)
    assert (_objective(q, steps, moments) <= _objective(start, steps, moments) + 1e-9).all()
    assert np.abs(q).max() <= 63
    inside = np.abs(steps) <= 63
    assert (np.abs(q - steps)[inside] <= 1.0).all()
    assert (q == np.rint(q)).all()


def test_correlated_channels_are_rounded_against_each_other() -> None:
    steps = np.full((1, 1, 4), 0.4)
    moments = np.ones((1, 4, 4)) + 0.01 * np.eye(4)
    q = round_together(steps, np.rint(steps), moments, 63)
    assert q.sum() == 2, "1.6 in all: two of four round up"
    alone = round_together(steps, np.rint(steps), np.eye(4)[None], 63)
    assert alone.sum() == 0, "nothing to gain where nothing is correlated"


def test_pairs_never_grow_beyond_what_int16_holds() -> None:
    rng = np.random.default_rng(0)
    steps = np.full((1, 6, 8), 63.9) + rng.uniform(-0.4, 0.2, (1, 6, 8))
    start = np.clip(np.rint(steps), -127, 64)
    moments = _moments(rng, 8) * -0.5 + 40 * np.eye(8)
    q = round_together(steps, start, moments, 127, pairs=2)
    values = q.reshape(6, 4, 2)
    assert (np.abs(values[:, 0::2] + values[:, 1::2]) <= PAIR_SUM_LIMIT).all()


def _samples(shape: tuple[int, ...], count: int, seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        common = rng.standard_normal((shape[0], 1, *shape[2:]))
        made.append({"x": (0.4 * rng.standard_normal(shape) + common).astype(np.float32)})
    return made


def _net(seed: int = 1) -> Model:
    b = Build(seed=seed)
    value = conv(b, b.x([1, 16, 10, 10]), 16, 16, name="c0", strides=[2, 2])
    value = b.op("Relu", conv(b, value, 16, 16, groups=16, name="dw"))
    value = b.op("Relu", conv(b, value, 16, 16, groups=4, k=1, name="g4"))
    flat = b.op("Flatten", b.op("GlobalAveragePool", value))
    return b.y(b.op("Gemm", flat, b.rand(8, 16), name="fc", transB=1)).model()


@pytest.mark.parametrize("scheme", [FINE, PAIRS], ids=["7", "pair"])
def test_new_samples_gain_beyond_bias_correction(scheme: Scheme) -> None:
    model = _net()
    plan = plan_of(model)
    fit, held = _samples((1, 16, 10, 10), 24, 0), _samples((1, 16, 10, 10), 24, 1)
    q = quantized_of(model, plan, [*fit, *held], scheme)  # clipping is not the subject
    corrected = bias_correct(model, plan, q, fit)
    rounded = adaround(model, plan, q, fit, scheme)
    gain = decibels(model, plan, rounded, held) - decibels(model, plan, corrected, held)
    assert gain > 0.5
    assert set(rounded.weights) == set(q.weights)
    for key, weight in rounded.weights.items():
        assert weight.values.dtype == np.int8
        np.testing.assert_array_equal(weight.scale, q.weights[key].scale)
        assert np.abs(weight.values.astype(int) - q.weights[key].values).max() <= 1
    if scheme is PAIRS:
        assert largest_pair_sum(rounded.weights[("c0", 1)].values, 1) <= PAIR_SUM_LIMIT


def test_it_is_deterministic_and_leaves_its_arguments() -> None:
    model = _net()
    plan, fit = plan_of(model), _samples((1, 16, 10, 10), 4, 0)
    q = quantized_of(model, plan, fit)
    kept = q.weights[("c0", 1)].values.copy()
    one, two = adaround(model, plan, q, fit, SEVEN), adaround(model, plan, q, fit, SEVEN)
    for key in one.weights:
        np.testing.assert_array_equal(one.weights[key].values, two.weights[key].values)
    np.testing.assert_array_equal(q.weights[("c0", 1)].values, kept)


@pytest.mark.parametrize(
    "attrs",
    [
        {"pads": [1, 0, 2, 1]},
        {"strides": [2, 3]},
        {"dilations": [2, 1], "pads": [0] * 4},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID"},
        {"group": 2},
        {"group": 4},
    ],
)
def test_moments_are_those_of_the_patches_that_the_convolution_reads(attrs: dict[str, Any]) -> None:
    """sum over c of W_oc x_c has the variance W H W^T: compared with what the convolution really writes."""
    b = Build(seed=2)
    groups = int(attrs.get("group", 1))
    model = b.y(b.op("Conv", b.x([2, 4, 9, 8]), b.rand(4, 4 // groups, 3, 3), name="c", **attrs)).model()
    node = next(iter(model.graph))
    reads = [np.random.default_rng(i).standard_normal((2, 4, 9, 8)).astype(np.float32) for i in range(2)]
    found = second_moments(node, reads)
    assert found is not None
    from tests.quant.small_plans import outputs_of

    writes = np.concatenate([o[0] for o in outputs_of(model, [{"x": r} for r in reads])])
    weight = constant(node.inputs[1])
    assert weight is not None
    rows = weight.reshape(groups, 4 // groups, -1).astype(np.float64)
    undamped = found - np.eye(found.shape[1]) * _level(found)[:, None, None]
    variance = np.einsum("gro,goc,grc->gr", rows, undamped, rows).reshape(-1)
    np.testing.assert_allclose(variance, writes.transpose(1, 0, 2, 3).reshape(4, -1).var(axis=1), rtol=1e-4)


def _level(damped: np.ndarray) -> np.ndarray:
    """Return what was added to the diagonal: damping 1 doubles its mean."""
    found: np.ndarray = np.einsum("gii->g", damped) / damped.shape[1] / 2
    return found


@pytest.mark.parametrize("kind", ["ConvTranspose", "batched MatMul", "too wide"])
def test_layers_without_plain_patches_are_left_to_nearest(kind: str) -> None:
    b = Build(seed=2)
    if kind == "ConvTranspose":
        model = b.y(b.op("ConvTranspose", b.x([1, 4, 5, 5]), b.rand(4, 3, 2, 2), name="c")).model()
    elif kind == "too wide":
        model = b.y(b.op("MatMul", b.x([2, 2400]), b.rand(2400, 2), name="c")).model()
    else:
        model = b.y(b.op("MatMul", b.x([3, 2, 4]), b.rand(3, 4, 2), name="c")).model()
    shape = static_shape(model.graph.inputs[0])
    fit = [{"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}]
    plan = plan_of(model)
    q = quantized_of(model, plan, fit)
    rounded = adaround(model, plan, q, fit, SEVEN)
    np.testing.assert_array_equal(rounded.weights[("c", 1)].values, q.weights[("c", 1)].values)
