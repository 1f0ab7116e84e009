"""A few channels far out are multiplied in float, beside the int8 product of the others."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.graph import Model, clone_model, dims
from edgefuse.quant.channel_statistics import ChannelStatistics
from edgefuse.quant.repair import repair_before
from edgefuse.quant.split_outliers import outlier_channels, outlier_products, split_outliers
from tests.passes.graphs import Build, ops
from tests.quant.small_plans import SEVEN, decibels, plan_of, quantized_of
from tests.quant.test_equalize import EVERY, same, samples_of

WIDTH = 64


def outlying(kind: str = "MatMul", factor: float = 40.0, trap: str = "") -> Model:
    """Return a graph in which one channel of 64 gets `factor` times as far, and its weights count as much."""
    b = Build(seed=3)
    x = b.x([6, WIDTH])
    spread = np.ones(WIDTH)
    spread[5] = factor
    if trap == "all":
        spread[:] = np.linspace(1.0, factor, WIDTH)
    value = b.op("Mul", b.op("Tanh", x), b.w(spread))
    weight = b.rng.standard_normal((WIDTH, 8))
    if kind == "Gemm":
        y = b.op("Gemm", value, b.w(weight.T), b.rand(8), name="c0", transB=1)
    elif trap == "alpha":
        y = b.op("Gemm", value, b.w(weight), b.rand(8), name="c0", alpha=0.5)
    elif trap == "right":
        y = b.op("MatMul", b.w(weight.T), b.op("Transpose", value, perm=[1, 0]), name="c0")
    elif trap == "two":
        first = b.op("MatMul", value, b.w(weight), name="c0")
        y = b.op("Add", first, b.op("MatMul", value, b.rand(WIDTH, 8), name="c1"))
    else:
        y = b.op("Add", b.op("MatMul", value, b.w(weight), name="c0"), b.rand(8), name="bias")
    return b.y(y).model()


@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
def test_the_outlier_leaves_the_int8_product(kind: str) -> None:
    model = outlying(kind)
    samples = samples_of(model, 6)
    after = clone_model(model)
    (line,) = split_outliers(after, samples, SEVEN, EVERY)
    assert "1 of 64 channels in float" in line
    same(model, after, 1e-6)
    assert ops(after)["Gather"] == 1
    names = {node.name: node for node in after.graph}
    assert names["c0"].op_type == kind
    (thin,) = outlier_products(after)
    assert names[thin].op_type == "MatMul"
    assert not outlier_products(model)
    assert all(dims(v) == dims(w) for v, w in zip(names[thin].outputs, names["c0"].outputs, strict=True))
    assert dims(names[thin].inputs[0]) == (6, 1)
    before_db = decibels(model, plan_of(model), quantized_of(model, plan_of(model), samples, SEVEN), samples)
    plan = plan_of(after, [("c0",)])
    after_db = decibels(after, plan, quantized_of(after, plan, samples, SEVEN), samples)
    assert after_db > before_db + 6


def test_the_bias_stays_behind_the_int8_product() -> None:
    after = outlying()
    split_outliers(after, samples_of(after, 4), SEVEN, EVERY)
    names = {node.name: node for node in after.graph}
    assert names["bias"].inputs[0] is names["c0"].outputs[0]


def test_products_of_one_tensor_read_one_mask() -> None:
    model = outlying(trap="two")
    after = clone_model(model)
    assert len(split_outliers(after, samples_of(model, 4), SEVEN, EVERY)) == 1
    assert ops(after)["Mul"] == ops(model)["Mul"] + 1
    same(model, after, 1e-6)


@pytest.mark.parametrize("trap", ["all", "alpha", "right"])
def test_what_has_no_few_outliers_or_another_axis_is_left_alone(trap: str) -> None:
    model = outlying(trap=trap)
    before = ops(model)
    assert split_outliers(model, samples_of(model, 4), SEVEN, EVERY) == []
    assert ops(model) == before


def test_rows_that_a_gather_picks_are_no_outliers() -> None:
    b = Build(seed=4)
    picked = b.op("Gather", b.x([6, 8]), b.w(np.array([1, 2]), dtype=np.int64), axis=0)
    assert outlier_products(b.y(b.op("MatMul", picked, b.rand(8, 4))).model()) == {}


def test_float_products_are_left_alone() -> None:
    model = outlying()
    assert split_outliers(model, samples_of(model, 4), SEVEN, frozenset()) == []


def test_a_repair_keeps_it_where_it_gains() -> None:
    model = outlying()
    after, log = repair_before(model, samples_of(model, 24), SEVEN, ["c0"])
    assert log.after_db > log.before_db + 3
    assert {"split_outliers", "smooth_by_mul"} & set(log.kept())
    same(model, after, 1e-6)


@pytest.mark.parametrize(
    ("largest", "channels"),
    [
        ([1.0] * 64, []),
        ([*[1.0] * 63, 1.9], []),
        ([*[1.0] * 63, 4.0], [63]),
        ([8.0, *[1.0] * 62, 9.0], [0, 63]),
        ([*[1.0] * 56, *[9.0] * 8], []),
        ([0.0] * 64, []),
    ],
)
def test_channels_leave_only_where_the_step_halves(largest: list[float], channels: list[int]) -> None:
    top = np.array(largest)
    held = ChannelStatistics(np.zeros(64), top, top / 2, top**2 / 3)
    assert outlier_channels(held, SEVEN).tolist() == channels
