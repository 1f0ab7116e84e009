from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.benchmark import measure, percentile
from edgefuse.errors import UsageError


class FakeTime:
    """A clock that moves only when a call says so, with CPU time beside it; no real clock."""

    def __init__(self, durations: Iterable[float], cpu_factor: float = 2.0) -> None:
        self.now = 100.0
        self.cpu = 7.0
        self.calls = 0
        self._durations = iter(durations)
        self._factor = cpu_factor

    def clock(self) -> float:
        return self.now

    def cpu_clock(self) -> float:
        return self.cpu

    def call(self) -> None:
        duration = next(self._durations)
        self.calls += 1
        self.now += duration
        self.cpu += duration * self._factor


def forever(duration: float) -> Iterable[float]:
    while True:
        yield duration


def test_a_thousand_runs_end_it() -> None:
    time = FakeTime(forever(0.001))
    timing = measure(time.call, clock=time.clock, cpu_clock=time.cpu_clock)
    assert (timing.runs, timing.stopped_by) == (1024, "runs")
    assert timing.warmup_runs == pytest.approx(500, abs=1)
    assert timing.warmup_s == pytest.approx(0.5, abs=2e-3)
    assert time.calls == timing.runs + timing.warmup_runs
    assert timing.wall_s == pytest.approx(1.024)
    for value in (timing.p50_ms, timing.p99_ms, timing.mean_ms, timing.min_ms, timing.max_ms):
        assert value == pytest.approx(1.0)
    assert timing.cpu_p50_ms == pytest.approx(2.0)
    assert timing.cpu_mean_ms == pytest.approx(2.0)


def test_ten_seconds_end_it() -> None:
    time = FakeTime(forever(0.25))
    timing = measure(time.call, clock=time.clock, cpu_clock=time.cpu_clock)
    assert (timing.runs, timing.stopped_by, timing.warmup_runs) == (40, "seconds", 2)
    assert timing.wall_s == pytest.approx(10)


def test_one_long_run_is_finished_and_counted() -> None:
    time = FakeTime(forever(60))
    timing = measure(time.call, seconds=1, clock=time.clock, cpu_clock=time.cpu_clock)
    assert (timing.runs, timing.warmup_runs, timing.stopped_by) == (1, 1, "seconds")
    assert timing.p50_ms == timing.p99_ms == 60000


def test_warm_up_is_left_out_and_may_be_one_call() -> None:
    time = FakeTime([9.0, *range(1, 11)])
    timing = measure(
        time.call, seconds=1e9, min_runs=10, warmup_seconds=0, clock=time.clock, cpu_clock=time.cpu_clock
    )
    assert timing.warmup_runs == 1
    assert timing.max_ms == 10000
    assert (timing.p50_ms, timing.p90_ms, timing.p99_ms, timing.min_ms) == (5000, 9000, 10000, 1000)
    assert timing.mean_ms == 5500
    assert timing.to_dict()["p90_ms"] == 9000


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"min_runs": 0}, {"warmup_seconds": -1}])
def test_bad_limits_are_refused(limits: dict[str, float]) -> None:
    time = FakeTime([])
    with pytest.raises(UsageError, match="limits"):
        measure(time.call, clock=time.clock, cpu_clock=time.cpu_clock, **limits)  # type: ignore[arg-type]
    assert time.calls == 0


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), percent=st.integers(1, 100))
def test_nearest_rank_by_its_definition(values: list[float], percent: int) -> None:
    got = percentile(values, percent)
    assert got in values
    at_or_below = sum(value <= got for value in values)
    assert 100 * at_or_below >= percent * len(values)
    for smaller in values:
        if smaller < got:
            assert 100 * sum(value <= smaller for value in values) < percent * len(values)


def test_known_percentiles() -> None:
    values = list(range(1, 1025))
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [512, 922, 1014, 1024]
    assert percentile(list(range(1, 101)), 7) == 7
    assert percentile([3], 1) == 3


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], 0), ([1], 101), ([1], math.nan)])
def test_percentiles_of_nothing_are_refused(values: list[float], percent: float) -> None:
    with pytest.raises(UsageError):
        percentile(values, percent)
