"""Geometry that convolution and pooling share: padding, output sizes, and one tap of a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.graph.kernels.call import Array, Call

__all__ = ["Window", "pad_spatial", "tap", "window_of"]


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over the spatial axes; every field has one entry for each of them.

    pads: (begin, end), as given or as auto_pad asks for. outputs: output sizes.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Cells that one window spans on each axis, dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def _same_pads(size: int, stride: int, extent: int, lower: bool) -> tuple[int, int]:
    total = max(0, (-(-size // stride) - 1) * stride + extent - size)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def window_of(call: Call, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """Return the window that a node's attributes describe on an input of spatial `sizes`.

    ceil_mode follows the standard from opset 22 on (and every engine before it): a last window that would
    start in the padding past the input is dropped.
    """
    rank = len(sizes)
    strides = tuple(call.ints("strides", [1] * rank))
    dilations = tuple(call.ints("dilations", [1] * rank))
    flat = call.ints("pads", [0] * (2 * rank))
    pads = [(flat[i], flat[i + rank]) for i in range(rank)]
    auto = call.attr("auto_pad", "NOTSET")
    outputs = []
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            pads[axis] = _same_pads(sizes[axis], strides[axis], extent, auto == "SAME_LOWER")
        elif auto == "VALID":
            pads[axis] = (0, 0)
        room = sizes[axis] + sum(pads[axis]) - extent
        count = room // strides[axis] + 1
        if call.attr("ceil_mode", 0):
            count = -(-room // strides[axis]) + 1
            if (count - 1) * strides[axis] >= sizes[axis] + pads[axis][0]:
                count -= 1
        outputs.append(max(count, 0))
    return Window(kernel, strides, dilations, tuple(pads), tuple(outputs))


def pad_spatial(x: Array, window: Window, fill: float) -> Array:
    """Return x [N, C, *sizes] padded so that every window lies inside (ceil_mode may need more at the end).

    Negative pads cut.
    """
    widths = [(0, 0), (0, 0)]
    for axis, size in enumerate(x.shape[2:]):
        begin, end = window.pads[axis]
        needed = (window.outputs[axis] - 1) * window.strides[axis] + window.extent[axis]
        widths.append((begin, max(end, needed - size - begin)))
    if any(low < 0 or high < 0 for low, high in widths):
        cuts = tuple(
            slice(max(0, -low), n - max(0, -high)) for (low, high), n in zip(widths, x.shape, strict=True)
        )
        x, widths = x[cuts], [(max(0, low), max(0, high)) for low, high in widths]
    if all(width == (0, 0) for width in widths):
        return x
    return np.pad(x, widths, constant_values=fill)


def tap(x: Array, window: Window, offsets: tuple[int, ...]) -> Array:
    """Return the view of padded x that kernel cell `offsets` meets: [..., *outputs]."""
    cuts = []
    for axis, offset in enumerate(offsets):
        start, stride = offset * window.dilations[axis], window.strides[axis]
        cuts.append(slice(start, start + (window.outputs[axis] - 1) * stride + 1, stride))
    index: tuple[Any, ...] = (..., *cuts)
    return np.asarray(x[index])
