"""Conv, ConvTranspose and their integer forms, by matrix products over gathered windows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel
from edgefuse.graph.kernels.windows import Window, pad_spatial, tap, window_of

__all__ = ["KERNELS", "convolve"]

# Columns of one matrix product: above this the gathered windows are cut by output rows (about 64 MB).
_COLUMN_VALUES = 1 << 23


def _compute_type(x: Array) -> Array:
    # numpy has no matrix product for float16 and bfloat16 that is worth its time; the standard lets both
    # accumulate in float32.
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def _depthwise(x: Array, w: Array, window: Window) -> Array:
    """Return a convolution whose every filter reads one channel: x [N, C, ...], w [C*m, 1, ...]."""
    multiplier = w.shape[0] // x.shape[1]
    if multiplier > 1:
        x = np.repeat(x, multiplier, axis=1)
    out = np.zeros((x.shape[0], w.shape[0], *window.outputs), x.dtype)
    shape = (w.shape[0],) + (1,) * len(window.kernel)
    taps = np.moveaxis(w[:, 0], 0, -1)
    for offsets in product(*(range(k) for k in window.kernel)):
        out += tap(x, window, offsets) * taps[offsets].reshape(shape)
    return out


def _gathered(x: Array, w: Array, window: Window) -> Array:
    """Return one group's convolution of one sample: x [C, ...] padded, w [M, C, ...] -> [M, *outputs]."""
    filters = w.reshape(w.shape[0], -1)
    cells = [tap(x, window, offsets) for offsets in product(*(range(k) for k in window.kernel))]
    rows = window.outputs[0]
    row_values = filters.shape[1] * int(np.prod(window.outputs[1:]))
    step = max(1, min(rows, _COLUMN_VALUES // max(row_values, 1)))
    out = np.empty((w.shape[0], *window.outputs), x.dtype)
    for start in range(0, rows, step):
        columns = np.stack([cell[:, start : start + step] for cell in cells], axis=1)
        block = filters @ columns.reshape(filters.shape[1], -1)
        out[:, start : start + step] = block.reshape(w.shape[0], -1, *window.outputs[1:])
    return out


def convolve(x: Array, w: Array, window: Window, group: int) -> Array:
    """Return the cross-correlation of x [N, C, *sizes] with w [M, C/group, *kernel], in x's dtype.

    x is padded with zeros as the window says; products are accumulated by BLAS in x's dtype.
    """
    x = pad_spatial(x, window, 0)
    batch, filters = x.shape[0], w.shape[0]
    if 0 in window.outputs or batch == 0:
        return np.zeros((batch, filters, *window.outputs), x.dtype)
    if group == x.shape[1] and group > 1:
        return _depthwise(x, w, window)
    if all(k == 1 for k in window.kernel) and group == 1:
        cells = tap(x, window, (0,) * len(window.kernel)).reshape(batch, x.shape[1], -1)
        return (w.reshape(filters, -1) @ cells).reshape(batch, filters, *window.outputs)
    out = np.empty((batch, filters, *window.outputs), x.dtype)
    channels, share = x.shape[1] // group, filters // group
    for sample in range(batch):
        for g in range(group):
            part, mine = slice(g * channels, (g + 1) * channels), slice(g * share, (g + 1) * share)
            out[sample, mine] = _gathered(x[sample, part], w[mine], window)
    return out


def _conv(call: Call) -> Array:
    original, w, bias = call.array(0), call.array(1), call.optional(2)
    x = _compute_type(original)
    window = window_of(call, x.shape[2:], tuple(w.shape[2:]))
    out = convolve(x, w.astype(x.dtype, copy=False), window, int(call.attr("group", 1)))
    if bias is not None:
        out += bias.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 2))
    return np.asarray(out).astype(original.dtype, copy=False)


def _transposed_geometry(call: Call, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """Return the window of a ConvTranspose: `outputs` are its output sizes, `pads` what is cut off."""
    rank = len(sizes)
    strides, dilations = call.ints("strides", [1] * rank), call.ints("dilations", [1] * rank)
    extra, flat = call.ints("output_padding", [0] * rank), call.ints("pads", [0] * (2 * rank))
    auto, wanted = call.attr("auto_pad", "NOTSET"), call.ints("output_shape")
    pads, outputs = [], []
    for axis in range(rank):
        full = strides[axis] * (sizes[axis] - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        if wanted or auto in ("SAME_UPPER", "SAME_LOWER"):
            target = wanted[len(wanted) - rank + axis] if wanted else sizes[axis] * strides[axis]
            cut = max(0, full - target)
            begin = cut // 2 if auto == "SAME_UPPER" else cut - cut // 2
            pads.append((begin, cut - begin))
            outputs.append(target)
            continue
        begin, end = (0, 0) if auto == "VALID" else (flat[axis], flat[axis + rank])
        pads.append((begin, end))
        outputs.append(full - begin - end)
    return Window(kernel, tuple(strides), tuple(dilations), tuple(pads), tuple(outputs))


def _conv_transpose(call: Call) -> Array:
    original, w, bias = call.array(0), call.array(1), call.optional(2)
    x = _compute_type(original)
    group, batch = int(call.attr("group", 1)), x.shape[0]
    sizes, kernel = x.shape[2:], tuple(w.shape[2:])
    window = _transposed_geometry(call, sizes, kernel)
    share = w.shape[1]
    # The buffer holds every product; output_padding and a larger output_shape add cells that none reaches.
    reach = [s * (n - 1) + e for s, n, e in zip(window.strides, sizes, window.extent, strict=True)]
    buffer_size = [max(r, p[0] + o) for r, p, o in zip(reach, window.pads, window.outputs, strict=True)]
    buffer = np.zeros((batch, group, share, *buffer_size), x.dtype)
    cells = x.reshape(batch, group, x.shape[1] // group, -1)
    weights = w.astype(x.dtype, copy=False).reshape(group, x.shape[1] // group, share, -1)
    for place, offsets in enumerate(product(*(range(k) for k in kernel))):
        matrix = weights[..., place].transpose(0, 2, 1)
        spread = (matrix @ cells).reshape(batch, group, share, *sizes)
        cuts: tuple[Any, ...] = (
            ...,
            *(
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, s, n in zip(offsets, window.dilations, window.strides, sizes, strict=True)
            ),
        )
        buffer[cuts] += spread
    kept: tuple[Any, ...] = (
        ...,
        *(slice(p[0], p[0] + o) for p, o in zip(window.pads, window.outputs, strict=True)),
    )
    out = buffer[kept].reshape(batch, group * share, *window.outputs)
    if bias is not None:
        out = out + bias.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 2))
    return np.asarray(out).astype(original.dtype, copy=False)


def _centered(x: Array, zero_point: Array | None, axis: int | None = None) -> Array:
    """Return x - zero_point in float64 (exact: 8-bit operands, sums below 2^53)."""
    if zero_point is None:
        return x.astype(np.float64)
    if zero_point.size > 1 and axis is not None:
        zero_point = zero_point.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return np.asarray(x.astype(np.float64) - zero_point.astype(np.float64))


def _conv_integer(call: Call) -> Array:
    x, w = _centered(call.array(0), call.optional(2)), _centered(call.array(1), call.optional(3), 0)
    window = window_of(call, x.shape[2:], tuple(w.shape[2:]))
    return convolve(x, w, window, int(call.attr("group", 1))).astype(np.int32)


def _qlinear_conv(call: Call) -> Array:
    x, w = _centered(call.array(0), call.optional(2)), _centered(call.array(3), call.optional(5), 0)
    window = window_of(call, x.shape[2:], tuple(w.shape[2:]))
    total = convolve(x, w, window, int(call.attr("group", 1)))
    channel = (-1, *(1,) * (x.ndim - 2))
    if (bias := call.optional(8)) is not None:
        total += bias.astype(np.float64).reshape(channel)
    scale = call.array(1).astype(np.float64) * call.array(4).astype(np.float64)
    scale = (scale / call.array(6).astype(np.float64)).reshape(channel if scale.size > 1 else ())
    zero_point = call.array(7)
    limits = np.iinfo(zero_point.dtype)
    rounded = np.rint(total * scale) + zero_point.astype(np.float64)
    return np.asarray(np.clip(rounded, limits.min, limits.max).astype(zero_point.dtype))


KERNELS: dict[str, Kernel] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
}
