"""Scaling the channels of a stream: how weights take the scales in, and which scales lose least.

Arithmetic is float64 and rounds once, to the dtype of each weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    input_value,
    replace_node,
    scalar,
)
from edgefuse.quant.channel_statistics import ChannelStatistics
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.streams import Stream
from edgefuse.quant.unshare import write_own
from edgefuse.quant.weights import is_depthwise, weight_rule

__all__ = ["by_input_channel", "choose_scales", "predicted_noise", "scale_reads", "scale_stream"]

# s = activation^a / weight^b (Xiao et al. 2022, arXiv 2211.10438, eq. 4 has a = alpha, b = 1 - alpha).
_POWERS = (
    (0.25, 0.0),
    (0.5, 0.0),
    (0.75, 0.0),
    (1.0, 0.0),
    (0.25, 0.25),
    (0.5, 0.25),
    (0.75, 0.25),
    (0.5, 0.5),
)
# A channel that calibration saw at less than this share of the largest one is scaled as if it had it:
# what it never reached there, it may reach in the field.
_FLOOR = 1e-3


def by_input_channel(node: Node, weight: np.ndarray | None = None) -> np.ndarray:
    """Return the weight of a layer as float64 [groups, outputs a group, inputs a group, kernel places].

    Input channel c is [c // inputs a group, :, c % inputs a group]. weight: another one than the node's own.
    """
    array = constant(input_value(node, 1)) if weight is None else weight
    assert array is not None
    array = np.asarray(array, np.float64)
    groups = int(attribute(node, "group", 1)) if node.op_type in ("Conv", "ConvTranspose") else 1
    split: np.ndarray
    if node.op_type in ("Conv", "ConvTranspose"):
        split = array.reshape(groups, array.shape[0] // groups, array.shape[1], -1)
        return split if node.op_type == "Conv" else split.transpose(0, 2, 1, 3)
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        array = array.T
    split = np.moveaxis(array, -2, 0).reshape(1, array.shape[-2], -1, 1).transpose(0, 2, 1, 3)
    return split


def choose_scales(
    stream: Stream,
    statistics: Mapping[str, ChannelStatistics],
    int8: frozenset[str],
    scheme: Scheme,
    strength: float = 1.0,
    enough: float = 0.85,
) -> np.ndarray | None:
    """Return each channel's scale, float64 [channels], or None where no noise is below `enough` of plain.

    Of the powers above the one with the least predicted noise at the readers; `strength` in (0, 1] is a
    power on it. The largest absolute value of the stream stays what it was, so that float16 does not
    overflow.
    """
    readers = [n for n in stream.readers if n.name in int8 and _read_name(n) in statistics]
    if not readers or stream.channels < 2:
        return None
    largest = np.max([_relative(_reach(statistics[_read_name(n)])) for n in readers], axis=0)
    if not largest.max() > 0:
        return None
    activation = np.maximum(largest, _FLOOR)
    weight = np.max([_relative(_largest_weight(n)) for n in readers], axis=0)
    weight = np.maximum(weight, _FLOOR)
    plain = predicted_noise(readers, statistics, np.ones(stream.channels), scheme)
    best, least = None, plain * enough
    for power, other in _POWERS:
        scales = (activation**power / weight**other) ** strength
        scales = scales / _growth(scales, largest)
        noise = predicted_noise(readers, statistics, scales, scheme)
        if noise < least:
            best, least = scales, noise
    return best


def _read_name(node: Node) -> str:
    value = input_value(node, 0)
    return (value.name or "") if value is not None else ""


def _reach(held: ChannelStatistics) -> np.ndarray:
    """Return how far each channel may get: its largest value, and what its spread lets expect.

    A few samples show the extremes of some channels and miss those of others. Each is taken to get as many
    times its root mean square as nine tenths of the channels did.
    """
    spread = np.sqrt(held.mean_square)
    shown = spread > 0
    if not shown.any():
        return held.largest
    crest = float(np.quantile(held.largest[shown] / spread[shown], 0.9))
    reach: np.ndarray = np.maximum(held.largest, crest * spread)
    return reach


def _relative(array: np.ndarray) -> np.ndarray:
    top = array.max()
    return array / top if top > 0 else np.zeros_like(array)


def _largest_weight(node: Node) -> np.ndarray:
    """Return for each input channel how close its weights come to the largest of their output channels."""
    rows = np.abs(by_input_channel(node))
    if is_depthwise(node):
        return np.ones(rows.shape[0])  # each channel has a scale of its own
    top = rows.max(axis=(2, 3), keepdims=True)
    shares = np.divide(rows, top, out=np.zeros_like(rows), where=top > 0)
    found: np.ndarray = shares.max(axis=(1, 3)).reshape(-1)
    return found


def _growth(scales: np.ndarray, largest: np.ndarray) -> float:
    return float((largest / scales).max() / largest.max()) ** -1


def predicted_noise(
    readers: Sequence[Node],
    statistics: Mapping[str, ChannelStatistics],
    scales: np.ndarray,
    scheme: Scheme,
) -> float:
    """Return the noise at the readers' outputs relative to their power, for channels divided by `scales`.

    Uniform noise of a step d has variance d^2 / 12. Activations: one step for the tensor, through weights
    multiplied by `scales`. Weights: one step for each output channel, times the divided activations.
    """
    total = 0.0
    for node in readers:
        held = statistics[_read_name(node)]
        step = float(
            scheme.grid(min(0.0, (held.low / scales).min()), max(0.0, (held.high / scales).max()))[0]
        )
        weight = by_input_channel(node)
        groups, _, width, places = weight.shape
        factor = scales.reshape(groups, 1, width, 1)
        power = (held.mean_square / scales**2).reshape(groups, 1, width)
        scaled = weight * factor
        squares = np.square(scaled).sum(axis=3)
        from_activation = step**2 / 12 * squares.sum()
        top = np.abs(scaled).max(axis=(2, 3), keepdims=True)
        if not scheme.is_per_channel(node.op_type):
            top = np.broadcast_to(top.max(), top.shape)
        steps = top[..., 0] / weight_rule(node, scheme).limit
        from_weight = (np.square(steps) / 12 * power.sum(axis=2, keepdims=True) * places).sum()
        signal = (squares * power).sum()
        total += float((from_activation + from_weight) / signal) if signal > 0 else 0.0
    return total


def scale_stream(model: Model, stream: Stream, scales: np.ndarray) -> bool:
    """Divide the channels of a stream by `scales` and multiply what reads them, in place; return whether.

    False, and nothing done, where a weight would leave its dtype's range. A Clip on the way becomes a Max
    with 0 and a Min with its bound divided by each scale: exact, and no longer one number.
    """
    if stream.refused or not (np.isfinite(scales).all() and (scales > 0).all()):
        return False
    # A layer on a residual path reads the stream and writes it: what it reads comes first.
    read = {id(node): _multiplied(node, scales) for node in stream.readers}
    changes = [(node, 1, read[id(node)]) for node in stream.readers]
    for node in stream.writers:
        changes += _divided(node, scales, read.get(id(node)))
    for node, index in stream.constants:
        changes.append((node, index, _divided_addend(stream, node, index, scales)))
    if not all(_fits(node, index, array) for node, index, array in changes):
        return False
    for node, index, array in changes:
        write_own(model, node, index, array)
    for node in stream.clips:
        _split_clip(node, stream, scales)
    return True


def scale_reads(model: Model, node: Node, scales: np.ndarray) -> bool:
    """Multiply the weights that read each input channel of a layer, in place; return whether they fit."""
    array = _multiplied(node, scales)
    return _fits(node, 1, array) and write_own(model, node, 1, array)


def _fits(node: Node, index: int, array: np.ndarray) -> bool:
    held = constant(input_value(node, index))
    assert held is not None
    limit = float(np.finfo(held.dtype).max)
    tiny = float(np.finfo(held.dtype).tiny)
    sizes = np.abs(array[array != 0])
    return not sizes.size or bool(sizes.max() <= limit and sizes.max() >= tiny)


def _divided(
    node: Node, scales: np.ndarray, changed: np.ndarray | None
) -> list[tuple[Node, int, np.ndarray]]:
    """Return the constants of a writer with its output channels divided; changed: its weight so far."""
    if node.op_type in ("LayerNormalization", "RMSNormalization", "BatchNormalization"):
        held = [(i, constant(v)) for i, v in enumerate(node.inputs[1:3], start=1)]
        return [(node, i, a.astype(np.float64) / scales) for i, a in held if a is not None]
    weight = constant(input_value(node, 1)) if changed is None else changed
    assert weight is not None
    wide = weight.astype(np.float64)
    if node.op_type == "Conv":
        wide = wide / scales.reshape(-1, *[1] * (wide.ndim - 1))
    elif node.op_type == "ConvTranspose":
        groups = int(attribute(node, "group", 1))
        split = wide.reshape(groups, wide.shape[0] // groups, *wide.shape[1:])
        factor = scales.reshape(groups, 1, wide.shape[1], *[1] * (wide.ndim - 2))
        wide = (split / factor).reshape(wide.shape)
    elif node.op_type == "Gemm" and attribute(node, "transB", 0):
        wide = wide / scales[:, None]
    else:
        wide = wide / scales
    changes = [(node, 1, wide)]
    bias = constant(input_value(node, 2))
    if bias is not None:
        changes.append((node, 2, bias.astype(np.float64) / scales))
    return changes


def _multiplied(node: Node, scales: np.ndarray) -> np.ndarray:
    """Return the weight of a reader with its input channels multiplied."""
    weight = constant(input_value(node, 1))
    assert weight is not None
    wide: np.ndarray = weight.astype(np.float64)
    if node.op_type == "Conv":
        groups = int(attribute(node, "group", 1))
        split = wide.reshape(groups, wide.shape[0] // groups, *wide.shape[1:])
        factor = scales.reshape(groups, 1, wide.shape[1], *[1] * (wide.ndim - 2))
        wide = (split * factor).reshape(wide.shape)
    elif node.op_type == "ConvTranspose":
        wide = wide * scales.reshape(-1, *[1] * (wide.ndim - 1))
    elif node.op_type == "Gemm" and attribute(node, "transB", 0):
        wide = wide * scales
    else:
        wide = wide * scales[:, None]
    return wide


def _divided_addend(stream: Stream, node: Node, index: int, scales: np.ndarray) -> np.ndarray:
    array = constant(node.inputs[index])
    assert array is not None
    axis, rank = _place(stream, node.outputs[0])
    wide: np.ndarray = array.astype(np.float64).reshape(-1) / scales
    return wide.reshape(-1, *[1] * (rank - axis - 1))


def _place(stream: Stream, value: Value) -> tuple[int, int]:
    axis = next(axis for held, axis in stream.tensors if held is value)
    assert value.shape is not None
    return axis, len(value.shape)


def _split_clip(node: Node, stream: Stream, scales: np.ndarray) -> None:
    graph, value = node.graph, node.inputs[0]
    assert graph is not None
    assert value is not None
    high = scalar(input_value(node, 2))
    assert high is not None
    axis, rank = _place(stream, node.outputs[0])
    kind = constant(input_value(node, 2))
    assert kind is not None
    bound = (high / scales).reshape(-1, *[1] * (rank - axis - 1)).astype(kind.dtype)
    positive = add_node(node, "Relu", [value], like=value, stem=f"{node.name}_low", sources=[node])
    made = add_constant(graph, bound, f"{node.name}_high")
    lower = add_node(
        node,
        "Min",
        [positive.outputs[0], made],
        like=node.outputs[0],
        stem=f"{node.name}_min",
        sources=[node],
    )
    replace_node(node, lower.outputs)
