"""The functions behind the verbs, for Python programs and for the command line alike."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import edgefuse
from edgefuse.compose.outputs import require_arrays_place, require_other_file
from edgefuse.errors import UsageError
from edgefuse.planner import PlanRequest
from edgefuse.plans import Plan
from edgefuse.report import Progress, silent

__all__ = ["bench", "inspect", "plan", "plan_from_options", "run", "verify"]


def plan(model: str | os.PathLike[str] | None = None, *, progress: Progress = silent, **options: Any) -> Plan:
    """Return the plan that a build with these options would begin with; times in it are estimates.

    options: as for `build`; int8 is planned only with `calib` or ranges that the model brings, and without
    an accuracy limit (a build measures).
    """
    given = {"model": None if model is None else os.fspath(model), **options}
    return plan_from_options(given, progress)[0]


def plan_from_options(given: Mapping[str, Any], progress: Progress = silent) -> tuple[Plan, list[str]]:
    """Return (plan, notes)."""
    found, notes, _ = _planned(given, progress)
    return found, notes


def explain_from_options(given: Mapping[str, Any], node: str, progress: Progress = silent) -> dict[str, Any]:
    """Return what decided about a node of the plan, its alternatives priced by planning again."""
    from edgefuse.planner import explain_choice
    from edgefuse.report.explain import explanation_json

    _, _, request = _planned(given, progress)
    return explanation_json(explain_choice(request, node))


def _planned(given: Mapping[str, Any], progress: Progress) -> tuple[Plan, list[str], PlanRequest]:
    """Return (plan, notes, what the plan was made from)."""
    from edgefuse.compose.build import _Build, _Feeds, resolve_options
    from edgefuse.compose.imported import imported_notes, made_up_data
    from edgefuse.compose.planning import (
        PROBE_SAMPLES,
        float_plan,
        float_request,
        int8_plan,
        int8_request,
        measure_tables,
        round_prepared,
    )
    from edgefuse.quant.compress import compression_requests

    work = _Build(resolve_options(given), progress)
    prepared, calibration = work._prepare()
    notes = list(prepared.notes)
    asked = work.options
    if compression_requests(asked.prune, asked.low_rank, asked.sparsity):
        notes.append("this is the plan of the whole model: a build compresses it first")
    device = prepared.target.device
    made_up = calibration is None
    if calibration is None and prepared.imported:
        calibration = made_up_data(prepared, PROBE_SAMPLES)
    if work.options.precision in ("auto", "int8") and calibration is not None and device.int8 != "none":
        prepared = round_prepared(prepared)
        tables = measure_tables(prepared, _Feeds(calibration), progress, made_up=made_up)
        found, quantized = int8_plan(prepared, tables, work.options.precision, work.threads, None)
        if quantized:
            request = int8_request(prepared, tables, work.options.precision, work.threads, None)
            return found, [*notes, *imported_notes(prepared, found, quantized)], request
        notes.append("no int8: nothing in int8 is faster (estimate)")
    if device.int8 == "none":
        notes.append(f"no int8 on {device.name}: {device.int8_reason}")
    elif calibration is None and work.options.precision in ("auto", "int8"):
        notes.append("no --calib: no int8")
    request = float_request(prepared, work.options.precision, work.threads)
    return float_plan(prepared, work.options.precision, work.threads), notes, request


def inspect(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Return what is in a model (operators, FLOPs, bytes, memory, roofline on `target`) or an artifact."""
    from edgefuse.compose.inspection import inspect_artifact, inspect_model

    if Path(path).suffix == ".efa" or zipfile.is_zipfile(path):
        if target is not None or shapes:
            raise UsageError(f"--target and --shape are for a model, and {os.fspath(path)} is an artifact")
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
    """Return the outputs for the arrays in the `.npz` at `source`, written to `target` where one is given.

    Raises InputError where either cannot be used (what was at `target` is as it was), and what
    `edgefuse.runtime.load` raises.
    """
    from edgefuse.compose.arrays import read_arrays, write_arrays

    if target is not None:
        require_arrays_place(Path(target))
        require_other_file(target, {"--input": source, "the artifact": artifact})
    feeds = read_arrays(source)
    with edgefuse.load(artifact, simulate=simulate, threads=threads) as model:
        outputs = dict(model(feeds))
    if target is not None:
        write_arrays(target, outputs)
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

    if not seconds > 0:  # NaN too
        raise UsageError("--seconds must be a number > 0", got=str(seconds))
    _check_gates(gates)
    report = bench_artifact(artifact, threads=threads, seconds=seconds, payload=payload)
    judged = [gate(text, report) for text in gates]
    report["gates"] = [
        {"gate": g, "ok": ok, "text": text} for g, (ok, text) in zip(gates, judged, strict=True)
    ]
    return report


def _check_gates(gates: Sequence[str]) -> None:
    """Raise UsageError for a gate that cannot be judged: now, and not after the measurement."""
    from edgefuse.benchmark import gate
    from edgefuse.benchmark.gate import FIGURES

    zeros = {f"{figure}_ms": 0.0 for figure in FIGURES}
    for text in gates:
        gate(text, {**zeros, "latency": zeros})


def verify(
    artifact: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    metric: str | None = None,
    max_drop: float | None = None,
    threads: int | None = None,
    simulate: bool = False,
    bisect: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the verification of an artifact: its self-test, and three levels (docs/verification.md).

    1. every region of the plan alone, 2. with `model` the outputs beside it, 3. with `model` stress inputs.
    `ok` is False where a level fails; level 2 where the drop is above `max_drop` (points of the metric,
    default 0.01).  simulate: in the exact reference of the target's arithmetic.
    bisect: in place of the levels, search the region that spoils an output; the result is under "bisect".
    Raises InputError where `model` is not the file that the artifact was built from, UsageError for `data`,
    `metric` or `max_drop` without it, and for `metric` or `max_drop` with `bisect`.
    """
    from edgefuse.compose.checking import verify_artifact

    if model is None:
        for option, value in (("--data", data), ("--metric", metric), ("--max-drop", max_drop)):
            if value is not None:
                raise UsageError(
                    f"{option} needs --model: outputs are compared with the float model's",
                    expected="edgefuse verify X.efa --model M.onnx",
                )
    if bisect and (metric is not None or max_drop is not None):
        raise UsageError("--bisect judges by the outputs' signal to noise ratio: no --metric, no --max-drop")
    return verify_artifact(
        artifact,
        model=model,
        data=data,
        metric=metric,
        max_drop=max_drop,
        threads=threads,
        simulate=simulate,
        bisect=bisect,
        progress=progress,
    )
