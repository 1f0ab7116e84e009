"""Replacing operators that the reader does not take by ones that it does, until none is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from edgefuse.errors import UnsupportedError
from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Value,
    all_nodes,
    infer_shapes,
    opset,
    remove_node,
    replace_value,
    source_name,
)
from edgefuse.graph.schemas import expand_functions, has_function_body, operator_form
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition, decompositions
from edgefuse.lowering.reader import Reader, refusal

__all__ = ["decompose"]

# A decomposition is written in simpler operators, so that few rounds reach the bottom; more is our bug.
_MOST_ROUNDS = 12


def decompose(model: Model, reader: Reader) -> tuple[str, ...]:
    """Rewrite, in place, every node that `reader` does not take; return notes.

    Element types are left to `settle_types`, except where an operator of the reader does not compute in the
    type that a node has and a decomposition does. Raises UnsupportedError naming the first node for which
    nothing can be written, with the reason.
    """
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for _ in range(_MOST_ROUNDS):
        faults = [(node, why) for node in all_nodes(model) if (why := _fault(node, reader))]
        if not faults:
            break
        bodies: list[Node] = []
        for node, why in faults:
            counts[node.op_type, why] += 1
            examples.setdefault((node.op_type, why), source_name(node))
            if not _rewrite(model, node, reader, why):
                bodies.append(node)
        expand_functions(model, bodies, opset(model))
        infer_shapes(model)
    else:
        node, why = faults[0]
        raise refusal(node, why)
    return tuple(
        f"{op_type} is rewritten in {count} places (first: {examples[op_type, why]}): {why}"
        for (op_type, why), count in sorted(counts.items())
    )


def _fault(node: Node, reader: Reader) -> str:
    if node.domain not in ("", "ai.onnx"):
        return ""  # claimed by whoever let it through the import
    return reader.fault(node) or _type_fault(node, reader)


def _type_fault(node: Node, reader: Reader) -> str:
    """Return why the node's element type does not fit, where a decomposition computes in it; else ""."""
    limit = reader.limits.get(node.op_type)
    if limit is None or not limit.types or not node.inputs or node.inputs[0] is None:
        return ""
    dtype = node.inputs[0].dtype
    if dtype is None or reader.held(dtype) in limit.types:
        return ""
    if reader.held(dtype) not in _BY_TYPE.get(node.op_type, ()) or not _choice(node, reader):
        return ""
    return f"the target has no {node.op_type} of {reader.held(dtype).name}"


# Where a cast around the node would lose integers above 2^24, or where plain logic does it without casts.
_BY_TYPE = {"Clip": (DataType.INT32, DataType.INT64), "Equal": (DataType.BOOL,)}


def _rewrite(model: Model, node: Node, reader: Reader, why: str) -> bool:
    """Put the first decomposition that works in the place of `node`; False where ONNX's own body is to."""
    refused: UnsupportedError | None = None
    for row in _choice(node, reader):
        try:
            new = row.build(node, Builder(model, node, reader))
        except UnsupportedError as error:
            refused = error
            continue
        _replace(node, new)
        return True
    if refused is not None:
        raise refused
    if reader.missing(node.op_type) and has_function_body(node.op_type, opset(model)):
        return False
    raise refusal(node, why)


def _replace(node: Node, new: Sequence[Value | None]) -> None:
    for old, value in zip(node.outputs, new, strict=False):
        if value is not None:
            replace_value(old, value)
    for old in node.outputs[len(new) :]:
        if old.uses() or old.is_graph_output():
            raise refusal(node, f"its output {old.name!r} cannot be written")
    remove_node(node)


def _choice(node: Node, reader: Reader) -> list[Decomposition]:
    """Return the decompositions of the operator whose own operators the reader can have, best first.

    Those that it reads as they are come before those that need another round.
    """
    rows = [
        row
        for row in decompositions().get(node.op_type, ())
        if all(_reachable(name, reader, {node.op_type}) for name in row.needs)
    ]
    return sorted(rows, key=lambda row: any(reader.form(name) is None for name in row.needs))


def _reachable(op_type: str, reader: Reader, above: set[str]) -> bool:
    """Return whether the reader takes the operator, or takes what it can be written with."""
    if reader.form(op_type) is not None:
        return True
    if op_type in above:
        return False
    return any(
        all(_reachable(name, reader, above | {op_type}) for name in row.needs)
        for row in decompositions().get(op_type, ())
    ) or has_function_body(op_type, _newest(op_type))


def _newest(op_type: str) -> int:
    form = operator_form(op_type, 10**6)
    return form.since if form is not None else 0
