"""Changes to a graph that keep the promises every pass relies on.

The promises: names are unique; graph inputs and outputs keep the user's names and order; a value that is
read elsewhere keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgefuse.graph.access import SOURCE_KEY, source_name

__all__ = [
    "GRID_KEY",
    "add_constant",
    "add_node",
    "fresh_name",
    "remove_node",
    "replace_node",
    "replace_value",
]

# In a value's metadata_props: the label of the integer grid that the user's model gives the tensor. A value
# that takes its place holds the same numbers, hence has the same grid.
GRID_KEY = "edgefuse.grid"


def _names(graph: ir.Graph) -> set[str]:
    """Return the names in use, cached on the graph: every name this module hands out is added."""
    used: set[str] | None = graph.meta.get("edgefuse.names")
    if used is None:
        used = set()
        for found in [graph, *graph.subgraphs()]:
            used.update(v.name for v in found.inputs if v.name)
            used.update(name for name in found.initializers)
            for node in found:
                used.add(node.name or "")
                used.update(v.name for v in node.outputs if v.name)
        graph.meta["edgefuse.names"] = used
    return used


def fresh_name(graph: ir.Graph, stem: str) -> str:
    """Return a name that no value and no node of `graph` (or its subgraphs) has, beginning with `stem`.

    >>> # fresh_name(graph, "w") gives "w" when free, then "w__1", "w__2", ...
    """
    used = _names(graph)
    name, count = stem, 0
    while name in used or not name:
        count += 1
        name = f"{stem}__{count}"
    used.add(name)
    return name


def add_constant(graph: ir.Graph, array: np.ndarray, stem: str) -> ir.Value:
    """Return a new initializer of `graph` holding `array` (its dtype and shape kept)."""
    array = np.ascontiguousarray(array) if array.ndim else array
    name = fresh_name(graph, stem)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def add_node(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    like: ir.Value | None = None,
    outputs: int = 1,
    stem: str | None = None,
    domain: str = "",
    sources: Iterable[ir.Node] = (),
) -> ir.Node:
    """Return a new node placed right before `before`.

    like: the value whose dtype and shape the first output takes.  stem: the beginning of its name.
    sources: the nodes that it stands for; the names by which the user knows them are kept for reports.
    """
    graph = before.graph
    if graph is None:
        raise ValueError(f"node {before.name!r} stands in no graph")
    stem = stem or (before.name or op_type)
    made = []
    for index in range(outputs):
        value = ir.Value(name=fresh_name(graph, f"{stem}_out" if index == 0 else f"{stem}_out{index}"))
        if like is not None and index == 0:
            value.type = like.type
            value.shape = like.shape.copy() if like.shape is not None else None
        made.append(value)
    node = ir.node(op_type, inputs=list(inputs), attributes=attributes or {}, domain=domain, outputs=made)
    node.name = fresh_name(graph, stem)
    known = dict.fromkeys(source_name(n) for n in sources)
    node.metadata_props[SOURCE_KEY] = " + ".join(k for k in known if k) or source_name(before)
    graph.insert_before(before, node)
    return node


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let every reader of `old` read `new`; where `old` is a graph output, `new` takes its name and place.

    Where `new` cannot take the name (it is a graph input, an initializer, or an output already), an Identity
    is put between, so that the user's names and order always survive.
    """
    graph = old.graph
    if graph is None:
        raise ValueError(f"value {old.name!r} stands in no graph")
    if GRID_KEY in old.metadata_props:
        new.metadata_props.setdefault(GRID_KEY, old.metadata_props[GRID_KEY])
    if old.is_graph_output():
        name = old.name
        needs_identity = (
            new.is_graph_input() or new.is_initializer() or new.is_graph_output() or new.graph is not graph
        )
        producer = old.producer()
        if needs_identity and producer is not None:
            if producer.op_type == "Identity" and producer.inputs[0] is new:
                _replace_uses(old, new)
                return
            new = add_node(producer, "Identity", [new], like=old, sources=[producer]).outputs[0]
        old.name = fresh_name(graph, f"{name}__replaced")
        new.name = name
        if new.shape is None:
            new.shape = old.shape
        if new.type is None:
            new.type = old.type
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
    _replace_uses(old, new)


def _replace_uses(old: ir.Value, new: ir.Value) -> None:
    for user, index in tuple(old.uses()):
        if new.producer() is not user:
            user.replace_input_with(index, new)


def replace_node(node: ir.Node, new: Sequence[ir.Value]) -> None:
    """Replace the outputs of `node` by `new`, one for one, and remove it."""
    for old, value in zip(node.outputs, new, strict=True):
        replace_value(old, value)
    remove_node(node)


def remove_node(node: ir.Node) -> None:
    """Remove a node that nobody reads any more; raises ValueError where somebody does."""
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} stands in no graph")
    graph.remove(node, safe=True)
