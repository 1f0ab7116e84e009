"""Scales, zero points and integers, against their definitions."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.device import resolve_target
from edgefuse.errors import InputError, UnsupportedError
from edgefuse.graph import Model, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.plans import Format, Group, Plan, ScaleGroup
from edgefuse.quant import (
    Range,
    Scheme,
    collect_ranges,
    measure_losses,
    quantize_plan,
    scheme_of,
    simulated_graph,
)
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quant.quantize import activation_parameters, output_axis, quantize_weight, quantized_reads
from edgefuse.quant.scheme_file import FixedOutput
from edgefuse.quant.sharing import scale_groups
from tests.passes.graphs import Build

AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
SEVEN = Scheme(0, 255, symmetric=False, weight_bits=7, per_channel=True)
SYMMETRIC = Scheme(-127, 127, symmetric=True, weight_bits=8, per_channel=True)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.sampled_from([AFFINE, SYMMETRIC]))
def test_zero_is_exact_and_the_range_is_covered(a: float, b: float, scheme: Scheme) -> None:
    found = Range(min(a, b), max(a, b))
    p = activation_parameters(found, scheme)
    assert p.scale > 0
    assert p.low <= p.zero_point <= p.high
    wide = found.including_zero()
    low, high = ((q - p.zero_point) * p.scale for q in (p.low, p.high))
    slack = p.scale * 0.5000001 if not scheme.symmetric else 1e-6 * abs(wide.high - wide.low) + 1e-30
    assert low <= wide.low + slack
    assert high >= wide.high - slack
    if scheme.symmetric:
        assert p.zero_point == 0


def test_a_positive_range_has_zero_point_zero_and_all_levels() -> None:
    p = activation_parameters(Range(0.5, 2.55), AFFINE)
    assert p.zero_point == 0
    assert p.scale == pytest.approx(0.01)


def test_a_dead_tensor_gets_scale_one() -> None:
    assert activation_parameters(Range(0.0, 0.0), AFFINE).scale == 1.0


@pytest.mark.parametrize("scheme", [AFFINE, SEVEN])
@given(seed=st.integers(0, 10_000))
def test_weights_round_to_the_nearest_level_per_channel(scheme: Scheme, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal((5, 3, 2, 2)) * 10.0 ** rng.uniform(-6, 6, (5, 1, 1, 1))).astype(np.float32)
    q = quantize_weight(weight, 0, scheme)
    assert q.values.dtype == np.int8
    assert np.abs(q.values.astype(int)).max() <= scheme.weight_limit
    assert (np.abs(q.values.reshape(5, -1).astype(int)).max(axis=1) == scheme.weight_limit).all()
    error = np.abs(q.dequantized().astype(np.float64) - weight).reshape(5, -1).max(axis=1)
    assert (error <= q.scale.astype(np.float64) * 0.500001).all()


def test_a_channel_of_zeros_and_a_tensor_scale() -> None:
    weight = np.array([[1.0, -2.0], [0.0, 0.0]], np.float32)
    q = quantize_weight(weight, 0, AFFINE)
    assert q.scale[1] == 1.0
    assert not q.values[1].any()
    whole = quantize_weight(weight, None, AFFINE)
    assert whole.scale.shape == (1,)
    np.testing.assert_array_equal(whole.values, [[64, -127], [0, 0]])


def test_half_goes_to_even() -> None:
    weight = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)
    np.testing.assert_array_equal(quantize_weight(weight, 0, AFFINE).values, [[127, 0, 2, 2, 0, -2]])


def test_the_output_axis_of_each_operator() -> None:
    b = Build()
    x = b.x([2, 4, 5, 5])
    b.op("Conv", x, b.rand(3, 4, 1, 1), name="conv")
    b.op("ConvTranspose", x, b.rand(4, 3, 1, 1), name="deconv")
    flat = b.op("Flatten", x)
    b.op("Gemm", flat, b.rand(100, 7), name="gemm")
    b.op("Gemm", flat, b.rand(7, 100), name="gemm_t", transB=1)
    b.y(b.op("MatMul", flat, b.rand(100, 7), name="matmul"))
    axes = {n.name: output_axis(n) for n in b.model().graph if len(n.inputs) > 1}
    assert axes == {"conv": 0, "deconv": 1, "gemm": 1, "gemm_t": 0, "matmul": 1}


def test_schemes_come_from_the_device() -> None:
    assert scheme_of(resolve_target("x86-avx2")).name == "static_w8pc_a8"
    assert scheme_of(resolve_target("jetson-orin-nano")).symmetric
    assert scheme_of(resolve_target("x86-avx512-vnni")).weight_bits == 8
    with pytest.raises(UnsupportedError, match="jetson-nano has no int8"):
        scheme_of(resolve_target("jetson-nano"))


def _net() -> Model:
    b = Build(seed=3)
    x = b.x([1, 4, 6, 6])
    c = b.op("Relu", b.op("Conv", x, b.rand(8, 4, 3, 3), b.rand(8), name="conv0", pads=[1] * 4), name="relu0")
    d = b.op("Conv", c, b.rand(4, 8, 1, 1), b.rand(4), name="conv1")
    b.y(b.op("Add", d, x, name="add"))
    return b.model()


def _samples(count: int = 6, scale: float = 1.0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [{"x": (rng.standard_normal((1, 4, 6, 6)) * scale).astype(np.float32)} for _ in range(count)]


def test_ranges_are_the_extremes_over_all_samples_inputs_included() -> None:
    model, samples = _net(), _samples()
    relu = next(n for n in model.graph if n.name == "relu0").outputs[0].name or ""
    seen: list[int] = []
    ranges = collect_ranges(model, ["x", relu, "x"], samples, progress=seen.append)
    everything = np.stack([s["x"] for s in samples])
    assert ranges["x"] == Range(float(everything.min()), float(everything.max()))
    assert ranges[relu].low == 0.0
    assert seen == [1, 2, 3, 4, 5, 6]


def test_ranges_do_not_change_the_model() -> None:
    model = _net()
    before = model_to_bytes(model)
    collect_ranges(model, ["x"], _samples())
    assert model_to_bytes(model) == before


def test_no_samples_and_infinite_values_are_refused() -> None:
    with pytest.raises(InputError, match="no sample"):
        collect_ranges(_net(), ["x"], [])
    bad = _samples(1)
    bad[0]["x"][0, 0, 0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        collect_ranges(_net(), ["x"], bad)


def _plan(model: Model, int8: dict[str, tuple[str, ...]]) -> Plan:
    groups: list[Group] = []
    held = {name for nodes in int8.values() for name in nodes}
    rows = [*int8.values(), *((n.name or "",) for n in model.graph if n.name not in held)]
    for i, nodes in enumerate(rows):
        groups.append(
            Group(
                id=f"g{i}",
                nodes=nodes,
                sources=nodes,
                operators=(),
                writes=(),
                rule="",
                variant="plain",
                precision="int8" if nodes in int8.values() else "fp32",
                output=Format(),
                cost=(),
                loss=0.0,
                compute_nodes=len(nodes),
                reason="-",
            )
        )
    return Plan(model="", target="", requested="int8", groups=tuple(groups))


def test_only_what_the_plan_keeps_in_int8_is_quantized() -> None:
    model = _net()
    ranges = collect_ranges(model, [v.name or "" for n in model.graph for v in n.outputs] + ["x"], _samples())
    quantized = quantize_plan(model, _plan(model, {"a": ("conv0", "relu0")}), ranges, SEVEN)
    assert set(quantized.activations) == {"x"}
    assert set(quantized.weights) == {("conv0", 1)}
    both = quantize_plan(model, _plan(model, {"a": ("conv0", "relu0"), "b": ("conv1", "add")}), ranges, SEVEN)
    assert set(both.weights) == {("conv0", 1), ("conv1", 1)}
    assert len(both.activations) == 2, "the residual x and the input x share one range"
    assert not quantize_plan(model, _plan(model, {}), ranges, SEVEN)


def test_a_tensor_without_a_range_is_an_error() -> None:
    with pytest.raises(InputError, match="no calibration sample reached"):
        quantize_plan(_net(), _plan(_net(), {"a": ("conv0", "relu0")}), {}, SEVEN)


def test_the_simulation_computes_the_integers_exactly() -> None:
    """One convolution: float simulation against integer arithmetic done by hand in int64."""
    b = Build(seed=1)
    x = b.x([1, 3, 1, 1])
    weight = np.random.default_rng(2).standard_normal((2, 3, 1, 1)).astype(np.float32)
    b.y(b.op("Conv", x, b.w(weight), name="conv"))
    model = b.model()
    sample = {"x": np.array([0.3, -1.0, 2.0], np.float32).reshape(1, 3, 1, 1)}
    ranges = collect_ranges(model, ["x"], [sample])
    quantized = quantize_plan(model, _plan(model, {"a": ("conv",)}), ranges, AFFINE)
    got = judge_session(
        model_to_bytes(simulated_graph(model, _plan(model, {"a": ("conv",)}), quantized))
    ).run(None, sample)[0]
    p, w = quantized.activations["x"], quantized.weights[("conv", 1)]
    integers = np.clip(np.rint(sample["x"].reshape(3) / np.float32(p.scale)) + p.zero_point, 0, 255).astype(
        np.int64
    )
    sums = w.values.reshape(2, 3).astype(np.int64) @ (integers - p.zero_point)
    np.testing.assert_allclose(got.reshape(2), sums * w.scale.astype(np.float64) * p.scale, rtol=1e-5)


def test_losses_rank_the_node_that_hurts_first() -> None:
    b = Build(seed=4)
    x = b.x([1, 4, 6, 6])
    hurt = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    hurt[0, 0] = 300.0  # one outlier takes all levels of a channel
    c = b.op("Conv", x, b.w(hurt), name="bad")
    b.y(b.op("Conv", c, b.rand(4, 4, 1, 1), name="good"))
    model = b.model()
    ranges = collect_ranges(model, ["x", next(iter(model.graph)).outputs[0].name or ""], _samples())
    before = model_to_bytes(model)
    losses = measure_losses(model, ["bad", "good"], ranges, SEVEN, _samples(3))
    assert set(losses) == {"bad", "good"}
    assert all(0 < v < 1 for v in losses.values())
    assert model_to_bytes(model) == before


def test_loss_of_a_node_is_the_error_of_the_model_with_that_node_alone_in_int8() -> None:
    """With its bias corrected, as a build does it later."""
    model, samples = _net(), _samples(4)
    relu = next(n for n in model.graph if n.name == "relu0").outputs[0].name or ""
    ranges = collect_ranges(model, ["x", relu], samples)
    losses = measure_losses(model, ["conv0", "conv1"], ranges, SEVEN, samples)
    plain = judge_session(model_to_bytes(model))
    for name in ("conv0", "conv1"):
        plan = _plan(model, {"a": (name,)})
        quantized = bias_correct(model, plan, quantize_plan(model, plan, ranges, SEVEN), samples)
        rounded = judge_session(model_to_bytes(simulated_graph(model, plan, quantized)))
        pairs = [(plain.run(None, s)[0], rounded.run(None, s)[0]) for s in samples]
        error = sum(float(np.square(r - p).sum()) for p, r in pairs)
        power = sum(float(np.square(p).sum()) for p, _ in pairs)
        assert losses[name] == pytest.approx(error / power, rel=1e-3)


def test_no_samples_give_no_losses() -> None:
    assert measure_losses(_net(), ["conv0"], {"x": Range(0, 1)}, SEVEN, []) == {}
    assert measure_losses(_net(), ["conv0"], {}, SEVEN, _samples(1)) == {}


# What shares a scale, and what has one of its own

SAME = replace(AFFINE, same_scale=("Concat", "MaxPool"))
FIXED = replace(
    SAME,
    activation_low=-128,
    activation_high=127,
    fixed_outputs=(("Sigmoid", FixedOutput(1 / 256, -128)), ("Tanh", FixedOutput(1 / 128, 0))),
)


def _head() -> Model:
    """Boxes in pixels beside scores in 0..1, pooled and joined."""
    b = Build(seed=6)
    x = b.x([1, 2, 4, 4])
    scores = b.op("Sigmoid", x, name="sigmoid", out="scores")
    pooled = b.op("MaxPool", x, name="pool", out="pooled", kernel_shape=[1, 1])
    joined = b.op("Concat", pooled, scores, name="join", out="joined", axis=1)
    b.y(b.op("Conv", joined, b.rand(3, 4, 1, 1), name="conv"))
    return b.model()


HEAD_RANGES = {
    "x": Range(-1.0, 2.0),
    "pooled": Range(0.0, 640.0),
    "scores": Range(0.01, 0.9),
    "joined": Range(0.0, 640.0),
}


def test_tensors_of_a_same_scale_operator_share_the_union_of_their_ranges() -> None:
    model = _head()
    plan = _plan(model, {"p": ("pool",), "j": ("join",), "c": ("conv",)})
    assert scale_groups(model, plan, SAME) == [("x", "scores", "pooled", "joined")]
    q = quantize_plan(model, plan, HEAD_RANGES, SAME)
    grids = {name: (a.scale, a.zero_point) for name, a in q.activations.items()}
    assert len(set(grids.values())) == 1
    assert grids["x"][0] == pytest.approx(641 / 255)
    assert (q.activations["scores"].minimum, q.activations["scores"].maximum) == (0.01, 0.9)


def test_only_int8_groups_make_operators_share() -> None:
    model = _head()
    plan = _plan(model, {"c": ("conv",)})
    assert scale_groups(model, plan, SAME) == []
    assert scale_groups(model, _plan(model, {"j": ("join",)}), AFFINE) == [], "the scheme names no operator"


def test_what_the_plan_groups_shares_too() -> None:
    model = _head()
    plan = msgspec.structs.replace(
        _plan(model, {"s": ("sigmoid",), "c": ("conv",)}),
        scale_groups=(ScaleGroup(("x", "joined"), "same kernel"), ScaleGroup(("joined", "gone"), "-")),
    )
    q = quantize_plan(model, plan, HEAD_RANGES, AFFINE)
    assert q.activations["x"].scale == q.activations["joined"].scale == pytest.approx(641 / 255)


def test_a_fixed_output_keeps_its_own_scale_beside_a_concat() -> None:
    model = _head()
    plan = _plan(model, {"p": ("pool",), "j": ("join",), "c": ("conv",)})
    q = quantize_plan(model, plan, HEAD_RANGES, FIXED)
    scores = q.activations["scores"]
    assert (scores.scale, scores.zero_point) == (1 / 256, -128)
    assert q.activations["pooled"].scale == q.activations["joined"].scale == pytest.approx(641 / 255)


def test_an_int8_operator_without_a_weight_has_none() -> None:
    b = Build()
    b.y(b.op("Add", b.x([1, 4]), b.w([1.0, 2.0, 3.0, 4.0]), name="add"))
    assert quantized_reads([next(iter(b.model().graph))]) == (["x"], [])


def test_what_a_group_writes_in_int8_has_parameters_too() -> None:
    model = _head()
    plan = _plan(model, {"j": ("join",)})
    groups = tuple(
        msgspec.structs.replace(g, writes=("joined",), output=Format("int8")) if g.nodes == ("join",) else g
        for g in plan.groups
    )
    written = quantize_plan(model, msgspec.structs.replace(plan, groups=groups), HEAD_RANGES, AFFINE)
    assert set(written.activations) == {"pooled", "scores", "joined"}
    assert set(quantize_plan(model, plan, HEAD_RANGES, AFFINE).activations) == {"pooled", "scores"}


def test_the_probe_and_the_plan_make_the_same_integers() -> None:
    """A depthwise weight has 8 bits in both, or the measured loss is another's."""
    b = Build(seed=8)
    b.y(b.op("Conv", b.x([1, 4, 6, 6]), b.rand(4, 1, 3, 3), name="dw", group=4))
    model, samples = b.model(), _samples(3)
    exempt = replace(SEVEN, depthwise_saturates=False)
    ranges = collect_ranges(model, ["x"], samples)
    plain = judge_session(model_to_bytes(model))
    losses = {}
    for scheme in (SEVEN, exempt):
        plan = _plan(model, {"a": ("dw",)})
        quantized = bias_correct(model, plan, quantize_plan(model, plan, ranges, scheme), samples)
        rounded = judge_session(model_to_bytes(simulated_graph(model, plan, quantized)))
        pairs = [(plain.run(None, s)[0], rounded.run(None, s)[0]) for s in samples]
        error = sum(float(np.square(r - p).sum()) for p, r in pairs)
        losses[scheme] = measure_losses(model, ["dw"], ranges, scheme, samples)["dw"]
        assert losses[scheme] == pytest.approx(
            error / sum(float(np.square(p).sum()) for p, _ in pairs), rel=1e-3
        )
    assert losses[exempt] < losses[SEVEN]
