"""The exact integer reference against sums written out in Python's own integers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.graph import Model, model_to_bytes
from edgefuse.graph.reference import Reference, judge_session
from edgefuse.plans import Format, Plan
from edgefuse.quant import Scheme, simulated_graph
from edgefuse.quant.integer_products import carrier, output_factor, round_steps, wrap_int32
from edgefuse.quant.integer_reference import IntegerReference, to_integers
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedBias, QuantizedWeight
from tests.passes.graphs import Build
from tests.quant.small_plans import plan_of, quantized_of

AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
SEVEN = replace(AFFINE, weight_bits=7)
SYMMETRIC = Scheme(-127, 127, symmetric=True, weight_bits=8, per_channel=True)


def brute_conv(
    x: np.ndarray, w: np.ndarray, stride: int, pad: int, dilation: int, group: int, zero: int, pairs: bool
) -> np.ndarray:
    """Sum unsigned bytes less their zero point times weights, one by one: x [C, H, W], w [M, C/g, k, k].

    pairs: two neighbouring channels' products of the unsigned bytes are added in saturating int16 first, and
    the zero point's part is taken off afterwards; cells of the padding are skipped.
    """
    share, filters, kernel = w.shape[1], w.shape[0], w.shape[2]
    high, wide = ((n + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for n in x.shape[1:])
    out = np.zeros((filters, high, wide), np.int64)
    for m, row, column in itertools.product(range(filters), range(high), range(wide)):
        first = m // (filters // group) * share
        for i, j in itertools.product(range(kernel), range(kernel)):
            r, c = row * stride + i * dilation - pad, column * stride + j * dilation - pad
            if not (0 <= r < x.shape[1] and 0 <= c < x.shape[2]):
                continue
            products = [int(x[first + k, r, c]) * int(w[m, k, i, j]) for k in range(share)]
            if pairs:
                doubles = [sum(products[k : k + 2]) for k in range(0, share, 2)]
                products = [min(max(p, -32768), 32767) for p in doubles]
            out[m, row, column] += sum(products) - zero * int(w[m, :, i, j].astype(np.int64).sum())
    return out


def bytes_of(array: np.ndarray, p: QuantizedActivation) -> np.ndarray:
    q: np.ndarray = np.clip(np.rint(array / np.float32(p.scale)) + p.zero_point, p.low, p.high)
    return q.astype(np.int64)


def conv_case(
    seed: int, channels: int, filters: int, kernel: int, group: int, **attrs: Any
) -> tuple[Model, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal(filters).astype(np.float32)
    b = Build(seed=seed)
    x = b.x([1, channels, 5, 5])
    weight = rng.standard_normal((filters, channels // group, kernel, kernel))
    b.y(b.op("Conv", x, b.w(weight), b.w(bias), name="conv", group=group, **attrs))
    return b.model(), {"x": rng.uniform(-1, 3, (1, channels, 5, 5)).astype(np.float32)}, bias


SHAPES = [
    {"channels": 3, "filters": 4, "kernel": 3, "group": 1, "stride": 1, "pad": 1, "dilation": 1},
    {"channels": 4, "filters": 4, "kernel": 1, "group": 1, "stride": 1, "pad": 0, "dilation": 1},
    {"channels": 6, "filters": 4, "kernel": 3, "group": 2, "stride": 2, "pad": 1, "dilation": 1},
    {"channels": 4, "filters": 8, "kernel": 3, "group": 4, "stride": 1, "pad": 1, "dilation": 1},
    {"channels": 2, "filters": 2, "kernel": 2, "group": 1, "stride": 1, "pad": 2, "dilation": 2},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scheme", [AFFINE, SEVEN, SYMMETRIC])
@pytest.mark.parametrize("pairs", [False, True])
def test_a_convolution_is_the_sum_of_its_integers(shape: dict[str, int], scheme: Scheme, pairs: bool) -> None:
    stride, pad, dilation = shape["stride"], shape["pad"], shape["dilation"]
    sizes = {k: shape[k] for k in ("channels", "filters", "kernel", "group")}
    model, feeds, bias = conv_case(1, **sizes, strides=[stride] * 2, pads=[pad] * 4, dilations=[dilation] * 2)
    plan = plan_of(model)
    q = quantized_of(model, plan, [feeds], scheme)
    p, w = q.activations["x"], q.weights[("conv", 1)]
    run = IntegerReference(model, plan, q, scheme, pair_saturation=pairs).run_integers(feeds)
    integers = bytes_of(feeds["x"], p)
    np.testing.assert_array_equal(run.activations["x"], integers)
    saturates = pairs and w.values.shape[1] > 1
    unsigned = integers[0] - p.low
    wanted = brute_conv(
        unsigned, w.values, stride, pad, dilation, sizes["group"], p.zero_point - p.low, saturates
    )
    np.testing.assert_array_equal(run.sums["conv"][0], wanted)
    real = wanted * w.scale.astype(np.float64)[:, None, None] * np.float32(p.scale) + bias[:, None, None]
    (output,) = run.outputs.values()
    assert output.dtype == np.float32
    np.testing.assert_array_equal(output[0], real.astype(np.float32))


def test_pairs_saturate_both_ways_and_are_counted() -> None:
    """255 * 127 * 2 = 64770 becomes 32767, its opposite -32768; three channels leave the last one alone."""
    b = Build()
    x = b.x([1, 3, 1, 1])
    weight = np.array([[127, 127, 127], [-127, -127, -127], [127, -127, 127]], np.float32)
    b.y(b.op("Conv", x, b.w(weight.reshape(3, 3, 1, 1)), name="conv"))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": np.full((1, 3, 1, 1), 255, np.float32)}
    q = quantized_of(model, plan, [feeds], AFFINE)
    run = IntegerReference(model, plan, q, AFFINE, pair_saturation=True).run_integers(feeds)
    assert run.sums["conv"].reshape(-1).tolist() == [32767 + 32385, -32768 - 32385, 32385]
    assert run.saturated == {"conv": 2}
    exact = IntegerReference(model, plan, q, AFFINE).run_integers(feeds)
    assert exact.sums["conv"].reshape(-1).tolist() == [97155, -97155, 32385]
    assert exact.saturated == {}
    said = replace(AFFINE, saturates_pairs=True)
    assert IntegerReference(model, plan, q, said).run_integers(feeds).saturated == {"conv": 2}
    assert not IntegerReference(model, plan, q, said, pair_saturation=False).run_integers(feeds).saturated


@given(seed=st.integers(0, 10_000))
def test_seven_bits_never_saturate(seed: int) -> None:
    model, feeds, _ = conv_case(seed, channels=4, filters=3, kernel=3, group=1)
    plan = plan_of(model)
    q = quantized_of(model, plan, [feeds], SEVEN)
    run = IntegerReference(model, plan, q, SEVEN, pair_saturation=True).run_integers(feeds)
    assert run.saturated == {}


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_alpha_beta_and_a_row_of_bias(pairs: bool, transposed: int) -> None:
    rng = np.random.default_rng(3)
    weight = rng.choice([-1.0, 1.0], (6, 4)) * rng.uniform(0.9, 1, (6, 4))
    bias = rng.standard_normal((1, 4)).astype(np.float32)
    b = Build()
    x = b.x([2, 6])
    held = b.w(weight.T if transposed else weight)
    b.y(b.op("Gemm", x, held, b.w(bias), name="fc", transB=transposed, alpha=0.5, beta=3.0))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": rng.uniform(2, 3, (2, 6)).astype(np.float32)}
    q = quantized_of(model, plan, [feeds], AFFINE)
    p, w = q.activations["x"], q.weights[("fc", 1)]
    run = IntegerReference(model, plan, q, AFFINE, pair_saturation=pairs).run_integers(feeds)
    integers = bytes_of(feeds["x"], p)
    rows = w.values.T if transposed else w.values
    columns = integers.T[:, :, None]
    wanted = brute_conv(columns, rows.T[:, :, None, None], 1, 0, 1, 1, p.zero_point, pairs)[:, :, 0].T
    np.testing.assert_array_equal(run.sums["fc"], wanted)
    assert bool(run.saturated) == pairs
    real = wanted * (w.scale.astype(np.float64).reshape(-1) * np.float32(p.scale) * 0.5) + 3.0 * bias
    np.testing.assert_allclose(next(iter(run.outputs.values())), real, rtol=1e-6)


def test_matmul_in_a_batch_and_of_two_activations() -> None:
    rng = np.random.default_rng(4)
    b = Build()
    x = b.x([2, 3, 5])
    y = b.x([2, 7, 3], name="y")
    left = b.op("MatMul", x, b.rand(5, 7), name="fixed")
    b.y(left, b.op("MatMul", left, y, name="both"))
    model = b.model()
    plan = plan_of(model, [("fixed",), ("both",)])
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (2, 3, 5)), ("y", (2, 7, 3)))}
    q = quantized_of(model, plan, [feeds], AFFINE)
    run = IntegerReference(model, plan, q, AFFINE).run_integers(feeds)
    first, middle, second = (q.activations[n] for n in ("x", left, "y"))
    one = bytes_of(feeds["x"], first) - first.zero_point
    np.testing.assert_array_equal(run.sums["fixed"], one @ q.weights[("fixed", 1)].values.astype(np.int64))
    inner = run.activations[left].astype(np.int64) - middle.zero_point
    outer = bytes_of(feeds["y"], second) - second.zero_point
    np.testing.assert_array_equal(run.sums["both"], inner @ outer)
    scale = float(np.float32(middle.scale)) * float(np.float32(second.scale))
    np.testing.assert_allclose(list(run.outputs.values())[1], (inner @ outer) * scale, rtol=1e-6)


@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose_scales_each_output_channel(group: int) -> None:
    rng = np.random.default_rng(5)
    b = Build()
    x = b.x([1, 4, 3, 3])
    weight = rng.standard_normal((4, 3, 2, 2)) * 10.0 ** rng.uniform(-2, 2, (1, 3, 1, 1))
    b.y(b.op("ConvTranspose", x, b.w(weight), name="up", group=group, strides=[2, 2]))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": rng.standard_normal((1, 4, 3, 3)).astype(np.float32)}
    q = quantized_of(model, plan, [feeds], AFFINE)
    p, w = q.activations["x"], q.weights[("up", 1)]
    got = next(iter(IntegerReference(model, plan, q, AFFINE, pair_saturation=True).run(feeds).values()))
    grid = (bytes_of(feeds["x"], p) - p.zero_point) * float(np.float32(p.scale))
    wanted = np.zeros((1, 3 * group, 6, 6))
    real = w.dequantized().astype(np.float64)
    for c, i, j in itertools.product(range(4), range(3), range(3)):
        first = c // (4 // group) * 3
        wanted[0, first : first + 3, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] += grid[0, c, i, j] * real[c]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


def test_weight_scales_may_differ_by_output_channel_but_not_inside_a_sum() -> None:
    b = Build()
    x = b.x([1, 4, 3, 3])
    b.y(b.op("ConvTranspose", x, b.rand(4, 3, 2, 2), name="up", group=2))
    node = next(iter(b.model().graph))
    scale = np.arange(1.0, 7.0).reshape(2, 1, 3, 1, 1)
    spread = np.broadcast_to(scale, (2, 2, 3, 1, 1)).reshape(4, 3, 1, 1)
    factor = output_factor(node, (4, 3, 2, 2), spread, 4)
    assert factor.reshape(-1).tolist() == [1, 2, 3, 4, 5, 6]
    assert float(output_factor(node, (4, 3, 2, 2), np.array([2.0]), 4)) == 2.0
    with pytest.raises(UnsupportedError, match="'up': weight scales differ"):
        output_factor(node, (4, 3, 2, 2), np.arange(4.0).reshape(4, 1, 1, 1), 4)


def test_ties_go_to_even_or_away_from_zero() -> None:
    steps = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.49999997, 8388609.0], np.float32)
    assert round_steps(steps, "half_even").tolist() == [0, 2, 2, 0, -2, -2, 0, 0, 8388609]
    assert round_steps(steps, "half_away").tolist() == [1, 2, 3, -1, -2, -3, 0, 0, 8388609]
    with pytest.raises(UnsupportedError, match="no rounding 'up'"):
        round_steps(steps, "up")


def test_integers_are_clamped_and_nan_is_zero() -> None:
    p = QuantizedActivation(0.5, 3, 0, 255, 0.0, 0.0)
    got = to_integers(np.array([-9, -1.5, 0, 0.25, 0.75, 1e9, np.inf, -np.inf, np.nan], np.float32), p)
    assert got.tolist() == [0, 0, 3, 3, 5, 255, 255, 0, 3]
    away = to_integers(np.array([0.25, -0.25], np.float32), p, "half_away")
    assert away.tolist() == [4, 2]


def test_the_carrier_is_exact_to_its_bound() -> None:
    assert carrier(2**24) is np.float32
    assert carrier(2**24 + 1) is np.float64
    with pytest.raises(UnsupportedError, match="too large"):
        carrier(2.0**54)


def test_sums_wrap_as_int32_does() -> None:
    """70,000 x 255 x 127 = 2.27e9 > 2^31: the accumulator turns over, and the run says so."""
    b = Build()
    x = b.x([1, 70_000])
    b.y(b.op("MatMul", x, b.w(np.ones((70_000, 1))), name="long"))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": np.full((1, 70_000), 2.0, np.float32)}
    q = quantized_of(model, plan, [feeds], AFFINE)
    run = IntegerReference(model, plan, q, AFFINE).run_integers(feeds)
    assert run.sums["long"].item() == 70_000 * 255 * 127 - 2**32
    assert run.wrapped == {"long": 1}
    same, count = wrap_int32(np.array([2.0**31 - 1, -(2.0**31)]))
    assert (same.tolist(), count) == ([2**31 - 1, -(2**31)], 0)


def test_an_integer_bias_is_rounded_to_the_step_of_the_sums_and_clamped() -> None:
    model, feeds, bias = conv_case(7, channels=2, filters=3, kernel=1, group=1)
    plan = plan_of(model)
    q = quantized_of(model, plan, [feeds], AFFINE)
    p, w = q.activations["x"], q.weights[("conv", 1)]
    step = w.scale.astype(np.float64) * np.float32(p.scale)
    run = IntegerReference(model, plan, q, replace(AFFINE, bias="int32")).run_integers(feeds)
    wanted = (run.sums["conv"][0] + np.rint(bias / step)[:, None, None]) * step[:, None, None]
    np.testing.assert_array_equal(next(iter(run.outputs.values()))[0], wanted.astype(np.float32))
    huge = replace(q, biases={"conv": np.full(3, 1e30, np.float32)})
    clamped = IntegerReference(model, plan, huge, replace(AFFINE, bias="int32")).run(feeds)
    assert np.isfinite(next(iter(clamped.values()))).all()
    free = IntegerReference(model, plan, q, AFFINE).run(feeds)
    assert not np.array_equal(next(iter(free.values())), next(iter(run.outputs.values())))


def test_a_bias_behind_a_matmul_is_an_integer_too() -> None:
    rng = np.random.default_rng(8)
    b = Build()
    x = b.x([2, 3])
    product = b.op("MatMul", x, b.rand(3, 4), name="fc")
    bias = rng.standard_normal(4).astype(np.float32)
    b.y(b.op("Add", product, b.w(bias), name="add"))
    model = b.model()
    plan = plan_of(model, [("fc", "add")])
    feeds = {"x": rng.standard_normal((2, 3)).astype(np.float32)}
    q = quantized_of(model, plan, [feeds], AFFINE)
    step = q.weights[("fc", 1)].scale.astype(np.float64).reshape(-1) * np.float32(q.activations["x"].scale)
    run = IntegerReference(model, plan, q, replace(AFFINE, bias="int32")).run_integers(feeds)
    wanted = (run.sums["fc"] + np.rint(bias / step)) * step
    np.testing.assert_allclose(next(iter(run.outputs.values())), wanted, rtol=1e-6)


def test_corrected_biases_take_the_place_of_the_models() -> None:
    model, feeds, bias = conv_case(9, channels=2, filters=3, kernel=1, group=1)
    plan = plan_of(model)
    q = quantized_of(model, plan, [feeds], AFFINE)
    moved = replace(q, biases={"conv": bias + np.float32(1)})
    before = next(iter(IntegerReference(model, plan, q, AFFINE).run(feeds).values()))
    after = next(iter(IntegerReference(model, plan, moved, AFFINE).run(feeds).values()))
    np.testing.assert_allclose(after - before, 1, atol=1e-6)


@pytest.mark.parametrize("operator", ["Relu", "HardSwish", "Sigmoid"])
def test_an_epilogue_runs_in_float_and_a_residual_is_read_on_its_grid(operator: str) -> None:
    rng = np.random.default_rng(10)
    b = Build(seed=10)
    x = b.x([1, 4, 3, 3])
    r = b.x([1, 4, 3, 3], name="r")
    c = b.op("Conv", x, b.rand(4, 4, 1, 1), b.rand(4), name="conv")
    b.y(b.op(operator, b.op("Add", c, r, name="add"), name="act"))
    model = b.model()
    plan = plan_of(model, [("conv", "add", "act")])
    feeds = {n: rng.standard_normal((1, 4, 3, 3)).astype(np.float32) for n in "xr"}
    q = quantized_of(model, plan, [feeds], AFFINE)
    run = IntegerReference(model, plan, q, AFFINE).run_integers(feeds)
    assert set(run.activations) == {"x", "r"}
    (got,) = run.outputs.values()
    wanted = judge_session(model_to_bytes(simulated_graph(model, plan, q))).run(None, feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    p = q.activations["r"]
    far = {**feeds, "r": np.full((1, 4, 3, 3), 1e6, np.float32)}
    clamped = {**feeds, "r": np.full((1, 4, 3, 3), (p.high - p.zero_point) * p.scale, np.float32)}
    ref = IntegerReference(model, plan, q, AFFINE)
    first, second = (next(iter(ref.run(f).values())) for f in (far, clamped))
    np.testing.assert_array_equal(first, second)


def _two_readers(scheme: Scheme) -> tuple[Model, Plan, Quantized, dict[str, np.ndarray]]:
    """conv0 -> middle; middle is read by conv1 (int8) and by a Relu (float)."""
    b = Build(seed=11)
    x = b.x([1, 2, 2, 2])
    middle = b.op("Conv", x, b.rand(2, 2, 1, 1), name="conv0")
    b.y(b.op("Conv", middle, b.rand(2, 2, 1, 1), name="conv1"), b.op("Relu", middle, name="relu"))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 2, 2, 2)).astype(np.float32)}
    return model, plan, quantized_of(model, plan, [feeds], scheme), feeds


def test_float_readers_keep_the_float_tensor_unless_it_is_stored_in_int8() -> None:
    model, plan, q, feeds = _two_readers(AFFINE)
    groups = tuple(
        msgspec.structs.replace(g, output=Format("int8")) if g.nodes == ("conv0",) else g for g in plan.groups
    )
    stored_plan = Plan(model="", target="", requested="int8", groups=groups)
    free = list(IntegerReference(model, stored_plan, q, AFFINE).run(feeds).values())
    held = list(IntegerReference(model, stored_plan, q, AFFINE, stored_outputs=True).run(feeds).values())
    np.testing.assert_array_equal(free[0], held[0])
    (middle,) = [p for name, p in q.activations.items() if name != "x"]
    steps = held[1] / np.float32(middle.scale)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    assert not np.array_equal(free[1], held[1])
    whole = list(IntegerReference(model, plan, q, AFFINE, stored_outputs=True).run(feeds).values())
    np.testing.assert_array_equal(whole[1], free[1])


def test_names_dtypes_and_the_model_stay_and_a_float_plan_is_the_float_model() -> None:
    model, plan, q, feeds = _two_readers(SYMMETRIC)
    before = model_to_bytes(model)
    got = IntegerReference(model, plan, q, SYMMETRIC).run(feeds)
    assert list(got) == [v.name for v in model.graph.outputs]
    assert {a.dtype for a in got.values()} == {np.dtype(np.float32)}
    assert model_to_bytes(model) == before
    (relu,) = [v.name or "" for n in model.graph if n.name == "relu" for v in n.outputs]
    assert list(IntegerReference(model, plan, q, SYMMETRIC).run(feeds, fetch=[relu])) == [relu]
    plain = IntegerReference(model, plan_of(model, []), Quantized(), None).run(feeds)
    for name, array in Reference(model, precision="native").run(feeds).items():
        np.testing.assert_array_equal(plain[name], array)


def test_an_int8_product_without_a_range_is_our_bug_and_says_where() -> None:
    model, plan, q, _ = _two_readers(AFFINE)
    with pytest.raises(InternalError, match="'conv0' is planned in int8 and what it reads has no range"):
        IntegerReference(model, plan, replace(q, activations={}), AFFINE)


def test_sixteen_bit_activations_are_exact_too() -> None:
    rng = np.random.default_rng(12)
    b = Build(seed=12)
    x = b.x([1, 300])
    b.y(b.op("MatMul", x, b.rand(300, 3), name="fc"))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": rng.standard_normal((1, 300)).astype(np.float32)}
    wide = Scheme(-32767, 32767, symmetric=True, weight_bits=8, per_channel=True)
    q = quantized_of(model, plan, [feeds], wide)
    run = IntegerReference(model, plan, q, wide).run_integers(feeds)
    integers = bytes_of(feeds["x"], q.activations["x"])
    assert np.abs(integers).max() > 255
    np.testing.assert_array_equal(run.sums["fc"], integers @ q.weights[("fc", 1)].values.astype(np.int64))


def test_given_integer_biases_are_added_as_they_are() -> None:
    model, feeds, _ = conv_case(13, channels=2, filters=3, kernel=1, group=1)
    plan = plan_of(model)
    q = quantized_of(model, plan, [feeds], AFFINE)
    held = QuantizedBias(np.array([5, -7, 2**31 - 1]), np.ones(3))
    given = replace(q, integer_biases={"conv": held})
    run = IntegerReference(model, plan, given, replace(AFFINE, bias="int32")).run_integers(feeds)
    step = q.weights[("conv", 1)].scale.astype(np.float64) * np.float32(q.activations["x"].scale)
    total = run.sums["conv"][0] + held.values[:, None, None]
    total = (total + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(
        next(iter(run.outputs.values()))[0], (total * step[:, None, None]).astype(np.float32)
    )


@pytest.mark.parametrize(("rounding", "wanted"), [("half_even", 0.0), ("half_away", 1.0)])
def test_what_an_int8_kernel_stores_is_rounded_as_requantization_says(rounding: Any, wanted: float) -> None:
    """middle = 0.5 on a grid of 1: written by an int8 kernel that stores int8, read by the next one."""
    b = Build()
    x = b.x([1, 1, 1, 1])
    middle = b.op("Conv", x, b.w(np.ones((1, 1, 1, 1))), name="first")
    b.y(b.op("Conv", middle, b.w(np.ones((1, 1, 1, 1))), name="second"))
    model = b.model()
    p = QuantizedActivation(1.0, 0, -128, 127, -128.0, 127.0)
    half = replace(p, scale=0.5)
    w = QuantizedWeight(np.ones((1, 1, 1, 1), np.int8), np.ones(1, np.float32), 0, 8)
    q = Quantized({"x": half, middle: p}, {("first", 1): w, ("second", 1): w})
    groups = tuple(
        msgspec.structs.replace(g, output=Format("int8"), writes=(middle,)) if g.nodes == ("first",) else g
        for g in plan_of(model).groups
    )
    scheme = replace(AFFINE, requantization=rounding)
    plan = Plan(model="", target="", requested="int8", groups=groups)
    feeds = {"x": np.full((1, 1, 1, 1), 0.5, np.float32)}
    assert next(iter(IntegerReference(model, plan, q, scheme).run(feeds).values())).item() == wanted
