"""The columns of the planning problem: a group, computed in one precision, writing one format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgefuse.backend import Backend, Candidate
from edgefuse.cost import CostModel
from edgefuse.device import Target
from edgefuse.fusion import ANCHORS
from edgefuse.graph import Model, Value, constant, is_float
from edgefuse.plans import CostTerm, Format, Precision

__all__ = ["READS", "Column", "PlanRequest", "external_inputs", "make_columns"]

# The dtype in which a group of each precision reads its activations.
READS: Mapping[Precision, str] = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is made from.

    model: with numbers for all shapes that cost should count.  precisions: those that may be used.
    losses: predicted relative mean squared error at the outputs, by node name, if that node runs in int8.
    group_losses: the same by output channel group: node name -> group -> error relative to that group.
    budget: limit on the sum of losses, None = no limit.  group_budget: likewise for each channel group.
    prefer_int8: int8 wherever legal and within budget, whatever it costs.  refused: node names that must stay
    float, with the reason that the user reads.
    """

    model: Model
    target: Target
    backend: Backend
    cost: CostModel
    candidates: Sequence[Candidate]
    precisions: tuple[Precision, ...] = ("fp32",)
    requested: str = "auto"
    losses: Mapping[str, float] = field(default_factory=dict)
    group_losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    budget: float | None = None
    group_budget: float | None = None
    prefer_int8: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    model_digest: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One choice: this candidate, in this precision, writing this format."""

    candidate: Candidate
    variant: str
    precision: Precision
    output: Format
    cost: tuple[CostTerm, ...]
    loss: float

    @property
    def ms(self) -> float:
        """Return the predicted milliseconds."""
        return sum(term.ms for term in self.cost)


def external_inputs(candidate: Candidate) -> tuple[Value, ...]:
    """Return the float activations that the group reads from outside, each once, in reading order."""
    inside = {id(v) for node in candidate.nodes for v in node.outputs}
    found: dict[int, Value] = {}
    for node in candidate.nodes:
        for value in node.inputs:
            if value is not None and id(value) not in inside and is_float(value) and constant(value) is None:
                found.setdefault(id(value), value)
    return tuple(found.values())


def make_columns(request: PlanRequest) -> tuple[list[Column], dict[tuple[str, str], str]]:
    """Return the legal columns, and why a node alone was refused: (node, precision) -> reason."""
    columns: list[Column] = []
    refusals: dict[tuple[str, str], str] = {}
    for candidate in request.candidates:
        for precision in request.precisions:
            for output in _outputs(candidate, precision, request.precisions):
                reason = _refusal(candidate, precision, output, request)
                if reason:
                    if len(candidate.nodes) == 1:
                        refusals.setdefault((candidate.names[0], precision), reason)
                    continue
                columns.append(_column(candidate, precision, output, request))
    return columns, refusals


def _outputs(candidate: Candidate, precision: Precision, allowed: Sequence[Precision]) -> list[Format]:
    """Return the formats worth offering: what the precision computes in, and the narrow one where planned."""
    if not any(is_float(v) for v in candidate.outputs):
        return [Format(READS[precision] if precision != "int8" else "float32")]
    if precision == "fp16":
        return [Format("float16")]
    if "int8" in allowed and candidate.anchor.op_type in ANCHORS:
        return [Format("float32"), Format("int8")]
    return [Format("float32")] if precision == "fp32" else [Format("int8"), Format("float32")]


def _refusal(candidate: Candidate, precision: Precision, output: Format, request: PlanRequest) -> str:
    if precision == "int8":
        for node in candidate.nodes:
            if (node.name or "") in request.refused:
                return request.refused[node.name or ""]
    if output.dtype == "int8" and any(v.is_graph_output() for v in candidate.outputs):
        return "a graph output keeps the user's float type"
    verdict = request.backend.legal(candidate, candidate.variants[0], precision, output, request.target)
    return "" if verdict.ok else verdict.reason


def _column(candidate: Candidate, precision: Precision, output: Format, request: PlanRequest) -> Column:
    cost = request.cost.group(candidate, precision, READS[precision], output)
    loss = 0.0
    if precision == "int8":
        loss = sum(request.losses.get(name, 0.0) for name in candidate.names)
    return Column(candidate, candidate.variants[0], precision, output, cost, loss)
