"""What `edgefuse bench` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.report.tables import print_table

__all__ = ["print_bench"]


def print_bench(report: Mapping[str, Any]) -> None:
    """Print every figure of the report that is a number, the machine, and the gates."""
    rows = [
        [key, _text(value)] for key, value in sorted(report.items()) if isinstance(value, int | float | str)
    ]
    for key, value in sorted(report.items()):
        if isinstance(value, Mapping):
            rows.extend(
                [f"{key}.{k}", _text(v)]
                for k, v in sorted(value.items())
                if not isinstance(v, Mapping | list)
            )
    print_table(["figure", "value"], rows)
    for gate in report["gates"]:
        print(gate["text"])


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
