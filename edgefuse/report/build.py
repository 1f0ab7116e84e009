"""The table at the end of a build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.report.tables import print_table
from edgefuse.units import format_bytes, format_ms

__all__ = ["print_build"]


def print_build(report: Mapping[str, Any]) -> None:
    """Print where the artifact is, one row a payload, and the notes."""
    print(f"{report['artifact']}  {format_bytes(report['artifact_bytes'])}  for {report['target']}")
    rows = []
    for number, payload in enumerate(report["payloads"]):
        accuracy = payload["accuracy"]
        rows.append(
            [
                payload["id"] + (" (active)" if number == 0 else ""),
                payload["precision"],
                format_bytes(payload["bytes"]),
                payload["groups"],
                payload["fused_groups"],
                format_ms(payload["predicted_ms"]),
                "not measured" if payload["measured_ms"] is None else format_ms(payload["measured_ms"]),
                _figure(accuracy["drop"]),
                f"{accuracy['max_relative_error']:.2g}",
                "unchecked"
                if payload["plan_honoured"] is None
                else f"{100 * payload['plan_honoured']:.0f} %",
            ]
        )
    headings = [
        "payload",
        "precision",
        "size",
        "groups",
        "fused",
        "predicted",
        "measured",
        "drop",
        "max error",
        "honoured",
    ]
    print_table(headings, rows, right=[2, 3, 4, 5, 6, 7, 8, 9])
    first = report["payloads"][0]["accuracy"]
    print(
        f"accuracy: {first['metric']} {_figure(first['value'])} on {first['samples']} samples "
        f"({report['data']}), by {report['accuracy_by']}"
    )
    print(
        "predicted: estimate from the device description; measured: median process CPU time, interleaved here"
    )
    for note in report["notes"]:
        print(f"note: {note}")


def _figure(value: float | None) -> str:
    """Return a figure in four digits; None stands for one that is not finite (equal outputs in dB)."""
    return "no finite number" if value is None else f"{value + 0.0:.4g}"
