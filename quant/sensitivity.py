"""Loss of each node in int8, measured: one probe model with one switch for each node.

Every quantizable tensor t is written as t + f * (q(t) - t), where f is a graph input and q quantizes and
dequantizes. One session then answers for every node, without building a model for each: f is 1 for the probed
node and 0 for all others. Loss is the mean squared error over all outputs and samples, relative to the mean
square of each output (each output counts the same).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Shape,
    TensorType,
    Value,
    add_constant,
    add_node,
    clone_model,
    constant,
    input_value,
    model_to_bytes,
)
from edgefuse.graph.reference import judge_session
from edgefuse.quant.calibrate import Range
from edgefuse.quant.fake_quant import cast, fake_quantize
from edgefuse.quant.quantize import activation_parameters
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.weights import quantize_node_weight

__all__ = ["measure_channel_losses", "measure_losses"]

_SWITCH = "edgefuse_switch_"


def measure_losses(
    model: Model,
    nodes: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
    progress: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Return the relative mean squared error that each node in int8 adds at the outputs, by node name.

    nodes: names of anchors with constant weights.  samples: a few feeds (8 give a stable order, measured).
    Weights and input activation of the node are quantized, everything else is float32 in ONNX Runtime with
    its optimiser off. progress: called with the number of nodes done.
    """
    losses = {}
    for name, clean, noisy in _switched(model, nodes, ranges, scheme, samples):
        losses[name] = _relative_error(clean, noisy)
        if progress is not None:
            progress(len(losses))
    return losses


def measure_channel_losses(
    model: Model,
    nodes: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the same error kept apart: node name -> float output's name -> float64 [channels].

    Channels are the indices of axis 1 of an output with three axes or more; any other output is one channel.
    A channel that is all zero is held against the whole output.
    """
    losses: dict[str, dict[str, np.ndarray]] = {}
    outputs = _float_outputs(model)
    for name, clean, noisy in _switched(model, nodes, ranges, scheme, samples):
        losses[name] = {
            output: _channel_error([c[k] for c in clean], [n[k] for n in noisy])
            for k, output in enumerate(outputs)
        }
    return losses


def _switched(
    model: Model,
    nodes: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> Iterator[tuple[str, list[list[np.ndarray]], list[list[np.ndarray]]]]:
    """Yield (node name, outputs of each sample in float, the same with only this node in int8)."""
    probed = [name for name in nodes if _input_name(model, name) in ranges]
    if not probed or not samples:
        return
    session, outputs = _probe_session(model, probed, ranges, scheme)
    off = {_SWITCH + str(i): np.zeros((), np.float32) for i in range(len(probed))}
    clean = [session.run(outputs, {**feeds, **off}) for feeds in samples]
    for i, name in enumerate(probed):
        on = {**off, _SWITCH + str(i): np.ones((), np.float32)}
        yield name, clean, [session.run(outputs, {**feeds, **on}) for feeds in samples]


def _channel_error(clean: Sequence[np.ndarray], noisy: Sequence[np.ndarray]) -> np.ndarray:
    """Return mean square of the difference / mean square of the reference, by channel."""
    shape = clean[0].shape
    channels = shape[1] if len(shape) > 2 else 1
    power, error = np.zeros(channels), np.zeros(channels)
    for wanted, got in zip(clean, noisy, strict=True):
        rows = wanted.astype(np.float64).reshape(shape[0] if channels > 1 else 1, channels, -1)
        power += np.square(rows).sum(axis=(0, 2))
        error += np.square(got.astype(np.float64).reshape(rows.shape) - rows).sum(axis=(0, 2))
    power = np.where(power > 0, power, power.mean())
    return np.divide(error, power, out=np.zeros(channels), where=power > 0)


def _input_name(model: Model, node_name: str) -> str:
    for node in model.graph:
        if node.name == node_name:
            value = input_value(node, 0)
            return (value.name or "") if value is not None else ""
    return ""


def _relative_error(clean: Sequence[Sequence[np.ndarray]], noisy: Sequence[Sequence[np.ndarray]]) -> float:
    total = 0.0
    count = len(clean[0])
    for k in range(count):
        error = sum(
            float(np.square(n[k].astype(np.float64) - c[k]).sum()) for c, n in zip(clean, noisy, strict=True)
        )
        power = sum(float(np.square(c[k].astype(np.float64)).sum()) for c in clean)
        total += error / power if power else 0.0
    return total / count


def _probe_session(
    model: Model, probed: Sequence[str], ranges: Mapping[str, Range], scheme: Scheme
) -> tuple[Any, list[str]]:
    copy = clone_model(model)
    nodes = {node.name: node for node in copy.graph}
    for i, name in enumerate(probed):
        node = nodes[name]
        switch = Value(name=_SWITCH + str(i), type=TensorType(DataType.FLOAT), shape=Shape([]))
        copy.graph.inputs.append(switch)
        activation = node.inputs[0]
        assert activation is not None
        _switch_activation(node, activation, ranges[activation.name or ""], scheme, switch)
        _switch_weight(node, scheme, switch)
    names = _float_outputs(copy) or [v.name or "" for v in copy.graph.outputs]
    return judge_session(model_to_bytes(copy)), names


def _float_outputs(model: Model) -> list[str]:
    return [v.name or "" for v in model.graph.outputs if v.dtype is not None and v.dtype.is_floating_point()]


def _switch_activation(node: Node, value: Value, found: Range, scheme: Scheme, switch: Value) -> None:
    stem = f"{node.name}_probe"

    def step(op: str, *inputs: Value) -> Value:
        return add_node(node, op, inputs, like=value, stem=f"{stem}_{op.lower()}").outputs[0]

    rounded = fake_quantize(node, value, activation_parameters(found, scheme), stem)
    switch = _in_dtype_of(node, switch, value)
    node.replace_input_with(0, step("Add", value, step("Mul", switch, step("Sub", rounded, value))))


def _in_dtype_of(node: Node, switch: Value, value: Value) -> Value:
    if value.dtype is None or value.dtype == switch.dtype:
        return switch
    return cast(node, switch, value.dtype, f"{node.name}_probe_switch")


def _switch_weight(node: Node, scheme: Scheme, switch: Value) -> None:
    graph = node.graph
    weight = constant(input_value(node, 1))
    assert graph is not None
    assert weight is not None
    quantized = quantize_node_weight(node, scheme)
    difference = add_constant(
        graph, (quantized.dequantized() - weight).astype(weight.dtype), f"{node.name}_probe_dw"
    )
    switch = _in_dtype_of(node, switch, difference)
    scaled = add_node(
        node, "Mul", [switch, difference], like=node.inputs[1], stem=f"{node.name}_probe_scaled"
    )
    total = add_node(
        node,
        "Add",
        [node.inputs[1], scaled.outputs[0]],
        like=node.inputs[1],
        stem=f"{node.name}_probe_weight",
    )
    node.replace_input_with(1, total.outputs[0])
