"""From a request and its columns to the problem as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgefuse.analysis import node_cost
from edgefuse.cost.model import ELEMENT_BYTES
from edgefuse.errors import UnsupportedError
from edgefuse.graph import Value, element_bytes, is_float, static_shape
from edgefuse.planner.columns import READS, Column, PlanRequest, SharedScale, activations, external_inputs
from edgefuse.planner.problem import Choice, Problem, Step
from edgefuse.plans import CostTerm, Format

__all__ = ["METRIC", "assemble", "limit_names", "scale_name", "step_term"]

# The name of the accuracy row of the metric as a whole; the other rows are named after output channel groups.
METRIC = "all outputs"
PLAIN = Format(READS["fp32"])

# Beside its share of the work each layer counts a little, so that the smallest ones are not forgotten.
_EACH_LAYER = 1e-4


def assemble(request: PlanRequest, columns: Sequence[Column]) -> Problem:
    """Return the planning problem; its choices are `columns`, in their order.

    Raises UnsupportedError where some node is in no column.
    """
    _require_cover(request, columns)
    graph = request.model.graph
    position = {node.name or "": i for i, node in enumerate(graph)}
    values = _tensors(request)
    rows = _limits(request)
    problem = Problem(
        size=len(position),
        choices=tuple(_choices(request, columns, position, [name for name, _ in rows])),
        steps=(),
        edges=_edges(request, position),
        producers={v.name or "": position[node.name or ""] for node in graph for v in node.outputs},
        readers=_readers(request, position),
        given={v.name or "": PLAIN for v in graph.inputs if is_float(v)},
        wanted={v.name or "": PLAIN for v in graph.outputs if is_float(v)},
        limits=tuple(limit for _, limit in rows),
        scales={scale_name(s): _scale_losses(s, [name for name, _ in rows]) for s in request.scales},
        memory_limit=request.memory_limit_bytes,
    )
    steps = _steps(request, problem, values)
    sizes = _sizes(problem, values) if request.memory_limit_bytes is not None else {}
    return replace(problem, steps=steps, sizes=sizes)


def _require_cover(request: PlanRequest, columns: Sequence[Column]) -> None:
    covered = {name for c in columns for name in c.candidate.names}
    for node in request.model.graph:
        if node.name not in covered:
            raise UnsupportedError(
                f"no way to run node {node.name!r} ({node.op_type}) on {request.target.string}",
                hint="`edgefuse plan --explain NODE` shows each refusal",
            )


def _tensors(request: PlanRequest) -> dict[str, Value]:
    graph = request.model.graph
    found = {v.name or "": v for v in graph.inputs}
    return found | {v.name or "": v for node in graph for v in node.outputs}


def limit_names(request: PlanRequest) -> list[str]:
    """Return the name of each accuracy row, in the order of `Problem.limits`."""
    return [name for name, _ in _limits(request)]


def _limits(request: PlanRequest) -> list[tuple[str, float]]:
    """Return (name, limit) of the rows: the metric's, and those of output channel groups that may go over."""
    found = [] if request.budget is None else [(METRIC, request.budget)]
    if request.group_budget is not None:
        totals: dict[str, float] = {}
        for losses in (*request.group_losses.values(), *(s.group_losses for s in request.scales)):
            for group, loss in losses.items():
                totals[group] = totals.get(group, 0.0) + loss
        found += [
            (group, request.group_budget) for group, total in totals.items() if total > request.group_budget
        ]
    return found


def _losses(request: PlanRequest, column: Column, rows: Sequence[str]) -> tuple[float, ...]:
    if column.precision != "int8":
        return (0.0,) * len(rows)
    tables = [request.group_losses.get(name, {}) for name in column.candidate.names]
    return tuple(
        column.loss if row == METRIC else sum(table.get(row, 0.0) for table in tables) for row in rows
    )


def scale_name(scale: SharedScale) -> str:
    """Return the name of a scale group in the problem."""
    return "+".join(scale.tensors)


def _scale_losses(scale: SharedScale, rows: Sequence[str]) -> tuple[float, ...]:
    return tuple(scale.loss if row == METRIC else scale.group_losses.get(row, 0.0) for row in rows)


def _shares(request: PlanRequest, column: Column) -> tuple[str, ...]:
    if column.precision != "int8":
        return ()
    held = {(name, column.variant) for name in column.candidate.names}
    return tuple(scale_name(s) for s in request.scales if held.intersection(s.needs))


def _choices(
    request: PlanRequest, columns: Sequence[Column], position: dict[str, int], rows: Sequence[str]
) -> list[Choice]:
    surcharges = _surcharges(request, columns)
    reads = {id(c.candidate): external_inputs(c.candidate) for c in columns}
    return [
        Choice(
            nodes=tuple(sorted(position[name] for name in column.candidate.names)),
            reads=tuple((v.name or "", column.reads) for v in reads[id(column.candidate)]),
            writes=tuple((v.name or "", _written(v, column)) for v in column.candidate.outputs),
            cost=column.ms,
            losses=_losses(request, column, rows),
            shares=_shares(request, column),
            surcharge=surcharge,
        )
        for column, surcharge in zip(columns, surcharges, strict=True)
    ]


def _written(value: Value, column: Column) -> Format:
    """Return the format of a result; what is no float is never converted."""
    return column.output if is_float(value) else PLAIN


def _surcharges(request: PlanRequest, columns: Sequence[Column]) -> list[float]:
    """Return what `--precision int8` makes small before cost: the work that is float and could be int8.

    By its share of the multiply-accumulates: under a budget the small layers that lose much give way to the
    large ones.
    """
    if not request.prefer_int8:
        return [0.0] * len(columns)
    macs = {
        node.name or "": max(node_cost(node).macs, 1)
        for node in request.model.graph
        if node.name in request.losses
    }
    total = sum(macs.values())

    def extra(column: Column) -> float:
        counts = [macs[name] for name in column.candidate.names if name in macs]
        if column.precision == "int8" or not counts:
            return 0.0
        return sum(counts) / total + _EACH_LAYER * len(counts)

    return [extra(column) for column in columns]


def _edges(request: PlanRequest, position: dict[str, int]) -> tuple[tuple[int, int], ...]:
    found: dict[tuple[int, int], None] = {}
    for node in request.model.graph:
        for value in (*node.inputs, *activations(node)):
            producer = value.producer() if value is not None else None
            if producer is not None and (producer.name or "") in position:
                found[position[producer.name or ""], position[node.name or ""]] = None
    return tuple(found)


def _readers(request: PlanRequest, position: dict[str, int]) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[int, None]] = {}
    for node in request.model.graph:
        for value in (*(v for v in node.inputs if v is not None), *activations(node)):
            found.setdefault(value.name or "", {})[position[node.name or ""]] = None
    return {tensor: tuple(positions) for tensor, positions in found.items()}


def _steps(request: PlanRequest, problem: Problem, values: dict[str, Value]) -> tuple[Step, ...]:
    """Return each change of format that some pair of choices may need."""
    written: dict[str, set[Format]] = {t: {f} for t, f in problem.given.items()}
    wanted: dict[str, set[Format]] = {t: {f} for t, f in problem.wanted.items()}
    for choice in problem.choices:
        for tensor, layout in choice.writes:
            written.setdefault(tensor, set()).add(layout)
        for tensor, layout in choice.reads:
            wanted.setdefault(tensor, set()).add(layout)
    return tuple(
        Step(tensor, source, target, step_term(request, values[tensor], source, target).ms)
        for tensor in sorted(wanted)
        for source in sorted(written.get(tensor, ()))
        for target in sorted(wanted[tensor] - {source})
    )


def step_term(request: PlanRequest, value: Value, source: Format, target: Format) -> CostTerm:
    """Return the cost of changing the format of `value` in a pass of its own."""
    count = _count(value)
    if (source.layout, source.place) == (target.layout, target.place):
        return request.cost.conversion(count, source.dtype, target.dtype)
    return request.cost.reformat(count, source, target)


def _count(value: Value) -> int:
    shape = static_shape(value)
    return int(np.prod(shape)) if shape else 0


def _sizes(problem: Problem, values: dict[str, Value]) -> dict[tuple[str, Format], float]:
    used = [pair for choice in problem.choices for pair in (*choice.reads, *choice.writes)]
    used += [*problem.given.items(), *problem.wanted.items()]
    used += [(step.tensor, step.target) for step in problem.steps]
    return {
        (tensor, layout): max(_count(values[tensor]), 1) * _element_bytes(values[tensor], layout)
        for tensor, layout in dict.fromkeys(used)
    }


def _element_bytes(value: Value, layout: Format) -> float:
    return ELEMENT_BYTES[layout.dtype] if is_float(value) else element_bytes(value)
