"""MaxPool, AveragePool, LpPool and their global forms. Windows are reduced one axis at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel
from edgefuse.graph.kernels.windows import Window, pad_spatial, tap, window_of

__all__ = ["KERNELS"]


def _reduce(x: Array, window: Window, function: Callable[[Array, Array], Array]) -> Array:
    """Return an associative reduction over every window of padded x [N, C, ...].

    A box is separable: k1 + k2 steps instead of k1 * k2.
    """
    for axis, count in enumerate(window.outputs):
        stride, dilation, place = window.strides[axis], window.dilations[axis], axis + 2
        out: Array | None = None
        for offset in range(window.kernel[axis]):
            start = offset * dilation
            cut = (slice(None),) * place + (slice(start, start + (count - 1) * stride + 1, stride),)
            out = x[cut] if out is None else function(out, x[cut])
        x = x if out is None else out
    return x


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _max_pool(call: Call) -> Array | tuple[Array, ...]:
    x = call.array(0)
    window = window_of(call, x.shape[2:], tuple(call.ints("kernel_shape")))
    padded = pad_spatial(x, window, _lowest(x.dtype))
    best = _reduce(padded, window, np.maximum)
    if call.outputs < 2:
        return best
    return best, _max_indices(x, padded, best, window, bool(call.attr("storage_order", 0)))


def _max_indices(x: Array, padded: Array, best: Array, window: Window, column_major: bool) -> Array:
    """Return where each maximum stands in the whole flattened input (the first one on ties)."""
    sizes = x.shape[2:]
    order = range(len(sizes)) if column_major else range(len(sizes) - 1, -1, -1)
    weight, weights = 1, [0] * len(sizes)
    for axis in order:
        weights[axis] = weight
        weight *= sizes[axis]
    inside = np.zeros(x.shape[2:], bool) | True
    flags = pad_spatial(inside[None, None], window, 0)
    index = np.full(best.shape, -1, np.int64)
    for offsets in product(*(range(k) for k in window.kernel)):
        position = np.zeros(window.outputs, np.int64)
        for axis, offset in enumerate(offsets):
            start = offset * window.dilations[axis] - window.pads[axis][0]
            along = start + window.strides[axis] * np.arange(window.outputs[axis])
            shape = [-1 if a == axis else 1 for a in range(len(sizes))]
            position = position + weights[axis] * along.reshape(shape)
        hit = (index < 0) & tap(flags, window, offsets) & (tap(padded, window, offsets) == best)
        index = np.where(hit, position, index)
    plane = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *(1,) * len(sizes))
    return np.asarray(index + plane * int(np.prod(sizes)))


def _average_pool(call: Call) -> Array:
    original = call.array(0)
    x = original if original.dtype in (np.float32, np.float64) else original.astype(np.float32)
    window = window_of(call, x.shape[2:], tuple(call.ints("kernel_shape")))
    total = _reduce(pad_spatial(x, window, 0), window, np.add)
    # Cells that count: the input, or the input and its padding; never what ceil_mode reaches past both.
    counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if call.attr("count_include_pad", 0):
        counted = np.pad(counted, [(0, 0), (0, 0), *window.pads], constant_values=1)
        bare = tuple((0, 0) for _ in window.pads)
        window = Window(window.kernel, window.strides, window.dilations, bare, window.outputs)
    count = _reduce(pad_spatial(counted, window, 0), window, np.add)
    return np.asarray(total / count).astype(original.dtype, copy=False)


def _lp_pool(call: Call) -> Array:
    x, p = call.array(0), int(call.attr("p", 2))
    window = window_of(call, x.shape[2:], tuple(call.ints("kernel_shape")))
    powers = np.abs(x) ** p
    total = _reduce(pad_spatial(powers, window, 0), window, np.add)
    return np.asarray(total ** (1.0 / p)).astype(x.dtype, copy=False)


def _global(function: Callable[..., Any]) -> Kernel:
    def kernel(call: Call) -> Array:
        x = call.array(0)
        return np.asarray(function(x, axis=tuple(range(2, x.ndim)), keepdims=True)).astype(
            x.dtype, copy=False
        )

    return kernel


def _global_lp_pool(call: Call) -> Array:
    x, p = call.array(0), int(call.attr("p", 2))
    total = (np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return np.asarray(total ** (1.0 / p)).astype(x.dtype, copy=False)


KERNELS: dict[str, Kernel] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global(np.mean),
    "GlobalMaxPool": _global(np.max),
    "GlobalLpPool": _global_lp_pool,
}
