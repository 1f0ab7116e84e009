"""The mean error that a node alone in int8 leaves in each channel: what bias correction will take out of it.

A loss sweep without this counts what is mended later (efficientnet_lite0: 5 dB of it), and keeps the wrong
nodes in float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    clone_model,
    constant,
    input_value,
    model_to_bytes,
)
from edgefuse.graph.reference import judge_session
from edgefuse.lowering import bias_of
from edgefuse.quant.calibrate import Range
from edgefuse.quant.fake_quant import fake_quantize
from edgefuse.quant.quantize import activation_parameters
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.weights import quantize_node_weight

__all__ = ["mean_errors", "switch_shift"]


def mean_errors(
    model: Model,
    nodes: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Return node name -> mean of (float output - int8 output) over samples and places, float32 [channels].

    The node reads what it reads in float. Left out: nodes that no bias can be given to, outputs that are not
    float32, and means that are not finite.
    """
    copy = clone_model(model)
    graph = copy.graph
    held = {node.name: node for node in graph}
    written: dict[str, str] = {}
    for name in nodes:
        node = held[name]
        shape = node.outputs[0].shape
        if shape is None or node.outputs[0].dtype != DataType.FLOAT or bias_of(node) is None:
            continue
        axis = 1 if node.op_type in ("Conv", "ConvTranspose") else len(shape) - 1
        axes = add_constant(
            graph, np.array([i for i in range(len(shape)) if i != axis], np.int64), f"{name}_other_axes"
        )
        error = _error(node, ranges, scheme)
        mean = add_node(node, "ReduceMean", [error, axes], {"keepdims": 0}, stem=f"{name}_mean").outputs[0]
        mean.type = node.outputs[0].type
        graph.outputs.append(mean)
        written[name] = mean.name or ""
    if not written:
        return {}
    session = judge_session(model_to_bytes(copy))
    rows = [session.run(list(written.values()), dict(feeds)) for feeds in samples]
    means = [np.asarray(np.mean(column, axis=0, dtype=np.float64)) for column in zip(*rows, strict=True)]
    return {
        name: np.asarray(mean, np.float32)
        for name, mean in zip(written, means, strict=True)
        if np.isfinite(mean).all()
    }


def _error(node: Node, ranges: Mapping[str, Range], scheme: Scheme) -> Value:
    """Return a value that holds (float output - output in int8), made before `node`."""
    graph, activation = node.graph, node.inputs[0]
    assert graph is not None
    assert activation is not None
    parameters = activation_parameters(ranges[activation.name or ""], scheme)
    rounded = fake_quantize(node, activation, parameters, f"{node.name}_alone")
    weight = add_constant(
        graph, quantize_node_weight(node, scheme).dequantized(), f"{node.name}_alone_weight"
    )
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}

    def product(inputs: Sequence[Value | None]) -> Value:
        made = add_node(
            node,
            node.op_type,
            [*inputs, *node.inputs[2:]],
            attributes,
            like=node.outputs[0],
            stem=f"{node.name}_alone",
        )
        return made.outputs[0]

    pair = [product(node.inputs[:2]), product([rounded, weight])]
    return add_node(node, "Sub", pair, like=node.outputs[0], stem=f"{node.name}_alone_error").outputs[0]


def switch_shift(node: Node, shift: np.ndarray, switch: Value) -> None:
    """Add `switch` * `shift` to the bias of `node`, in place; shift: as `mean_errors` has it.

    Its weight must still be a constant. A MatMul without a bias is left as it is where nothing follows it.
    """
    graph, found = node.graph, bias_of(node)
    assert graph is not None
    if found is None:
        return
    holder, bias = found
    if holder == node.name and node.op_type == "MatMul":
        _behind(node, shift, switch)
        return
    target = node if holder == node.name else next(n for n in graph if n.name == holder)
    index = 2
    if target is not node:
        index = 0 if constant(input_value(target, 0)) is not None else 1
        old = constant(input_value(target, index))
        assert old is not None
        if old.size != bias.size:
            return  # one number for all channels
        bias, shift = bias.reshape(old.shape), shift.reshape(old.shape)
    elif len(node.inputs) < 3:
        node.resize_inputs(3)
    moved = _scaled(target, shift, switch)
    held = add_constant(graph, bias, f"{node.name}_probe_bias")
    total = add_node(target, "Add", [held, moved], like=held, stem=f"{node.name}_probe_shifted").outputs[0]
    target.replace_input_with(index, total)
    if target is node:
        node.attributes.pop("beta", None)


def _scaled(before: Node, shift: np.ndarray, switch: Value) -> Value:
    assert before.graph is not None
    constant_shift = add_constant(before.graph, shift, f"{before.name}_probe_shift")
    return add_node(
        before, "Mul", [switch, constant_shift], like=constant_shift, stem=f"{before.name}_probe_move"
    ).outputs[0]


def _behind(node: Node, shift: np.ndarray, switch: Value) -> None:
    graph, value = node.graph, node.outputs[0]
    nodes = list(graph or ())
    position = nodes.index(node)
    if value.is_graph_output() or position + 1 >= len(nodes):
        return
    uses = tuple(value.uses())
    following = nodes[position + 1]
    moved = _scaled(following, shift, switch)
    made = add_node(following, "Add", [value, moved], like=value, stem=f"{node.name}_probe_shifted").outputs[
        0
    ]
    for user, index in uses:
        user.replace_input_with(index, made)
