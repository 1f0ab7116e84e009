"""How long one call takes: warm-up apart, every run kept, percentiles by nearest rank."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgefuse.errors import UsageError

__all__ = ["Timing", "measure", "percentile", "summarize"]

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured of one call. Times in milliseconds of wall clock unless a name says cpu.

    runs: timed runs;  p50_ms, p90_ms, p99_ms: nearest-rank percentiles;  mean_ms, min_ms, max_ms;
    cpu_p50_ms, cpu_mean_ms: CPU time of the whole process a run, all threads together;
    wall_s: length of the timed part;  stopped_by: "runs" or "seconds";
    warmup_runs, warmup_s: what was run before and left out.
    """

    runs: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    min_ms: float
    max_ms: float
    cpu_p50_ms: float
    cpu_mean_ms: float
    wall_s: float
    stopped_by: str
    warmup_runs: int
    warmup_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the smallest value with at least `percent` % of all at or below it.

    It is the value at rank ceil(percent / 100 * n), counted from 1, so it is always one of the values.
    percent: 0 < percent <= 100.  Raises UsageError for no values or another percent.

    >>> percentile([15, 20, 35, 40, 50], 30), percentile([15, 20, 35, 40, 50], 100)
    (20, 50)
    """
    if not values or not 0 < percent <= 100:
        raise UsageError(
            "percentile needs values and 0 < percent <= 100", got=f"{len(values)} values, {percent}"
        )
    # The product is rounded first: 0.07 * 100 is a hair over 7 in binary and would be one rank too many.
    rank = math.ceil(round(percent * len(values) / 100, 9))
    return sorted(values)[max(rank, 1) - 1]


def summarize(
    wall_s: Sequence[float],
    cpu_s: Sequence[float],
    *,
    total_s: float,
    stopped_by: str,
    warmup_runs: int,
    warmup_s: float,
) -> Timing:
    """Return the Timing of single runs; wall_s and cpu_s are seconds, one entry a run."""
    wall = [1e3 * value for value in wall_s]
    cpu = [1e3 * value for value in cpu_s]
    return Timing(
        runs=len(wall),
        p50_ms=percentile(wall, 50),
        p90_ms=percentile(wall, 90),
        p99_ms=percentile(wall, 99),
        mean_ms=math.fsum(wall) / len(wall),
        min_ms=min(wall),
        max_ms=max(wall),
        cpu_p50_ms=percentile(cpu, 50),
        cpu_mean_ms=math.fsum(cpu) / len(cpu),
        wall_s=total_s,
        stopped_by=stopped_by,
        warmup_runs=warmup_runs,
        warmup_s=warmup_s,
    )


def measure(
    call: Callable[[], object],
    *,
    seconds: float = 10.0,
    min_runs: int = 1024,
    warmup_seconds: float = 0.5,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock = time.process_time,
) -> Timing:
    """Return the Timing of `call`, over `min_runs` runs or `seconds` seconds, whichever comes first.

    The warm-up lasts `warmup_seconds` (at least one call) and is reported, not counted. At least one run is
    always timed; a run that has begun is finished.  clock, cpu_clock: seconds of wall clock and of the
    process's CPU time.  Raises UsageError for a limit that is not positive.
    """
    if seconds <= 0 or min_runs < 1 or warmup_seconds < 0:
        raise UsageError(
            "the limits of a measurement are not valid",
            expected="seconds > 0, min_runs >= 1, warmup_seconds >= 0",
            got=f"seconds {seconds}, min_runs {min_runs}, warmup_seconds {warmup_seconds}",
        )
    warm_start = clock()
    warmup_runs = 0
    while warmup_runs == 0 or clock() - warm_start < warmup_seconds:
        call()
        warmup_runs += 1
    wall: list[float] = []
    cpu: list[float] = []
    start = end = clock()
    warmup_s = start - warm_start
    while not wall or (len(wall) < min_runs and end - start < seconds):
        cpu_before = cpu_clock()
        before = clock()
        call()
        end = clock()
        cpu.append(cpu_clock() - cpu_before)
        wall.append(end - before)
    return summarize(
        wall,
        cpu,
        total_s=end - start,
        stopped_by="runs" if len(wall) >= min_runs else "seconds",
        warmup_runs=warmup_runs,
        warmup_s=warmup_s,
    )
