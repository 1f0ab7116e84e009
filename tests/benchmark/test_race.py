from __future__ import annotations

from collections.abc import Callable

import pytest

from edgefuse.benchmark import race
from edgefuse.errors import UsageError


class Track:
    """Candidates on one fake clock; keeps the order in which they were called."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def candidate(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        count = 0

        def call() -> None:
            nonlocal count
            self.order.append(name)
            self.now += seconds(count)
            count += 1

        return call


def test_every_turn_is_one_untimed_and_two_timed_calls() -> None:
    track = Track()
    # The first call of a turn is slow: it must not be counted.
    calls = {name: track.candidate(name, lambda n: 100.0 if n % 3 == 0 else 1.0) for name in "ab"}
    result = race(calls, rounds=5, clock=track.clock, cpu_clock=track.clock)
    assert result.rounds == 5
    assert len(track.order) == 5 * 2 * 3
    for name in "ab":
        timing = result.timings[name]
        assert (timing.runs, timing.warmup_runs, timing.max_ms, timing.cpu_p50_ms) == (10, 5, 1000, 1000)
        assert timing.stopped_by == "runs"
    for turn in range(0, len(track.order), 3):
        assert len(set(track.order[turn : turn + 3])) == 1
    for start in range(0, len(track.order), 6):
        assert set(track.order[start : start + 6]) == {"a", "b"}


def test_the_order_is_random_and_seeded() -> None:
    def order(seed: int) -> list[str]:
        track = Track()
        calls = {name: track.candidate(name, lambda n: 1.0) for name in "abcd"}
        assert race(calls, rounds=12, seed=seed, clock=track.clock, cpu_clock=track.clock).seed == seed
        return track.order

    assert order(1) == order(1)
    assert order(1) != order(2)
    firsts = {order(3)[start] for start in range(0, 12 * 12, 12)}
    assert len(firsts) > 1


def test_ratios_and_their_thirds() -> None:
    track = Track()
    calls = {
        "new": track.candidate("new", lambda n: 1.0 if n < 9 else 3.0),
        "old": track.candidate("old", lambda n: 2.0),
    }
    result = race(calls, rounds=9, clock=track.clock, cpu_clock=track.clock)
    ratio = result.ratio("new", "old")
    assert ratio.thirds == (0.5, 1.5, 1.5)
    assert ratio.value == 1.5
    assert ratio.spread == 1.0
    assert result.ratio("old", "old").value == 1.0
    with pytest.raises(UsageError, match="'older' did not take part"):
        result.ratio("new", "older")


def test_fewer_rounds_than_thirds() -> None:
    track = Track()
    calls = {"a": track.candidate("a", lambda n: 1.0)}
    assert race(calls, rounds=1, clock=track.clock, cpu_clock=track.clock).ratio("a", "a").thirds == (1.0,)


def test_seconds_end_a_race_between_rounds() -> None:
    track = Track()
    calls = {name: track.candidate(name, lambda n: 1.0) for name in "ab"}
    result = race(calls, seconds=13, clock=track.clock, cpu_clock=track.clock)
    assert result.rounds == 3
    assert result.timings["a"].stopped_by == "seconds"
    assert race(calls, seconds=1e-9, clock=track.clock, cpu_clock=track.clock).rounds == 1
    both = race(calls, seconds=1e9, rounds=2, clock=track.clock, cpu_clock=track.clock)
    assert (both.rounds, both.timings["b"].stopped_by) == (2, "runs")
    assert race(calls, clock=track.clock, cpu_clock=track.clock).rounds == 2


def test_cpu_and_wall_are_kept_apart() -> None:
    track = Track()
    calls = {"a": track.candidate("a", lambda n: 1.0)}
    result = race(calls, rounds=3, clock=track.clock, cpu_clock=lambda: track.now * 2)
    assert result.timings["a"].p50_ms == 1000
    assert result.timings["a"].cpu_p50_ms == 2000
    still = race(calls, rounds=3, clock=track.clock, cpu_clock=lambda: 0.0)
    with pytest.raises(UsageError, match="saw no time pass"):
        still.ratio("a", "a")


@pytest.mark.parametrize("limits", [{"rounds": 0}, {"seconds": 0.0}, {"seconds": -1.0}])
def test_bad_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        race({"a": lambda: None}, **limits)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        race({})
