"""What `edgefuse verify` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["print_verification"]


def print_verification(report: Mapping[str, Any]) -> None:
    """Print each level, and what was compared with what; of a bisection, what it found."""
    worst = max(report["self_test"].values(), default=0.0)
    print(f"self-test: passed, largest difference {worst:.2g} (payload {report['payload']})")
    if "bisect" in report:
        for line in report["bisect"]["lines"]:
            print(line)
        print(f"on {report['bisect']['samples']} samples, by {report['bisect']['by']}")
        return
    for line in report.get("regions", {}).get("lines", ()):
        print(f"regions: {line}")
    for line in report.get("lines", ()):
        print(f"end to end: {line}")
    if "data" in report:
        print(f"data: {report['data']}")
    for line in report.get("stress", {}).get("lines", ()):
        print(f"stress: {line}")
    for level, state in sorted(report["levels"].items()):
        print(f"level {level}: {state}")
    for note in report["notes"]:
        print(f"note: {note}")
    print("ok" if report["ok"] else "FAILED")
