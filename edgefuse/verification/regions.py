"""Verification level 1: every region of a plan beside the float reference, on the reference's own inputs.

A region is a group of the plan. It is judged alone (see `cut`), so that a figure tells about this region and
not about those before it: float regions by max|difference| / max|reference|, int8 regions by the signal to
noise ratio of what they write, over all and for each channel group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.errors import InputError, InternalError
from edgefuse.graph import DataType
from edgefuse.plans import Group, Plan
from edgefuse.verification.cut import Cut
from edgefuse.verification.fidelity import OutputError, OutputErrors
from edgefuse.verification.metric import Array, Call

__all__ = ["Region", "RegionLimits", "RegionReport", "judge_regions", "measure_regions"]


@dataclass(frozen=True, slots=True)
class RegionLimits:
    """When a region fails.

    fp32: largest max|difference| / max|reference| of a float32 region.  fp16_db, int8_db: least signal to
    noise ratio of what a float16 or int8 region writes. float16 alone gives 60 dB and more; int8 alone 20 to
    45 dB where ranges fit (min-max and 7 bits, 400 regions of seven models), and 15 dB is noise at 0.18 of
    the signal.
    output_group_db: least ratio of a channel group of a graph output that an int8 region writes.
    """

    fp32: float = 1e-5
    fp16_db: float = 40.0
    int8_db: float = 15.0
    output_group_db: float = 3.0


@dataclass(frozen=True, slots=True)
class Region:
    """What was found about one group of the plan.

    group: its id.  sources: the user's names of its nodes.  errors: one row for each float tensor it writes.
    why: in one line, what is wrong; "" where the region passes.
    """

    group: str
    sources: tuple[str, ...]
    operators: tuple[str, ...]
    precision: str
    errors: tuple[OutputError, ...]
    why: str

    @property
    def ok(self) -> bool:
        """Return whether the region passes."""
        return not self.why

    @property
    def sqnr_db(self) -> float:
        """Return the least signal to noise ratio in dB of what the region writes; infinity for nothing."""
        return min((row.sqnr_db for row in self.errors), default=math.inf)

    @property
    def worst_group(self) -> OutputError | None:
        """Return the row that holds the worst channel group, or None where nothing float is written."""
        return max(self.errors, key=lambda row: row.worst_group_relative_error, default=None)

    @property
    def max_relative_error(self) -> float:
        """Return the largest max|difference| / max|reference| of what the region writes."""
        return max((row.max_relative_error for row in self.errors), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; a figure that is not finite becomes None."""
        worst = self.worst_group
        return {
            "group": self.group,
            "sources": list(self.sources),
            "operators": list(self.operators),
            "precision": self.precision,
            "ok": self.ok,
            "why": self.why,
            "sqnr_db": _json(self.sqnr_db),
            "max_relative_error": _json(self.max_relative_error),
            "worst_group": worst.worst_group if worst is not None else "",
            "worst_group_sqnr_db": _json(worst.worst_group_sqnr_db) if worst is not None else None,
        }


@dataclass(frozen=True, slots=True)
class RegionReport:
    """Level 1 of one payload: regions in plan order, how many samples, and by what the regions were run."""

    regions: tuple[Region, ...]
    samples: int
    by: str

    @property
    def failing(self) -> tuple[Region, ...]:
        """Return the regions that do not pass."""
        return tuple(region for region in self.regions if not region.ok)

    @property
    def ok(self) -> bool:
        """Return whether every region passes."""
        return not self.failing

    def worst(self, precision: str) -> Region | None:
        """Return the worst region of a precision, or None where the plan has none."""
        held = [region for region in self.regions if region.precision == precision and region.errors]
        if precision != "fp32":
            return min(held, key=lambda region: region.sqnr_db, default=None)
        return max(held, key=lambda region: region.max_relative_error, default=None)

    def lines(self) -> tuple[str, ...]:
        """Return the report as lines to print: one for each precision, one for each failing region."""
        lines = []
        for precision in ("fp32", "fp16", "int8"):
            worst = self.worst(precision)
            if worst is None:
                continue
            count = sum(region.precision == precision for region in self.regions)
            lines.append(f"{count} {precision} regions, worst {_name(worst)}: {_figures(worst)}")
        lines += [f"FAILED {region.group} {_name(region)}: {region.why}" for region in self.failing]
        return (*lines, f"each region on the reference's own inputs, {self.samples} samples, by {self.by}")

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "level": 1,
            "ok": self.ok,
            "samples": self.samples,
            "by": self.by,
            "regions": [region.as_json() for region in self.regions],
            "lines": list(self.lines()),
        }


def measure_regions(
    cut: Cut, boundary: Call, reference: Call, candidate: Call, samples: Iterable[Mapping[str, Array]]
) -> tuple[dict[str, OutputError], int]:
    """Return the error of each tensor that a region writes, by tensor name, and the number of samples.

    boundary: feeds of the whole model -> the tensors `cut.between`.  reference, candidate: the cut model in
    float64, and as it is to be judged; both give the outputs of `cut.model`.
    Both read the same numbers: a tensor between regions is rounded to float32 before, not in one of them.
    Raises InputError where there is no sample.
    """
    errors = OutputErrors()
    count = 0
    for feeds in samples:
        given = {**feeds, **(boundary(dict(feeds)) if cut.between else {})}
        wanted, got = reference(dict(given)), candidate(dict(given))
        missing = [name for name in cut.writes.values() if name not in got]
        if missing:
            raise InternalError(f"a region that was run alone gives no {missing[0]!r}")
        errors.update(
            {tensor: np.asarray(got[name]) for tensor, name in cut.writes.items()},
            {tensor: np.asarray(wanted[name]) for tensor, name in cut.writes.items()},
        )
        count += 1
    if not count:
        raise InputError("there is nothing to judge regions on", expected="at least one sample")
    return {row.name: row for row in errors.results()}, count


def judge_regions(
    plan: Plan,
    cut: Cut,
    errors: Mapping[str, OutputError],
    outputs: Sequence[str],
    *,
    samples: int,
    by: str,
    limits: RegionLimits | None = None,
) -> RegionReport:
    """Return the judgement on every group of `plan`.

    errors: as `measure_regions`.  outputs: names of the graph outputs, whose channel groups count by
    themselves.  by: what ran the regions, for the reader.
    A float32 region that writes float16 because the model says so is held to the limit of float16: the
    rounding is the model's own, and the float64 reference leaves it out.
    """
    held: dict[str, list[OutputError]] = {}
    for tensor, group in cut.writers.items():
        held.setdefault(group, []).append(errors[tensor])
    found = limits or RegionLimits()
    half = {n.name for n in cut.model.graph if any(value.dtype in _HALF for value in n.outputs)}
    regions = tuple(
        _region(group, held.get(group.id, ()), outputs, found, not half.isdisjoint(group.nodes))
        for group in plan.groups
    )
    return RegionReport(regions, samples, by)


# The user's own Q/DQ: a last bit of what they read may be a whole step of what they write.
_ROUNDS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_HALF = frozenset({DataType.FLOAT16, DataType.BFLOAT16})


def _region(
    group: Group, errors: Sequence[OutputError], outputs: Sequence[str], limits: RegionLimits, half: bool
) -> Region:
    precision = "fp16" if half and group.precision == "fp32" else group.precision
    precision = "int8" if _ROUNDS.intersection(group.operators) else precision
    why = next((text for row in errors if (text := _fault(precision, row, row.name in outputs, limits))), "")
    return Region(group.id, group.sources, group.operators, group.precision, tuple(errors), why)


def _fault(precision: str, row: OutputError, is_output: bool, limits: RegionLimits) -> str:
    """Return why what a region writes does not pass, or ""."""
    if row.note and row.note != "no values":
        return f"{row.name!r}: {row.note}"
    if precision == "fp32":
        if row.max_relative_error <= limits.fp32:
            return ""
        return (
            f"{row.name!r} is off by {row.max_relative_error:.2g} of its largest value "
            f"(allowed {limits.fp32:g})"
        )
    least = limits.int8_db if precision == "int8" else limits.fp16_db
    if row.sqnr_db < least:
        return f"{row.name!r} has {row.sqnr_db:.1f} dB in {precision} (at least {least:g})"
    if precision == "int8" and is_output and row.worst_group_sqnr_db < limits.output_group_db:
        return (
            f"{row.worst_group} has {row.worst_group_sqnr_db:.1f} dB in int8 "
            f"(at least {limits.output_group_db:g} for each channel of an output)"
        )
    return ""


def _name(region: Region) -> str:
    operators = "+".join(region.operators) or "?"
    return f"{region.sources[0] if region.sources else region.group} ({operators})"


def _figures(region: Region) -> str:
    if region.precision == "fp32":
        return f"largest error {region.max_relative_error:.2g} of the largest value"
    text = f"{region.sqnr_db:.1f} dB"
    worst = region.worst_group
    if worst is not None and worst.groups > 1:
        text += f", channel {worst.worst_group} {worst.worst_group_sqnr_db:.1f} dB"
    return text


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
