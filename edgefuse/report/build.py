"""The table at the end of a build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.report.room import room_line
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
    print(room_line(report["room"]))
    first = report["payloads"][0]["accuracy"]
    print(
        f"accuracy: {first['metric']} {_figure(first['value'])} on {first['samples']} samples "
        f"({report['data']}), by {report['accuracy_by']}"
    )
    print(
        "predicted: estimate from the device description; measured: median process CPU time, interleaved here"
    )
    for payload in report["payloads"]:
        _print_regions(payload)
        _print_repairs(payload.get("repairs"))
    for row in report["long_sums"]:
        print(f"long sum: {row['line']}")
    for note in report["notes"]:
        print(f"note: {note}")


def _print_regions(payload: Mapping[str, Any]) -> None:
    """Print what level 1 of the verification says of a payload."""
    for line in (payload.get("regions") or {}).get("lines", ()):
        print(f"regions of {payload['id']}: {line}")


def _print_repairs(repairs: Mapping[str, Any] | None) -> None:
    """Print which repairs an int8 payload has, and which were tried and gained nothing."""
    if not repairs or not repairs["tried"]:
        return
    kept = [r for r in repairs["tried"] if r["kept"]]
    lost = [r for r in repairs["tried"] if not r["kept"] and r["gain_db"] is not None]
    listed = ", ".join(f"{r['name']} {_gain(r)}" for r in kept) or "none"
    print(f"repairs kept: {listed}  ({repairs['measured']})")
    if lost:
        print("repairs left out: " + ", ".join(f"{r['name']} {_gain(r)}" for r in lost))


def _gain(repair: Mapping[str, Any]) -> str:
    return "" if repair["gain_db"] is None else f"{repair['gain_db']:+.1f} dB"


def _figure(value: float | None) -> str:
    """Return a figure in four digits; None stands for one that is not finite (equal outputs in dB)."""
    return "no finite number" if value is None else f"{value + 0.0:.4g}"
