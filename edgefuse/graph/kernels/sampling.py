"""Resize and Upsample, GridSample, AffineGrid, RoiAlign.

Positions are computed in float64, those of `nearest` with given scales in float32. Where the standard's own
reference and engines differ (align_corners with a scale that gives no whole size), the standard's is
followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel

__all__ = ["KERNELS"]


@dataclass(frozen=True, slots=True)
class _Axis:
    """How one axis is resized: sizes, scale (output / input) and whether it was given, crop."""

    axis: int
    size: int
    output: int
    scale: float
    scaled: bool
    roi: tuple[float, float]


def _scaled_size(size: int, scale: float) -> int:
    # In float32, as every engine does: 10 * float32(0.7) is 7, in float64 it would be 6.
    return int(np.floor(np.float32(size) * np.float32(scale)))


def _axes_of(call: Call, x: Array) -> list[_Axis]:
    axes = [a % x.ndim for a in call.ints("axes", range(x.ndim))]
    roi, scales, sizes = call.optional(1), call.optional(2), call.optional(3)
    if call.op_type == "Upsample" or call.opset < 11:
        roi, sizes = None, None
        scales = call.optional(1) if call.optional(1) is not None else np.asarray(call.attr("scales"))
    starts, ends = [0.0] * len(axes), [1.0] * len(axes)
    if roi is not None and roi.size:
        starts, ends = [float(v) for v in roi[: len(axes)]], [float(v) for v in roi[len(axes) :]]
    sized = sizes is not None and sizes.size > 0
    if sizes is not None and sized:
        outputs = [int(v) for v in sizes]
        factors = [out / x.shape[axis] for out, axis in zip(outputs, axes, strict=True)]
        policy = call.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            common = min(factors) if policy == "not_larger" else max(factors)
            factors = [common] * len(axes)
            outputs = [int(common * x.shape[axis] + 0.5) for axis in axes]
    else:
        factors = [float(v) for v in np.asarray(scales).reshape(-1)]
        outputs = [_scaled_size(x.shape[axis], f) for axis, f in zip(axes, factors, strict=True)]
    return [
        _Axis(axis, x.shape[axis], output, factor, not sized, (start, end))
        for axis, output, factor, start, end in zip(axes, outputs, factors, starts, ends, strict=True)
    ]


def _positions(along: _Axis, mode: str, kind: type[Any]) -> Array:
    """Return the input position of each output cell of an axis, computed in the float type `kind`."""
    cells, one = np.arange(along.output, dtype=kind), kind(1)
    scale, size, start, end = kind(along.scale), kind(along.size), kind(along.roi[0]), kind(along.roi[1])
    width = scale * size
    if mode == "align_corners":
        return np.zeros_like(cells) if width == 1 else cells * (size - one) / (width - one)
    if mode == "asymmetric":
        return np.asarray(cells / scale)
    if mode == "tf_crop_and_resize":
        if width == 1:
            return np.full_like(cells, (start + end) * (size - one) / kind(2))
        return np.asarray(start * (size - one) + cells * (end - start) * (size - one) / (width - one))
    half = kind(0.5)
    if mode == "pytorch_half_pixel" and width == 1:
        return np.full_like(cells, -half)
    shift = size * half * (one - kind(along.output) / width) if mode == "half_pixel_symmetric" else kind(0)
    return np.asarray(shift + (cells + half) / scale - half)


def _cubic(distance: Array, a: float) -> Array:
    """Return Keys' cubic convolution kernel at |distance| (IEEE ASSP 29(6), 1981, eq. 15)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(call: Call, along: _Axis, positions: Array, mode: str) -> tuple[Array, Array]:
    """Return (index, weight), both [outputs, taps], of a linear or cubic interpolation."""
    reach = 1 if mode == "linear" else 2
    shrink = min(along.scale, 1.0) if call.attr("antialias", 0) else 1.0
    first = int(np.floor(-reach / shrink)) + 1
    base = np.ceil(positions) - 1
    offsets = np.arange(first, 2 - first)
    index = (base[:, None] + offsets).astype(np.int64)
    distance = (index - positions[:, None]) * shrink
    if mode == "linear":
        weight = np.clip(1 - np.abs(distance), 0, 1)
    else:
        weight = _cubic(distance, call.attr("cubic_coeff_a", -0.75))
    if call.attr("exclude_outside", 0):
        weight = np.where((index < 0) | (index >= along.size), 0.0, weight)
    if call.attr("exclude_outside", 0) or shrink < 1.0:
        total = weight.sum(axis=1, keepdims=True)
        weight = weight / np.where(total == 0, 1.0, total)
    return np.clip(index, 0, along.size - 1), weight


def _nearest_index(positions: Array, rule: str, size: int) -> Array:
    rules: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda p: np.ceil(p - 0.5),
        "round_prefer_ceil": lambda p: np.floor(p + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return np.asarray(np.clip(rules[rule](positions), 0, size - 1).astype(np.int64))


def _resize_axis(call: Call, x: Array, along: _Axis, mode: str, transform: str, nearest: str) -> Array:
    # Nearest is decided in float32, as engines do: at a scale of float32(0.6) half a cell falls on a whole
    # position there, and just below it in float64. A scale made of two sizes has no such rounding of its own.
    narrow = mode == "nearest" and along.scaled
    positions = _positions(along, transform, np.float32 if narrow else np.float64)
    shape = [-1 if a == along.axis else 1 for a in range(x.ndim)]
    if mode == "nearest":
        x = np.take(x, _nearest_index(positions, nearest, along.size), axis=along.axis)
    else:
        index, weight = _taps(call, along, positions, mode)
        pieces = [
            np.take(x, index[:, k], axis=along.axis) * weight[:, k].reshape(shape)
            for k in range(index.shape[1])
        ]
        x = np.asarray(sum(pieces[1:], pieces[0]))
    if transform == "tf_crop_and_resize":
        outside = ((positions < 0) | (positions > along.size - 1)).reshape(shape)
        x = np.where(outside, call.attr("extrapolation_value", 0.0), x)
    return x


def _saturated(x: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = np.clip(x, limits.min, limits.max)
    return x.astype(dtype, copy=False)


def _resize(call: Call) -> Array:
    x = call.array(0)
    old = call.op_type == "Upsample" or call.opset < 11
    mode = {"bilinear": "linear"}.get(call.attr("mode", "nearest"), call.attr("mode", "nearest"))
    # Upsample and Resize-10 say nothing of positions; engines agree on asymmetric and floor.
    transform = "asymmetric" if old else call.attr("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if old else call.attr("nearest_mode", "round_prefer_floor")
    result = x if mode == "nearest" else x.astype(np.float64)
    for along in _axes_of(call, x):
        same = along.output == along.size and np.isclose(along.scale, 1.0)
        if same and (transform != "tf_crop_and_resize" or along.roi == (0.0, 1.0)):
            continue
        result = _resize_axis(call, result, along, mode, transform, nearest)
    return _saturated(result, x.dtype)


def _reflect(x: Array, low: float, high: float) -> Array:
    if high <= low:
        return np.full_like(x, low)
    span = high - low
    folded = np.mod(x - low, 2 * span)
    return np.where((x < low) | (x > high), low + np.where(folded > span, 2 * span - folded, folded), x)


def _grid_positions(call: Call, grid: Array, size: int) -> Array:
    if call.attr("align_corners", 0):
        return np.asarray((grid + 1) / 2 * (size - 1))
    return np.asarray(((grid + 1) * size - 1) / 2)


def _border(call: Call, size: int) -> tuple[float, float]:
    return (0.0, size - 1.0) if call.attr("align_corners", 0) else (-0.5, size - 0.5)


def _grid_taps(call: Call, positions: Array, size: int, mode: str) -> list[tuple[Array, Array]]:
    """Return (index, weight) pairs along one axis; the weight is 0 where zeros padding is read."""
    padding = call.attr("padding_mode", "zeros")
    low, high = _border(call, size)
    if mode == "nearest":
        positions = np.rint(positions)
    if padding == "border" and mode != "cubic":
        # Cubic reads its clamped neighbours instead, as engines and the operator's origin do.
        outside = (positions < low) | (positions > high)
        positions = np.where(outside, np.clip(positions, 0, size - 1), positions)
    elif padding == "reflection":
        positions = _reflect(positions, low, high)
    if mode == "nearest":
        cells = [(positions, np.ones_like(positions))]
    else:
        base = np.floor(positions)
        offsets = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
        cells = []
        for offset in offsets:
            distance = base + offset - positions
            weight = 1 - np.abs(distance) if mode == "linear" else _cubic(distance, -0.75)
            cells.append((base + offset, weight))
    taps = []
    for cell, weight in cells:
        if padding == "zeros":
            weight = np.where((cell >= 0) & (cell < size), weight, 0.0)
        elif padding == "reflection":
            cell = np.trunc(_reflect(cell, low, high))
        taps.append((np.clip(np.nan_to_num(cell), 0, size - 1).astype(np.int64), weight))
    return taps


def _grid_sample(call: Call) -> Array:
    x, grid = call.array(0), call.array(1).astype(np.float64)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        call.attr("mode", "linear"), call.attr("mode", "linear")
    )
    sizes, rank = x.shape[2:], x.ndim - 2
    # The last axis of the grid counts from the innermost image axis outwards.
    per_axis = [
        _grid_taps(call, _grid_positions(call, grid[..., rank - 1 - axis], size), size, mode)
        for axis, size in enumerate(sizes)
    ]
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * rank)
    channels_last = np.moveaxis(x, 1, -1)
    out = np.zeros((*grid.shape[:-1], x.shape[1]), np.float64)
    for combination in product(*per_axis):
        weight = np.ones(grid.shape[:-1])
        for _, part in combination:
            weight = weight * part
        place = batch, *(index for index, _ in combination)
        picked = channels_last[place]
        # A weight of 0 reads nothing, so an infinity there must not become NaN.
        out += np.where(weight[..., None] == 0, 0.0, picked * weight[..., None])
    return _saturated(np.moveaxis(out, -1, 1), x.dtype)


def _affine_grid(call: Call) -> Array:
    theta, size = call.array(0), [int(v) for v in call.array(1)]
    lines = []
    for cells in size[2:]:
        if call.attr("align_corners", 0):
            line = np.linspace(-1.0, 1.0, cells) if cells > 1 else np.array([-1.0])
        else:
            line = (2 * np.arange(cells) + 1) / cells - 1
        lines.append(line)
    mesh = np.meshgrid(*lines, indexing="ij")
    homogeneous = np.stack([*mesh[::-1], np.ones_like(mesh[0])], axis=-1)
    grid = np.einsum("nij,...j->n...i", theta.astype(np.float64), homogeneous)
    return np.asarray(grid.astype(theta.dtype))


def _roi_line(
    start: float, bin_size: float, bins: int, samples: int, size: int
) -> tuple[Array, Array, Array, Array]:
    """Return (low, high, weight of high, inside), each [bins * samples], of one axis of one region."""
    p = start + (np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / samples).reshape(-1) * bin_size
    inside = (p >= -1.0) & (p <= size)
    p = np.clip(p, 0, size - 1)
    low = np.minimum(p.astype(np.int64), size - 1)
    return low, np.minimum(low + 1, size - 1), p - low, inside


def _roi_align(call: Call) -> Array:
    x, rois, batch = call.array(0), call.array(1).astype(np.float64), call.array(2)
    height, width = int(call.attr("output_height", 1)), int(call.attr("output_width", 1))
    ratio, scale = int(call.attr("sampling_ratio", 0)), call.attr("spatial_scale", 1.0)
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    half = call.attr("coordinate_transformation_mode", default) == "half_pixel"
    averaged = call.attr("mode", "avg") == "avg"
    out = np.zeros((len(rois), x.shape[1], height, width), np.float64)
    for n, roi in enumerate(rois):
        left, top, right, bottom = roi * scale - (0.5 if half else 0.0)
        spans = [bottom - top, right - left]
        if not half:
            spans = [max(span, 1.0) for span in spans]
        lines, counts = [], []
        for start, span, bins, size in zip((top, left), spans, (height, width), x.shape[2:], strict=True):
            samples = ratio if ratio > 0 else int(np.ceil(span / bins))
            counts.append(max(samples, 0))
            lines.append(_roi_line(start, span / bins, bins, max(samples, 0), size))
        if 0 in counts:
            continue
        out[n] = _roi_pool(x[int(batch[n])].astype(np.float64), lines, counts, (height, width), averaged)
    return out.astype(x.dtype)


def _roi_pool(
    image: Array, lines: Sequence[tuple[Array, ...]], counts: list[int], bins: tuple[int, int], averaged: bool
) -> Array:
    (y0, y1, wy, in_y), (x0, x1, wx, in_x) = lines
    inside = in_y[:, None] & in_x
    corners = []
    for rows, row_weight in ((y0, 1 - wy), (y1, wy)):
        for columns, column_weight in ((x0, 1 - wx), (x1, wx)):
            weight = np.where(inside, row_weight[:, None] * column_weight, 0.0)
            corners.append(image[:, rows[:, None], columns] * weight)
    # The standard's "max" takes the largest weighted corner, not the largest interpolated sample.
    samples = sum(corners[1:], corners[0]) if averaged else np.maximum.reduce(corners)
    grouped = samples.reshape(len(image), bins[0], counts[0], bins[1], counts[1])
    return np.asarray(grouped.mean(axis=(2, 4)) if averaged else grouped.max(axis=(2, 4)))


KERNELS: dict[str, Kernel] = {
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    "RoiAlign": _roi_align,
}
