"""Pruning and low rank on EfficientNet-Lite0: MACs, milliseconds and agreement, before and after each step.

Calibration: the first 100 photos of ../shared/data/photos by sha256 of the name; evaluation: the other 400.
Nothing is trained. Prints a table and writes a JSON file.

    python benchmarks/compression.py [--requests channels=30% low-rank=0.5 ...] [--json compression.json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import edgefuse
from edgefuse.benchmark import machine_fingerprint
from edgefuse.report import print_table

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
NAME = "efficientnet_lite0"
CALIBRATION = 100
REQUESTS = ("channels=30%", "channels=30%:layer", "low-rank=0.5")


def split_photos(folder: Path, work: Path) -> tuple[Path, Path]:
    """Return folders with the calibration and the evaluation photos, as links."""
    files = sorted(folder.glob("*.jpg"), key=lambda path: hashlib.sha256(path.name.encode()).hexdigest())
    places = work / "calibration", work / "evaluation"
    for place in places:
        place.mkdir()
    for number, path in enumerate(files):
        (places[number >= CALIBRATION] / path.name).symlink_to(path)
    return places


def write_preprocess(path: Path) -> Path:
    """Write how a photo becomes the input, from examples/zoo.toml."""
    zoo = msgspec.toml.decode((ROOT / "examples" / "zoo.toml").read_bytes())
    steps = zoo["models"][NAME]["preprocess"]
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in steps.items()))
    return path


def measure(request: str, folders: tuple[Path, Path], preprocess: Path, work: Path) -> dict[str, Any]:
    """Return the row of the build's report for one request."""
    kind, _, amount = request.partition("=")
    options: dict[str, Any] = {"low_rank": float(amount)} if kind == "low-rank" else {"prune": request}
    result = edgefuse.build(
        SHARED / "zoo" / f"{NAME}.onnx",
        target="host",
        precision="fp32",
        calib=folders[0],
        eval=folders[1],
        metric="agreement",
        preprocess=preprocess,
        output=work / "model.efa",
        **options,
    )
    (row,) = result.report["compression"]
    return {**row, "refused": len(row["refused"]), "build_seconds": result.report["build_seconds"]}


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    macs, parameters, ms = row["macs"], row["parameters"], row["measured_ms"]
    return [
        row["request"],
        f"{macs[0] / 1e6:.0f} -> {macs[1] / 1e6:.0f}",
        f"{parameters[0] / 1e6:.2f} -> {parameters[1] / 1e6:.2f}",
        f"{row['predicted_ms'][0]:.1f} -> {row['predicted_ms'][1]:.1f}",
        "not measured" if ms[0] is None else f"{ms[0]:.1f} -> {ms[1]:.1f}",
        f"{row['value'][0]:.3f} -> {row['value'][1]:.3f}",
        "declined" if row["declined"] else "taken",
    ]


def main() -> int:
    """Measure, print, write; return 2 where the model or the photos are not there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", nargs="+", default=list(REQUESTS))
    parser.add_argument("--json", type=Path, default=Path("compression.json"))
    arguments = parser.parse_args()
    photos = SHARED / "data" / "photos"
    if not photos.is_dir() or not (SHARED / "zoo" / f"{NAME}.onnx").is_file():
        print("the model and the photos lie in ../shared, which is not beside this checkout", file=sys.stderr)
        return 2
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        folders, preprocess = split_photos(photos, work), write_preprocess(work / "preprocess.toml")
        for request in arguments.requests:
            rows.append(measure(request, folders, preprocess, work))
            print(f"{request}: {rows[-1]['build_seconds']:.0f} s", file=sys.stderr)
            report = {"model": NAME, "rows": rows, "machine": machine_fingerprint()}
            arguments.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    headings = [
        "request",
        "million MACs",
        "million weights",
        "predicted ms",
        "measured ms",
        "agreement",
        "budget 0.01",
    ]
    print_table(headings, [cells(row) for row in rows], right=[1, 2, 3, 4, 5])
    return 0


if __name__ == "__main__":
    sys.exit(main())
