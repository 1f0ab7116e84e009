"""What `edgefuse inspect` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.report.room import room_line
from edgefuse.report.tables import print_table
from edgefuse.units import format_bytes, format_count, format_ms

__all__ = ["print_inspection"]


def print_inspection(found: Mapping[str, Any]) -> None:
    """Print a model's totals, shares and dearest nodes, or an artifact's manifest in short."""
    if found["kind"] == "artifact":
        _print_artifact(found["manifest"])
        print(room_line(found["room"]))
        return
    for side in ("inputs", "outputs"):
        for text in found[side]:
            print(f"{side[:-1]:7} {text}")
    print(
        f"{found['nodes']} nodes, {format_count(found['parameters'])} parameters, "
        f"{format_count(found['macs'])} multiply-adds, weights {format_bytes(found['weight_bytes'])}"
    )
    memory = found["memory"]
    print(
        f"activations: {format_bytes(memory['peak_bytes'])} in one arena "
        f"(at least {format_bytes(memory['lower_bound_bytes'])}, "
        f"unshared {format_bytes(memory['naive_bytes'])})"
    )
    roof = found["roofline"]
    print(
        f"on {found['target']}: {format_ms(roof['ms_estimate'])} at the roof (estimate), {roof['bound']}; "
        f"{roof['intensity']:.1f} FLOP/byte, ridge at {roof['ridge']:.1f}"
    )
    shares = [
        [s["operator"], s["count"], f"{100 * s['flops_share']:.1f} %", f"{100 * s['bytes_share']:.1f} %"]
        for s in found["operators"][:12]
    ]
    print_table(["operator", "count", "FLOPs", "bytes"], shares, right=[1, 2, 3])
    rows = [
        [
            row["operator"],
            format_count(row["flops"]),
            format_bytes(row["bytes"]),
            row["bound"],
            "unknown" if row["ms_estimate"] is None else format_ms(row["ms_estimate"]),
            row["node"][:50],
        ]
        for row in found["top"]
    ]
    print_table(["dearest", "FLOPs", "bytes", "bound by", "estimate", "node"], rows, right=[1, 2, 4])
    for text in found["repeats"][:5]:
        print(f"repeat: {text}")
    for unknown in found["unknown"][:3]:
        print(f"unknown cost: {unknown['node']}: {unknown['why']}")
    for note in found["notes"]:
        print(f"note: {note}")


def _print_artifact(manifest: Mapping[str, Any]) -> None:
    target = manifest["target"]
    print(f"{manifest['name']}: schema {manifest['schema']}, by {manifest['producer']}")
    print(f"for {target['device']}@{target['runtime']} ({target['family']}), every file has its sha256")
    for side in ("inputs", "outputs"):
        for entry in manifest[side]:
            print(f"{side[:-1]:7} {entry['name']} {entry['dtype']} {entry['shape']}")
    rows = []
    for payload in manifest["payloads"]:
        size = sum(manifest["files"][path]["bytes"] for path in payload["files"])
        accuracy = payload["accuracy"]
        told = (
            f"{accuracy['metric']} drop {accuracy['drop']:.4g} on {accuracy['samples']}"
            if accuracy
            else "not measured"
        )
        rows.append(
            [payload["id"], payload["precision"], format_bytes(size), told, len(payload["self_test"])]
        )
    print_table(["payload", "precision", "size", "accuracy", "self-test vectors"], rows, right=[2, 4])
