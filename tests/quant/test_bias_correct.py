"""Bias correction: mean errors vanish, layer by layer, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model, model_from_proto, model_to_bytes
from edgefuse.quant import simulated_graph
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quantized import Quantized
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import SEVEN, decibels, outputs_of, plan_of, quantized_of

Samples = list[dict[str, np.ndarray]]


def samples_of(shape: tuple[int, ...], count: int = 8, seed: int = 1, low: float = -1.0) -> Samples:
    rng = np.random.default_rng(seed)
    return [{"x": rng.uniform(low, 1.0, shape).astype(np.float32)} for _ in range(count)]


def _chain(depth: int = 3, bias: bool = True, **attrs: int) -> Model:
    b = Build(seed=2)
    value = b.x([1, 8, 6, 6])
    for i in range(depth):
        value = conv(b, value, 8, 8, bias=bias, name=f"conv{i}", **attrs)
        if i < depth - 1:
            value = b.op("Relu", value)
    return b.y(value).model()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_the_mean_error_of_each_output_channel_vanishes(bias: bool, group: int) -> None:
    b = Build(seed=2)
    value = b.x([1, 8, 6, 6])
    for i in range(3):
        value = conv(b, value, 8, 8, groups=group, bias=bias, name=f"conv{i}")
        value = b.op("Relu", value) if i < 2 else value
    model = b.y(value).model()
    samples, plan = samples_of((1, 8, 6, 6)), plan_of(model)
    plain = quantized_of(model, plan, samples)
    corrected = bias_correct(model, plan, plain, samples)
    assert set(corrected.biases) == {"conv0", "conv1", "conv2"}
    assert all(a.shape == (8,) and a.dtype == np.float32 for a in corrected.biases.values())
    assert corrected.weights is plain.weights
    assert corrected.activations is plain.activations

    def bias_error(quantized: Quantized) -> np.ndarray:
        noisy = outputs_of(simulated_graph(model, plan, quantized), samples)
        pairs = zip(outputs_of(model, samples), noisy, strict=True)
        found: np.ndarray = np.mean([(q[0] - f[0]).mean(axis=(0, 2, 3)) for f, q in pairs], axis=0)
        return found

    assert np.abs(bias_error(plain)).max() > 1e-4
    assert np.abs(bias_error(corrected)).max() < 2e-6
    assert decibels(model, plan, corrected, samples) > decibels(model, plan, plain, samples)


def test_a_correction_that_was_there_is_replaced_not_added_to() -> None:
    model, samples = _chain(1), samples_of((1, 8, 6, 6))
    plan = plan_of(model)
    plain = quantized_of(model, plan, samples)
    once = bias_correct(model, plan, plain, samples)
    twice = bias_correct(model, plan, once, samples)
    np.testing.assert_array_equal(once.biases["conv0"], twice.biases["conv0"])


def test_a_float_model_and_float_nodes_get_no_correction() -> None:
    model, samples = _chain(), samples_of((1, 8, 6, 6))
    only = plan_of(model, [("conv1",)])
    found = bias_correct(model, only, quantized_of(model, only, samples), samples)
    assert set(found.biases) == {"conv1"}
    nothing = plan_of(model, [])
    assert not bias_correct(model, nothing, quantized_of(model, nothing, samples), samples).biases


def test_matmul_and_gemm_take_corrections_where_their_bias_stands() -> None:
    b = Build(seed=5)
    x = b.x([4, 16])
    plain = b.op("MatMul", x, b.rand(16, 12), name="plain")
    added = b.op(
        "Add",
        b.w(np.linspace(-1, 1, 12).reshape(1, 12)),
        b.op("MatMul", plain, b.rand(12, 12), name="mm"),
        name="add",
    )
    gemm = b.op("Gemm", added, b.rand(10, 12), b.rand(1), name="gemm", transB=1, alpha=0.5, beta=2.0)
    model = b.y(b.op("Gemm", gemm, b.rand(10, 3), name="bare")).model()
    samples, plan = samples_of((4, 16)), plan_of(model)
    q = quantized_of(model, plan, samples)
    corrected = bias_correct(model, plan, q, samples)
    assert {k: v.size for k, v in corrected.biases.items()} == {"plain": 12, "add": 12, "gemm": 10, "bare": 3}
    noisy = outputs_of(simulated_graph(model, plan, corrected), samples)
    error = np.mean(
        [(q[0] - f[0]) for f, q in zip(outputs_of(model, samples), noisy, strict=True)], axis=(0, 1)
    )
    assert np.abs(error).max() < 3e-6


def test_simulation_with_biases_keeps_names_and_the_model(tmp_path: Path) -> None:
    b = Build(seed=5)
    x = b.x([4, 16])
    model = b.y(b.op("MatMul", x, b.rand(16, 12), name="mm", out="answer")).model()
    samples, plan = samples_of((4, 16)), plan_of(model)
    before = model_to_bytes(model)
    corrected = bias_correct(model, plan, quantized_of(model, plan, samples), samples)
    simulated = simulated_graph(model, plan, corrected)
    assert [v.name for v in simulated.graph.outputs] == ["answer"]
    assert model_to_bytes(model) == before
    onnx.checker.check_model(onnx.load_model_from_string(model_to_bytes(simulated)), full_check=True)
    moved = replace(corrected, biases={"mm": corrected.biases["mm"] + np.float32(1)})
    one, two = (outputs_of(simulated_graph(model, plan, q), samples[:1])[0][0] for q in (corrected, moved))
    np.testing.assert_allclose(two - one, 1.0, atol=1e-5)


def test_a_bias_that_is_computed_is_left_alone() -> None:
    b = Build(seed=5)
    x = b.x([1, 4, 4, 4])
    computed = b.op("ReduceMean", x, b.ints(0, 2, 3), keepdims=0)
    model = b.y(b.op("Conv", x, b.rand(4, 4, 1, 1), computed, name="conv")).model()
    samples, plan = samples_of((1, 4, 4, 4)), plan_of(model)
    q = quantized_of(model, plan, samples)
    assert not bias_correct(model, plan, q, samples).biases


def test_a_gemm_whose_addend_differs_by_row_is_left_alone() -> None:
    b = Build(seed=5)
    x = b.x([4, 16])
    model = b.y(b.op("Gemm", x, b.rand(16, 4), b.rand(4, 4), name="gemm")).model()
    samples, plan = samples_of((4, 16)), plan_of(model)
    assert not bias_correct(model, plan, quantized_of(model, plan, samples), samples).biases


def test_a_transposed_convolution_with_groups_gets_all_channels() -> None:
    b = Build(seed=6)
    x = b.x([1, 8, 5, 5])
    model = b.y(b.op("ConvTranspose", x, b.rand(8, 6, 3, 3), name="up", group=2, strides=[2, 2])).model()
    samples = samples_of((1, 8, 5, 5))
    plan = plan_of(model)
    q = quantized_of(model, plan, samples)
    corrected = bias_correct(model, plan, q, samples)
    assert corrected.biases["up"].shape == (12,)
    assert decibels(model, plan, corrected, samples) >= decibels(model, plan, q, samples)


def test_a_group_shares_its_inner_tensor_in_float_and_rounds_the_residual() -> None:
    b = Build(seed=7)
    x = b.x([1, 8, 6, 6])
    inner = conv(b, x, 8, 8, name="conv0")
    model = b.y(b.op("Add", inner, x, name="add")).model()
    samples, plan = samples_of((1, 8, 6, 6)), plan_of(model, [("conv0", "add")])
    q = quantized_of(model, plan, samples)
    seen: dict[str, np.ndarray] = {}

    class Watch:
        def weight(self, node, index, float_reads, reads, weight):  # type: ignore[no-untyped-def]
            return weight

        def shift(self, node, float_writes, writes):  # type: ignore[no-untyped-def]
            seen["conv"] = writes[0]

    from edgefuse.quant.walk import walk

    walk(model, plan, q, samples[:1], Watch())
    simulated = simulated_graph(model, plan, q)
    from edgefuse.graph.reference import judge_session

    conv_out = next(n for n in simulated.graph if n.name == "conv0").outputs[0]
    simulated.graph.outputs.append(conv_out)
    expected = judge_session(model_to_bytes(simulated)).run(None, samples[0])[1]
    np.testing.assert_array_equal(seen["conv"], expected)


def test_a_model_with_a_branch_is_refused() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["t"])], "b", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", 1, None)]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other, name="choice")],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
    )
    model = model_from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    )
    plan = plan_of(model, [])
    feeds: Mapping[str, np.ndarray] = {"c": np.array(True), "x": np.zeros((1, 2), np.float32)}
    with pytest.raises(UnsupportedError, match="choice"):
        bias_correct(model, plan, quantized_of(model, plan, [dict(feeds)]), [feeds])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 4), low=st.sampled_from([-1.0, 0.0]))
def test_on_random_chains_it_never_costs_on_its_own_samples_behind_one_layer(
    seed: int, depth: int, low: float
) -> None:
    b = Build(seed=seed)
    value = b.x([1, 4, 5, 5])
    for i in range(depth):
        value = b.op("Clip", value, b.w(0.0), b.w(1.0)) if i else value
        value = conv(b, value, 4, 4, name=f"c{i}", bias=bool(seed % 2))
    model = b.y(value).model()
    samples, plan = samples_of((1, 4, 5, 5), seed=seed, low=low), plan_of(model)
    q = quantized_of(model, plan, samples, SEVEN)
    corrected = bias_correct(model, plan, q, samples)
    if depth == 1:  # the mean is the constant with the least squared error
        assert decibels(model, plan, corrected, samples) >= decibels(model, plan, q, samples) - 1e-3
    clean, noisy = outputs_of(model, samples), outputs_of(simulated_graph(model, plan, corrected), samples)
    error = np.mean([(n[0] - c[0]).mean(axis=(0, 2, 3)) for c, n in zip(clean, noisy, strict=True)], axis=0)
    assert np.abs(error).max() < 1e-5
