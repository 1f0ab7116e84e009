"""`edgefuse verify`: level 2, end to end. The artifact as it would be deployed, against the float model."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from edgefuse.compose.accuracy import session_call
from edgefuse.datasets import open_dataset, random_dataset
from edgefuse.errors import InputError
from edgefuse.graph import bind_dimensions, read_model
from edgefuse.report import Progress, silent
from edgefuse.runtime import Model, load
from edgefuse.runtime.preprocess import Preprocess
from edgefuse.verification import default_metric, make_metric, verify_end_to_end

__all__ = ["verify_artifact"]

RANDOM_SAMPLES = 8


def verify_artifact(
    artifact: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None,
    data: str | os.PathLike[str] | None,
    metric: str | None,
    max_drop: float | None,
    threads: int | None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the report of both checks as JSON values; see `edgefuse.verify`."""
    limit = 0.01 if max_drop is None else max_drop
    with load(artifact, threads=threads) as loaded:
        worst = loaded.self_test()
        report: dict[str, Any] = {
            "artifact": os.fspath(artifact),
            "payload": loaded.payload,
            "runtime": loaded.describe(),
            "self_test": worst,
            "levels": {
                "1": "not run (a later version)",
                "2": "not run: no --model",
                "3": "not run (a later version)",
            },
            "notes": list(loaded.notes),
            "ok": True,
        }
        if model is not None:
            report.update(_compare(loaded, model, data, metric, limit, progress))
            report["levels"]["2"] = "passed" if report["ok"] else "failed"
    return report


def _compare(
    loaded: Model,
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] | None,
    metric: str | None,
    max_drop: float,
    progress: Progress,
) -> dict[str, Any]:
    manifest = loaded.manifest
    found = hashlib.sha256(Path(model).read_bytes()).hexdigest() if Path(model).is_file() else ""
    if found and found != manifest["model"]["sha256"]:
        raise InputError(
            f"{model} is not the model that the artifact was built from",
            expected=f"sha256 {manifest['model']['sha256'][:16]}…",
            got=f"sha256 {found[:16]}…",
        )
    reference = read_model(model)
    fixed = {i.name: i.shape for i in loaded.inputs if all(isinstance(d, int) for d in i.shape)}
    open_inputs = {v.name for v in reference.graph.inputs if v.shape is not None and not v.shape.is_static()}
    shapes = {name: shape for name, shape in fixed.items() if name in open_inputs}
    if shapes:
        bind_dimensions(reference, shapes)  # type: ignore[arg-type]
    preprocess = Preprocess(manifest["preprocess"]) if manifest["preprocess"] else None
    if data is not None:
        samples = open_dataset(data, loaded.inputs, preprocess, labels=manifest["labels"])
    else:
        samples = random_dataset(loaded.inputs, RANDOM_SAMPLES)
    name = metric or _metric_of(loaded) or default_metric(loaded.outputs)
    report = verify_end_to_end(
        loaded,
        session_call(reference),
        samples,
        make_metric(name, labels=manifest["labels"], own_code=metric is not None),
        max_drop,
        progress=lambda done, total: progress("compare", done, total),
    )
    return {**report.as_json(), "data": str(data) if data is not None else "seeded random inputs"}


def _metric_of(loaded: Model) -> str | None:
    entry = next(p for p in loaded.manifest["payloads"] if p["id"] == loaded.payload)
    return str(entry["accuracy"]["metric"]) if entry["accuracy"] else None
