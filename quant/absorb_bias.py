"""Channels moved towards zero: high biases handed on to the next layer.

An activation's range must hold zero, so that a channel which lives far from it wastes levels, its own and
those of all channels that share its scale. What layer 1 adds less, layer 2 adds more: Nagel et al. 2019,
arXiv 1906.04721, section 4.1.3, eq. 15-16: b1 - c and b2 + W2 c.

Exact where only linear operators stand between (residual sums too: each writer hands on its own mean).
Through Relu it holds for values above c only; c is the mean less three standard deviations (eq. 15), as the
paper has it, or nothing where that is below zero. Zero padding in a reader would see a moved zero: refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from edgefuse.graph import Model, Node, attribute, constant, input_value
from edgefuse.lowering import apply_biases, bias_of
from edgefuse.quant.channel_scaling import by_input_channel
from edgefuse.quant.channel_statistics import ChannelStatistics, collect_channels
from edgefuse.quant.streams import Stream, find_streams

__all__ = ["absorb_bias"]

_LINEAR = frozenset(["Add", "Sum", "Identity", "GlobalAveragePool", "Dropout"])
_WRITERS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])


def absorb_bias(
    model: Model, samples: Iterable[Mapping[str, np.ndarray]], int8: frozenset[str], *, relu: bool = True
) -> list[str]:
    """Hand biases on in every stream where it narrows a range, in place; return one line for each.

    int8: names of the nodes that will run in int8; only what they read counts.  relu: also through Relu,
    which changes the (few) values below the shift.
    Left alone: streams through other operators, with a padded or transposed-convolution reader, with a writer
    or reader whose bias is no constant; shifts that would not narrow any range by 2 %.
    """
    streams = [s for s in find_streams(model) if _shifts(s, relu) and _reads(s, int8)]
    axes = {v.name or "": axis for s in streams for v, axis in s.tensors}
    statistics = collect_channels(model, axes, samples) if axes else {}
    done = []
    for stream in streams:
        moved = _moves(stream, statistics)
        if moved is None or not _narrows(stream, statistics, moved, int8):
            continue
        _apply(model, stream, moved)
        done.append(f"{stream.names[0]}: {stream.channels} channels moved towards zero")
    return done


def _reads(stream: Stream, int8: frozenset[str]) -> bool:
    return any(node.name in int8 for node in stream.readers)


def _shifts(stream: Stream, relu: bool) -> bool:
    if stream.refused or stream.clips or stream.constants or not stream.readers:
        return False
    through = {node.op_type for node in stream.through}
    if "Relu" in through:
        simple = through == {"Relu"} and len(stream.through) == len(stream.writers) == 1
        if not (relu and simple and all(v.producer() is not None for v, _ in stream.tensors)):
            return False
        # Readers must see the Relu, not what stands before it.
        if any(node.inputs[0] is stream.writers[0].outputs[0] for node in stream.readers):
            return False
    elif not through <= _LINEAR:
        return False
    if any(node.op_type not in _WRITERS or not _own_bias(node) for node in stream.writers):
        return False
    return all(_takes_shift(node) for node in stream.readers)


def _own_bias(node: Node) -> bool:
    """Return whether the bias is the node's own: one that an Add behind it holds is part of the stream."""
    held = bias_of(node)
    return held is not None and held[0] == node.name


def _takes_shift(node: Node) -> bool:
    if bias_of(node) is None or node.op_type == "ConvTranspose":
        return False
    if node.op_type != "Conv":
        weight = constant(input_value(node, 1))
        return weight is not None and weight.ndim == 2
    padded = any(attribute(node, "pads", ())) or attribute(node, "auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )
    return not padded


def _moves(stream: Stream, statistics: Mapping[str, ChannelStatistics]) -> dict[str, np.ndarray] | None:
    """Return the shift of each tensor of the stream by name, float64 [channels]."""
    moved: dict[str, np.ndarray] = {}
    for node in stream.writers:
        name = node.outputs[0].name or ""
        if name not in statistics:
            return None
        held = statistics[name]
        if any(other.op_type == "Relu" for other in stream.through):
            moved[name] = np.maximum(held.mean - 3.0 * held.deviation, 0.0)
        else:
            moved[name] = held.mean
    graph = stream.writers[0].graph
    for node in graph or ():
        if any(held is node for held in stream.through):
            parts = [moved.get(v.name or "") for v in node.inputs if v is not None and constant(v) is None]
            if any(part is None for part in parts):
                return None
            moved[node.outputs[0].name or ""] = np.sum([p for p in parts if p is not None], axis=0)
    return moved


def _narrows(
    stream: Stream,
    statistics: Mapping[str, ChannelStatistics],
    moved: Mapping[str, np.ndarray],
    int8: frozenset[str],
) -> bool:
    before = after = 0.0
    for node in stream.readers:
        value = input_value(node, 0)
        name = (value.name or "") if value is not None else ""
        if node.name not in int8 or name not in statistics:
            continue
        held, shift = statistics[name], moved[name]
        before += max(0.0, float(held.high.max())) - min(0.0, float(held.low.min()))
        bottom = 0.0 if _relu_before(stream) else float((held.low - shift).min())  # Relu stays at zero
        after += max(0.0, float((held.high - shift).max())) - min(0.0, bottom)
    return after < 0.98 * before


def _relu_before(stream: Stream) -> bool:
    return any(node.op_type == "Relu" for node in stream.through)


def _apply(model: Model, stream: Stream, moved: Mapping[str, np.ndarray]) -> None:
    changed: dict[str, np.ndarray] = {}

    def add(node: Node, change: np.ndarray) -> None:
        held = bias_of(node)
        assert held is not None
        name, bias = held
        changed[name] = changed.get(name, bias.astype(np.float64)) + change

    for node in stream.writers:
        add(node, -moved[node.outputs[0].name or ""])
    for node in stream.readers:
        value = input_value(node, 0)
        assert value is not None
        shift = moved[value.name or ""]
        weight = by_input_channel(node)
        groups, _, width, _ = weight.shape
        factor = float(attribute(node, "alpha", 1.0)) if node.op_type == "Gemm" else 1.0
        add(node, factor * np.einsum("goik,gi->go", weight, shift.reshape(groups, width)).reshape(-1))
    apply_biases(model, {name: bias.astype(np.float32) for name, bias in changed.items()})
