"""The functions behind the verbs, for Python programs and for the command line alike."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.plans import Plan
from edgefuse.report import Progress, silent

__all__ = ["bench", "inspect", "plan", "plan_from_options", "run", "verify"]


def plan(model: str | os.PathLike[str] | None = None, *, progress: Progress = silent, **options: Any) -> Plan:
    """Return the plan that a build with these options would begin with; times in it are estimates.

    options: as for `build`; int8 is planned only with `calib`, without an accuracy limit (a build measures).
    """
    given = {"model": None if model is None else os.fspath(model), **options}
    return plan_from_options(given, progress)[0]


def plan_from_options(given: Mapping[str, Any], progress: Progress = silent) -> tuple[Plan, list[str]]:
    """Return (plan, notes)."""
    from edgefuse.compose.build import _Build, _Feeds, resolve_options
    from edgefuse.compose.planning import float_plan, int8_plan, measure_tables

    work = _Build(resolve_options(given), progress)
    prepared, calibration = work._prepare()
    notes = list(prepared.notes)
    device = prepared.target.device
    if work.options.precision in ("auto", "int8") and calibration is not None and device.int8 != "none":
        tables = measure_tables(prepared, _Feeds(calibration), progress)
        found, quantized = int8_plan(prepared, tables, work.options.precision, work.threads, None)
        if quantized:
            return found, notes
    if device.int8 == "none":
        notes.append(f"no int8 on {device.name}: {device.int8_reason}")
    elif calibration is None and work.options.precision in ("auto", "int8"):
        notes.append("no --calib: no int8")
    return float_plan(prepared, work.options.precision, work.threads), notes


def inspect(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Return what is in a model (operators, FLOPs, bytes, memory, roofline on `target`) or an artifact."""
    from edgefuse.compose.inspection import inspect_artifact, inspect_model

    if Path(path).suffix == ".efa":
        return inspect_artifact(path)
    return inspect_model(path, target or "host", shapes or {})


def run(
    artifact: str | os.PathLike[str],
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    simulate: bool = False,
    threads: int | None = None,
) -> dict[str, np.ndarray]:
    """Return the outputs for the arrays in the `.npz` at `source`, written to `target` where one is given."""
    from edgefuse.runtime import load

    try:
        with np.load(source, allow_pickle=False) as file:
            feeds = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InputError(
            f"the inputs {source} cannot be read: {error}", expected="a .npz of plain arrays"
        ) from error
    with load(artifact, simulate=simulate, threads=threads) as model:
        outputs = dict(model(feeds))
    if target is not None:
        try:
            with open(target, "wb") as out:
                np.savez(out, **outputs)  # type: ignore[arg-type]
        except OSError as error:
            raise InputError(f"the outputs cannot be written to {target}: {error.strerror}") from error
    return outputs


def bench(
    artifact: str | os.PathLike[str],
    *,
    threads: int | None = None,
    seconds: float = 10.0,
    payload: str | None = None,
    gates: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the latency report of an artifact here; `gates` such as "p90<=12ms" are judged in it."""
    from edgefuse.benchmark import bench_artifact, gate

    report = bench_artifact(artifact, threads=threads, seconds=seconds, payload=payload)
    judged = [gate(text, report) for text in gates]
    report["gates"] = [
        {"gate": g, "ok": ok, "text": text} for g, (ok, text) in zip(gates, judged, strict=True)
    ]
    return report


def verify(
    artifact: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    max_drop: float | None = None,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the verification of an artifact: its self-test, and with `model` its outputs beside it.

    `ok` is False where the drop is above `max_drop` (points of the metric, default 0.01).
    Raises InputError where `model` is not the file that the artifact was built from.
    """
    from edgefuse.compose.checking import verify_artifact

    return verify_artifact(
        artifact, model=model, data=data, metric=metric, max_drop=max_drop, threads=threads, progress=progress
    )
