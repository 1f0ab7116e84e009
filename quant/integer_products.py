"""Products of integers, exact: carried in floating point wherever no rounding can happen.

A sum of integers is exact in float32 while every partial sum stays within 2^24, and in float64 within 2^53;
the bound used is (largest row sum of |w|) * max|x|, which no order of summation exceeds. The code here shares
nothing with any backend; windows and padding are those of the reference executor (edgefuse.graph.kernels).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.graph import Node, attribute, source_name
from edgefuse.graph.kernels.call import Call
from edgefuse.graph.kernels.windows import Window, pad_spatial, tap, window_of

__all__ = [
    "PRODUCTS",
    "carrier",
    "output_factor",
    "pair_errors",
    "round_steps",
    "sum_products",
    "wrap_int32",
]

Array = np.ndarray
Compute = Callable[[tuple[Any, ...]], list[Any]]

PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})

_INT16 = (-32768, 32767)
_INT32 = 2**31


def round_steps(steps: Array, rounding: str = "half_even") -> Array:
    """Return floating-point `steps` rounded to whole numbers; ties as `rounding` says.

    rounding: "half_even", or "half_away" (from zero).
    """
    if rounding == "half_even":
        return np.asarray(np.rint(steps))
    if rounding != "half_away":
        raise UnsupportedError(f"no rounding {rounding!r}", expected="half_even or half_away")
    whole = np.trunc(steps)
    # steps - whole is exact; adding 0.5 first would carry 0.49999997 up to 1.
    return np.asarray(whole + np.where(np.abs(steps - whole) >= 0.5, np.sign(steps), 0).astype(steps.dtype))


def carrier(bound: float) -> type[np.float32] | type[np.float64]:
    """Return the floating type in which sums of integers up to `bound` are exact.

    Raises UnsupportedError above 2^53: no model of 8 or 16 bits comes near.
    """
    if bound <= 2**24:
        return np.float32
    if bound <= 2**53:
        return np.float64
    raise UnsupportedError("sums of integers are too large to be exact in float64", got=f"{bound:.3g}")


def wrap_int32(sums: Array) -> tuple[Array, int]:
    """Return (sums as an int32 accumulator holds them, how many of them wrapped around)."""
    over = (sums >= _INT32) | (sums < -_INT32)
    count = int(np.count_nonzero(over))
    if not count:
        return sums, 0
    return np.mod(sums.astype(np.float64) + _INT32, 2.0**32) - _INT32, count


def sum_products(node: Node, left: Array, right: Array, compute: Compute) -> Array:
    """Return the exact sums of products of a Conv, ConvTranspose, MatMul or Gemm, without bias and alpha.

    left: integers minus their zero point (any numeric dtype), the activation.  right: the integers of the
    weight, or of a second activation.  compute: the reference's kernel of the node, inputs -> outputs.
    The result is float32 or float64 and holds whole numbers.
    """
    largest = float(np.abs(left).max(initial=0))
    kind = carrier(largest * _heaviest(node, right))
    a, b = left.astype(kind, copy=False), right.astype(kind, copy=False)
    if node.op_type in ("Conv", "ConvTranspose"):
        return np.asarray(compute((a, b))[0])
    if node.op_type == "Gemm":
        a = a.T if attribute(node, "transA", 0) else a
        b = b.T if attribute(node, "transB", 0) else b
    return np.asarray(np.matmul(a, b))


def _heaviest(node: Node, right: Array) -> float:
    """Return the largest sum of |w| that meets one output element."""
    size = np.abs(right.astype(np.float64))
    if node.op_type == "Conv":
        return float(size.reshape(size.shape[0], -1).sum(axis=1).max(initial=0))
    if node.op_type == "ConvTranspose":  # [C, M/g, *kernel]: over all C, whatever the group
        return float(size.sum(axis=(0, *range(2, size.ndim))).max(initial=0))
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        return float(size.sum(axis=-1).max(initial=0))
    return float(size.sum(axis=max(size.ndim - 2, 0)).max(initial=0))


def output_factor(node: Node, shape: tuple[int, ...], scale: Array, rank: int) -> Array:
    """Return the weight's scale as float64 that multiplies the sums: a scalar, or shaped to broadcast.

    shape: of the weight.  scale: broadcasts over it (`QuantizedWeight.expanded_scale`).  rank: of the node's
    output.  Raises UnsupportedError where a scale changes inside one sum.
    """
    if scale.size == 1:
        return np.asarray(float(scale.reshape(())))
    full = np.broadcast_to(scale.astype(np.float64), shape)
    if node.op_type == "Conv":
        rows = full.reshape(shape[0], -1).T
    elif node.op_type == "ConvTranspose":
        group = int(attribute(node, "group", 1))
        split = full.reshape(group, shape[0] // group, shape[1], -1)
        rows = np.moveaxis(split, (1, 3), (0, 1)).reshape(-1, group * shape[1])
    elif node.op_type == "Gemm" and attribute(node, "transB", 0):
        rows = full.T
    else:
        rows = np.moveaxis(full, -2, 0)
    if not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
        raise UnsupportedError(f"node {source_name(node)!r}: weight scales differ inside one sum")
    if node.op_type in ("Conv", "ConvTranspose"):
        return np.asarray(rows[0].reshape(-1, *[1] * (rank - 2)))
    return np.asarray(rows[0] if rows.ndim == 2 else rows[0][..., None, :])


def pair_errors(node: Node, left: Array, right: Array) -> tuple[Array | None, int]:
    """Return (what saturation of pairs adds to the exact sums, in float64, or None; pairs that saturated).

    Models vpmaddubsw, AVX2's product of unsigned by signed bytes: the products of two neighbouring input
    channels (2k, 2k + 1 of one kernel position and group; of a matrix product, two neighbouring rows of the
    weight) are added in int16 with saturation, and these sums in int32. Depthwise convolutions and
    ConvTranspose do not compute so and are never saturated (measured on the CPU that this models, 2026-11).
    left: unsigned bytes as the kernel sees them (the zero point is taken off afterwards), any dtype; padding
    is skipped.  right: the integers of the weight.
    """
    if node.op_type == "ConvTranspose":
        return None, 0
    if node.op_type == "Conv":
        group = int(attribute(node, "group", 1))
        if right.shape[1] < 2:
            return None, 0
        return _conv_pair_errors(left, right, _window(node, left, right), group)
    if right.ndim != 2:
        raise UnsupportedError(f"node {source_name(node)!r}: pairs are modelled for weights of rank 2 only")
    a = left.T if node.op_type == "Gemm" and attribute(node, "transA", 0) else left
    b = right if node.op_type == "Gemm" and attribute(node, "transB", 0) else right.T
    rows = a.reshape(-1, a.shape[-1])
    line = Window((1,), (1,), (1,), ((0, 0),), (rows.shape[0],))
    found, count = _conv_pair_errors(np.ascontiguousarray(rows.T)[None], b[..., None], line, 1)
    if found is None:
        return None, 0
    return found[0].T.reshape(*a.shape[:-1], b.shape[0]), count


def _window(node: Node, left: Array, right: Array) -> Window:
    names = ("strides", "pads", "dilations", "auto_pad")
    given = {name: attribute(node, name) for name in names if name in node.attributes}
    call = Call(node.name or "", node.op_type, (), given, 1, False, 1)
    return window_of(call, left.shape[2:], tuple(right.shape[2:]))


def _conv_pair_errors(x: Array, w: Array, window: Window, group: int) -> tuple[Array | None, int]:
    """As pair_errors, for x [N, C, *sizes] and w [M, C/group, *kernel]."""
    filters, channels = w.shape[0], w.shape[1] // 2 * 2
    share = filters // group
    taps = list(product(*(range(k) for k in window.kernel)))
    # [group, share, pair, 2, tap]; an odd last channel stands alone: |255 * 128| fits int16.
    pairs = w[:, :channels].reshape(group, share, channels // 2, 2, len(taps)).astype(np.float32)
    suspects = _suspects(x, w.shape[1], channels, pairs)
    if not len(suspects):
        return None, 0
    x = pad_spatial(x, window, 0).astype(np.float32)
    out = np.zeros((x.shape[0], filters, math.prod(window.outputs)))
    count = 0
    for (g, k, t), rows in _by_place(suspects).items():
        first = g * w.shape[1] + 2 * k
        cells = tap(x[:, first : first + 2], window, taps[t]).reshape(x.shape[0], 2, -1)
        sums = np.matmul(pairs[g, rows, k, :, t], cells)
        error = np.clip(sums, *_INT16) - sums
        count += int(np.count_nonzero(error))
        out[:, g * share + rows] += error
    return out.reshape(x.shape[0], filters, *window.outputs), count


def _suspects(x: Array, stride: int, channels: int, pairs: Array) -> Array:
    """Return [n, 4] indices (group, filter, pair, tap) whose sum could leave int16 at x's largest values."""
    if x.size == 0:
        return np.zeros((0, 4), np.int64)
    if float(x.min()) < 0:
        raise InternalError("pairs are sums of unsigned bytes")
    peak = x.max(axis=(0, *range(2, x.ndim))).astype(np.float32).reshape(-1, stride)[:, :channels]
    reach = peak.reshape(pairs.shape[0], 1, pairs.shape[2], 2, 1)
    high = (np.maximum(pairs, 0) * reach).sum(axis=3)
    low = (np.minimum(pairs, 0) * reach).sum(axis=3)
    return np.argwhere((high > _INT16[1]) | (low < _INT16[0]))


def _by_place(suspects: Array) -> dict[tuple[int, int, int], Array]:
    """Return the filters of each (group, pair, tap)."""
    order = np.lexsort((suspects[:, 1], suspects[:, 3], suspects[:, 2], suspects[:, 0]))
    ordered = suspects[order]
    places = ordered[:, [0, 2, 3]]
    cuts = np.flatnonzero(np.any(places[1:] != places[:-1], axis=1)) + 1
    parts = np.split(ordered, cuts)
    return {(int(p[0, 0]), int(p[0, 2]), int(p[0, 3])): p[:, 1] for p in parts}
