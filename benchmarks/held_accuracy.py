"""Int8 on inputs never used for a choice: accuracy, share of int8, what stays float, and the curve of both.

Each model of held_accuracy.toml is built the public way, `edgefuse.build(..., precision="int8")`, with
calibration samples only. What the artifact makes of the evaluation samples is then told twice: in the exact
integer reference of its target, and in the real runtime where the target is this machine. The curve plans
again under falling budgets of loss, with the same repairs, and judges each plan in float simulation.

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

__all__ = ["BasicPitch", "FastestDet", "Held", "TextDetector", "TextReader", "curve", "measure", "table"]

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


# Budgets of the curve, as shares of the loss of all that can run in int8.
BUDGETS = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.01)


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


def measure(name: str, held: Held, target: str, work: Path) -> dict[str, Any]:
    """Return one row: a build of `name`, and what its int8 payload makes of the evaluation samples.

    exact, real: figures of benchmarks.metrics, or None (nothing in int8; target not here).
    """
    calibration = work / f"{name}.npz"
    if not calibration.exists():
        given: dict[str, Any] = zoo_inputs.samples(name, "calibration", held.calibration)
        np.savez(calibration, **given)
    started = time.process_time()
    built = edgefuse.build(
        zoo_inputs.model_path(name),
        target=target,
        calib=calibration,
        precision="int8",
        metric=held.metric,
        max_drop=held.max_drop,
        shapes=zoo_inputs.zoo_model(name)["shapes"],
        output=work / f"{name}.efa",
    )
    row: dict[str, Any] = {
        "model": name,
        "metric": held.metric,
        "max_drop": held.max_drop,
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


def curve(name: str, held: Held, target: str) -> list[dict[str, Any]]:
    """Return share of int8 against loss: one row a budget, from all that can run in int8 downwards.

    predicted_db: of the sum of losses.  Figures are of the evaluation samples, in float simulation.
    """
    from edgefuse.compose.accuracy import session_call
    from edgefuse.compose.payloads import mac_shares
    from edgefuse.compose.planning import int8_plan, measure_tables, repair_prepared
    from edgefuse.compose.prepare import PreparedFeeds, find_target, load_model, prepare
    from edgefuse.quant import repair_after, simulated_graph

    shapes = zoo_inputs.zoo_model(name)["shapes"]
    given = zoo_inputs.samples(name, "calibration", held.calibration)
    inputs = zoo_inputs.samples(name, "evaluation", held.evaluation)
    feeds = [zoo_inputs.feeds(name, given, index) for index in range(held.calibration)]
    prepared = prepare(load_model(str(zoo_inputs.model_path(name)), shapes), find_target(target))
    samples = PreparedFeeds(prepared.model, feeds)
    prepared, _ = repair_prepared(prepared, samples, lambda what, done, of: None)
    tables = measure_tables(prepared, samples, lambda what, done, of: None)
    reference = zoo_inputs.run(name, zoo_inputs.float_model(name), inputs)
    rows = []
    for budget in BUDGETS:
        limit = budget * sum(tables.losses.values())
        plan, quantized = int8_plan(prepared, tables, "int8", 1, limit)
        quantized, _ = repair_after(prepared.model, plan, quantized, samples, tables.scheme)
        call = session_call(simulated_graph(prepared.model, plan, quantized))
        shares = mac_shares(prepared, plan)
        row = {
            "model": name,
            "budget": budget,
            "share": round(sum(shares.get(g.id, 0.0) for g in plan.groups if g.precision == "int8"), 4),
            "predicted_db": -10 * float(np.log10(plan.budget_used)) if plan.budget_used else None,
            **zoo_inputs.score(name, reference, zoo_inputs.run(name, call, inputs)),
        }
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


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
    parser.add_argument("--curve", action="store_true", help="share of int8 against loss too")
    parser.add_argument("--target", default="host")
    parser.add_argument("--json", type=Path, default=Path("held-accuracy.json"))
    arguments = parser.parse_args()
    asked = table()
    unknown = sorted(set(arguments.names) - set(asked))
    if unknown:
        raise UsageError(f"no model is called {unknown[0]!r} here", expected=", ".join(asked))
    rows, cells, curves = [], [], []
    for name in arguments.names or asked:
        held = asked[name]
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, held, arguments.target, Path(folder)))
        cells.append(_cells(rows[-1], held))
        print(" | ".join(cells[-1]), file=sys.stderr, flush=True)
        curves += curve(name, held, arguments.target) if arguments.curve else []
        report = {"rows": rows, "curves": curves, "machine": machine_fingerprint()}
        arguments.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    print_table(list(HEADINGS), cells, right=[2, 4, 5, 6, 7, 9])
    if curves:
        print()
        lines = [[row["model"], f"{row['share']:.3f}", *_curve_figures(row, asked)] for row in curves]
        print_table(["model", "int8 MACs", "score", "value", "dB", "dB predicted"], lines, right=[1, 3, 4, 5])
    return 1 if any(line[8] == "no" for line in cells) else 0


def _curve_figures(row: Mapping[str, Any], asked: Mapping[str, Held]) -> list[str]:
    key = asked[row["model"]].score
    predicted = row["predicted_db"]
    return [key, f"{row[key]:.4f}", f"{row['sqnr_db']:.1f}", "-" if predicted is None else f"{predicted:.1f}"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgefuseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
