"""EfficientNet-Lite0 in int8 with weights of each kind: SQNR, agreement and share, in exact integers.

Calibration: the first 100 photos by sha256 of the name; judged: the other 400, on which nothing was chosen.
Every layer that the target can run in int8 does so, but for those that a row of weight_bits.toml leaves in
float; repairs are those that a build keeps. Prints a table and writes a JSON file.

    python -m benchmarks.weight_bits [--rows NAME ...] [--photos 400] [--json weight-bits.json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import zoo_inputs
from edgefuse.analysis import node_cost
from edgefuse.benchmark import machine_fingerprint
from edgefuse.compose.planning import int8_anchors
from edgefuse.compose.prepare import Prepared, find_target, load_model, prepare
from edgefuse.errors import EdgefuseError, UsageError
from edgefuse.graph import Model
from edgefuse.plans import Plan
from edgefuse.quant import Scheme, choose_ranges, quantize_plan, repair_after, repair_before, scheme_of
from edgefuse.quant.integer_reference import IntegerReference
from edgefuse.quant.repair import all_int8
from edgefuse.quantized import Quantized
from edgefuse.report import print_table

__all__ = ["Row", "agreement_interval", "cells", "measure", "rows"]

NAME = "efficientnet_lite0"
CALIBRATION = 100
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One table of weight_bits.toml, which says what each key means."""

    target: str
    weights: str
    depthwise: str = "as the target"
    float_layers: int = 0
    least_db: float = 0.0


def rows() -> dict[str, Row]:
    """Return weight_bits.toml: name of the row -> what is measured."""
    stored = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    return {name: msgspec.convert(row, Row, strict=True) for name, row in stored["rows"].items()}


def measure(row: Row, photos: int) -> dict[str, Any]:
    """Return the figures of one row on `photos` evaluation photos.

    share: of multiply-accumulates in int8.  sqnr_db: of the logits.  agreement: with the float model, with
    the ends of its 95 % interval (Wilson).  cpu_s: of this process.
    """
    started = time.process_time()
    shapes = zoo_inputs.zoo_model(NAME)["shapes"]
    prepared = prepare(load_model(str(zoo_inputs.model_path(NAME)), shapes), find_target(row.target))
    scheme = _scheme(prepared, row)
    able = set(int8_anchors(prepared))
    nodes = [node.name or "" for node in prepared.model.graph if node.name in able][row.float_layers :]
    share = _share(prepared, nodes)
    model, plan, quantized, kept = _quantized(prepared, scheme, nodes)
    built_s = time.process_time() - started
    call = IntegerReference(model, plan, quantized, scheme).run
    inputs = zoo_inputs.samples(NAME, "evaluation", photos)
    reference = zoo_inputs.run(NAME, zoo_inputs.float_model(NAME), inputs)
    found = zoo_inputs.score(NAME, reference, zoo_inputs.run(NAME, call, inputs))
    equal = round(found["agreement"] * photos)
    return {
        "share": share,
        "scheme": scheme.name,
        "kept": kept,
        "photos": photos,
        "sqnr_db": found["sqnr_db"],
        "agreement": found["agreement"],
        "interval": agreement_interval(equal, photos),
        "build_cpu_s": built_s,
        "cpu_s": time.process_time() - started,
    }


def _scheme(prepared: Prepared, row: Row) -> Scheme:
    scheme = scheme_of(prepared.target, row.weights)
    return scheme if row.depthwise == "as the target" else replace(scheme, depthwise_saturates=True)


def _share(prepared: Prepared, nodes: Sequence[str]) -> float:
    macs = {node.name: cost.macs for node in prepared.costed.graph if (cost := node_cost(node)) is not None}
    return sum(macs[name] for name in nodes) / sum(macs.values())


def _quantized(
    prepared: Prepared, scheme: Scheme, nodes: Sequence[str]
) -> tuple[Model, Plan, Quantized, list[str]]:
    """Return the repaired model, its plan and integers, and the names of the repairs that stayed."""
    inputs = zoo_inputs.samples(NAME, "calibration", CALIBRATION)
    samples = [zoo_inputs.feeds(NAME, inputs, index) for index in range(CALIBRATION)]
    model, before = repair_before(prepared.model, samples, scheme, nodes)
    wanted = set(nodes)
    reads = [node.inputs[0].name or "" for node in model.graph if node.name in wanted and node.inputs[0]]
    ranges, tried = choose_ranges(model, list(dict.fromkeys(reads)), samples, scheme, nodes)
    plan = all_int8(model, nodes)
    quantized = quantize_plan(model, plan, ranges, scheme)
    quantized, after = repair_after(model, plan, quantized, samples, scheme)
    log = (*before.repairs, *tried, *after.repairs)
    return model, plan, quantized, [repair.name for repair in log if repair.kept]


def agreement_interval(equal: int, count: int) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a share (Wilson 1927).

    >>> [round(end, 3) for end in agreement_interval(396, 400)]
    [0.975, 0.996]
    """
    z, share = 1.96, equal / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return middle - half, min(1.0, middle + half)


def cells(name: str, row: Row, found: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    low, high = found["interval"]
    return [
        name,
        found["scheme"],
        f"{found['share']:.3f}",
        f"{found['sqnr_db']:.1f}",
        f"{row.least_db:g}",
        f"{found['agreement']:.4f} ({low:.3f}-{high:.3f})",
        ", ".join(found["kept"]),
        f"{found['build_cpu_s']:.0f}",
    ]


def main() -> int:
    """Measure, print, write; return 1 where a row is below what is asked of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=list(rows()))
    parser.add_argument("--photos", type=int, default=400)
    parser.add_argument("--json", type=Path, default=Path("weight-bits.json"))
    arguments = parser.parse_args()
    asked = rows()
    unknown = sorted(set(arguments.rows) - set(asked))
    if unknown:
        raise UsageError(f"no row is called {unknown[0]!r}", expected=", ".join(asked))
    report: dict[str, Any] = {"model": NAME, "rows": {}, "machine": machine_fingerprint()}
    lines = []
    for name in arguments.rows:
        found = report["rows"][name] = measure(asked[name], arguments.photos)
        lines.append(cells(name, asked[name], found))
        print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
        arguments.json.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    headings = ["row", "scheme", "int8 MACs", "dB", "asked", "agreement (95 %)", "repairs kept", "CPU s"]
    print_table(headings, lines, right=[2, 3, 4, 7])
    below = [name for name, found in report["rows"].items() if found["sqnr_db"] < asked[name].least_db]
    return 1 if below else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgefuseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
