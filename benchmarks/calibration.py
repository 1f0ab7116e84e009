"""What calibration costs: CPU seconds and peak memory, for 100 and for 1,000 photos, by each observer.

EfficientNet-Lite0 on the calibration photos; more than there are come from them as seeded crops, mirrored
half the time. Reading and preprocessing are included. "build" is what a build does: every rule tried on
held-out samples, then room above the ranges. Each run is a process of its own. Prints a table and writes a
JSON file.

    python -m benchmarks.calibration [--counts 100 1000] [--observers minmax mse build] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgefuse.benchmark import machine_fingerprint
from edgefuse.compose.planning import int8_anchors
from edgefuse.compose.prepare import Prepared, find_target, load_model, prepare
from edgefuse.datasets import read_image
from edgefuse.graph import constant, is_float
from edgefuse.quant import choose_ranges, collect_ranges, scheme_of
from edgefuse.report import print_table
from edgefuse.runtime.preprocess import Preprocess, from_dict

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
NAME = "efficientnet_lite0"
TARGET = "x86-avx2"
COUNTS = (100, 1000)
OBSERVERS = ("minmax", "average", "percentile", "entropy", "mse", "build")
# Issue 3: 100 photos under 60 s and 1.5 GB, 1,000 no more memory.
MOST_SECONDS, MOST_BYTES, MOST_GROWTH = 60.0, 1.5e9, 1.1


class Crops(Sequence[Mapping[str, np.ndarray]]):
    """`count` feeds made of the files, one at a time: each file whole first, then crops of 70 % to 100 %."""

    def __init__(self, name: str, files: list[Path], steps: Preprocess, count: int) -> None:
        self._name, self._files, self._steps, self._count = name, files, steps, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        if index >= self._count:
            raise IndexError(index)
        picture = read_image(self._files[index % len(self._files)])
        if index >= len(self._files):
            rng = np.random.default_rng(index)
            height, width = (int(size * rng.uniform(0.7, 1.0)) for size in picture.shape[:2])
            top = int(rng.integers(0, picture.shape[0] - height + 1))
            left = int(rng.integers(0, picture.shape[1] - width + 1))
            picture = picture[top : top + height, left : left + width]
            picture = picture[:, ::-1] if rng.random() < 0.5 else picture
        return {self._name: self._steps.apply(np.ascontiguousarray(picture))}

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        return (self[index] for index in range(self._count))


def _prepared() -> tuple[Prepared, Preprocess]:
    zoo = msgspec.toml.decode((ROOT / "examples" / "zoo.toml").read_bytes())["models"][NAME]
    model = load_model(str(SHARED / "zoo" / f"{NAME}.onnx"), zoo["shapes"])
    return prepare(model, find_target(TARGET)), from_dict(zoo["preprocess"])


def child(observer: str, count: int) -> dict[str, Any]:
    """Return what one run in this process takes."""
    from benchmarks.zoo_inputs import photo_files

    prepared, steps = _prepared()
    (name,) = [info.name for info in prepared.inputs]
    samples = Crops(name, photo_files("calibration"), steps, count)
    scheme = scheme_of(prepared.target)
    read = [v for n in prepared.model.graph for v in n.inputs if v is not None and is_float(v)]
    names = list(dict.fromkeys(v.name or "" for v in read if constant(v) is None))
    started = time.process_time()
    if observer == "build":
        ranges = choose_ranges(prepared.model, names, samples, scheme, int8_anchors(prepared))[0]
    else:
        ranges = collect_ranges(prepared.model, names, samples, observer=observer, scheme=scheme)
    seconds = time.process_time() - started
    # Not ru_maxrss: a child begins with the largest size of the process that forked it.
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    found = {"observer": observer, "samples": count, "tensors": len(ranges)}
    return {**found, "cpu_s": seconds, "peak_bytes": peak}


def measure(observer: str, count: int) -> dict[str, Any]:
    """Return what one run in a fresh process takes."""
    command = [sys.executable, "-m", "benchmarks.calibration", "--child", observer, str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the rows do not hold of the limits, one line each."""
    found = []
    least = {row["observer"]: row for row in sorted(rows, key=lambda row: -row["samples"])}
    for row in rows:
        what = f"{row['observer']}, {row['samples']} samples"
        if row["samples"] <= 100 and row["cpu_s"] > MOST_SECONDS:
            found.append(f"{what}: {row['cpu_s']:.1f} CPU s, over {MOST_SECONDS:g}")
        if row["peak_bytes"] > MOST_BYTES:
            found.append(f"{what}: {row['peak_bytes'] / 1e6:.0f} MB, over {MOST_BYTES / 1e6:.0f}")
        if row["peak_bytes"] > MOST_GROWTH * least[row["observer"]]["peak_bytes"]:
            found.append(f"{what}: memory grows with the samples")
    return found


def main() -> int:
    """Return 0 where every run keeps the limits, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--observers", nargs="+", default=list(OBSERVERS))
    parser.add_argument("--json", type=Path, default=Path("calibration.json"))
    parser.add_argument("--child", nargs=2, metavar=("OBSERVER", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child[0], int(options.child[1]))))
        return 0
    rows = [measure(observer, count) for observer in options.observers for count in options.counts]
    print_table(
        ("observer", "samples", "tensors", "CPU s", "peak MB"),
        [
            [
                row["observer"],
                str(row["samples"]),
                str(row["tensors"]),
                f"{row['cpu_s']:.1f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
            ]
            for row in rows
        ],
        right=(1, 2, 3, 4),
    )
    report = {"machine": machine_fingerprint(), "model": NAME, "rows": rows}
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    missed = failures(rows)
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
