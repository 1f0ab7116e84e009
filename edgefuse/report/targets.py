"""The list of targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefuse.report.tables import print_table

__all__ = ["print_target", "print_targets"]


def print_targets(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line a device."""
    table = [
        [
            row["name"] + (" (host)" if row["host"] else ""),
            row["family"],
            row["runtime"],
            " ".join(row["precisions"]),
            "yes" if row["buildable"] else "no",
            "yes" if row["usable"] else "no",
            row["backend"] or row["why"],
        ]
        for row in rows
    ]
    print_table(["target", "family", "runtime", "precisions", "build", "run here", "backend here"], table)


def print_target(described: Mapping[str, Any]) -> None:
    """Print a device's figures with source and confidence."""
    device = described["device"]
    print(f"{described['string']}: {device['title']}")
    build, run = ("yes" if described[key] else "no" for key in ("buildable", "usable"))
    print(f"  build: {build}   run here: {run}")
    if described["why"]:
        print(f"  {described['why']}")
    rows = [
        [key, f"{value['value']:g}", value["confidence"], value["source"][:80]]
        for key, value in device.items()
        if isinstance(value, dict) and "confidence" in value
    ]
    print_table(["figure", "value", "confidence", "source"], rows, right=[1])
    if device["int8"] == "none":
        print(f"no int8: {device['int8_reason']}")
    for text in device["unverified"]:
        print(f"unverified: {text}")
