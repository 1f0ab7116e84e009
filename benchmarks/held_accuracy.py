"""Int8 on inputs never used for a choice: accuracy, share of int8, what stays float, and the curve of both.

Each model of held_accuracy.toml is built the public way, `edgefuse.build(..., precision="int8")`, with
calibration samples only. What the artifact makes of the evaluation samples is then told twice: in the exact
integer reference of its target, and in the real runtime where the target is this machine.

    python -m benchmarks.held_accuracy [NAME ...] [--curve] [--target x86-avx2] [--json held-accuracy.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import edgefuse
from benchmarks import zoo_inputs
from edgefuse.benchmark import machine_fingerprint
from edgefuse.errors import EdgefuseError, UsageError
from edgefuse.report import print_table

__all__ = ["BasicPitch", "FastestDet", "Held", "TextDetector", "TextReader", "measure", "table"]

Array = np.ndarray[Any, np.dtype[Any]]
Outputs = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Held:
    """One table of held_accuracy.toml, which says what each key means."""

    score: str
    least: float
    share: float
    metric: str
    max_drop: float
    calibration: int
    evaluation: int
    curve: tuple[float, ...] = ()


def table() -> dict[str, Held]:
    """Return held_accuracy.toml: zoo name -> what is asked of it."""
    stored = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    return {name: msgspec.convert(row, Held, strict=True) for name, row in stored["models"].items()}


class _Score:
    """A metric for `--metric`: the judged figure of one zoo model, over all samples together."""

    model = ""

    def __init__(self) -> None:
        self._outputs: list[Outputs] = []
        self._references: list[Outputs] = []

    def update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        """Keep one sample."""
        self._outputs.append(outputs)
        self._references.append(reference_outputs)

    def value(self) -> float:
        """Return the figure."""
        found = zoo_inputs.score(self.model, _stacked(self._references), _stacked(self._outputs))
        return float(found[table()[self.model].score])


class FastestDet(_Score):
    """F1 of decoded boxes."""

    model = "fastestdet"


class BasicPitch(_Score):
    """F1 of decoded notes."""

    model = "basic_pitch"


class TextDetector(_Score):
    """Intersection over union of the text map."""

    model = "ppocrv4_det"


class TextReader(_Score):
    """Share of equal strings."""

    model = "ppocrv4_rec"


def _stacked(rows: list[Outputs]) -> dict[str, Array]:
    return {
        name: np.stack([row[name][0] if row[name].shape[:1] == (1,) else row[name] for row in rows])
        for name in rows[0]
    }


def measure(name: str, held: Held, target: str, work: Path, snr_drop: float | None = None) -> dict[str, Any]:
    """Return one row: a build of `name`, and what its int8 payload makes of the evaluation samples.

    snr_drop: None = as the table asks; else the build is limited to this noise / signal.
    exact, real: figures of benchmarks.metrics, or None (nothing in int8; target not here).
    """
    calibration = work / f"{name}.npz"
    if not calibration.exists():
        np.savez(calibration, **zoo_inputs.samples(name, "calibration", held.calibration))
    metric, drop = (held.metric, held.max_drop) if snr_drop is None else ("snr", snr_drop)
    started = time.process_time()
    built = edgefuse.build(
        zoo_inputs.model_path(name),
        target=target,
        calib=calibration,
        precision="int8",
        metric=metric,
        max_drop=drop,
        shapes=zoo_inputs.zoo_model(name)["shapes"],
        output=work / f"{name}.efa",
    )
    row: dict[str, Any] = {
        "model": name,
        "metric": metric,
        "max_drop": drop,
        "build_cpu_s": round(time.process_time() - started, 1),
        "notes": built.report["notes"],
        "share": 0.0,
        "exact": None,
        "real": None,
    }
    payloads = {payload["id"]: payload for payload in built.report["payloads"]}
    if "int8" in payloads:
        payload = payloads["int8"]
        kept = payload.get("repairs", {}).get("tried", ())
        row["share"] = payload["int8_mac_share"]
        row["float_products"] = payload["float_products"]
        row["repairs"] = [repair["name"] for repair in kept if repair["kept"]]
        row["calibration_drop"] = payload["accuracy"]["drop"]
        row |= _judged(name, held.evaluation, built)
    return row


def _judged(name: str, count: int, built: Any) -> dict[str, Any]:
    """Return the figures of the evaluation samples in exact integers and in the real runtime."""
    inputs = zoo_inputs.samples(name, "evaluation", count)
    reference = zoo_inputs.run(name, zoo_inputs.float_model(name), inputs)
    found: dict[str, Any] = {"samples": count, "real": None}
    for key, simulate in (("exact", True), ("real", False)):
        if simulate or built.report["measured_here"]:
            with edgefuse.load(built.artifact, simulate=simulate, payload="int8") as model:
                outputs = zoo_inputs.run(name, model, inputs)
            found[key] = zoo_inputs.score(name, reference, outputs)
    return found


def _cells(row: Mapping[str, Any], held: Held) -> list[str]:
    def figure(key: str, name: str) -> str:
        return "-" if row[key] is None else f"{row[key][name]:.4g}"

    exact = row["exact"]
    holds = exact is not None and exact[held.score] >= held.least and row["share"] >= held.share
    return [
        row["model"],
        f"{row['metric'].rpartition(':')[2]} {row['max_drop']:g}",
        f"{row['share']:.3f}",
        f"{held.score} >= {held.least:g}",
        figure("exact", held.score),
        figure("real", held.score),
        figure("exact", "sqnr_db"),
        figure("real", "sqnr_db"),
        "yes" if holds else "no",
        f"{row['build_cpu_s']:.0f}",
    ]


HEADINGS = (
    "model",
    "build limit",
    "int8 MACs",
    "asked",
    "exact",
    "real",
    "dB exact",
    "dB real",
    "holds",
    "CPU s",
)


def main() -> int:
    """Measure, print, write; return 1 where a judged row does not hold what is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="models; none = all")
    parser.add_argument("--curve", action="store_true", help="builds under other limits too")
    parser.add_argument("--target", default="host")
    parser.add_argument("--json", type=Path, default=Path("held-accuracy.json"))
    arguments = parser.parse_args()
    asked = table()
    unknown = sorted(set(arguments.names) - set(asked))
    if unknown:
        raise UsageError(f"no model is called {unknown[0]!r} here", expected=", ".join(asked))
    rows, cells = [], []
    for name in arguments.names or asked:
        held = asked[name]
        with tempfile.TemporaryDirectory() as folder:
            for drop in (None, *(held.curve if arguments.curve else ())):
                row = measure(name, held, arguments.target, Path(folder), drop)
                rows.append(row)
                cells.append(_cells(row, held))
                print(" | ".join(cells[-1]), file=sys.stderr, flush=True)
                report = {"rows": rows, "machine": machine_fingerprint()}
                arguments.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    print_table(list(HEADINGS), cells, right=[2, 4, 5, 6, 7, 9])
    judged = [
        line for line, row in zip(cells, rows, strict=True) if row["metric"] == asked[row["model"]].metric
    ]
    return 1 if any(line[8] == "no" for line in judged) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgefuseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
