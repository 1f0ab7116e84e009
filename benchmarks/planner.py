"""How the planner's solver does: proven gap and CPU seconds of every model on every device, and of stacks.

No calibration: the losses of int8 are drawn from the nodes' names (log-normal, the same on every machine), in
three accuracy rows with a quarter of their sums as budgets. They make the problem as hard as measured ones do
and say nothing about accuracy. Families that this version only describes are planned by their descriptors.
CPU seconds are those of this process from the prepared model to the plan: candidates, legality, cost, solver.

    python -m benchmarks.planner [--models NAME ...] [--devices NAME ...] [--skip models|stacks] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures import bert, mobilenet_v2, resnet
from edgefuse.backend import Backend, Candidate, Lowered, Probe, Readback, Verdict, load_backend
from edgefuse.benchmark import machine_fingerprint
from edgefuse.compose.planning import Int8Tables, float_request, int8_anchors, int8_request
from edgefuse.compose.prepare import Prepared, load_model, prepare
from edgefuse.device import Target, devices, resolve_target
from edgefuse.errors import EdgefuseError, UnsupportedError
from edgefuse.graph import Model, clone_model, constant, input_value
from edgefuse.planner import PlanRequest, make_columns
from edgefuse.planner.assemble import assemble
from edgefuse.planner.search import search
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quant import scheme_of
from edgefuse.quantized import Quantized
from edgefuse.report import print_table

__all__ = ["SyntheticLosses", "measure_model", "measure_request", "model_files", "synthetic_losses"]

ROOT = Path(__file__).resolve().parents[1]
ZOO = (ROOT / "zoo", ROOT.parent / "shared" / "zoo")
BUDGET_SHARE = 0.25
ROWS = ("first outputs", "other outputs")
# What is asked for: gap, seconds for nine plans of ten, seconds for all, growth against linear.
MOST_GAP, NINE_OF_TEN_S, MOST_S, MOST_GROWTH = 1e-3, 5.0, 20.0, 1.3

STACKS = (1, 2, 4, 8)
STACK_DEVICES = ("x86-avx2", "jetson-orin-nano", "raspberry-pi-4")

SyntheticLosses = tuple[dict[str, float], dict[str, dict[str, float]]]


class DescribedBackend(Backend):
    """What a family's descriptors allow, for families without a backend in this version: planning only."""

    def __init__(self, family: str) -> None:
        self.family = family

    def probe(self) -> Probe:
        """Return that nothing can be run here."""
        return Probe(False, install="this version describes the family and does not build for it")

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        for node in candidate.nodes:
            support = target.support(node.op_type, precision)
            if not support.allowed and (precision != "int8" or node is candidate.anchor):
                return Verdict(False, support.reason)
        if precision == "int8" and constant(input_value(candidate.anchor, 1)) is None:
            return Verdict(False, "int8 is planned for constant weights here")
        return Verdict(True)

    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        raise UnsupportedError(f"the family {self.family!r} is only described in this version")

    def _readback(self, engine: Any, plan: Plan) -> Readback:
        raise UnsupportedError(f"the family {self.family!r} is only described in this version")


def backend_of(family: str) -> Backend:
    """Return the family's backend, or what its descriptors allow."""
    if find_spec(f"edgefuse.targets.{family}.backend") is None:
        return DescribedBackend(family)
    return load_backend(family)


def model_files() -> dict[str, Path]:
    """Return name -> ONNX file of the trained models (`make zoo`) and of the onnx wheel's light models."""
    found: dict[str, Path] = {}
    for folder in ZOO:
        for path in sorted(folder.glob("*.onnx")):
            found.setdefault(path.stem, path)
    onnx = find_spec("onnx")
    if onnx is not None and onnx.origin:
        light = Path(onnx.origin).parent / "backend" / "test" / "data" / "light"
        found |= {path.stem: path for path in sorted(light.glob("*.onnx"))}
    return found


def zoo_shapes(name: str) -> dict[str, list[int]]:
    """Return the static shapes that examples/zoo.toml gives for a model; {} for others."""
    import msgspec

    table = msgspec.toml.decode((ROOT / "examples" / "zoo.toml").read_bytes())["models"]
    return {k: list(v) for k, v in table.get(name, {}).get("shapes", {}).items()}


def synthetic_losses(names: Sequence[str]) -> SyntheticLosses:
    """Return for each node a loss, and one for each of two output channel groups, drawn from its name."""
    totals: dict[str, float] = {}
    groups: dict[str, dict[str, float]] = {}
    for name in names:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        drawn = np.random.default_rng(seed).lognormal(0.0, 1.0, 3)
        totals[name] = float(drawn[0])
        groups[name] = {row: float(value) for row, value in zip(ROWS, drawn[1:], strict=True)}
    return totals, groups


def request_for(prepared: Prepared) -> PlanRequest:
    """Return the request of an `auto` build with synthetic losses; float where the device has no int8."""
    if prepared.target.device.int8 == "none":
        return float_request(prepared, "auto", 1)
    losses, groups = synthetic_losses(int8_anchors(prepared))
    tables = Int8Tables(scheme_of(prepared.target), {}, losses, group_losses=groups)
    sums = [sum(losses.values()), *(sum(g[row] for g in groups.values()) for row in ROWS)]
    budget = BUDGET_SHARE * sums[0] or None
    group_budget = BUDGET_SHARE * max(sums[1:]) or None
    return int8_request(prepared, tables, "auto", 1, budget, group_budget=group_budget)


@functools.lru_cache(maxsize=16)
def prepared_for(path: str, family: str, runtime: str, device: str) -> Prepared:
    """Return the model prepared for a device; what follows is the same for all devices of its runtime."""
    target = resolve_target(f"{device}@{runtime}")
    shapes = zoo_shapes(Path(path).stem)
    return prepare(load_model(path, {}), target, shapes, backend=backend_of(family))


def measure_model(name: str, path: Path, target: Target) -> dict[str, Any]:
    """Return the row of a model on a target, with an `error` where it cannot be planned there."""
    first = next(d.name for d in devices(target.family) if target.runtime.name in d.runtimes)
    try:
        prepared = prepared_for(str(path), target.family, target.runtime.name, first)
        row = measure_request(replace(prepared, target=target))
        return {"model": name, "device": target.device.name, **row}
    except EdgefuseError as error:
        return {"model": name, "device": target.device.name, "error": str(error).splitlines()[0]}


def measure_request(prepared: Prepared) -> dict[str, Any]:
    """Return size, gap and CPU seconds of planning a prepared model."""
    start = time.process_time()
    request = request_for(prepared)
    columns, _ = make_columns(request)
    problem = assemble(request, columns)
    built = time.process_time()
    found = search(problem)
    end = time.process_time()
    return {
        "status": found.status,
        "gap": found.gap,
        "cpu_s": round(end - start, 3),
        "solver_cpu_s": round(end - built, 3),
        "nodes": problem.size,
        "columns": len(columns),
        "variables": found.variables,
        "rows": found.rows,
        "branches": found.nodes,
        "circles": found.circles,
        "groups": len(found.taken),
        "int8": sum(columns[i].precision == "int8" for i in found.taken),
    }


def measure_all(models: Sequence[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each model and device, with progress on stderr."""
    files = model_files()
    for model in models:
        for name in names:
            target = resolve_target(name)
            row = measure_model(model, files[model], target)
            told = row.get("error") or f"gap {row['gap']:.2g}, {row['cpu_s']:.2f} CPU s"
            print(f"{model} on {name}: {told}", file=sys.stderr, flush=True)
            yield row


def stacks() -> Iterator[tuple[str, int, Model]]:
    """Yield (network, depth as a multiple of its paper's, model) of the generated networks."""
    for times in STACKS:
        yield "ResNet-50", times, resnet(tuple(times * n for n in (3, 4, 6, 3)))
        yield "MobileNetV2", times, mobilenet_v2(repeat=times)
        yield "BERT (12 layers)", times, bert(layers=12 * times)


def measure_stacks(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each stack and device; `growth`: CPU seconds over the multiple of those at depth 1."""
    rows = []
    base: dict[tuple[str, str], float] = {}
    for network, times, model in stacks():
        for name in names:
            target = resolve_target(name)
            prepared = prepare(clone_model(model), target, backend=backend_of(target.family))
            row = measure_request(prepared)
            first = base.setdefault((network, name), row["cpu_s"])
            growth = row["cpu_s"] / (first * times)
            rows.append({"model": f"{network} x{times}", "device": name, **row, "growth": round(growth, 3)})
            print(f"{network} x{times} on {name}: {row['cpu_s']:.2f} CPU s", file=sys.stderr, flush=True)
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    if "error" in row:
        return [row["model"], row["device"], "not planned", row["error"][:60], "", "", "", "", ""]
    return [
        row["model"],
        row["device"],
        row["status"],
        f"{row['gap']:.1e}",
        f"{row['cpu_s']:.2f}",
        str(row["columns"]),
        str(row["rows"]),
        f"{row['int8']}/{row['groups']}",
        f"{row['growth']:.2f}" if "growth" in row else "",
    ]


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the rows say about the promises, one line each."""
    planned = [row for row in rows if "error" not in row]
    if not planned:
        return ["nothing was planned"]
    seconds = sorted(row["cpu_s"] for row in planned)
    growth = max((row["growth"] for row in planned if "growth" in row), default=None)
    fast = sum(s < NINE_OF_TEN_S for s in seconds) / len(seconds)
    gap = max(row["gap"] for row in planned)
    return [
        f"{len(planned)} plans, {len(rows) - len(planned)} not possible",
        f"largest proven gap {gap:.2e} (asked: {MOST_GAP:.0e}): {_kept(gap <= MOST_GAP)}",
        f"{fast:.0%} under {NINE_OF_TEN_S:.0f} CPU s, median {seconds[len(seconds) // 2]:.2f}, most "
        f"{seconds[-1]:.2f} (asked: 90 %, {MOST_S:.0f}): "
        f"{_kept(fast >= 0.9 and seconds[-1] < MOST_S)}",
        *(
            [f"most growth {growth:.2f} of linear (asked: {MOST_GROWTH}): {_kept(growth <= MOST_GROWTH)}"]
            if growth is not None
            else []
        ),
    ]


def _kept(promise: bool) -> str:
    return "kept" if promise else "NOT KEPT"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="*", help="default: all")
    parser.add_argument("--devices", nargs="*", help="default: all")
    parser.add_argument("--skip", choices=["models", "stacks"], help="leave out one half")
    parser.add_argument("--json", type=Path, default=Path("planner.json"))
    given = parser.parse_args(arguments)
    models = given.models if given.models is not None else list(model_files())
    names = given.devices if given.devices is not None else [d.name for d in devices()]
    rows = [] if given.skip == "models" else list(measure_all(models, names))
    if given.skip != "stacks":
        rows += measure_stacks(given.devices if given.devices is not None else STACK_DEVICES)
    head = ["model", "device", "status", "gap", "CPU s", "columns", "rows", "int8", "growth"]
    print_table(head, [cells(row) for row in rows], right=[3, 4, 5, 6, 7, 8])
    told = verdicts(rows)
    print("\n".join(told))
    body = {"machine": machine_fingerprint(), "losses": "synthetic", "rows": rows, "verdicts": told}
    given.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return int(any("NOT KEPT" in line for line in told))


if __name__ == "__main__":
    sys.exit(main())
