"""A node's own mean error, and a loss sweep that knows that bias correction will take it out."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.graph import Model, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant import simulated_graph
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quant.calibrate import collect_ranges
from edgefuse.quant.mean_errors import mean_errors
from edgefuse.quant.quantize import quantize_plan
from edgefuse.quant.sensitivity import measure_losses
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import SEVEN, decibels, outputs_of, plan_of

Samples = list[dict[str, np.ndarray]]


def _conv_net() -> Model:
    b = Build(seed=4)
    relu = b.op("Relu", conv(b, b.x([1, 4, 8, 8]), 4, 8, name="n0"))
    return b.y(conv(b, relu, 8, 4, name="n1")).model()


def _matmul_net() -> Model:
    b = Build(seed=4)
    first = b.op("Add", b.op("MatMul", b.x([1, 6, 16]), b.rand(16, 16), name="n0"), b.rand(16), name="bias")
    second = b.op("MatMul", b.op("Relu", first), b.rand(16, 16), name="n1")
    return b.y(b.op("Relu", second)).model()


def _samples(model: Model, count: int = 6) -> Samples:
    shape = [1, 4, 8, 8] if any(node.op_type == "Conv" for node in model.graph) else [1, 6, 16]
    rng = np.random.default_rng(1)
    return [{"x": rng.uniform(0.2, 1.0, shape).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("make", [_conv_net, _matmul_net])
def test_what_the_sweep_counts_is_what_is_left_after_correction(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    samples = _samples(model)
    names = [node.inputs[0].name or "" for node in model.graph if node.name in ("n0", "n1")]
    ranges = collect_ranges(model, names, samples)
    losses = measure_losses(model, ["n0", "n1"], ranges, SEVEN, samples)
    for name in ("n0", "n1"):
        plan = plan_of(model, [(name,)])
        plain = quantize_plan(model, plan, ranges, SEVEN)
        corrected = bias_correct(model, plan, plain, samples)
        measured = decibels(model, plan, corrected, samples)
        assert -10 * np.log10(losses[name]) == pytest.approx(measured, abs=0.05)
        assert measured > decibels(model, plan, plain, samples) + 0.1


def test_means_are_of_each_channel_and_of_the_node_alone() -> None:
    model = _conv_net()
    samples = _samples(model)
    names = [node.inputs[0].name or "" for node in model.graph if node.name in ("n0", "n1")]
    ranges = collect_ranges(model, names, samples)
    found = mean_errors(model, ["n0", "n1"], ranges, SEVEN, samples)
    assert found["n0"].shape == (8,)
    plan = plan_of(model, [("n1",)])
    rounded = outputs_of(simulated_graph(model, plan, quantize_plan(model, plan, ranges, SEVEN)), samples)
    clean = outputs_of(model, samples)
    wanted = np.mean([a[0] - b[0] for a, b in zip(clean, rounded, strict=True)], axis=(0, 1, 3, 4))
    np.testing.assert_allclose(found["n1"], wanted, atol=1e-6)


def test_a_node_that_can_hold_no_bias_is_left_out_and_the_model_stays() -> None:
    b = Build(seed=4)
    bias = b.op("ReduceMean", b.x([1, 4, 8, 8]), b.ints(0, 2, 3), keepdims=0)
    model = b.y(b.op("Conv", "x", b.rand(4, 4, 1, 1), bias, name="n0")).model()
    before = model_to_bytes(model)
    samples = _samples(model)
    ranges = collect_ranges(model, ["x"], samples)
    assert mean_errors(model, ["n0"], ranges, SEVEN, samples) == {}
    assert measure_losses(model, ["n0"], ranges, SEVEN, samples)["n0"] > 0
    assert model_to_bytes(model) == before
    judge_session(before)
