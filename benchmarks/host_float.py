"""The float artifact beside the vendor's runtime loading the same ONNX file directly (`make bench-host`).

Three interleaved races of process CPU time at one thread. Prints a table and writes a JSON file; the bound of
the project is a ratio of at most 1.03 in each race, with equal outputs (1e-5).

    python benchmarks/host_float.py [MODEL.onnx] [--seconds 10] [--json bench-host.json]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
import tempfile
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
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, default=Path("bench-host.json"))
    arguments = parser.parse_args()
    path = arguments.model or default_model()
    with tempfile.TemporaryDirectory() as folder:
        built = edgefuse.build(path, target="host", precision="fp32", output=Path(folder) / "model.efa")
        report = compare(built.artifact, path, arguments.seconds)
    report["model"] = path.name
    rows = [
        [k, f"{r['ratio']:.3f}", f"{r['edgefuse_ms']:.2f}", f"{r['direct_ms']:.2f}"]
        for k, r in enumerate(report["races"])
    ]
    print_table(["race", "ratio", "edgefuse ms", "direct ms"], rows, right=[0, 1, 2, 3])
    print(f"{path.name}: largest relative difference {report['difference']:.2g}; bound {BOUND} in each race")
    arguments.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    return 0 if report["ok"] else 1


def compare(artifact: Path, path: Path, seconds: float) -> dict[str, Any]:
    """Return ratios of three races, and the largest relative difference of the outputs.

    Each race loads both anew: where a runtime's buffers happen to lie moves its time by 3 %.
    """
    races, difference = [], 0.0
    for seed in range(RACES):
        with edgefuse.load(artifact, threads=1) as model:
            request = direct(path)
            feeds = _noise(model)
            difference = max(difference, _difference(model(feeds), request.infer(feeds)))
            call = functools.partial(request.infer, feeds, share_inputs=True, share_outputs=False)
            ours = functools.partial(model, feeds)
            result = race({"edgefuse": ours, "direct": call}, seconds=seconds, seed=seed)
        races.append(
            {
                "ratio": result.ratio("edgefuse", "direct").value,
                "edgefuse_ms": result.timings["edgefuse"].cpu_p50_ms,
                "direct_ms": result.timings["direct"].cpu_p50_ms,
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
