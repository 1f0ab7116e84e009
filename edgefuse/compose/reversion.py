"""Regions that fail level 1 in int8 go back to float before the build settles on a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.compose.payloads import Built
from edgefuse.compose.planning import Int8Tables, int8_plan
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.regions import Planned, check_regions, planned
from edgefuse.errors import EdgefuseError
from edgefuse.units import format_ms
from edgefuse.verification import RegionLimits, RegionReport

__all__ = ["Reverted", "level_one", "revert_failing"]

# A plan without the regions that failed is made of other groups, of which one may fail in turn.
_ROUNDS = 3
# How many nodes a note names; the JSON report has all.
_NAMED = 6


@dataclass(frozen=True, slots=True)
class Reverted:
    """What was taken back to float.

    nodes: the user's names.  why: what level 1 found.  ms: predicted milliseconds that the plan lost with all
    that were taken back in the same round, and how many those were.
    """

    nodes: tuple[str, ...]
    why: str
    ms: float
    together: int

    def note(self) -> str:
        """Return the line for the report."""
        names = " + ".join(self.nodes[:_NAMED])
        if len(self.nodes) > _NAMED:
            names += f" and {len(self.nodes) - _NAMED} more"
        with_others = f", with {self.together - 1} others" if self.together > 1 else ""
        return (
            f"{names} is reverted to float: {self.why}; "
            f"costs about {format_ms(max(self.ms, 0.0))}{with_others} (estimate)"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "nodes": list(self.nodes),
            "why": self.why,
            "predicted_ms_lost": self.ms,
            "together": self.together,
        }


def revert_failing(
    prepared: Prepared,
    tables: Int8Tables,
    precision: str,
    threads: int,
    samples: Sequence[Mapping[str, np.ndarray]],
    here: bool,
    limits: RegionLimits | None = None,
) -> tuple[dict[str, str], list[Reverted]]:
    """Return node name -> why it must stay float, and what the user should know of it.

    Judged before bias correction and rounding together, which repair small losses and not these.
    """
    refused: dict[str, str] = {}
    reverted: list[Reverted] = []
    plan, quantized = int8_plan(prepared, tables, precision, threads, None)
    for _ in range(_ROUNDS):
        if not quantized:
            break
        work = Planned(
            prepared.model, plan, quantized, tables.scheme, prepared.target, prepared.backend, here
        )
        try:
            found = check_regions(work, samples, limits)
        except EdgefuseError:  # a region that cannot be run alone is judged with the rest, end to end
            break
        failing = [region for region in found.failing if region.precision == "int8"]
        if not failing:
            break
        nodes = {group.id: group.nodes for group in plan.groups}
        for region in failing:
            refused.update(dict.fromkeys(nodes[region.group], f"level 1: {region.why}"))
        before = plan.predicted_ms
        plan, quantized = int8_plan(prepared, tables, precision, threads, None, refused=refused)
        lost = plan.predicted_ms - before
        reverted += [Reverted(r.sources, r.why, lost, len(failing)) for r in failing]
    return refused, reverted


def level_one(
    prepared: Prepared, built: Built, here: bool, samples: Sequence[Mapping[str, np.ndarray]]
) -> tuple[RegionReport | None, str]:
    """Return level 1 of a payload, or None; and a note ("": none) on what fails or why it was not run."""
    try:
        found = check_regions(planned(prepared, built, here), samples)
    except EdgefuseError as error:
        return None, f"level 1 of the {built.id} payload was not run: {error.message}"
    if found.ok:
        return found, ""
    first = found.failing[0]
    return found, (
        f"level 1 of the {built.id} payload: {len(found.failing)} of {len(found.regions)} regions fail, "
        f"first {' + '.join(first.sources)}: {first.why}"
    )
