"""The float artifact beside the vendor's runtime loading the same ONNX file directly (`make bench-host`).

Three interleaved races of process CPU time at one thread. Where the buffers of a loaded model happen to lie
moves its time by 3 to 5 %, so each race loads several copies of both sides, and the ratio is that of the
geometric means of the copies' medians; how far apart copies of one program were stands beside it. Prints a
table and writes a JSON file; the bound of the project is a ratio of at most 1.03 in each race, with equal
outputs (1e-5).

    python benchmarks/host_float.py [MODEL.onnx] [--seconds 30] [--copies 5] [--json bench-host.json]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import edgefuse
from edgefuse.benchmark import machine_fingerprint, race
from edgefuse.report import print_table

RACES = 3
BOUND = 1.03


def default_model() -> Path:
    """Return EfficientNet-Lite0 out of the zoo, fetched by examples/zoo.py."""
    path = Path(__file__).resolve().parents[1] / "examples" / "zoo.py"
    spec = importlib.util.spec_from_file_location("zoo", path)
    assert spec is not None
    assert spec.loader is not None
    zoo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    found: Path = zoo.get("efficientnet_lite0")
    return found


def direct(path: Path) -> Any:
    """Return an inference request of OpenVINO on the file itself, with the options of our payload."""
    import openvino

    core = openvino.Core()
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return core.compile_model(core.read_model(path), "CPU", options).create_infer_request()


def main() -> int:
    """Race, print, write; return 1 where the bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each race")
    parser.add_argument("--copies", type=int, default=5, help="of each side in a race")
    parser.add_argument("--json", type=Path, default=Path("bench-host.json"))
    arguments = parser.parse_args()
    path = arguments.model or default_model()
    with tempfile.TemporaryDirectory() as folder:
        built = edgefuse.build(path, target="host", precision="fp32", output=Path(folder) / "model.efa")
        report = compare(built.artifact, path, arguments.seconds, arguments.copies)
    report["model"] = path.name
    columns = ("ratio", "edgefuse_ms", "direct_ms", "edgefuse_spread", "direct_spread")
    rows = [[k, *(f"{race[column]:.3f}" for column in columns)] for k, race in enumerate(report["races"])]
    print_table(
        ["race", "ratio", "edgefuse ms", "direct ms", "spread of ours", "spread of direct"],
        rows,
        right=range(6),
    )
    print(f"{path.name}: largest relative difference {report['difference']:.2g}; bound {BOUND} in each race")
    arguments.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    return 0 if report["ok"] else 1


def compare(artifact: Path, path: Path, seconds: float, copies: int) -> dict[str, Any]:
    """Return ratios of three races of `copies` loaded copies a side, and the outputs' largest difference."""
    races, difference = [], 0.0
    for seed in range(RACES):
        with contextlib.ExitStack() as stack:
            calls: dict[str, Callable[[], object]] = {}
            for copy in range(copies):
                model = stack.enter_context(edgefuse.load(artifact, threads=1))
                request = direct(path)
                feeds = _noise(model)
                difference = max(difference, _difference(model(feeds), request.infer(feeds)))
                calls[f"edgefuse {copy}"] = functools.partial(model, feeds)
                calls[f"direct {copy}"] = functools.partial(
                    request.infer, feeds, share_inputs=True, share_outputs=False
                )
            timings = race(calls, seconds=seconds, seed=seed).timings
        ours, theirs = (
            [timing.cpu_p50_ms for name, timing in timings.items() if name.startswith(side)]
            for side in ("edgefuse", "direct")
        )
        races.append(
            {
                "ratio": statistics.geometric_mean(ours) / statistics.geometric_mean(theirs),
                "edgefuse_ms": statistics.geometric_mean(ours),
                "direct_ms": statistics.geometric_mean(theirs),
                "edgefuse_spread": max(ours) / min(ours),
                "direct_spread": max(theirs) / min(theirs),
            }
        )
    ok = difference <= 1e-5 and all(r["ratio"] <= BOUND for r in races)
    return {"races": races, "difference": difference, "ok": ok, "machine": machine_fingerprint()}


def _noise(model: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in model.inputs}
    return {i.name: rng.standard_normal(shapes[i.name]).astype(i.dtype) for i in model.inputs}


def _difference(ours: Any, theirs: Any) -> float:
    return max(
        float(np.abs(ours[name] - value).max() / np.abs(value).max())
        for port, value in theirs.items()
        for name in port.get_names()
        if name in ours
    )


if __name__ == "__main__":
    sys.exit(main())
