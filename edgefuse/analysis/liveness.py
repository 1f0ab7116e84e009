"""From which node to which node each tensor must exist, and which tensors may share one place.

Time is the position of a node in the graph's order. A tensor lives from the node that writes it to the last
node that reads it, both included; a graph input from before the first node (-1), a graph output to after the
last. Weights and all that is made of constants are no activations and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgefuse.analysis.constants import foldable_values
from edgefuse.analysis.flops import Shapes, UnknownCostError, operator_table
from edgefuse.graph import Graph, Model, Node, Value, has_subgraphs

__all__ = ["Lifetime", "Liveness", "liveness"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One tensor.

    name: the value's name.  bytes: its size.  first, last: node positions between which it lives, both
    included.  storage: number of the bytes that it names (a Reshape and its input name the same).  buffer:
    number of its place; storages of one buffer are each written over the one before (in place).
    """

    name: str
    bytes: int
    first: int
    last: int
    storage: int
    buffer: int


@dataclass(frozen=True, slots=True)
class Liveness:
    """All tensors in the order of their birth.

    unknown: name of a tensor that has no known size -> why.  unplanned: nodes whose bodies hold more tensors.
    """

    lifetimes: tuple[Lifetime, ...]
    unknown: Mapping[str, str]
    unplanned: tuple[str, ...]


@dataclass(slots=True)
class _Tensor:
    name: str
    bytes: int
    elements: int
    first: int
    last: int
    storage: int
    is_input: bool
    is_output: bool


@dataclass(slots=True)
class _Storage:
    last: int
    is_input: bool
    is_output: bool
    buffer: int


def liveness(model: Model) -> Liveness:
    """Return the lifetimes of the main graph's activations, with views and in-place writes already shared.

    A view (Reshape, Squeeze, ...) names its input's bytes where that is neither a graph input nor a graph
    output. An elementwise node writes over an input of the same element count and size whose bytes nobody
    needs afterwards; bytes of graph inputs and outputs are never written over. A tensor that a body reads
    lives until the node that owns the body.
    """
    nodes = list(model.graph)
    tensors, unknown = _tensors(model, nodes)
    storages = _storages(nodes, tensors)
    _write_in_place(nodes, tensors, storages)
    lifetimes = tuple(
        Lifetime(t.name, t.bytes, t.first, t.last, t.storage, storages[t.storage].buffer)
        for t in tensors.values()
    )
    return Liveness(lifetimes, unknown, tuple(n.name or n.op_type for n in nodes if has_subgraphs(n)))


def _tensors(model: Model, nodes: list[Node]) -> tuple[dict[Value, _Tensor], dict[str, str]]:
    shapes, constants = Shapes(), foldable_values(model)
    last_read = {value: at for at, node in enumerate(nodes) for value in _reads(node)}
    inputs = set(model.graph.inputs)
    births = [(value, -1) for value in model.graph.inputs]
    births += [(value, at) for at, node in enumerate(nodes) for value in node.outputs if value.name]
    tensors: dict[Value, _Tensor] = {}
    unknown: dict[str, str] = {}
    for value, first in births:
        if value in constants:
            continue
        try:
            size, elements = shapes.bytes(value), shapes.elements(value)
        except UnknownCostError as reason:
            unknown[value.name or "?"] = str(reason)
            continue
        output = value.is_graph_output()
        last = len(nodes) if output else max(first, last_read.get(value, first))
        number = len(tensors)
        tensors[value] = _Tensor(
            value.name or "?", size, elements, first, last, number, value in inputs, output
        )
    return tensors, unknown


def _reads(node: Node) -> Iterator[Value]:
    """Yield all values that a node reads, those read inside its bodies too."""
    yield from (value for value in node.inputs if value is not None)
    for attr in node.attributes.values():
        bodies = attr.value if isinstance(attr.value, list | tuple) else [attr.value]
        for body in bodies:
            if isinstance(body, Graph):
                for inner in body:
                    yield from _reads(inner)
                yield from body.outputs


def _storages(nodes: list[Node], tensors: dict[Value, _Tensor]) -> dict[int, _Storage]:
    """Let every view take its input's storage; return the storages, each in a buffer of its own."""
    for node in nodes:
        if (
            node.op_type not in operator_table().alias
            or not node.inputs
            or node.domain not in ("", "ai.onnx")
        ):
            continue
        source, view = tensors.get(_first(node)), tensors.get(node.outputs[0])
        if source and view and source.bytes == view.bytes and not (source.is_input or source.is_output):
            view.storage = source.storage
    storages: dict[int, _Storage] = {}
    for tensor in tensors.values():
        storage = storages.setdefault(tensor.storage, _Storage(-1, False, False, tensor.storage))
        storage.last = max(storage.last, tensor.last)
        storage.is_input |= tensor.is_input
        storage.is_output |= tensor.is_output
    return storages


def _first(node: Node) -> Value:
    value = node.inputs[0]
    return value if value is not None else node.outputs[0]


def _write_in_place(nodes: list[Node], tensors: dict[Value, _Tensor], storages: dict[int, _Storage]) -> None:
    """Give the output of an elementwise node the buffer of an input that ends there."""
    for at, node in enumerate(nodes):
        if node.op_type not in operator_table().elementwise or node.domain not in ("", "ai.onnx"):
            continue
        output = tensors.get(node.outputs[0])
        if output is None or any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            continue
        for value in node.inputs:
            source = tensors.get(value) if value is not None else None
            if source is not None and _may_overwrite(source, output, at, storages):
                storages[output.storage].buffer = storages[source.storage].buffer
                break


def _may_overwrite(source: _Tensor, output: _Tensor, at: int, storages: dict[int, _Storage]) -> bool:
    storage = storages[source.storage]
    # Equal bytes alone would let a broadcast float overlay the bools made of it: the elements must match too.
    same = (source.bytes, source.elements) == (output.bytes, output.elements)
    return same and storage.last == at and not (storage.is_input or storage.is_output)
