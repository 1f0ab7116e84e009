"""The manifest of a build, and the artifact."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import edgefuse
from edgefuse.artifact.arrays import array_to_bytes
from edgefuse.artifact.pack import write_artifact
from edgefuse.compose.options import BuildOptions
from edgefuse.compose.payloads import Built
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.simulate import simulation_files
from edgefuse.runtime.preprocess import Preprocess
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["pack"]


def pack(
    output: Path,
    prepared: Prepared,
    payloads: Sequence[Built],
    options: BuildOptions,
    preprocess: Preprocess | None,
    labels: Sequence[str] | None,
    *,
    simulation: bool = False,
) -> str:
    """Write the artifact and return the sha256 of its bytes; the first payload is the active one.

    simulation: with what `load(..., simulate=True)` needs (the float model, the integers).
    """
    files: dict[str, bytes] = {}
    manifest: dict[str, Any] = {
        "schema": 1,
        "name": _plain_name(options.name or Path(options.model or "model").stem),
        "producer": f"edgefuse {edgefuse.__version__}",
        "target": _target(prepared),
        "inputs": [_tensor(info, preprocess) for info in prepared.inputs],
        "outputs": [_tensor(info, None) for info in prepared.outputs],
        "preprocess": preprocess.to_dict() if preprocess is not None else None,
        "labels": list(labels) if labels is not None else None,
        "decoder": {"kind": "classify"} if _is_classifier(prepared) and preprocess is not None else None,
        "model": {"sha256": prepared.digest, "file": _printable(Path(options.model or "").name)},
        "rollback_index": 0,
        "payloads": [_payload(built, prepared, options, files) for built in payloads],
        "signature": None,
    }
    if simulation:
        members, manifest["extra"] = simulation_files(prepared, payloads)
        files.update(members)
    return write_artifact(output, manifest, files)


def _plain_name(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.+-]", "_", text)[:100]
    return plain if re.match(r"[A-Za-z0-9_]", plain) else f"model_{plain}"[:100]


def _printable(name: str) -> str:
    """Return a file's name in characters that a manifest takes (a name in Linux is any bytes)."""
    return "".join(c if c.isprintable() else "_" for c in name)[:200]


def _target(prepared: Prepared) -> dict[str, Any]:
    device, runtime = prepared.target.device, prepared.target.runtime
    requirements: dict[str, Any] = {
        "architecture": device.architecture,
        "packages": list(runtime.requirements),
    }
    if device.host is not None and device.host.requires_flags:
        requirements["cpu_flags"] = list(device.host.requires_flags)
    return {
        "device": device.name,
        "runtime": runtime.name,
        "family": device.family,
        "requirements": requirements,
    }


def _tensor(info: TensorInfo, preprocess: Preprocess | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": info.name, "dtype": info.dtype, "shape": list(info.shape)}
    if preprocess is not None and len(info.shape) == 4:
        entry["layout"] = preprocess.to_dict().get("layout", "NCHW")
    return entry


def _is_classifier(prepared: Prepared) -> bool:
    return len(prepared.outputs) == 1 and len(prepared.outputs[0].shape) == 2


def _payload(
    built: Built, prepared: Prepared, options: BuildOptions, files: dict[str, bytes]
) -> dict[str, Any]:
    root = f"payloads/{built.id}"
    for path, data in built.lowered.files.items():
        files[f"{root}/{path}"] = data
    files[f"{root}/plan.json"] = built.plan.to_json()
    settings = dict(built.lowered.options)
    if options.threads is not None:
        settings["threads"] = options.threads
    return {
        "id": built.id,
        "family": prepared.target.family,
        "precision": built.precision,
        "plan_digest": built.plan.digest,
        "files": sorted([*(f"{root}/{path}" for path in built.lowered.files), f"{root}/plan.json"]),
        "entry": f"{root}/{built.lowered.entry}",
        "options": settings,
        "self_test": [_vector(built, k, vector, files) for k, vector in enumerate(built.self_test)],
        "accuracy": _accuracy(built),
    }


def _accuracy(built: Built) -> dict[str, Any] | None:
    """Return what was measured, or None where it is no number (equal outputs have no finite SNR)."""
    found = built.accuracy
    if not (math.isfinite(found.value) and math.isfinite(found.drop)):
        return None
    return {
        "metric": found.metric,
        "value": float(found.value),
        "drop": float(found.drop) + 0.0,  # not -0.0
        "samples": int(found.samples),
    }


def _vector(built: Built, number: int, vector: Any, files: dict[str, bytes]) -> dict[str, Any]:
    """Store one self-test vector; arrays that are equal in several payloads are stored once.

    Payloads have their own outputs where the model brings its own quantization: float ones are not rounded.
    """
    described: dict[str, Any] = {"inputs": {}, "outputs": {}, "tolerances": {}}
    for k, (name, array) in enumerate(vector.feeds.items()):
        path = f"self_test/{number}/input_{k}.npy"
        files[path] = array_to_bytes(array)
        described["inputs"][name] = path
    for k, (name, array) in enumerate(vector.outputs.items()):
        path, data = f"self_test/{number}/output_{k}.npy", array_to_bytes(array)
        if files.get(path, data) != data:
            path = f"self_test/{number}/{built.id}_output_{k}.npy"
        files[path] = data
        described["outputs"][name] = path
    described["tolerances"] = {name: float(value) for name, value in vector.tolerances.items()}
    return described
