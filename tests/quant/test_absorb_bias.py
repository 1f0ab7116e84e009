"""High biases are handed on: exactly through linear streams, above the shift through Relu."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.graph import Model, clone_model, model_to_bytes
from edgefuse.quant.absorb_bias import absorb_bias
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import EIGHT, decibels, outputs_of, plan_of, quantized_of
from tests.quant.test_equalize import EVERY, same, samples_of


def high(relu: bool, seed: int = 0, bias: float = 20.0, pads: int = 0, second: str = "Conv") -> Model:
    b = Build(seed=seed)
    a = b.op("Conv", b.x([1, 4, 6, 6]), b.rand(8, 4, 1, 1), b.w(bias + b.rng.standard_normal(8)), name="c0")
    a = b.op("Relu", a) if relu else a
    if second == "ConvTranspose":
        return b.y(b.op("ConvTranspose", a, b.rand(8, 3, 3, 3), name="c1")).model()
    return b.y(conv(b, a, 8, 3, k=3, pads=[pads] * 4, name="c1", bias=bool(seed % 2))).model()


@pytest.mark.parametrize("relu", [False, True])
def test_a_high_bias_is_handed_on_and_precision_is_won(relu: bool) -> None:
    model = high(relu)
    samples = samples_of(model, 8)
    after = clone_model(model)
    assert len(absorb_bias(after, samples, EVERY)) == 1
    same(model, after, 1e-6, scale=0.4 if relu else 2.0)
    before_db, after_db = (
        decibels(m, plan_of(m), quantized_of(m, plan_of(m), samples, EIGHT), samples) for m in (model, after)
    )
    assert after_db > before_db + 6


def test_through_relu_only_what_lies_below_the_shift_changes() -> None:
    model = high(True, bias=5.0)
    after = clone_model(model)
    assert absorb_bias(after, samples_of(model, 8), EVERY)
    same(model, after, 1e-6, scale=0.4)
    wild = [{"x": np.full((1, 4, 6, 6), 50.0, np.float32)}]
    one, two = outputs_of(model, wild)[0][0], outputs_of(after, wild)[0][0]
    assert np.abs(one - two).max() > 1e-3, "some channels fall below zero here, where the shift is cut off"
    untouched = clone_model(model)
    assert absorb_bias(untouched, samples_of(model, 8), EVERY, relu=False) == []


def test_a_residual_stream_hands_on_the_mean_of_each_writer() -> None:
    b = Build(seed=1)
    x = b.x([1, 4, 5, 5])
    a = b.op("Conv", x, b.rand(4, 4, 1, 1), b.w([9, -9, 30, 1]), name="c0")
    d = b.op("Conv", a, b.rand(4, 4, 1, 1), b.w([-3, 40, 5, 2]), name="c1")
    total = b.op("Add", d, a)
    model = b.y(b.op("Conv", total, b.rand(2, 4, 1, 1), name="c2")).model()
    after = clone_model(model)
    assert len(absorb_bias(after, samples_of(model), EVERY)) == 1
    same(model, after, 1e-6)
    names = [n for n in after.graph if n.op_type == "Add"]
    stream = [outputs_of(_fetch(m, total), samples_of(model))[0][-1] for m in (model, after)]
    assert len(names) == 1
    assert np.abs(stream[1].mean(axis=(0, 2, 3))).max() < 0.5 < np.abs(stream[0].mean(axis=(0, 2, 3))).max()


def _fetch(model: Model, name: str) -> Model:
    copy = clone_model(model)
    copy.graph.outputs.append(next(v for n in copy.graph for v in n.outputs if v.name == name))
    return copy


@pytest.mark.parametrize("second", ["padded", "ConvTranspose", "low bias", "float", "clip"])
def test_traps_are_left_alone(second: str) -> None:
    if second == "clip":
        b = Build()
        a = b.op("Conv", b.x([1, 4, 6, 6]), b.rand(4, 4, 1, 1), b.w([20] * 4), name="c0")
        model = b.y(conv(b, b.op("Clip", a, b.w(0.0), b.w(30.0)), 4, 2, k=1, name="c1")).model()
    else:
        model = high(
            True,
            bias=0.0 if second == "low bias" else 20.0,
            pads=1 if second == "padded" else 0,
            second="ConvTranspose" if second == "ConvTranspose" else "Conv",
        )
    before = model_to_bytes(model)
    named = frozenset({"c0"}) if second == "float" else EVERY
    assert absorb_bias(model, samples_of(model), named) == []
    assert model_to_bytes(model) == before


def test_a_shared_bias_moves_for_its_own_layer_only() -> None:
    b = Build(seed=1)
    x, shared = b.x([1, 4, 5, 5]), b.w([9, -9, 30, 1])
    a = b.op("Conv", x, b.rand(4, 4, 1, 1), shared, name="c0")
    other = b.op("Conv", x, b.rand(4, 4, 1, 1), shared, name="other")
    model = b.y(b.op("Conv", a, b.rand(2, 4, 1, 1), name="c1"), other).model()
    after = clone_model(model)
    assert absorb_bias(after, samples_of(model), EVERY)
    same(model, after, 1e-6)


def test_gemm_behind_gemm_with_alpha_and_beta() -> None:
    b = Build(seed=2)
    a = b.op("Gemm", b.x([4, 6]), b.rand(6, 5), b.w([50.0]), name="c0", beta=0.5)
    model = b.y(b.op("Gemm", a, b.rand(3, 5), b.rand(3), name="c1", transB=1, alpha=0.25, beta=3.0)).model()
    after = clone_model(model)
    assert absorb_bias(after, samples_of(model), EVERY)
    same(model, after, 1e-6)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 9999), relu=st.booleans(), bias=st.floats(-30, 30))
def test_the_float_meaning_is_kept_on_what_was_seen(seed: int, relu: bool, bias: float) -> None:
    model = high(relu, seed, bias)
    after = clone_model(model)
    absorb_bias(after, samples_of(model, 3), EVERY)
    clean, found = (outputs_of(m, samples_of(model, 3)) for m in (model, after))
    for one, two in zip(clean, found, strict=True):
        if not relu or bias > 8:
            np.testing.assert_allclose(two[0], one[0], rtol=1e-4, atol=1e-4)
