"""Outlier channels taken out of an int8 product and multiplied in float, beside it.

One channel that gets ten times as far as all others sets the step of the whole tensor. Where it passes a
normalization, scaling hands it on to the weights (`edgefuse.quant.smooth`); where its weights are as far out
as it is, that only moves the loss. A few channels cost next to nothing as a product of their own: x W =
(x without C) W + x[C] W[C], the first in int8, the second in float (the mixed form of Dettmers et al. 2022,
arXiv 2208.07339, section 3.2, with channels fixed by calibration).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Shape,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    dims,
    input_value,
    is_float,
    replace_node,
    sole_reader,
)
from edgefuse.quant.channel_statistics import ChannelStatistics, collect_channels
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.streams import input_channels

__all__ = ["outlier_channels", "outlier_products", "split_outliers"]

Feeds = Mapping[str, np.ndarray]

# At most this share of the channels is computed in float, and no more than so many.
_SHARE, _MOST = 1 / 16, 16
# A channel more must make the step this much smaller, in bits; all together half of what it was.
_BITS_A_CHANNEL, _LEAST_BITS = 0.06, 1.0


def split_outliers(model: Model, samples: Iterable[Feeds], scheme: Scheme, int8: frozenset[str]) -> list[str]:
    """Split the int8 products whose input has a few channels far out, in place; a line for each tensor.

    int8: names of the nodes that will run in int8. Cases: MatMul and Gemm by a constant matrix, the channel
    axis last. Left alone: activations on the right, Gemm with transA or alpha, convolutions (their float part
    would read every pixel again), inputs of another size than the weights. A product keeps its name.
    Float meaning is kept to the rounding of one sum.
    """
    found: dict[int, tuple[Value, list[Node]]] = {}
    for node in model.graph:
        value = node.inputs[0] if node.inputs else None
        if node.name in int8 and value is not None and _fits(node, value):
            found.setdefault(id(value), (value, []))[1].append(node)
    axes = {value.name or "": len(dims(value) or ()) - 1 for value, _ in found.values()}
    statistics = collect_channels(model, axes, samples) if axes else {}
    done = []
    for value, layers in found.values():
        held = statistics.get(value.name or "")
        channels = outlier_channels(held, scheme) if held is not None else np.zeros(0, np.int64)
        if held is None or not channels.size:
            continue
        inner = _without(model, value, channels, layers)
        for layer in layers:
            _split(model, layer, value, inner, channels)
        rest = np.delete(held.largest, channels).max()
        done.append(
            f"{value.name}: {channels.size} of {held.low.size} channels in float beside "
            f"{len(layers)} products, up to {held.largest.max():.3g} where the others reach {rest:.3g}"
        )
    return done


def outlier_channels(held: ChannelStatistics, scheme: Scheme) -> np.ndarray:
    """Return the channels without which the step of the tensor is at least halved, int64, ascending.

    None (an empty array) where no few channels do that.
    """
    count = held.low.size
    order = np.argsort(-held.largest, kind="stable")
    most = min(_MOST, int(count * _SHARE))
    # lows[k], highs[k]: of the tensor without the k channels that get farthest.
    lows = np.minimum.accumulate(held.low[order][::-1])[::-1][: most + 1]
    highs = np.maximum.accumulate(held.high[order][::-1])[::-1][: most + 1]
    steps = scheme.grid(np.minimum(lows, 0.0), np.maximum(highs, 0.0))[0]
    bits = np.log2(steps[0] / steps)
    worth = bits - _BITS_A_CHANNEL * np.arange(len(bits))
    best = int(np.argmax(worth))
    if not np.isfinite(bits).all() or bits[best] < _LEAST_BITS:
        best = 0
    chosen: np.ndarray = np.sort(order[:best])
    return chosen


def outlier_products(model: Model) -> dict[str, str]:
    """Return the products that were taken out of int8 ones: node name -> why they stay in float.

    Told by their form: a matrix of at most 16 rows on constant channels that a Gather picks from a tensor.
    """
    found = {}
    for node in model.graph:
        pick = node.inputs[0].producer() if node.op_type == "MatMul" and node.inputs[0] is not None else None
        weight = constant(input_value(node, 1))
        if pick is None or pick.op_type != "Gather" or weight is None or weight.shape[0] > _MOST:
            continue
        places, shape = constant(input_value(pick, 1)), dims(pick.inputs[0])
        if places is not None and places.ndim == 1 and shape is not None:
            if int(attribute(pick, "axis", 0)) % len(shape) == len(shape) - 1:
                found[node.name or ""] = "holds the outlier channels of an int8 product"
    return found


def _fits(node: Node, value: Value) -> bool:
    held, shape, weight = input_channels(node), dims(value), constant(input_value(node, 1))
    if node.op_type not in ("MatMul", "Gemm") or held is None or shape is None or weight is None:
        return False
    if constant(value) is not None or not is_float(value) or weight.ndim != 2:
        return False
    if float(attribute(node, "alpha", 1.0)) != 1.0 or held[1] != len(shape) - 1:
        return False
    return shape[-1] == held[0]


def _without(model: Model, value: Value, channels: np.ndarray, layers: list[Node]) -> Value:
    """Return `value` with 0 in `channels`."""
    width = (dims(value) or ())[-1]
    assert isinstance(width, int)
    kind = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    mask = np.ones(width, kind)
    mask[channels] = 0
    held = add_constant(model.graph, mask, f"{value.name}_inner")
    made = add_node(layers[0], "Mul", [value, held], like=value, stem=f"{value.name}_within", sources=layers)
    return made.outputs[0]


def _split(model: Model, layer: Node, value: Value, inner: Value, channels: np.ndarray) -> None:
    weight = constant(layer.inputs[1])
    assert weight is not None
    across = bool(layer.op_type == "Gemm" and attribute(layer, "transB", 0))
    rows = np.take(weight, channels, axis=1).T if across else np.take(weight, channels, axis=0)
    stem = f"{layer.name}_outliers"
    places = add_constant(model.graph, channels, f"{stem}_channels")
    picked = add_node(
        layer, "Gather", [value, places], {"axis": len(dims(value) or ()) - 1}, stem=f"{stem}_read"
    ).outputs[0]
    picked.type = value.type
    picked.shape = Shape([*(dims(value) or ())[:-1], channels.size])
    held = add_constant(model.graph, np.ascontiguousarray(rows), f"{stem}_weight")
    thin = add_node(layer, "MatMul", [picked, held], like=layer.outputs[0], stem=stem, sources=[layer])
    layer.replace_input_with(0, inner)
    # Behind the bias, so that product and bias stay neighbours.
    end = _biased(layer)
    own = {key: attribute(end, key) for key in end.attributes}
    again = add_node(end, end.op_type, list(end.inputs), own, like=end.outputs[0], stem=f"{end.name}_inner")
    total = add_node(
        end,
        "Add",
        [again.outputs[0], thin.outputs[0]],
        like=end.outputs[0],
        stem=f"{stem}_sum",
        sources=[layer],
    )
    name = end.name
    replace_node(end, total.outputs)
    again.name = name


def _biased(layer: Node) -> Node:
    """Return the node that adds a constant bias to the layer and alone reads it, else the layer."""
    reader = sole_reader(layer.outputs[0])
    if reader is None or reader.op_type != "Add" or layer.op_type != "MatMul":
        return layer
    other = next((v for v in reader.inputs if v is not layer.outputs[0]), None)
    array = constant(other)
    plain = array is not None and array.ndim <= 1 and dims(reader.outputs[0]) == dims(layer.outputs[0])
    return reader if plain else layer
