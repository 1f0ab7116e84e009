"""The bias of a convolution or matrix product: where it stands, and how another takes its place.

Quantization changes biases (bias correction), and a payload must carry the changed ones. A node without a
bias gets one; a MatMul, which has no place for it, gets an Add behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgefuse.errors import InternalError
from edgefuse.graph import (
    Model,
    Node,
    add_constant,
    add_node,
    attribute,
    constant,
    fresh_name,
    input_value,
    sole_reader,
)

__all__ = ["apply_biases", "bias_of"]


def bias_of(node: Node) -> tuple[str, np.ndarray] | None:
    """Return the name of the node that holds the output bias of `node`, and the bias: float32 [channels].

    Conv, ConvTranspose, Gemm: the node itself; zeros where it has none.  MatMul: the Add of a per-channel
    constant that alone reads its result, else the MatMul itself with zeros.
    None where the bias is computed, differs between rows, or the weight is not constant or has no channels.
    """
    weight = constant(input_value(node, 1))
    if weight is None or weight.ndim < 2:
        return None
    if node.op_type in ("Conv", "ConvTranspose"):
        channels = weight.shape[0]
        if node.op_type == "ConvTranspose":
            channels = weight.shape[1] * int(attribute(node, "group", 1))
        return _own(node, channels, 1.0)
    if node.op_type == "Gemm":
        channels = weight.shape[0 if attribute(node, "transB", 0) else 1]
        return _own(node, channels, float(attribute(node, "beta", 1.0)))
    if node.op_type == "MatMul":
        return _behind(node, weight.shape[-1])
    return None


def _own(node: Node, channels: int, factor: float) -> tuple[str, np.ndarray] | None:
    value = input_value(node, 2)
    if value is None:
        return node.name or "", np.zeros(channels, np.float32)
    array = constant(value)
    if array is None or array.size not in (1, channels):
        return None
    if array.ndim > 1 and array.shape[-1] != channels and array.size != 1:
        return None  # [M, 1]: one number a row
    return node.name or "", np.broadcast_to(array.reshape(-1) * factor, channels).astype(np.float32)


def _behind(node: Node, channels: int) -> tuple[str, np.ndarray]:
    nothing = node.name or "", np.zeros(channels, np.float32)
    reader = sole_reader(node.outputs[0])
    if reader is None or reader.op_type != "Add" or reader.graph is not node.graph:
        return nothing
    array = constant(reader.inputs[_constant_side(reader)])
    if array is None or array.shape[-1:] != (channels,) or array.size != channels:
        return nothing
    return reader.name or "", array.reshape(-1).astype(np.float32)


def _constant_side(add: Node) -> int:
    return 0 if constant(add.inputs[0]) is not None else 1


def apply_biases(model: Model, biases: Mapping[str, np.ndarray]) -> None:
    """Give each named node of the graph its bias, in place.

    biases: float32 [channels] by the name that `bias_of` gave. No node or value that was there changes its
    name. Call it last: the Add behind a MatMul belongs to no planned group.
    Raises InternalError for a node that is not there or cannot hold a bias.
    """
    nodes = {node.name: node for node in model.graph}
    for name, bias in biases.items():
        node = nodes.get(name)
        if node is None:
            raise InternalError(f"there is no node {name!r} to take a corrected bias")
        if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            _set_input(node, bias)
        elif node.op_type == "MatMul":
            _add_behind(node, bias)
        elif node.op_type == "Add":
            side = _constant_side(node)
            old = constant(node.inputs[side])
            if old is None:
                raise InternalError(f"the Add {name!r} holds no constant bias")
            _replace(node, side, bias.reshape(old.shape).astype(old.dtype))
        else:
            raise InternalError(f"node {name!r} ({node.op_type}) cannot hold a bias")


def _set_input(node: Node, bias: np.ndarray) -> None:
    kind = node.outputs[0].dtype
    array = bias if kind is None else bias.astype(kind.numpy())
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    _replace(node, 2, array)
    node.attributes.pop("beta", None)


def _replace(node: Node, index: int, array: np.ndarray) -> None:
    graph = node.graph
    assert graph is not None
    node.replace_input_with(index, add_constant(graph, array, f"{node.name}_bias"))


def _add_behind(node: Node, bias: np.ndarray) -> None:
    """Put an Add between a MatMul and all that read it; the name of a graph output goes to the Add."""
    graph, value = node.graph, node.outputs[0]
    assert graph is not None
    uses = tuple(value.uses())
    following = _next_node(node)
    array = bias if value.dtype is None else bias.astype(value.dtype.numpy())
    held = add_constant(graph, array, f"{node.name}_bias")
    anchor = following if following is not None else node
    add = add_node(anchor, "Add", [value, held], like=value, stem=f"{node.name}_add_bias", sources=[node])
    if following is None:
        graph.remove(node)
        graph.insert_before(add, node)
    made = add.outputs[0]
    for user, index in uses:
        user.replace_input_with(index, made)
    if value.is_graph_output():
        name = value.name
        value.name = fresh_name(graph, f"{name}__without_bias")
        made.name = name
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = made


def _next_node(node: Node) -> Node | None:
    found = False
    for other in node.graph or ():
        if found:
            return other
        found = other is node
    return None
