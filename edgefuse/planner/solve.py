"""The integer program, and its one solver.

Variables: x[c] in {0, 1} for each column; y[t, p, q] in [0, 1] for a conversion of tensor t from format p to
q, one for each tensor and not for each edge, so that all readers share it.

    cover      for each node v:                 sum of x[c] over columns that hold v = 1
    supply     for each reader of t at q:       sum of its x[c]
                                                <= sum of x[c] that write t at q + sum over p of y[t, p, q]
    source     for each y[t, p, q]:             y <= sum of x[c] that write t at p  (graph inputs: float32)
    accuracy   sum of loss[c] x[c] <= budget; for each output channel group its own sum <= the groups' budget
    objective  sum of ms[c] x[c] + sum of ms[t, p, q] y[t, p, q]

HiGHS runs on one thread, set before anything runs: a Highs object that once ran with more makes a later
single-threaded run return kNotset without an exception. The limit is a node count, never seconds, so the same
problem gives the same plan on every machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.analysis import node_cost
from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.graph import Value, is_float, static_shape
from edgefuse.planner.columns import READS, Column, PlanRequest, external_inputs
from edgefuse.plans import CostTerm

__all__ = ["Solution", "solve"]

NODE_LIMIT = 20_000
RELATIVE_GAP = 1e-4
# What int8 asked for by name may cost, as multiples of the time of the whole model: for all of its work, and
# for each layer.
_PREFER_SHARE, _PREFER_EACH = 100.0, 0.2


@dataclass(frozen=True, slots=True)
class Solution:
    """Which columns and conversions were taken, with the solver's word for it."""

    columns: tuple[Column, ...]
    conversions: tuple[tuple[str, str, str, CostTerm], ...]
    status: str
    gap: float
    solver: str


class _Rows:
    """Rows of the program as they are written down: coefficients by variable, and bounds."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.index: list[int] = []
        self.value: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def add(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        self.starts.append(len(self.index))
        self.index.extend(terms)
        self.value.extend(terms.values())
        self.lower.append(lower)
        self.upper.append(upper)


def solve(request: PlanRequest, columns: Sequence[Column]) -> Solution:
    """Return the cheapest cover; raises UnsupportedError where none exists (a node that nothing can run)."""
    _require_cover(request, columns)
    conversions = _conversions(request, columns)
    rows = _Rows()
    _cover_rows(columns, rows)
    if len(request.precisions) > 1:
        _format_rows(request, columns, conversions, rows)
    if request.budget is not None:
        _accuracy_row({i: c.loss for i, c in enumerate(columns)}, request.budget, rows)
    if request.group_budget is not None:
        for losses in _group_losses(request, columns, request.group_budget):
            _accuracy_row(losses, request.group_budget, rows)
    extra = _preferences(request, columns)
    costs = [c.ms + e for c, e in zip(columns, extra, strict=True)] + [c[3].ms for c in conversions]
    values, status, gap, version = _run(np.array(costs), len(columns), rows)
    taken = tuple(c for c, x in zip(columns, values, strict=False) if x > 0.5)
    used = tuple(c for c, y in zip(conversions, values[len(columns) :], strict=True) if y > 0.5)
    return Solution(taken, used, status, gap, f"HiGHS {version}")


def _accuracy_row(losses: Mapping[int, float], budget: float, rows: _Rows) -> None:
    """Write that the losses of the taken columns sum to `budget` at most.

    Divided by the budget, since the solver's tolerance is absolute; what is over it alone is ruled out.
    """
    over = {i: 1.0 for i, loss in losses.items() if loss > budget}
    within = {i: loss / budget for i, loss in losses.items() if i not in over and loss > 0}
    if over:
        rows.add(over, 0.0, 0.0)
    if within:
        rows.add(within, -np.inf, 1.0)


def _group_losses(request: PlanRequest, columns: Sequence[Column], budget: float) -> list[dict[int, float]]:
    """Return for each output channel group that may go over `budget` the losses of the columns, by index."""
    totals: dict[str, float] = {}
    for losses in request.group_losses.values():
        for group, loss in losses.items():
            totals[group] = totals.get(group, 0.0) + loss
    found: dict[str, dict[int, float]] = {group: {} for group, total in totals.items() if total > budget}
    for i, column in enumerate(columns):
        if column.precision != "int8":
            continue
        for name in column.candidate.names:
            for group, loss in request.group_losses.get(name, {}).items():
                if group in found:
                    found[group][i] = found[group].get(i, 0.0) + loss
    return list(found.values())


def _require_cover(request: PlanRequest, columns: Sequence[Column]) -> None:
    covered = {name for c in columns for name in c.candidate.names}
    for node in request.model.graph:
        if node.name not in covered:
            raise UnsupportedError(
                f"no way to run node {node.name!r} ({node.op_type}) on {request.target.string}",
                hint="`edgefuse plan --explain NODE` shows each refusal",
            )


def _conversions(request: PlanRequest, columns: Sequence[Column]) -> list[tuple[str, str, str, CostTerm]]:
    """Return (tensor, from, to, cost) for each change of format that some pair of columns may need."""
    if len(request.precisions) == 1:
        return []
    written: dict[str, set[str]] = {v.name or "": {"float32"} for v in request.model.graph.inputs}
    wanted: dict[str, set[str]] = {v.name or "": {"float32"} for v in request.model.graph.outputs}
    sizes: dict[str, int] = {}
    for column in columns:
        for value in column.candidate.outputs:
            if is_float(value):
                written.setdefault(value.name or "", set()).add(column.output.dtype)
        for value in external_inputs(column.candidate):
            wanted.setdefault(value.name or "", set()).add(READS[column.precision])
            sizes[value.name or ""] = _count(value)
    found = []
    for tensor in sorted(wanted):
        for source in sorted(written.get(tensor, ())):
            for target in sorted(wanted[tensor] - {source}):
                term = request.cost.conversion(sizes.get(tensor, 0), source, target)
                found.append((tensor, source, target, term))
    return found


def _count(value: Value) -> int:
    shape = static_shape(value)
    return int(np.prod(shape)) if shape else 0


def _cover_rows(columns: Sequence[Column], rows: _Rows) -> None:
    holders: dict[str, dict[int, float]] = {}
    for i, column in enumerate(columns):
        for name in column.candidate.names:
            holders.setdefault(name, {})[i] = 1.0
    for terms in holders.values():
        rows.add(terms, 1.0, 1.0)


def _format_rows(
    request: PlanRequest,
    columns: Sequence[Column],
    conversions: Sequence[tuple[str, str, str, CostTerm]],
    rows: _Rows,
) -> None:
    writers: dict[tuple[str, str], dict[int, float]] = {}
    reads: dict[tuple[str, str, str], dict[int, float]] = {}
    for i, column in enumerate(columns):
        for value in column.candidate.outputs:
            if is_float(value):
                writers.setdefault((value.name or "", column.output.dtype), {})[i] = -1.0
        inside = set(column.candidate.names)
        for value in external_inputs(column.candidate):
            for use in value.uses():
                if use.node.name in inside:
                    key = (value.name or "", READS[column.precision], use.node.name or "")
                    reads.setdefault(key, {})[i] = 1.0
    inputs = {v.name for v in request.model.graph.inputs}
    into: dict[tuple[str, str], dict[int, float]] = {}
    for k, (tensor, source, target, _) in enumerate(conversions):
        index = len(columns) + k
        into.setdefault((tensor, target), {})[index] = -1.0
        if not (tensor in inputs and source == "float32"):
            rows.add({index: 1.0, **writers.get((tensor, source), {})}, -np.inf, 0.0)
    for (tensor, dtype, _), terms in reads.items():
        free = 1.0 if tensor in inputs and dtype == "float32" else 0.0
        rows.add(
            {**terms, **writers.get((tensor, dtype), {}), **into.get((tensor, dtype), {})}, -np.inf, free
        )
    for value in request.model.graph.outputs:
        if is_float(value) and value.producer() is not None:
            wanted = (value.name or "", "float32")
            rows.add({**writers.get(wanted, {}), **into.get(wanted, {})}, -np.inf, -1.0)


def _preferences(request: PlanRequest, columns: Sequence[Column]) -> list[float]:
    """Return a surcharge in ms for each column: where it is float, could be int8, and that was asked for.

    By its share of the multiply-accumulates, at many times what the whole model takes: under a budget the
    small layers that lose much give way to the large ones. A fixed part is for layers of next to no work.
    """
    if not request.prefer_int8:
        return [0.0] * len(columns)
    macs = {
        node.name: max(node_cost(node).macs, 1) for node in request.model.graph if node.name in request.losses
    }
    total = sum(macs.values())
    scale = sum(min(c.ms for c in alone) for alone in _alone(columns).values())

    def extra(column: Column) -> float:
        counts = [macs[name] for name in column.candidate.names if name in macs]
        if column.precision == "int8" or not counts:
            return 0.0
        return scale * (_PREFER_SHARE * sum(counts) / total + _PREFER_EACH * len(counts))

    return [extra(column) for column in columns]


def _alone(columns: Sequence[Column]) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    for column in columns:
        if len(column.candidate.names) == 1:
            found.setdefault(column.candidate.names[0], []).append(column)
    return found


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Send what C code prints to nowhere: Highs() writes a banner before any option can be set.

    stdout is the result of a verb, so a line more makes `--json` unreadable.
    """
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError, AttributeError):  # no file behind stdout
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _run(costs: np.ndarray, integers: int, rows: _Rows) -> tuple[np.ndarray, str, float, str]:
    import highspy

    with _quiet_stdout():
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("threads", 1),
        ("output_flag", False),
        ("random_seed", 0),
        ("mip_rel_gap", RELATIVE_GAP),
        ("mip_max_nodes", NODE_LIMIT),
        ("parallel", "off"),
    ):
        solver.setOptionValue(option, value)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(costs), len(rows.lower)
    lp.col_cost_ = costs
    lp.col_lower_, lp.col_upper_ = np.zeros(len(costs)), np.ones(len(costs))
    lp.row_lower_, lp.row_upper_ = np.array(rows.lower), np.array(rows.upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array([*rows.starts, len(rows.index)])
    lp.a_matrix_.index_ = np.array(rows.index)
    lp.a_matrix_.value_ = np.array(rows.value)
    whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [whole] * integers + [real] * (len(costs) - integers)
    solver.passModel(lp)
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    version = f"{solver.versionMajor()}.{solver.versionMinor()}.{solver.versionPatch()}"
    if status == highspy.HighsModelStatus.kOptimal:
        return np.array(solver.getSolution().col_value), "optimal", float(max(info.mip_gap, 0.0)), version
    if status == highspy.HighsModelStatus.kSolutionLimit and info.primal_solution_status == 2:
        return np.array(solver.getSolution().col_value), "feasible", float(info.mip_gap), version
    if status == highspy.HighsModelStatus.kInfeasible:
        raise UnsupportedError("no plan fulfils all limits", hint="raise --max-drop, or --precision auto")
    raise InternalError(f"the solver ended with status {solver.modelStatusToString(status)}")
