"""`edgefuse verify`: the three levels. The artifact as it would be deployed, against the float model.

1. every region of the plan alone   2. end to end on data   3. stress inputs
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edgefuse
from edgefuse.artifact.read import open_artifact
from edgefuse.compose import levels
from edgefuse.compose.accuracy import session_call
from edgefuse.compose.regions import Planned, check_regions
from edgefuse.datasets import Dataset, open_dataset, random_dataset
from edgefuse.errors import InputError, UnsupportedError, UsageError
from edgefuse.graph import Model as Graph
from edgefuse.graph import bind_dimensions, read_model
from edgefuse.report import Progress, silent
from edgefuse.runtime import Model
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
    simulate: bool = False,
    bisect: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the report of all levels as JSON values; see `edgefuse.verify`."""
    limit = 0.01 if max_drop is None else max_drop
    with edgefuse.load(artifact, threads=threads, simulate=simulate) as loaded:
        report: dict[str, Any] = {
            "artifact": os.fspath(artifact),
            "payload": loaded.payload,
            "runtime": loaded.describe(),
            "self_test": loaded.self_test(),
            "levels": {"1": "", "2": "not run: no --model", "3": "not run: no --model"},
            "notes": list(loaded.notes),
            "ok": True,
        }
        original = None if model is None else _original(loaded, model)
        with open_artifact(artifact, verify="on-read") as held:
            work = levels.planned_payload(held, loaded.payload, original, simulate)
        checks = _Checks(loaded, original, work, _data(loaded, data), data, progress)
        if bisect:
            report["bisect"] = checks.bisect()
            return report
        checks.regions(report)
        if original is not None:
            checks.end_to_end(report, metric, limit)
            checks.stress(report)
    return report


def _original(loaded: Model, path: str | os.PathLike[str]) -> Graph:
    """Return the user's model with the sizes of the artifact; raises InputError where it is another one."""
    manifest = loaded.manifest
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else ""
    if found and found != manifest["model"]["sha256"]:
        raise InputError(
            f"{path} is not the model that the artifact was built from",
            expected=f"sha256 {manifest['model']['sha256'][:16]}…",
            got=f"sha256 {found[:16]}…",
        )
    original = read_model(path)
    fixed = {i.name: i.shape for i in loaded.inputs if all(isinstance(d, int) for d in i.shape)}
    open_inputs = {v.name for v in original.graph.inputs if v.shape is not None and not v.shape.is_static()}
    shapes = {name: shape for name, shape in fixed.items() if name in open_inputs}
    if shapes:
        bind_dimensions(original, shapes)  # type: ignore[arg-type]
    return original


def _data(loaded: Model, path: str | os.PathLike[str] | None) -> Dataset:
    manifest = loaded.manifest
    if path is None:
        return random_dataset(loaded.inputs, RANDOM_SAMPLES)
    preprocess = Preprocess(manifest["preprocess"]) if manifest["preprocess"] else None
    return open_dataset(path, loaded.inputs, preprocess, labels=manifest["labels"])


@dataclass(frozen=True, slots=True)
class _Checks:
    """One artifact under verification. work: its payload as planned, or why that is not known."""

    loaded: Model
    original: Graph | None
    work: Planned | str
    samples: Dataset
    path: str | os.PathLike[str] | None
    progress: Progress

    def real_samples(self, count: int) -> Sequence[Mapping[str, np.ndarray]]:
        """Return feeds that ranges were made for: of the user's data, else the artifact's own vectors."""
        if self.path is not None:
            return [sample.feeds for sample in self.samples.spread(count)]
        example = self.loaded.example_inputs()
        return [example] if example else [sample.feeds for sample in self.samples.spread(count)]

    def regions(self, report: dict[str, Any]) -> None:
        """Add level 1."""
        if isinstance(self.work, str):
            report["levels"]["1"] = f"not run: {self.work}"
            return
        self.progress("regions", 0, 1)
        try:
            found = check_regions(self.work, self.real_samples(2))
        except UnsupportedError as error:
            report["levels"]["1"] = f"not run: {error.message}"
            return
        self.progress("regions", 1, 1)
        _add(report, "1", "regions", found)

    def end_to_end(self, report: dict[str, Any], metric: str | None, max_drop: float) -> None:
        """Add level 2."""
        assert self.original is not None
        name = metric or _metric_of(self.loaded) or default_metric(self.loaded.outputs)
        found = verify_end_to_end(
            self.loaded,
            session_call(self.original),
            self.samples,
            make_metric(name, labels=self.loaded.manifest["labels"], own_code=metric is not None),
            max_drop,
            progress=functools.partial(self.progress, "compare"),
        )
        report.update({key: value for key, value in found.as_json().items() if key not in ("level", "ok")})
        report["data"] = str(self.path) if self.path is not None else "seeded random inputs"
        _settle(report, "2", found.ok)

    def stress(self, report: dict[str, Any]) -> None:
        """Add level 3."""
        assert self.original is not None
        precision = str(self.loaded.describe()["precision"])
        found = levels.stress(
            self.loaded,
            session_call(self.original),
            self.work,
            self.loaded.inputs,
            self.real_samples(2),
            precision,
        )
        _add(report, "3", "stress", found)

    def bisect(self) -> dict[str, Any]:
        """Return what the bisection found, as JSON values; raises UsageError where it cannot be made."""
        if isinstance(self.work, str):
            raise UsageError(f"--bisect cannot search: {self.work}", hint="--model M.onnx, or build again")
        feeds = self.real_samples(levels.BISECT_SAMPLES)
        found = levels.bisect(self.work, feeds, progress=functools.partial(self.progress, "bisect"))
        return {**found.as_json(), "by": self.work.by, "samples": len(feeds)}


def _add(report: dict[str, Any], level: str, key: str, found: Any) -> None:
    report[key] = found.as_json()
    _settle(report, level, found.ok)


def _settle(report: dict[str, Any], level: str, ok: bool) -> None:
    report["levels"][level] = "passed" if ok else "failed"
    report["ok"] = report["ok"] and ok


def _metric_of(loaded: Model) -> str | None:
    entry = next(p for p in loaded.manifest["payloads"] if p["id"] == loaded.payload)
    return str(entry["accuracy"]["metric"]) if entry["accuracy"] else None
