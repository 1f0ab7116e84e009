"""A limit on a benchmark's report, such as 'p90<=12ms': what makes a pipeline fail on a slow build."""

import re
from collections.abc import Mapping
from typing import Any

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.units import format_ms

__all__ = ["gate"]

FIGURES = ("p50", "p90", "p99", "mean", "max", "load", "first")
_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_GATE = re.compile(r"\s*([A-Za-z0-9_]+)\s*(<=|<)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*\Z")


def gate(expression: str, report: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether `report` (of bench_artifact) keeps the limit, and a line that says so with both figures.

    expression: FIGURE<=NUMBER UNIT or FIGURE<NUMBER UNIT; figures p50, p90, p99, mean, max (of the timed
    runs), load, first (inference); units us, ms, s.  Raises UsageError for another expression, InputError
    for a report without the figure.
    """
    match = _GATE.match(expression)
    if match is None:
        raise UsageError(
            f"the gate {expression!r} cannot be understood",
            expected="FIGURE<=NUMBER UNIT, such as 'p90<=12ms'",
        )
    figure, relation, number, unit = match.groups()
    if figure not in FIGURES:
        raise UsageError(
            f"the gate {expression!r} names an unknown figure{did_you_mean(figure, FIGURES)}",
            expected="one of " + ", ".join(FIGURES),
        )
    if unit not in _UNITS_MS:
        raise UsageError(f"the gate {expression!r} needs a unit", expected="us, ms or s", got=unit or "none")
    limit_ms = float(number) * _UNITS_MS[unit]
    value_ms = _figure_ms(figure, report)
    ok = value_ms <= limit_ms if relation == "<=" else value_ms < limit_ms
    verdict = "passed" if ok else "FAILED"
    return ok, f"gate {figure}{relation}{number}{unit}: {verdict}, {figure} is {format_ms(value_ms)}"


def _figure_ms(figure: str, report: Mapping[str, Any]) -> float:
    key = f"{figure}_ms"
    place = report if figure in ("load", "first") else report.get("latency", {})
    value = place.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value == value:
        raise InputError(f"the report holds no figure '{figure}'", got=repr(value))
    return float(value)
