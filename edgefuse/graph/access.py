"""Small questions about values and nodes that every room asks.

Nothing here changes a graph. A `Value` of onnx_ir knows its producer, its readers and its constant; these
functions give the answers in numpy and plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = [
    "all_nodes",
    "attribute",
    "constant",
    "dims",
    "element_bytes",
    "has_subgraphs",
    "input_value",
    "is_float",
    "is_scalar_constant",
    "opset",
    "readers",
    "scalar",
    "sole_reader",
    "source_name",
    "static_shape",
]

# Bytes of one element; sub-byte types count as a fraction.
_FLOATS = {
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
}


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of an initializer or Constant node, or None where the value is computed at run time.

    A graph input is never constant here: on import, initializers were taken out of the inputs.
    """
    if value is None or value.const_value is None:
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """Return the number that a constant of one element holds, whatever its rank, or None."""
    array = constant(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fiub":
        return None
    return float(array.reshape(()))


def is_scalar_constant(value: ir.Value | None, number: float, tolerance: float = 1e-6) -> bool:
    """Return whether `value` is a one-element constant within `tolerance` (relative) of `number`."""
    found = scalar(value)
    return found is not None and abs(found - number) <= tolerance * max(1.0, abs(number))


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return an attribute as a plain Python value (int, float, str, tuple, ndarray, Graph), or `default`."""
    found = node.attributes.get(name)
    if found is None or found.value is None:
        return default
    if found.type == ir.AttributeType.TENSOR:
        return found.as_tensor().numpy()
    if found.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return tuple(found.value)
    return found.value


def input_value(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input at `index`, or None where it is left out or the node has fewer inputs."""
    return node.inputs[index] if index < len(node.inputs) else None


def dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """Return the dimensions (int, symbol name, or None where unknown), or None where the rank is unknown."""
    if value is None:
        return None
    if value.shape is None:
        array = constant(value)
        return None if array is None else tuple(array.shape)
    return tuple(
        d if isinstance(d, int) else (str(d.value) if d.value is not None else None) for d in value.shape
    )


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape where every dimension is a number, else None."""
    found = dims(value)
    if found is None or not all(isinstance(d, int) for d in found):
        return None
    return tuple(int(d) for d in found if d is not None)


def element_bytes(value: ir.Value) -> float:
    """Return the bytes of one element of `value` (0.5 for 4-bit types); 4.0 where the type is unknown."""
    return float(value.dtype.itemsize) if value.dtype is not None else 4.0


def is_float(value: ir.Value | None) -> bool:
    """Return whether the element type is float16, bfloat16, float32 or float64."""
    return value is not None and value.dtype in _FLOATS


def readers(value: ir.Value) -> tuple[ir.Node, ...]:
    """Return the distinct nodes that read `value` (inside subgraphs too), in order of first use."""
    return tuple(dict.fromkeys(use.node for use in value.uses()))


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads `value` once, or None where it is read elsewhere or is a graph output.

    This is the question behind every fold: may the producer change what it writes?
    """
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def has_subgraphs(node: ir.Node) -> bool:
    """Return whether the node carries a body (If, Loop, Scan, SequenceMap)."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node of the model, those inside subgraphs included."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)


def opset(model: ir.Model) -> int:
    """Return the version of the default operator set that the model's nodes are written in."""
    return int(model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1)))


SOURCE_KEY = "edgefuse.source"


def source_name(node: ir.Node) -> str:
    """Return the name by which the user knows the node (the file's; where it had none, what it writes)."""
    return node.metadata_props.get(SOURCE_KEY, node.name or "")
