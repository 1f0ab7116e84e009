"""Channels of like size: cross-layer equalization over whole streams.

One activation scale for a tensor whose channels differ by decades leaves the small ones a few levels. Behind
a layer with constant weights a channel can be made larger for free, if what reads it is made smaller
(Nagel et al. 2019, arXiv 1906.04721, section 4.1, generalised: depthwise layers, residual streams with one
scale vector, scales by predicted noise instead of eq. 11).

A Clip with an upper bound (ReLU6) lets a scale pass only if the bound is scaled too, which makes it one bound
for each channel. With clips="refuse" such streams are left alone; with clips="split" the bound is kept
exactly, as a Min with a constant. Letting the bound act at the calibration maximum instead costs 7 dB on
efficientnet_lite0: it clips what calibration did not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from edgefuse.graph import Model
from edgefuse.quant.channel_scaling import choose_scales, scale_stream
from edgefuse.quant.channel_statistics import collect_channels
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.streams import Stream, find_streams

__all__ = ["equalize"]

_NORMS = ("LayerNormalization", "RMSNormalization")


def equalize(
    model: Model,
    samples: Iterable[Mapping[str, np.ndarray]],
    scheme: Scheme,
    int8: frozenset[str],
    *,
    strength: float = 1.0,
    clips: Literal["refuse", "split"] = "refuse",
) -> list[str]:
    """Scale the channels of every stream that is predicted to gain, in place; return one line for each.

    int8: names of the nodes that will run in int8; only what they read counts.  strength: in (0, 1], a power
    on the scales.  Float meaning is kept to the rounding of the weights (their dtype).
    Left alone: streams that reach a graph output or input, an operator that scales do not pass through, a
    branch; streams written by a normalization (`edgefuse.quant.smooth`).
    """
    streams = [s for s in find_streams(model) if takes_part(s, int8, clips)]
    axes = {value.name or "": axis for stream in streams for value, axis in stream.tensors}
    statistics = collect_channels(model, axes, samples) if axes else {}
    done = []
    for stream in streams:
        scales = choose_scales(stream, statistics, int8, scheme, strength)
        if scales is not None and scale_stream(model, stream, scales):
            ratio = float(scales.max() / scales.min())
            done.append(f"{stream.names[0]}: {stream.channels} channels, scales over a factor of {ratio:.3g}")
    return done


def takes_part(stream: Stream, int8: frozenset[str], clips: str) -> bool:
    """Return whether the stream may be equalized."""
    if stream.refused or (stream.clips and clips == "refuse"):
        return False
    if any(node.op_type in _NORMS for node in stream.writers):
        return False
    return any(node.name in int8 for node in stream.readers)
