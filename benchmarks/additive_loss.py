"""How well the sum of the nodes' losses ranks plans: predicted against measured loss of random plans.

Each model's losses are measured node by node, as a build does it. Then random plans, from a few nodes in int8
to nearly all, get corrected biases and are run in float simulation on calibration samples that took no part
in that. Evaluation data are not read. Prints a table and writes a JSON file.

    python -m benchmarks.additive_loss [NAME ...] [--plans 60] [--samples 64] [--json additive-loss.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import zoo_inputs
from edgefuse.benchmark import machine_fingerprint
from edgefuse.compose.planning import Int8Tables, int8_anchors, measure_tables
from edgefuse.compose.prepare import Prepared, find_target, load_model, prepare
from edgefuse.quant import quantize_plan
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quant.repair import all_int8
from edgefuse.quant.trials import Trials
from edgefuse.report import print_table

__all__ = ["measure", "ranks", "spearman"]

NAMES = ("efficientnet_lite0", "ppocr_cls")
TARGET = "x86-avx2"
LEAST = 0.85
# Samples that judge the plans, of those drawn: the others make ranges and losses. And those that biases see.
JUDGING = 0.5
CORRECTING = 8


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value from 0, float64; equal values share the mean of theirs."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    found[order] = np.arange(len(values), dtype=np.float64)
    for value in np.unique(values):
        same = values == value
        found[same] = found[same].mean()
    return found


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of the ranks of a and b; NaN where one of them is constant."""
    x, y = (ranks(v) - (len(v) - 1) / 2 for v in (a, b))
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size else float("nan")


def random_plans(nodes: list[str], count: int, rng: np.random.Generator) -> list[list[str]]:
    """Return subsets of the nodes: each plan draws its share between 5 % and 95 % first."""
    found: list[list[str]] = []
    while len(found) < count:
        share = rng.uniform(0.05, 0.95)
        taken = [node for node in nodes if rng.random() < share]
        if taken:
            found.append(taken)
    return found


def measure(name: str, plans: int, samples: int) -> dict[str, Any]:
    """Return one model's row: Spearman, and the ratio of measured to predicted loss."""
    started = time.process_time()
    prepared, feeds = _prepared(name, samples)
    places = set(range(0, len(feeds), round(1 / JUDGING)))
    judging = [f for i, f in enumerate(feeds) if i in places]
    fit = [f for i, f in enumerate(feeds) if i not in places]
    tables = measure_tables(prepared, fit, lambda *_: None)
    nodes = [node for node in int8_anchors(prepared) if node in tables.losses]
    subsets = random_plans(nodes, plans, np.random.default_rng(0))
    trials = Trials(prepared.model, judging)
    predicted = np.array([sum(tables.losses[node] for node in taken) for taken in subsets])
    correcting = fit[:: max(1, len(fit) // CORRECTING)][:CORRECTING]
    measured = np.array([_loss(prepared, tables, taken, trials, correcting) for taken in subsets])
    whole = _loss(prepared, tables, nodes, trials, correcting) / sum(tables.losses[node] for node in nodes)
    low, median, high = np.quantile(measured / predicted, [0.1, 0.5, 0.9])
    return {
        "model": name,
        "nodes": len(nodes),
        "plans": plans,
        "spearman": round(spearman(predicted, measured), 4),
        "least": LEAST,
        "ratio": {"p10": round(low, 3), "median": round(median, 3), "p90": round(high, 3)},
        "ratio_all_int8": round(whole, 3),
        "decibels": [round(-10 * np.log10(loss), 2) for loss in (measured.max(), measured.min())],
        "cpu_s": round(time.process_time() - started, 1),
    }


def _prepared(name: str, samples: int) -> tuple[Prepared, list[dict[str, np.ndarray]]]:
    arrays = zoo_inputs.samples(name, "calibration", samples)
    count = len(next(iter(arrays.values())))
    feeds = [zoo_inputs.feeds(name, arrays, index) for index in range(count)]
    shapes = {key: array.shape for key, array in feeds[0].items()}
    model = load_model(str(zoo_inputs.model_path(name)), shapes)
    return prepare(model, find_target(TARGET)), feeds


def _loss(
    prepared: Prepared, tables: Int8Tables, nodes: list[str], trials: Trials, fit: list[dict[str, np.ndarray]]
) -> float:
    """Return the relative mean squared error of the plan, biases corrected, on the judging samples."""
    plan = all_int8(prepared.model, nodes)
    quantized = quantize_plan(prepared.model, plan, tables.ranges, tables.scheme)
    quantized = bias_correct(prepared.model, plan, quantized, fit)
    return float(10 ** (-trials.decibels(prepared.model, plan, quantized) / 10))


def main() -> int:
    """Return 0 where every model's plans are ranked well enough, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME")
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--json", type=Path, default=Path("additive-loss.json"))
    options = parser.parse_args()
    rows = [measure(name, options.plans, options.samples) for name in options.names]
    print_table(
        ("model", "nodes", "plans", "Spearman", "measured / predicted: median (p10 to p90)", "all int8"),
        [
            [
                row["model"],
                str(row["nodes"]),
                str(row["plans"]),
                f"{row['spearman']:.3f}",
                f"{row['ratio']['median']:.2f} ({row['ratio']['p10']:.2f} to {row['ratio']['p90']:.2f})",
                f"{row['ratio_all_int8']:.2f}",
            ]
            for row in rows
        ],
    )
    report = {"machine": machine_fingerprint(), "target": TARGET, "rows": rows}
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["spearman"] >= LEAST for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
