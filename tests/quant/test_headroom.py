"""Room above what calibration saw: where the tail goes on, not where it ends, and only where it gains."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgefuse.graph import Model, constant
from edgefuse.quant import Scheme, collect_ranges, quantize_plan
from edgefuse.quant.choose_ranges import choose_ranges
from edgefuse.quant.headroom import HORIZONS, Blocks, Extremes, choose_horizons, widened
from edgefuse.quant.smooth import smooth
from tests.passes.graphs import Build
from tests.quant.small_plans import EIGHT, SEVEN, SYMMETRIC, decibels, plan_of

pytestmark = pytest.mark.slow  # trials in float simulation: seconds in all

Samples = list[dict[str, np.ndarray]]


def outlier_net() -> Model:
    """Return two products; the input's channel 3 is a hundred times the others (a field failure)."""
    b = Build(seed=1)
    first = b.op("MatMul", b.x([1, 8, 32]), b.w(b.rng.standard_normal((32, 32)) * 0.2), name="c0")
    return b.y(
        b.op("MatMul", b.op("Relu", first), b.w(b.rng.standard_normal((32, 16)) * 0.2), name="c1")
    ).model()


def outliers(count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        x = rng.standard_normal((1, 8, 32)).astype(np.float32)
        x[..., 3] *= 100
        made.append({"x": x})
    return made


def test_the_largest_of_many_samples_is_foretold_from_a_few() -> None:
    rng = np.random.default_rng(0)
    blocks = rng.gumbel(10.0, 2.0, (200, 32))
    foretold = [widened(Extremes(np.zeros(32), row), 16.0).high for row in blocks]
    largest = 10.0 + 2.0 * (np.euler_gamma + math.log(16 * 32))
    assert np.mean(foretold) == pytest.approx(largest, rel=0.05)


def test_never_narrower_and_never_beyond_what_the_tensor_can_hold() -> None:
    seen = Extremes(np.array([-1.0, -1.0, -9.0]), np.array([2.0, 5.0, 3.0]))
    wide = widened(seen, 4.0)
    assert wide.low < -9.0
    assert wide.high > 5.0
    bounded = widened(seen, 64.0, (0.0, 6.0))
    assert (bounded.low, bounded.high) == (-9.0, 6.0)
    relu = widened(Extremes(np.zeros(12), np.arange(12.0)), 4.0, (0.0, math.inf))
    assert relu.low == 0.0
    steady = Extremes(np.full(12, -1.0), np.full(12, 1.0))
    assert widened(steady, 64.0) == steady.range()


def test_blocks_keep_each_samples_extremes_and_the_size() -> None:
    blocks = Blocks()
    for array in (np.array([[1.0, -2.0]]), np.zeros((0, 2)), np.array([[5.0, 4.0, 3.0, 2.0]])):
        blocks.update(array)
    found = blocks.extremes()
    assert found.low.tolist() == [-2.0, 2.0]
    assert found.high.tolist() == [1.0, 5.0]
    assert found.size == 3.0
    assert found.of(range(1, 2)).high.tolist() == [5.0]


def _extremes(low: np.ndarray, high: np.ndarray) -> dict[str, Extremes]:
    return {"x": Extremes(low, high, size=64.0)}


def test_only_a_tail_that_goes_on_is_promising() -> None:
    model, rng = outlier_net(), np.random.default_rng(2)
    tail = 250 + rng.gumbel(0, 60, 30)
    assert choose_horizons(model, ["c0", "c1"], _extremes(-tail, tail), EIGHT)["x"] in HORIZONS
    even = np.full(30, 250.0) + rng.uniform(-1, 0, 30)
    assert choose_horizons(model, ["c0", "c1"], _extremes(-even, even), EIGHT) == {}
    assert choose_horizons(model, ["c1"], _extremes(-tail, tail), EIGHT) == {}, "x is not read in int8"
    few = tail[:6]
    assert choose_horizons(model, ["c0", "c1"], _extremes(-few, few), EIGHT) == {}


@pytest.mark.parametrize(("scheme", "gain"), [(SEVEN, 3.0), (SYMMETRIC, 0.1)], ids=["7", "symmetric"])
def test_values_that_calibration_never_saw_are_not_clipped(scheme: Scheme, gain: float) -> None:
    names = ["c0", "c1"]
    samples = outliers(32, 7)
    model = outlier_net()
    assert smooth(model, samples, scheme, frozenset(names), insert=True)
    values = [
        v.name or ""
        for n in model.graph
        for v in n.inputs
        if v is not None and n.name in names and constant(v) is None
    ]
    held = outliers(64, 8)
    ranges, tried = choose_ranges(model, values, samples, scheme, names)
    assert [row.name for row in tried if row.kept] == ["headroom"]
    assert "with room" in " ".join(tried[-1].detail)
    plan = plan_of(model)
    plain = quantize_plan(model, plan, collect_ranges(model, values, samples), scheme)
    wide = quantize_plan(model, plan, ranges, scheme)
    assert decibels(model, plan, wide, held) > decibels(model, plan, plain, held) + gain
