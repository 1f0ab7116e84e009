"""Outlier channels moved from activations into the weights of the products that read them.

Xiao et al. 2022 (SmoothQuant, arXiv 2211.10438), eq. 3-4: X W = (X / s) (s W). The division is free where a
LayerNormalization writes X (its scale and bias take it in). Elsewhere (a graph input, a tensor that a
residual path reads too) it is one Mul, put before the readers that gain from it. The powers of eq. 4 are
searched for each tensor, by predicted rounding noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from edgefuse.graph import Model, Node, Value, add_constant, add_node, constant, dims, is_float
from edgefuse.quant.channel_scaling import choose_scales, scale_reads, scale_stream
from edgefuse.quant.channel_statistics import ChannelStatistics, collect_channels
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.streams import Stream, find_streams, input_channels

__all__ = ["smooth"]

_NORMS = ("LayerNormalization", "RMSNormalization")
# A Mul costs a pass over the tensor, so it must halve the noise at least (3 dB at that layer).
_MUL_IS_WORTH = 0.5


def smooth(
    model: Model,
    samples: Iterable[Mapping[str, np.ndarray]],
    scheme: Scheme,
    int8: frozenset[str],
    *,
    insert: bool = False,
) -> list[str]:
    """Move outlier channels into weights, in place; return one line for each tensor.

    int8: names of the nodes that will run in int8; only they read the divided tensor where a Mul is inserted.
    insert: whether a Mul may be inserted (only where predicted noise at its readers halves).
    Float meaning is kept to the rounding of the weights.
    """
    streams = [s for s in find_streams(model) if _written_by_norm(s)]
    free = {name for stream in streams for name in stream.names}
    others = _read_by_layers(model, int8, free) if insert else []
    axes = {value.name or "": axis for stream in streams for value, axis in stream.tensors}
    axes |= {value.name or "": axis for value, axis, _ in others}
    statistics = collect_channels(model, axes, samples) if axes else {}
    done = []
    for stream in streams:
        scales = choose_scales(stream, statistics, int8, scheme)
        if scales is not None and scale_stream(model, stream, scales):
            done.append(
                f"{stream.names[0]}: into its normalization, factor {scales.max() / scales.min():.3g}"
            )
    for value, axis, readers in others:
        done += _insert(model, value, axis, readers, statistics, scheme)
    return done


def _written_by_norm(stream: Stream) -> bool:
    return not stream.refused and not stream.clips and any(n.op_type in _NORMS for n in stream.writers)


def _read_by_layers(
    model: Model, int8: frozenset[str], free: set[str]
) -> list[tuple[Value, int, list[Node]]]:
    """Return the tensors that int8 layers read and no normalization can divide: (value, axis, readers)."""
    found: dict[int, tuple[Value, int, list[Node]]] = {}
    for node in model.graph:
        held = input_channels(node) if node.name in int8 else None
        value = node.inputs[0] if node.inputs else None
        if held is None or value is None or constant(value) is not None or not is_float(value):
            continue
        shape = dims(value)
        if value.name in free or shape is None or shape[held[1]] != held[0]:
            continue
        if any(other is value for other in node.inputs[1:]):
            continue
        found.setdefault(id(value), (value, held[1], []))[2].append(node)
    # One axis for all: a tensor that is read along two has no scale for each channel.
    return [
        (value, axis, readers)
        for value, axis, readers in found.values()
        if all((input_channels(n) or (0, -1))[1] == axis for n in readers)
    ]


def _insert(
    model: Model,
    value: Value,
    axis: int,
    readers: list[Node],
    statistics: Mapping[str, ChannelStatistics],
    scheme: Scheme,
) -> list[str]:
    shape = dims(value)
    assert shape is not None
    stream = Stream(channels=int(shape[axis] or 0), readers=readers)
    names = frozenset(n.name or "" for n in readers)
    scales = choose_scales(stream, statistics, names, scheme, enough=_MUL_IS_WORTH)
    if scales is None:
        return []
    # Powers of two, so that dividing and multiplying round nothing at all.
    scales = np.exp2(np.rint(np.log2(scales)))
    if not all(scale_reads(model, node, scales) for node in readers):
        return []
    kind = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    factor = (1.0 / scales).reshape(-1, *[1] * (len(shape) - axis - 1)).astype(kind)
    held = add_constant(model.graph, factor, f"{value.name}_smoothing")
    made = add_node(
        readers[0], "Mul", [value, held], like=value, stem=f"{value.name}_smooth", sources=readers
    )
    for node in readers:
        node.replace_input_with(0, made.outputs[0])
    return [f"{value.name}: one Mul before {len(readers)} layers, factor {scales.max() / scales.min():.3g}"]
