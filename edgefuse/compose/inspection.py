"""`edgefuse inspect`: a model under a roofline, or what an artifact holds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edgefuse.analysis import memory_plan, roofline, summarize
from edgefuse.artifact.read import open_artifact
from edgefuse.compose.prepare import find_target, load_model, prepare
from edgefuse.compose.room import artifact_room
from edgefuse.device import Precision
from edgefuse.errors import UnsupportedError
from edgefuse.passes import find_repeats

__all__ = ["inspect_artifact", "inspect_model"]

_TOP = 10


def inspect_model(
    path: str | os.PathLike[str], target: str, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return totals, shares by operator, the dearest nodes, memory, and what bounds each on the target."""
    prepared = prepare(load_model(os.fspath(path), shapes), find_target(target))
    device = prepared.target.device
    summary = summarize(prepared.costed)
    memory = memory_plan(prepared.costed)
    precision: Precision = "fp32"
    whole = roofline(summary, device, precision)
    rows = []
    for node in summary.top(_TOP):
        bound, ms = "unknown", None
        try:
            where = roofline(node.cost, device, precision)
            bound, ms = str(where.bound), where.ms_estimate
        except UnsupportedError:
            pass
        rows.append(
            {
                "node": node.source,
                "operator": node.op_type,
                "flops": node.cost.flops,
                "bytes": node.cost.traffic_bytes,
                "bound": bound,
                "ms_estimate": ms,
            }
        )
    return {
        "kind": "model",
        "path": os.fspath(path),
        "sha256": prepared.digest,
        "target": prepared.target.string,
        "inputs": [str(info) for info in prepared.inputs],
        "outputs": [str(info) for info in prepared.outputs],
        "nodes": len(list(prepared.model.graph)),
        "parameters": summary.total.parameters,
        "macs": summary.total.macs,
        "flops": summary.total.flops,
        "weight_bytes": summary.weight_storage_bytes,
        "traffic_bytes": summary.total.traffic_bytes,
        "roofline": asdict(whole),
        "operators": [
            {
                "operator": s.op_type,
                "count": s.count,
                "flops": s.cost.flops,
                "flops_share": s.flops_share,
                "bytes_share": s.bytes_share,
            }
            for s in summary.operators
        ],
        "top": rows,
        "unknown": [{"node": n.source, "why": n.cost.unknown} for n in summary.unknown],
        "memory": {
            "peak_bytes": memory.peak_bytes,
            "naive_bytes": memory.naive_bytes,
            "lower_bound_bytes": memory.lower_bound_bytes,
        },
        "repeats": [str(group) for group in find_repeats(prepared.model)],
        "passes": {r.name: r.changed for r in prepared.passes if r.changed},
        "notes": list(prepared.notes),
    }


def inspect_artifact(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest, with every file's sha256 checked, and what takes the room (bytes)."""
    with open_artifact(path) as artifact:
        for name in artifact.manifest["files"]:
            artifact.read(name)
        manifest = dict(artifact.manifest)
    room = artifact_room(manifest["files"])
    return {"kind": "artifact", "path": os.fspath(path), "manifest": manifest, "room": room}
