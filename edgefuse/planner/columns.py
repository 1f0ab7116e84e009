"""The columns of the planning problem: a group, computed in one precision, writing one format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgefuse.backend import Backend, Candidate
from edgefuse.cost import CostModel
from edgefuse.device import Target
from edgefuse.fusion import ANCHORS
from edgefuse.graph import AttributeType, Model, Node, Value, constant, has_subgraphs, is_float
from edgefuse.plans import CostTerm, Format, Precision

__all__ = [
    "READS",
    "Column",
    "Offer",
    "PlanRequest",
    "SharedScale",
    "activations",
    "external_inputs",
    "make_columns",
]

# The dtype in which a group of each precision reads its activations.
READS: Mapping[Precision, str] = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


# The formats in which a group may read its activations and write its results.
Offer = tuple[Format, Format]


@dataclass(frozen=True, slots=True)
class SharedScale:
    """Tensors that may share one scale, what that costs in accuracy, and which choices need it.

    needs: (node, variant): where a group holds the node and is written as the variant in int8, the scale is
    shared.  loss, group_losses: as those of `PlanRequest`, added once if it is.  reason: for the reader.
    """

    tensors: tuple[str, ...]
    needs: tuple[tuple[str, str], ...]
    loss: float
    reason: str
    group_losses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is made from.

    model: with numbers for all shapes that cost should count.  precisions: those that may be used.
    losses: predicted relative mean squared error at the outputs, by node name, if that node runs in int8.
    group_losses: the same by output channel group: node name -> group -> error relative to that group.
    budget: limit on the sum of losses, None = no limit.  group_budget: likewise for each channel group.
    prefer_int8: int8 wherever legal and within budget, whatever it costs.  refused: node names that must stay
    float, with the reason that the user reads.  scales: scale groups that the plan may share or not.
    memory_limit_bytes: for activations, over the graph's own order of nodes; None = no limit.
    offers: the formats (layouts, places) offered to a candidate in a precision; None = main memory, as the
    runtime lays it out.
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
    scales: Sequence[SharedScale] = ()
    memory_limit_bytes: float | None = None
    offers: Callable[[Candidate, Precision], Sequence[Offer]] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One choice: this candidate, in this variant and precision, reading and writing these formats."""

    candidate: Candidate
    variant: str
    precision: Precision
    output: Format
    cost: tuple[CostTerm, ...]
    loss: float
    reads: Format

    @property
    def ms(self) -> float:
        """Return the predicted milliseconds."""
        return sum(term.ms for term in self.cost)


def external_inputs(candidate: Candidate) -> tuple[Value, ...]:
    """Return the float activations that the group reads from outside, each once, in reading order."""
    inside = {id(v) for node in candidate.nodes for v in node.outputs}
    found = {id(v): v for node in candidate.nodes for v in activations(node) if id(v) not in inside}
    return tuple(found.values())


def activations(node: Node) -> tuple[Value, ...]:
    """Return the float values that are no constants and that the node reads, also inside its bodies."""
    values = [v for v in node.inputs if v is not None]
    if has_subgraphs(node):
        values += _captured(node)
    return tuple({id(v): v for v in values if is_float(v) and constant(v) is None}.values())


def _captured(node: Node) -> list[Value]:
    """Return the values that the node's bodies take from the graphs around them."""
    found: list[Value] = []
    for attribute in node.attributes.values():
        bodies = [attribute.as_graph()] if attribute.type == AttributeType.GRAPH else []
        bodies += attribute.as_graphs() if attribute.type == AttributeType.GRAPHS else []
        for body in bodies:
            own = {id(v) for v in body.inputs} | {id(v) for inner in body for v in inner.outputs}
            own |= {id(v) for v in body.initializers.values()}
            reads = [v for inner in body for v in (*inner.inputs, *_captured(inner)) if v is not None]
            found += [v for v in (*reads, *body.outputs) if id(v) not in own]
    return found


def make_columns(request: PlanRequest) -> tuple[list[Column], dict[tuple[str, str], str]]:
    """Return the legal columns, and why a node alone was refused: (node, precision) -> reason.

    A variant that is as dear as one before it, in all formats, is left out: nothing speaks for it.
    """
    columns: list[Column] = []
    refusals: dict[tuple[str, str], str] = {}
    for candidate in request.candidates:
        for precision in request.precisions:
            legal, reason = _legal_columns(candidate, precision, request)
            columns.extend(legal)
            if not legal and len(candidate.nodes) == 1:
                refusals[candidate.names[0], precision] = reason
    return columns, refusals


def _legal_columns(
    candidate: Candidate, precision: Precision, request: PlanRequest
) -> tuple[list[Column], str]:
    """Return the columns of a candidate in a precision, and the first reason against one ("" = none)."""
    found: list[Column] = []
    first = ""
    for formats in _offers(candidate, precision, request):
        made: list[Column] = []
        for variant in candidate.variants:
            reason = _refusal(candidate, variant, precision, formats[1], request)
            first = first or reason
            if not reason:
                made.append(_column(candidate, variant, precision, formats, request))
        found.extend(c for k, c in enumerate(made) if all(c.ms < other.ms for other in made[:k]))
    return found, first


def _offers(candidate: Candidate, precision: Precision, request: PlanRequest) -> Sequence[Offer]:
    if request.offers is not None:
        return request.offers(candidate, precision)
    reads = Format(READS[precision])
    return [(reads, output) for output in _outputs(candidate, precision, request.precisions)]


def _outputs(candidate: Candidate, precision: Precision, allowed: Sequence[Precision]) -> list[Format]:
    """Return the formats worth offering: what the precision computes in, and the narrow one where planned."""
    if not any(is_float(v) for v in candidate.outputs):
        return [Format(READS[precision] if precision != "int8" else "float32")]
    if precision == "fp16":
        return [Format("float16")]
    if "int8" in allowed and candidate.anchor.op_type in ANCHORS:
        return [Format("float32"), Format("int8")]
    return [Format("float32")] if precision == "fp32" else [Format("int8"), Format("float32")]


def _refusal(
    candidate: Candidate, variant: str, precision: Precision, output: Format, request: PlanRequest
) -> str:
    if precision == "int8":
        for node in candidate.nodes:
            if (node.name or "") in request.refused:
                return request.refused[node.name or ""]
    if output.dtype == "int8" and any(v.is_graph_output() for v in candidate.outputs):
        return "a graph output keeps the user's float type"
    verdict = request.backend.legal(candidate, variant, precision, output, request.target)
    return "" if verdict.ok else verdict.reason


def _column(
    candidate: Candidate, variant: str, precision: Precision, formats: Offer, request: PlanRequest
) -> Column:
    reads, output = formats
    cost = request.cost.group(candidate, precision, reads.dtype, output, variant)
    loss = 0.0
    if precision == "int8":
        loss = sum(request.losses.get(name, 0.0) for name in candidate.names)
    return Column(candidate, variant, precision, output, cost, loss, reads)
