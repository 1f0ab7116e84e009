"""Several candidates timed in turns, so that a change of the machine's speed hits all of them alike.

A turn is one untimed and two timed calls; each round gives every candidate one turn, in a seeded random
order. Ratios are of medians of process CPU time, and stand beside those of each third of the race: where the
thirds disagree, so does the ratio (a 2-core virtual machine moves by 3 to 10 % between halves).
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from edgefuse.benchmark.timing import Clock, Timing, percentile, summarize
from edgefuse.errors import UsageError

__all__ = ["Race", "Ratio", "race"]

TIMED_CALLS = 2


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of one candidate over another's, by process CPU median: the whole race, and its three thirds.

    Below 1 the candidate is faster. A third without rounds is left out.
    """

    value: float
    thirds: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Largest minus smallest of the thirds' ratios; 0 where there are none."""
        return max(self.thirds) - min(self.thirds) if self.thirds else 0.0


@dataclass(frozen=True, slots=True)
class Race:
    """What a race measured: the Timing of each candidate, and CPU seconds of every round's timed calls."""

    timings: dict[str, Timing]
    cpu_s: dict[str, list[list[float]]]
    rounds: int
    seed: int

    def ratio(self, candidate: str, baseline: str) -> Ratio:
        """Return the time of `candidate` over that of `baseline` (process CPU medians).

        Raises UsageError for a name that did not race, or a clock that saw no time pass.
        """
        for name in (candidate, baseline):
            if name not in self.cpu_s:
                raise UsageError(f"'{name}' did not take part in the race", expected=", ".join(self.cpu_s))
        bounds = [self.rounds * third // 3 for third in range(4)]
        thirds = [
            self._ratio_of(candidate, baseline, low, high) for low, high in pairwise(bounds) if high > low
        ]
        return Ratio(self._ratio_of(candidate, baseline, 0, self.rounds), tuple(thirds))

    def _ratio_of(self, candidate: str, baseline: str, low: int, high: int) -> float:
        ours, theirs = (
            percentile([value for turn in self.cpu_s[name][low:high] for value in turn], 50)
            for name in (candidate, baseline)
        )
        if theirs <= 0:
            raise UsageError(f"the CPU clock saw no time pass in '{baseline}': its call is too short to race")
        return ours / theirs


def race(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock = time.process_time,
) -> Race:
    """Return the race of `candidates`: `rounds` rounds, or as many as fit `seconds`.

    With neither, 10 seconds; with both, whichever limit comes first. At least one round is run, none is cut.
    seed: of the order of turns.  Raises UsageError for no candidates or a limit that is not positive.
    """
    if not candidates or (rounds is not None and rounds < 1) or (seconds is not None and seconds <= 0):
        raise UsageError(
            "a race needs candidates and positive limits",
            got=f"{len(candidates)} candidates, rounds {rounds}, seconds {seconds}",
        )
    if rounds is None and seconds is None:
        seconds = 10.0
    order = random.Random(seed)  # noqa: S311  (an order, not a secret)
    names = list(candidates)
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[list[float]]] = {name: [] for name in names}
    start = clock()
    done = 0
    while done == 0 or not _finished(done, clock() - start, rounds, seconds):
        for name in order.sample(names, len(names)):
            turn_wall, turn_cpu = _turn(candidates[name], clock, cpu_clock)
            wall[name].extend(turn_wall)
            cpu[name].append(turn_cpu)
        done += 1
    total_s = clock() - start
    stopped_by = "runs" if rounds is not None and done >= rounds else "seconds"
    timings = {
        name: summarize(
            wall[name],
            [value for turn in cpu[name] for value in turn],
            total_s=total_s,
            stopped_by=stopped_by,
            warmup_runs=done,
            warmup_s=0.0,
        )
        for name in names
    }
    return Race(timings, cpu, done, seed)


def _finished(done: int, elapsed: float, rounds: int | None, seconds: float | None) -> bool:
    return (rounds is not None and done >= rounds) or (seconds is not None and elapsed >= seconds)


def _turn(call: Callable[[], object], clock: Clock, cpu_clock: Clock) -> tuple[list[float], list[float]]:
    call()  # brings the candidate's code and weights back into the caches that its rivals used
    wall: list[float] = []
    cpu: list[float] = []
    for _ in range(TIMED_CALLS):
        cpu_before = cpu_clock()
        before = clock()
        call()
        wall.append(clock() - before)
        cpu.append(cpu_clock() - cpu_before)
    return wall, cpu
