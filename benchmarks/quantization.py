"""Post-training quantization side by side (`make bench-quant`): edgefuse, ONNX Runtime, NNCF.

Every quantizer gets the same calibration samples and is judged on the same evaluation samples, each in the
arithmetic that it was made for: its own kernels on this machine, and exact arithmetic where it has that (no
saturation: what a CPU with VNNI does). Times are ratios to the float model in OpenVINO, of process CPU time
in one interleaved race. A quantizer that fails is a row with its error.

    python -m benchmarks.quantization [NAME ...] [--peers edgefuse nncf ...] [--calibration 100]
           [--evaluation 100] [--seconds 20] [--limit 3600] [--json bench-quant.json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.metrics import METRICS, score, sqnr_db
from benchmarks.peers import PEERS, Task, write_task
from benchmarks.zoo_inputs import float_model, model_path, run_shaped, samples, zoo_model
from edgefuse.benchmark import machine_fingerprint
from edgefuse.errors import EdgefuseError, UsageError
from edgefuse.report import print_table

__all__ = ["compare", "judge", "zoo_task"]

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

ROOT = Path(__file__).resolve().parents[1]
TRANSFORMERS = frozenset({"minilm_l6_s128"})
CHILD_SECONDS = 3600.0  # of one quantizer on one model, evaluation included
HEADINGS = ("model", "quantizer", "arithmetic", "metric", "value", "SQNR dB", "int8 MACs", "x float", "CPU s")


def zoo_task(name: str, max_drop: float = 1.0) -> Task:
    """Return the task of zoo model `name`; max_drop: noise / signal that edgefuse's build may cost.

    1.0 sets it no limit: it quantizes what it can, as the others do.
    """
    shapes = {key: list(sizes) for key, sizes in zoo_model(name)["shapes"].items()}
    return Task(name, str(model_path(name)), shapes, name in TRANSFORMERS, max_drop=max_drop)


def compare(
    task: Task,
    peers: Sequence[str],
    data: tuple[Arrays, Arrays],
    reference: Arrays,
    folder: Path,
    seconds: float,
    limit: float = CHILD_SECONDS,
) -> list[dict[str, Any]]:
    """Return the rows of one model: one a quantizer and arithmetic, or one with the error of its build.

    data: calibration and evaluation samples.  reference: the float model's outputs for the latter.
    seconds: of the race; 0 = none.  limit: wall seconds after which a quantizer is stopped.
    """
    write_task(folder, task, *data)
    rows = []
    for peer in peers:
        rows += _rows(task, peer, _built(peer, folder, limit), data[1], reference, folder)
    able = [row["peer"] for row in rows if row["arithmetic"] == "own kernels" and not row["error"]]
    ratios, error = _raced(able, folder, seconds, limit) if able and seconds > 0 else ({}, "")
    for row in rows:
        if row["arithmetic"] == "own kernels":
            ratio = ratios.get(row["peer"])
            row |= {"race": ratio, "race_error": "" if ratio else error}
    return rows


def _built(peer: str, folder: Path, limit: float) -> dict[str, Any]:
    """Return what a child found; where it died before it could say so, how."""
    print(f"{folder.name}: {peer}", file=sys.stderr, flush=True)
    died = _child(["build", peer, str(folder)], limit)
    place = folder / f"{peer}.result.json"
    result: dict[str, Any] = {"errors": {}, "notes": []}
    if place.is_file():
        result = json.loads(place.read_text())
    if "build_cpu_s" not in result:
        result["errors"].setdefault("build", died or "wrote no result")
    return {**result, "died": died}


def _child(arguments: Sequence[str], limit: float) -> str:
    """Run benchmarks.peers in a process of its own, `limit` seconds at most; return "" or how it ended."""
    environment = {
        **os.environ,
        "NNCF_CI": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "benchmarks.peers", *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {limit:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"ended with {done.returncode}: {lines[-1] if lines else 'no message'}"[:300]


def _rows(
    task: Task, peer: str, result: Mapping[str, Any], inputs: Arrays, reference: Arrays, folder: Path
) -> list[dict[str, Any]]:
    common = {
        "model": task.name,
        "peer": peer,
        "build_cpu_s": result.get("build_cpu_s"),
        "int8_share": result.get("int8_share"),
        "notes": result["notes"],
        "scores": {},
        "error": "",
    }
    errors = result["errors"]
    if "build" in errors:
        return [{**common, "arithmetic": "own kernels", "error": errors["build"]}]
    rows = []
    for run in PEERS[peer].runs:
        row = {**common, "arithmetic": run, "error": errors.get(run, "")}
        place = folder / f"{peer}.{run.replace(' ', '-')}.npz"
        if place.is_file():
            with np.load(place) as stored:
                row["scores"] = judge(
                    task.name, reference, {key: stored[key] for key in stored.files}, inputs
                )
        elif not row["error"]:
            row["error"] = result.get("died") or "gave no outputs"
        rows.append(row)
    return rows


def judge(name: str, reference: Arrays, outputs: Arrays, inputs: Arrays) -> dict[str, float]:
    """Return `score` of a zoo model; of any other model the SQNR alone."""
    return (
        score(name, reference, outputs, inputs)
        if name in METRICS
        else {"sqnr_db": sqnr_db(reference, outputs)}
    )


def _raced(peers: Sequence[str], folder: Path, seconds: float, limit: float) -> tuple[dict[str, Any], str]:
    """Return the race of all; where it died, of each alone beside the float model, so that one costs one."""
    place = folder / "race.json"
    place.unlink(missing_ok=True)
    died = _child(["race", *peers, str(folder), "--seconds", str(seconds)], limit)
    if not place.is_file():
        alone = [_raced([peer], folder, seconds, limit)[0] for peer in peers] if len(peers) > 1 else []
        return {key: row for rows in alone for key, row in rows.items()}, died or "the race wrote no result"
    rows: dict[str, Any] = json.loads(place.read_text())["rows"]
    return rows, ""


def _cells(row: Mapping[str, Any]) -> list[str]:
    figures = {key: value for key, value in row["scores"].items() if key != "sqnr_db"}
    metric = next(iter(figures), "")
    ratio, share, seconds = row.get("race"), row["int8_share"], row["build_cpu_s"]
    decibels = row["scores"].get("sqnr_db")
    return [
        row["model"],
        row["peer"],
        row["arithmetic"],
        metric,
        f"{figures[metric]:.4f}" if metric else row["error"] and "FAIL",
        "" if decibels is None else f"{decibels:.1f}",
        "" if share is None else f"{share:.3f}",
        "" if ratio is None else f"{1 / ratio['ratio']:.2f}",
        "" if seconds is None else f"{seconds:.0f}",
    ]


def _plain(value: Any) -> Any:
    """Return the value with what JSON has no word for (infinity, NaN) as None."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of the zoo; none = all")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--calibration", type=int, default=100, metavar="SAMPLES")
    parser.add_argument("--evaluation", type=int, default=100, metavar="SAMPLES")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the race of a model; 0 = no race")
    parser.add_argument(
        "--max-drop", type=float, default=1.0, help="noise / signal that edgefuse may cost; 1 = no limit"
    )
    parser.add_argument(
        "--limit", type=float, default=CHILD_SECONDS, metavar="SECONDS", help="then a quantizer is stopped"
    )
    parser.add_argument("--json", type=Path, default=Path("bench-quant.json"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write after each model; return 0 also where quantizers fail: that is a finding."""
    options = _parser().parse_args(arguments)
    for given, known in ((options.names, METRICS), (options.peers, PEERS)):
        for name in given:
            if name not in known:
                raise UsageError(f"'{name}' is not known here", expected=", ".join(known))
    rows: list[dict[str, Any]] = []
    for name in options.names or METRICS:
        task = zoo_task(name, options.max_drop)
        calibration = samples(name, "calibration", options.calibration)
        evaluation = samples(name, "evaluation", options.evaluation)
        reference = run_shaped(task.shapes, float_model(name), evaluation)
        with tempfile.TemporaryDirectory() as work:
            data = (calibration, evaluation)
            rows += compare(
                task, options.peers, data, reference, Path(work) / name, options.seconds, options.limit
            )
        report = {
            "rows": _plain(rows),
            "machine": machine_fingerprint(),
            "calibration": options.calibration,
            "evaluation": options.evaluation,
            "max_drop": options.max_drop,
        }
        options.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    print_table(list(HEADINGS), [_cells(row) for row in rows], right=[4, 5, 6, 7, 8])
    for row in rows:
        if row["error"] or row.get("race_error"):
            print(f"{row['model']}, {row['peer']}, {row['arithmetic']}: {row['error'] or row['race_error']}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgefuseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
