from __future__ import annotations

from typing import Any

import pytest

from edgefuse.benchmark import gate
from edgefuse.errors import InputError, UsageError

REPORT: dict[str, Any] = {
    "load_ms": 250.0,
    "first_ms": 20.0,
    "latency": {"p50_ms": 10.0, "p90_ms": 12.0, "p99_ms": 15.5, "mean_ms": 10.5, "max_ms": 40.0},
}


@pytest.mark.parametrize(
    ("expression", "ok"),
    [
        ("p90<=12ms", True),
        ("p90<12ms", False),
        ("p90 <= 11.99 ms", False),
        ("p50<=10000us", True),
        ("p50<=9999us", False),
        ("p99<.016s", True),
        ("max<=0.04s", True),
        ("mean<10.5ms", False),
        ("load<=1s", True),
        ("load<=0.2s", False),
        ("first<=20.ms", True),
    ],
)
def test_limits_are_kept_or_not(expression: str, ok: bool) -> None:
    got, text = gate(expression, REPORT)
    assert got is ok
    assert ("passed" in text) is ok
    assert ("FAILED" in text) is not ok


def test_the_line_says_both_figures() -> None:
    assert gate("p90<=11ms", REPORT) == (False, "gate p90<=11ms: FAILED, p90 is 12.00 ms")


@pytest.mark.parametrize(
    "expression",
    ["", "p90", "p90<=", "p90<=12", "p90<=12m", "p90>=12ms", "p90==12ms", "p95<=12ms", "<=12ms", "p90<=-1ms",
     "p90<=1e3ms", "p90<=12ms p50<=1ms", "12ms>=p90", "P90<=12ms", "p90<=12MS", "p90<=nanms"],
)  # fmt: skip
def test_other_expressions_are_usage_errors(expression: str) -> None:
    with pytest.raises(UsageError) as caught:
        gate(expression, REPORT)
    assert caught.value.expected


def test_a_near_miss_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'mean'"):
        gate("meen<=1ms", REPORT)


@pytest.mark.parametrize(
    "report", [{}, {"latency": {}}, {"latency": {"p90_ms": None}}, {"latency": {"p90_ms": float("nan")}}]
)
def test_a_report_without_the_figure_is_an_input_error(report: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no figure 'p90'"):
        gate("p90<=1ms", report)
