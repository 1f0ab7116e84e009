"""The report of a build: everything that was found, as plain JSON, beside the artifact."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefuse.artifact.pack import replace_file
from edgefuse.artifact.read import open_artifact
from edgefuse.benchmark import Race, machine_fingerprint
from edgefuse.compose.accumulation import LongSum
from edgefuse.compose.accuracy import Judge
from edgefuse.compose.options import BuildOptions
from edgefuse.compose.payloads import Built
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.room import artifact_room
from edgefuse.report import json_text

__all__ = ["build_report", "report_path"]

EXACT = "exact simulation of the target's arithmetic"


def build_report(
    output: Path,
    prepared: Prepared,
    payloads: Sequence[Built],
    options: BuildOptions,
    judge: Judge,
    timed: Race | None,
    notes: Sequence[str],
    *,
    seconds: float,
    here: bool,
    threads: int,
    sums: Sequence[LongSum] = (),
    compression: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the report, having written it to `OUT.report.json` (all of it or nothing, as the artifact).

    Times: `predicted_ms` is an estimate with its source; `measured_ms` is the median process CPU time of an
    interleaved race on this machine, or null where the target is not this machine.
    sums: reductions over many elements, with their error before and after.  compression: one row a request.
    """
    data = output.read_bytes()
    with open_artifact(output, verify="on-read") as artifact:
        room = artifact_room(artifact.manifest["files"])
    report = {
        "artifact": str(output),
        "artifact_bytes": len(data),
        "artifact_sha256": hashlib.sha256(data).hexdigest(),
        "room": room,
        "model": options.model,
        "model_bytes": Path(options.model or "").stat().st_size,
        "target": prepared.target.string,
        "precision": options.precision,
        "measured_here": here,
        "accuracy_by": "the deployed runtime on this machine" if here else EXACT,
        "data": "seeded random inputs (no --calib or --eval)" if judge.made_up else judge.data.path,
        "max_drop": options.max_drop,
        "payloads": [_payload(built, timed) for built in payloads],
        "passes": {result.name: result.changed for result in prepared.passes if result.changed},
        "long_sums": [{**row.as_json(), "line": row.line()} for row in sums],
        "compression": [dict(row) for row in compression],
        "notes": list(dict.fromkeys(notes)),
        "build_seconds": round(seconds, 3),
        "timing": _timing(timed, threads),
    }
    replace_file(report_path(output), [json_text(report).encode() + b"\n"])
    return report


def report_path(output: Path) -> Path:
    """Return where the report of the artifact `output` goes.

    >>> str(report_path(Path("out/m.efa"))), str(report_path(Path("m.bin")))
    ('out/m.report.json', 'm.bin.report.json')
    """
    return output.with_suffix(".report.json") if output.suffix == ".efa" else Path(f"{output}.report.json")


def _payload(built: Built, timed: Race | None) -> dict[str, Any]:
    accuracy = built.accuracy
    plan = built.plan
    described: dict[str, Any] = {
        "id": built.id,
        "precision": built.precision,
        "bytes": built.size,
        "plan_digest": plan.digest,
        "groups": len(plan.groups),
        "fused_groups": sum(g.compute_nodes > 1 for g in plan.groups),
        "int8_groups": plan.count("int8"),
        "int8_mac_share": round(built.int8_share, 6),
        "fp16_groups": plan.count("fp16"),
        "predicted_ms": plan.predicted_ms,
        "predicted_by": "estimate: " + plan.groups[0].cost[0].source if plan.groups else "estimate",
        "measured_ms": built.ms,
        "solver": {"name": plan.solver, "status": plan.status, "gap": plan.gap},
        "plan_honoured": built.honoured,
        "accuracy": {
            **accuracy.as_json(),
            "max_relative_error": accuracy.max_relative_error,
            "worst_group_db": _finite(
                min((row.worst_group_sqnr_db for row in accuracy.outputs), default=math.inf)
            ),
        },
    }
    if plan.count("int8"):
        described["float_products"] = [
            {"nodes": list(g.sources), "mac_share": round(built.mac_shares[g.id], 6), "why": g.reason}
            for g in plan.groups
            if g.precision != "int8" and g.id in built.mac_shares
        ]
    if built.repairs is not None:
        described["repairs"] = built.repairs.as_json()
    if built.regions is not None:
        described["regions"] = built.regions.as_json()
    described["reverted"] = [row.as_json() for row in built.reverted]
    if built.readback is not None:
        described["not_honoured"] = [
            {"group": row.group, "why": row.why}
            for row in built.readback.groups
            if not row.confirmed and row.why
        ]
    if timed is not None and built.id == "int8":
        ratio = timed.ratio("int8", "float")
        described["time_over_float"] = {"value": ratio.value, "thirds": list(ratio.thirds)}
    return described


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _timing(timed: Race | None, threads: int) -> dict[str, Any] | None:
    if timed is None:
        return None
    return {
        "threads": threads,
        "rounds": timed.rounds,
        "what": "median process CPU time, payloads interleaved in random order",
        "machine": machine_fingerprint(),
    }
