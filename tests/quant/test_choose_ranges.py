"""The rule that makes ranges is the one under which samples that made no range lose least."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import InputError
from edgefuse.graph import Model
from edgefuse.quant.calibrate import collect_ranges
from edgefuse.quant.choose_ranges import RULES, choose_ranges
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import EIGHT

Samples = list[dict[str, np.ndarray]]
VALUES = ["x", "r"]


def _net() -> Model:
    b = Build(seed=3)
    relu = b.op("Relu", conv(b, b.x([1, 4, 8, 8]), 4, 4, name="c0"), out="r")
    return b.y(conv(b, relu, 4, 4, name="c1")).model()


def _samples(count: int, outliers: float = 0.0) -> Samples:
    rng = np.random.default_rng(5)
    made = [{"x": rng.uniform(-1, 1, (1, 4, 8, 8)).astype(np.float32)} for _ in range(count)]
    for index in range(0, count, 5):
        made[index]["x"][0, 0, 0, 0] = outliers or 0.5
    return made


def test_rare_outliers_are_cut_off_where_that_gains() -> None:
    samples = _samples(30, outliers=40.0)
    ranges, tried = choose_ranges(_net(), VALUES, samples, EIGHT, ["c0", "c1"])
    plain = collect_ranges(_net(), VALUES, samples)
    kept = [row for row in tried if row.kept]
    assert len(kept) == 1
    assert kept[0].gain_db is not None
    assert kept[0].gain_db >= 0.1
    assert ranges["x"].high < plain["x"].high


def test_even_values_keep_their_extremes() -> None:
    samples = _samples(30)
    seen: list[int] = []
    ranges, tried = choose_ranges(_net(), VALUES, samples, EIGHT, ["c0", "c1"], seen.append)
    assert ranges["x"] == collect_ranges(_net(), VALUES, samples)["x"]
    assert [row.name for row in tried] == [*(f"ranges by {rule}" for rule in RULES[1:]), "headroom"]
    assert seen == list(range(1, 31)), "each sample is read once, those held out too"


@pytest.mark.parametrize(("count", "nodes"), [(5, ["c0", "c1"]), (30, [])])
def test_nothing_is_tried_where_nothing_can_be_judged(count: int, nodes: list[str]) -> None:
    samples = _samples(count, outliers=40.0)
    ranges, tried = choose_ranges(_net(), VALUES, samples, EIGHT, nodes)
    assert tried == ()
    assert ranges == collect_ranges(_net(), VALUES, samples)


def test_values_that_are_not_finite_are_refused() -> None:
    samples = _samples(30)
    samples[29]["x"][:] = np.inf
    with pytest.raises(InputError, match="not finite"):
        choose_ranges(_net(), VALUES, samples, EIGHT, ["c0", "c1"])
