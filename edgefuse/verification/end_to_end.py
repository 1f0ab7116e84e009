"""Verification level 2: the whole artifact beside the float model, on evaluation data, within a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from edgefuse.datasets import Dataset
from edgefuse.errors import UsageError
from edgefuse.verification.compare import Comparison, Progress, compare
from edgefuse.verification.fidelity import OutputError
from edgefuse.verification.metric import Call, Metric

__all__ = ["VerificationReport", "judge", "verify_end_to_end"]

# 1 - 0.99 is 0.010000000000000009 in floating point, and means a drop of 0.01.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The judgement: ok, the comparison that it rests on, the budget, and lines to print."""

    ok: bool
    comparison: Comparison
    max_drop: float
    lines: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "level": 2,
            "ok": self.ok,
            "max_drop": self.max_drop,
            **self.comparison.as_json(),
            "lines": list(self.lines),
        }


def verify_end_to_end(
    candidate: Call,
    reference: Call,
    dataset: Dataset,
    metric: str | Metric,
    max_drop: float,
    progress: Progress | None = None,
) -> VerificationReport:
    """Return whether `candidate` stays within `max_drop` of `reference` on `dataset`; arguments as `compare`.

    max_drop: in absolute points of the metric (0.01 = one point of top1), >= 0.  Raises as `compare`.
    """
    _check_budget(max_drop)
    return judge(compare(candidate, reference, dataset, metric, progress), max_drop)


def judge(comparison: Comparison, max_drop: float) -> VerificationReport:
    """Return the judgement on a comparison that was already made. A drop that is no number does not pass."""
    _check_budget(max_drop)
    ok = comparison.drop <= max_drop + _ROUNDING
    lines = [
        f"{'ok' if ok else 'FAILED'}: {comparison.metric} {_figure(comparison.value)}"
        f" (float model {_figure(comparison.reference_value)}, {comparison.unit}),"
        f" drop {_figure(comparison.drop)}, allowed {_figure(max_drop)}",
        f"on {comparison.samples} samples"
        + (f"; {comparison.detail}" if comparison.detail else "")
        + (
            f"; one sample weighs {_figure(1 / comparison.samples)}"
            if comparison.metric in ("agreement", "top1")
            else ""
        ),
    ]
    lines += [_output_line(row) for row in comparison.outputs]
    return VerificationReport(ok, comparison, max_drop, tuple(lines))


def _check_budget(max_drop: float) -> None:
    if not (math.isfinite(max_drop) and max_drop >= 0):
        raise UsageError("--max-drop is not valid", expected="a number of at least 0", got=repr(max_drop))


def _output_line(row: OutputError) -> str:
    if row.note:
        return f"output '{row.name}': {row.note}"
    if row.max_relative_error == 0.0:
        return f"output '{row.name}': equal"
    line = f"output '{row.name}': {row.sqnr_db:.1f} dB"
    line += f", largest error {row.max_relative_error:.2g} of the largest value"
    if row.groups > 1:
        line += f"; worst group {row.worst_group} at {row.worst_group_sqnr_db:.1f} dB"
    return line


def _figure(value: float) -> str:
    return f"{value:.4g}"
