"""Pad, Scatter, CumSum and NonMaxSuppression: what the wheel's operators do slowly or only in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph.kernels.call import Array, Call, Kernel

__all__ = ["KERNELS"]


def _pad(call: Call) -> Array:
    x = call.array(0)
    flat = call.int_list("pads", 1) or []
    axes_input = call.optional(3)
    axes = [int(a) % x.ndim for a in (range(x.ndim) if axes_input is None else axes_input.reshape(-1))]
    if len(flat) != 2 * len(axes):
        raise InputError(f"{call.label}: pads must have two entries for each axis", got=str(flat))
    low, high = [0] * x.ndim, [0] * x.ndim
    for place, axis in enumerate(axes):
        low[axis], high[axis] = flat[place], flat[len(axes) + place]
    # Negative pads cut; cutting comes first, so that reflect and edge see only what is kept.
    cuts = tuple(slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(low, high, x.shape, strict=True))
    x = x[cuts]
    widths = [(max(0, a), max(0, b)) for a, b in zip(low, high, strict=True)]
    mode = call.attr("mode", "constant")
    if mode != "constant":
        return np.pad(x, widths, mode=mode)
    value = call.optional(2)
    fill = call.attr("value", 0.0) if value is None else value.reshape(-1)[0]
    if x.dtype.kind in "OUT" or x.dtype.kind == "V":
        out = np.full([n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)], fill, x.dtype)
        out[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, widths, strict=True))] = x
        return out
    return np.pad(x, widths, constant_values=x.dtype.type(fill))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scatter_elements(call: Call) -> Array:
    out, index, updates = call.array(0).copy(), call.array(1), call.array(2)
    axis = int(call.attr("axis", 0)) % out.ndim
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    # A negative index counts from the end; one outside is the model's error, which indexing raises.
    places[axis] = index.astype(np.int64)
    reduction = call.attr("reduction", "none")
    if reduction == "none":
        out[tuple(places)] = updates
    else:
        _REDUCTIONS[reduction](out, tuple(places), updates)
    return np.asarray(out)


def _cum_sum(call: Call) -> Array:
    x, axis = call.array(0), int(call.array(1).reshape(-1)[0])
    if call.attr("reverse", 0):
        x = np.flip(x, axis)
    out = np.cumsum(x, axis=axis, dtype=x.dtype)
    if call.attr("exclusive", 0):
        out = np.roll(out, 1, axis)
        first = [slice(None)] * x.ndim
        first[axis] = slice(0, 1)
        out[tuple(first)] = 0
    return np.flip(out, axis) if call.attr("reverse", 0) else out


def _corners(boxes: Array, centered: bool) -> tuple[Array, Array, Array, Array]:
    """Return (low, high) of both axes of boxes [N, 4]; corners may be given in any order."""
    if centered:
        x, y, w, h = boxes.T
        return y - h / 2, x - w / 2, y + h / 2, x + w / 2
    a, b, c, d = boxes.T
    return np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)


def _kept(
    boxes: tuple[Array, ...], scores: Array, limit: int, overlap: float, least: float | None
) -> list[int]:
    """Return the boxes of one class that greedy suppression keeps, best first (ties: lower index first)."""
    top, left, bottom, right = boxes
    area = (bottom - top) * (right - left)
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        height = np.minimum(bottom[best], bottom[order]) - np.maximum(top[best], top[order])
        width = np.minimum(right[best], right[order]) - np.maximum(left[best], left[order])
        shared = np.maximum(height, 0) * np.maximum(width, 0)
        union = area[best] + area[order] - shared
        order = order[~(np.where(union > 0, shared / np.where(union > 0, union, 1), 0) > overlap)]
    return kept


def _non_max_suppression(call: Call) -> Array:
    boxes, scores = call.array(0), call.array(1)
    limit, overlap, least = call.optional(2), call.optional(3), call.optional(4)
    count = 0 if limit is None else int(limit.reshape(-1)[0])
    threshold = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    floor = None if least is None else float(least.reshape(-1)[0])
    rows: list[tuple[int, int, int]] = []
    for batch in range(len(boxes)):
        corners = _corners(boxes[batch], bool(call.attr("center_point_box", 0)))
        for kind in range(scores.shape[1]):
            kept = _kept(corners, scores[batch, kind], count, threshold, floor)
            rows.extend((batch, kind, box) for box in kept)
    return np.array(rows, np.int64).reshape(-1, 3)


KERNELS: dict[str, Kernel] = {
    "Pad": _pad,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "CumSum": _cum_sum,
    "NonMaxSuppression": _non_max_suppression,
}
