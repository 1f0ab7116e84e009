"""Loss of each node in int8, measured: a probe model with one switch for each node.

Every quantizable tensor t is written as t + f * (q(t) - t), where f is a graph input and q quantizes and
dequantizes. One session then answers for many nodes, without building a model for each: f is 1 for the probed
node and 0 for all others. The network is cut in a few places, since what comes before a node does not change.
Loss is the mean squared error over all outputs and samples, relative to the mean square of each output (each
output counts the same).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    constant,
    input_value,
    model_to_bytes,
)
from edgefuse.graph.reference import judge_session
from edgefuse.quant.calibrate import Range
from edgefuse.quant.fake_quant import cast, fake_quantize
from edgefuse.quant.loss_outputs import before_softmax
from edgefuse.quant.mean_errors import mean_errors, switch_shift
from edgefuse.quant.quantize import activation_parameters
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.suffix import cut_before, cut_points
from edgefuse.quant.weights import quantize_node_weight

__all__ = ["Losses", "measure_all_losses", "measure_channel_losses", "measure_losses", "output_losses"]

_SWITCH = "edgefuse_switch_"
# More are no channels but places: such an output is one group.
_MOST_GROUPS = 256


@dataclass(frozen=True, slots=True)
class Losses:
    """Relative mean squared error that each node in int8 adds, by node name.

    total: the mean over the outputs.  groups: by output channel group, whose names are those of the outputs
    with the index of the channel behind.
    """

    total: dict[str, float]
    groups: dict[str, dict[str, float]]


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
    return measure_all_losses(model, nodes, ranges, scheme, samples, progress).total


def measure_all_losses(
    model: Model,
    nodes: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
    progress: Callable[[int], None] | None = None,
) -> Losses:
    """Return the same, and the error in each output channel group (as `measure_channel_losses` has them).

    Both are measured before a Softmax that writes an output (`edgefuse.quant.loss_outputs`).
    """
    losses = Losses({}, {})
    model = before_softmax(model)
    outputs = _float_outputs(model)
    for name, clean, noisy in _switched(model, nodes, ranges, scheme, samples):
        losses.total[name], losses.groups[name] = output_losses(outputs, clean, noisy)
        if progress is not None:
            progress(len(losses.total))
    return losses


def output_losses(
    outputs: Sequence[str], clean: Sequence[Sequence[np.ndarray]], noisy: Sequence[Sequence[np.ndarray]]
) -> tuple[float, dict[str, float]]:
    """Return the relative mean squared error over all outputs, and that of each output channel group.

    outputs: their names.  clean, noisy: the arrays of each sample, in that order.
    """
    groups = {
        f"{output}[{channel}]": float(error)
        for k, output in enumerate(outputs)
        for channel, error in enumerate(_channel_error([c[k] for c in clean], [n[k] for n in noisy]))
    }
    return _relative_error(clean, noisy), groups


def measure_channel_losses(
    model: Model,
    nodes: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the same error kept apart: node name -> float output's name -> float64 [channels].

    Channels are the indices of axis 1 of an output with three axes or more, where these are 2 to 256 in every
    sample; any other output is one channel.
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
    """Yield (node name, outputs of each sample in float, the same with only this node in int8).

    In graph order. The network is cut in a few places: a node's part runs, and what comes after it.
    """
    probed = [name for name in nodes if _input_name(model, name) in ranges]
    if not probed or not samples:
        return
    outputs = _float_outputs(model) or [v.name or "" for v in model.graph.outputs]
    places = {node.name or "": place for place, node in enumerate(model.graph)}
    cuts = cut_points(model, probed)
    suffixes = [cut_before(model, cut) for cut in cuts]
    held: list[Mapping[str, np.ndarray]] = list(samples)
    clean: list[list[np.ndarray]] = []
    for cut, suffix, then, after in zip(
        cuts, suffixes, [*cuts[1:], len(places)], [*suffixes[1:], None], strict=True
    ):
        here = sorted((n for n in probed if cut <= places[n] < then), key=places.__getitem__)
        across = [name for name in after.reads if name not in suffix.reads] if after is not None else []
        shifts = mean_errors(suffix.model, here, ranges, scheme, [suffix.feeds(feeds) for feeds in held])
        session = _probe_session(suffix.model, here, ranges, scheme, across, shifts)
        off = {_SWITCH + str(i): np.zeros((), np.float32) for i in range(len(here))}
        given = [{**suffix.feeds(feeds), **off} for feeds in held]
        clean = clean or [session.run(outputs, feeds) for feeds in given]
        wanted = [name for name in outputs if name in suffix.outputs]
        for i, name in enumerate(here):
            on = {_SWITCH + str(i): np.ones((), np.float32)}
            found = [dict(zip(wanted, session.run(wanted, {**f, **on}), strict=True)) for f in given]
            # What was written before the cut is as it was.
            noisy = [
                [part.get(name, array) for name, array in zip(outputs, whole, strict=True)]
                for part, whole in zip(found, clean, strict=True)
            ]
            yield name, clean, noisy
        if after is not None:
            values = [dict(zip(across, session.run(across, f), strict=True)) if across else {} for f in given]
            held = [after.feeds({**f, **v}) for f, v in zip(given, values, strict=True)]


def _channel_error(clean: Sequence[np.ndarray], noisy: Sequence[np.ndarray]) -> np.ndarray:
    """Return mean square of the difference / mean square of the reference, by channel."""
    widths = {array.shape[1] if array.ndim > 2 else 1 for array in clean}
    channels = max(widths, default=1) if len(widths) == 1 else 1
    if not 2 <= channels <= _MOST_GROUPS:
        channels = 1
    power, error = np.zeros(channels), np.zeros(channels)
    for wanted, got in zip(clean, noisy, strict=True):
        if got.shape != wanted.shape:
            continue  # an output whose size depends on the data (boxes that were kept)
        rows = wanted.astype(np.float64).reshape(wanted.shape[0] if channels > 1 else 1, channels, -1)
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
            float(np.square(n[k].astype(np.float64) - c[k]).sum())
            for c, n in zip(clean, noisy, strict=True)
            if n[k].shape == c[k].shape
        )
        power = sum(float(np.square(c[k].astype(np.float64)).sum()) for c in clean)
        total += error / power if power else 0.0
    return total / count


def _probe_session(
    copy: Model,
    probed: Sequence[str],
    ranges: Mapping[str, Range],
    scheme: Scheme,
    more: Sequence[str],
    shifts: Mapping[str, np.ndarray],
) -> Any:
    """Return a session of `copy`, which gets a switch for each probed node.

    more: values to write as well.  shifts: node name -> what a corrected bias adds, by channel.
    """
    nodes = {node.name: node for node in copy.graph}
    values = {v.name: v for node in copy.graph for v in node.outputs}
    for i, name in enumerate(probed):
        node = nodes[name]
        switch = Value(name=_SWITCH + str(i), type=TensorType(DataType.FLOAT), shape=Shape([]))
        copy.graph.inputs.append(switch)
        activation = node.inputs[0]
        assert activation is not None
        if name in shifts:
            switch_shift(node, shifts[name], switch)
        _switch_activation(node, activation, ranges[activation.name or ""], scheme, switch)
        _switch_weight(node, scheme, switch)
    written = {v.name for v in copy.graph.outputs}
    copy.graph.outputs.extend(values[name] for name in more if name not in written)
    return judge_session(model_to_bytes(copy))


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
