"""`verify --bisect`: the region at which an output is spoiled, by halving the plan in graph order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from edgefuse.errors import UsageError
from edgefuse.plans import Format, Group, Plan
from edgefuse.verification.fidelity import OutputError

__all__ = ["SPOILED_DB", "Bisection", "Step", "bisect_plan", "plan_prefix"]

# Noise at a tenth of the signal: below it, outputs that were judged good by their metric were rare.
SPOILED_DB = 20.0
# A region that takes less than this gathers error like its neighbours: no single one is to blame.
_GRADUAL_DB = 3.0


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement: the first `groups` groups as planned, the rest in float32.

    output: the output (or its channel group) with the least signal to noise ratio, `sqnr_db`.
    """

    groups: int
    output: str
    sqnr_db: float


@dataclass(frozen=True, slots=True)
class Bisection:
    """What the search found.

    group: the region that takes an output below `limit_db`; None where no output is below.
    before, after: without and with it.  steps: every measurement, in the order taken.
    suggestion: what to do, in one line.  own_db: of the region alone (level 1), or None.
    """

    limit_db: float
    group: Group | None
    before: Step
    after: Step
    steps: tuple[Step, ...]
    suggestion: str
    own_db: float | None = None

    def with_own(self, decibels: float) -> Bisection:
        """Return the finding with the signal to noise ratio of the region alone."""
        return replace(self, own_db=decibels)

    def lines(self) -> tuple[str, ...]:
        """Return the finding as lines to print."""
        taken = f"{len(self.steps)} measurements"
        if self.group is None:
            return (
                f"no output is below {self.limit_db:g} dB: the worst is {self.after.output} at "
                f"{_db(self.after.sqnr_db)} ({taken})",
                self.suggestion,
            )
        own = "" if self.own_db is None else f"; the region alone has {_db(self.own_db)}"
        return (
            f"region {self.group.id}: {_name(self.group)} ({'+'.join(self.group.operators)}), "
            f"{self.group.precision}",
            f"{self.after.output}: {_db(self.before.sqnr_db)} before it, {_db(self.after.sqnr_db)} with it "
            f"(limit {self.limit_db:g}, {taken}){own}",
            f"try: {self.suggestion}",
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; a figure that is not finite becomes None."""
        return {
            "limit_db": self.limit_db,
            "region": None if self.group is None else self.group.id,
            "sources": [] if self.group is None else list(self.group.sources),
            "precision": None if self.group is None else self.group.precision,
            "output": self.after.output,
            "before_db": _json(self.before.sqnr_db),
            "after_db": _json(self.after.sqnr_db),
            "own_db": None if self.own_db is None else _json(self.own_db),
            "steps": [
                {"groups": s.groups, "output": s.output, "sqnr_db": _json(s.sqnr_db)} for s in self.steps
            ],
            "suggestion": self.suggestion,
            "lines": list(self.lines()),
        }


def plan_prefix(plan: Plan, count: int) -> Plan:
    """Return `plan` with its first `count` groups as they are and all later ones in float32."""
    kept, rest = plan.groups[:count], plan.groups[count:]
    floats = tuple(
        msgspec.structs.replace(group, precision="fp32", output=Format("float32")) for group in rest
    )
    return msgspec.structs.replace(plan, groups=(*kept, *floats))


def bisect_plan(
    plan: Plan,
    errors: Callable[[Plan], Sequence[OutputError]],
    limit_db: float = SPOILED_DB,
    progress: Callable[[int, int], None] | None = None,
) -> Bisection:
    """Return the region at which an output falls below `limit_db`.

    errors: measures a plan against the float model, one row an output (called about log2 of the number of
    groups times).  Groups are taken in the plan's order, which is topological. Where more groups do not
    always lose more, the region found is one that passes without and fails with it, not surely the first.
    Raises UsageError for a limit that is no number.
    """
    if not math.isfinite(limit_db):
        raise UsageError("the limit of --bisect is not valid", expected="decibels", got=repr(limit_db))
    # A group that is float32 in the plan changes nothing: only the others are searched.
    ends = [i + 1 for i, group in enumerate(plan.groups) if group.precision != "fp32"]
    most = 2 + max(1, len(ends)).bit_length()
    steps: list[Step] = []

    def measure(count: int) -> Step:
        steps.append(_worst(count, errors(plan_prefix(plan, count))))
        if progress is not None:
            progress(min(len(steps), most), most)
        return steps[-1]

    whole = measure(len(plan.groups))
    if not whole.sqnr_db < limit_db:
        return Bisection(limit_db, None, whole, whole, tuple(steps), "nothing is spoiled: see the metric")
    floats = measure(0)
    if floats.sqnr_db < limit_db or not ends:
        why = "the float32 plan is spoiled too: the fault is no precision's; compare the float payload"
        return Bisection(limit_db, None, floats, whole, tuple(steps), why)
    low, high = 0, len(ends)
    before, after = floats, whole
    while high - low > 1:
        middle = (low + high) // 2
        step = measure(ends[middle - 1])
        if step.sqnr_db < limit_db:
            high, after = middle, step
        else:
            low, before = middle, step
    found = Bisection(limit_db, plan.groups[ends[high - 1] - 1], before, after, tuple(steps), "")
    return replace(found, suggestion=_suggestion(found))


def _worst(count: int, rows: Sequence[OutputError]) -> Step:
    row = max(rows, key=lambda row: row.worst_group_relative_error, default=None)
    if row is None:
        return Step(count, "", math.inf)
    name = row.worst_group if row.groups > 1 else row.name
    return Step(count, f"output {name!r}", row.worst_group_sqnr_db)


def _suggestion(found: Bisection) -> str:
    assert found.group is not None
    name = _name(found.group)
    if found.after.sqnr_db == -math.inf:
        return f"{name} overflows in {found.group.precision}: keep it in float32"
    if found.before.sqnr_db - found.after.sqnr_db < _GRADUAL_DB:
        return (
            "no single region is to blame, error gathers over many: a smaller --max-drop keeps more of them "
            "in float, more calibration data makes ranges and bias correction better"
        )
    if found.group.precision == "fp16":
        return f"{name} loses too much in float16: build with --precision fp32, or give data with --calib"
    return (
        f"keep {name} in float (a smaller --max-drop makes the build do so), or calibrate on data that "
        "reaches the range it sees here"
    )


def _name(group: Group) -> str:
    """Return the user's name of the group's first node, and how many more it holds."""
    more = f" and {len(group.sources) - 1} more" if len(group.sources) > 1 else ""
    return f"{group.sources[0]}{more}"


def _db(value: float) -> str:
    if value == math.inf:
        return "no error"
    return "lost" if value == -math.inf else f"{value:.1f} dB"


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
