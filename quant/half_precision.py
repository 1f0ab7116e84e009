"""A node as float16 hardware computes it: tensors in float16, sums in float32 or in float16 by chunks.

float16 ends at 65504 and is spaced by 32 there (IEEE 754 binary16). What overflows here overflows on a device
whose kernels keep such sums in float16; a device that adds in float32 rounds the tensors only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgefuse.graph import Node, attribute, constant, input_value

__all__ = ["half_node", "rounded_to_half"]

Array = np.ndarray
Compute = Callable[[tuple[Any, ...]], list[Any]]

_REDUCTIONS = frozenset({"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2"})


def to_half(value: Any) -> Any:
    """Return a floating-point array as float16 (beyond 65504: infinity); anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            return value.astype(np.float16)
    return value


def rounded_to_half(array: Array) -> Array:
    """Return float32 `array` rounded to the numbers of float16, half to even, still as float32.

    As array.astype(float16).astype(float32), several times faster: the last 13 bits of the mantissa are
    rounded away in integers; numbers below 2^-14 have steps of 2^-24, as float32 has between 0.5 and 1.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.int32)
    rounded: Array = ((bits + (0x0FFF + ((bits >> 13) & 1))) & ~0x1FFF).view(np.float32)
    size = np.abs(array)
    np.copyto(rounded, (array + np.float32(0.75)) - np.float32(0.75), where=size < np.float32(2.0**-14))
    if not size.max(initial=0) < 65520:
        np.copyto(rounded, np.copysign(np.float32(np.inf), array), where=size >= 65520)
        np.copyto(rounded, array, where=np.isnan(array))
    return rounded


def half_node(node: Node, inputs: tuple[Any, ...], compute: Compute, chunk: int | None) -> list[Any]:
    """Return the node's outputs as float16 hardware gives them, in the dtypes that the model declares.

    inputs: rounded to float16 here.  compute: the reference's kernel; it computes in float32, and the result
    is rounded.  chunk: None = so; n = sums of Conv, MatMul, Gemm, GlobalAveragePool, the Reduce operators
    and LayerNormalization / RMSNormalization are added up in float16 after every n terms (1: each).
    """
    with np.errstate(all="ignore"):
        results = None
        if chunk is not None:
            results = _chunked(node, tuple(to_half(value) for value in inputs), compute, chunk)
        if results is None:
            results = compute(tuple(_carried(value) for value in inputs))
        return [_declared(node, k, _carried(result)) for k, result in enumerate(results)]


def _carried(value: Any) -> Any:
    """Return a floating-point array as float32 that holds float16 numbers; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float16, np.float32, np.float64):
        return value
    if value.dtype == np.float32:
        return rounded_to_half(value)
    return value.astype(np.float16).astype(np.float32)


def _declared(node: Node, index: int, result: Any) -> Any:
    """Return a result in the dtype that other nodes of the model expect."""
    if not (isinstance(result, np.ndarray) and result.dtype == np.float32):
        return result
    declared = node.outputs[index].dtype if index < len(node.outputs) else None
    return result if declared is None else result.astype(declared.numpy(), copy=False)


def _chunked(node: Node, inputs: tuple[Any, ...], compute: Compute, chunk: int) -> list[Any] | None:
    """Return the outputs with sums in float16, or None for an operator that does not add up."""
    if node.op_type == "Conv":
        return [_conv(node, inputs, compute, chunk)]
    if node.op_type in ("MatMul", "Gemm"):
        return [_matrix(node, inputs, chunk)]
    if node.op_type == "GlobalAveragePool":
        axes = tuple(range(2, inputs[0].ndim))
        return [_mean(inputs[0], axes, chunk)]
    if node.op_type in _REDUCTIONS:
        return [_reduce(node, inputs, chunk)]
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        return _normalize(node, inputs, chunk)
    return None


def _conv(node: Node, inputs: tuple[Any, ...], compute: Compute, chunk: int) -> Array:
    x, w = inputs[0].astype(np.float32), inputs[1].astype(np.float32)
    group = int(attribute(node, "group", 1))
    step = max(1, chunk // max(1, math.prod(w.shape[2:])))
    total: Array | None = None
    parts = x.reshape(x.shape[0], group, w.shape[1], *x.shape[2:])
    for start in range(0, w.shape[1], step):
        piece = parts[:, :, start : start + step].reshape(x.shape[0], -1, *x.shape[2:])
        part = compute((piece, w[:, start : start + step]))[0]
        total = to_half(part if total is None else total.astype(np.float32) + part)
    assert total is not None
    if len(inputs) > 2 and inputs[2] is not None:
        total = total + inputs[2].reshape(-1, *[1] * (x.ndim - 2))
    return total


def _matrix(node: Node, inputs: tuple[Any, ...], chunk: int) -> Array:
    a, b = inputs[0].astype(np.float32), inputs[1].astype(np.float32)
    gemm = node.op_type == "Gemm"
    if gemm:
        a = a.T if attribute(node, "transA", 0) else a
        b = b.T if attribute(node, "transB", 0) else b
    rows = b if b.ndim > 1 else b[:, None]
    total: Array | None = None
    for start in range(0, a.shape[-1], chunk):
        part = np.matmul(a[..., start : start + chunk], rows[..., start : start + chunk, :])
        total = to_half(part if total is None else total.astype(np.float32) + part)
    if total is None:
        total = to_half(np.matmul(a, rows))
    total = total if b.ndim > 1 else total[..., 0]
    if gemm:
        total = np.float16(attribute(node, "alpha", 1.0)) * total
        if len(inputs) > 2 and inputs[2] is not None:
            total = total + np.float16(attribute(node, "beta", 1.0)) * inputs[2]
    return np.asarray(total)


def _sum(x: Array, axes: tuple[int, ...], chunk: int) -> Array:
    """Return the sum of float16 `x` over `axes` (kept as size 1): float32 inside a chunk, float16 between."""
    last = tuple(range(x.ndim - len(axes), x.ndim))
    flat = np.moveaxis(x, axes, last).reshape(*(n for i, n in enumerate(x.shape) if i not in axes), -1)
    total = np.zeros(flat.shape[:-1], np.float16)
    for start in range(0, flat.shape[-1], chunk):
        part = flat[..., start : start + chunk].astype(np.float32).sum(axis=-1)
        total = to_half(total.astype(np.float32) + part)
    return total.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])


def _mean(x: Array, axes: tuple[int, ...], chunk: int) -> Array:
    count = math.prod(x.shape[i] for i in axes)
    mean: Array = to_half(_sum(x, axes, chunk).astype(np.float32) / np.float32(max(count, 1)))
    return mean


def _reduce(node: Node, inputs: tuple[Any, ...], chunk: int) -> Array:
    x = inputs[0]
    given = constant(input_value(node, 1))
    named = attribute(node, "axes") if given is None else given.reshape(-1).tolist()
    if not named and attribute(node, "noop_with_empty_axes", 0):
        return np.asarray(x)
    axes = tuple(sorted(int(i) % x.ndim for i in (named or range(x.ndim))))
    terms = {"ReduceSumSquare": x * x, "ReduceL2": x * x, "ReduceL1": np.abs(x)}.get(node.op_type, x)
    result = _mean(x, axes, chunk) if node.op_type == "ReduceMean" else _sum(terms, axes, chunk)
    result = np.sqrt(result) if node.op_type == "ReduceL2" else result
    if not attribute(node, "keepdims", 1):
        result = result.reshape([n for i, n in enumerate(result.shape) if i not in axes])
    return result


def _normalize(node: Node, inputs: tuple[Any, ...], chunk: int) -> list[Any]:
    x, scale = inputs[0], inputs[1]
    axes = tuple(range(int(attribute(node, "axis", -1)) % x.ndim, x.ndim))
    centred = node.op_type == "LayerNormalization"
    mean = _mean(x, axes, chunk) if centred else np.zeros((), np.float16)
    away = x - mean
    spread = _mean(away * away, axes, chunk) + np.float16(attribute(node, "epsilon", 1e-5))
    inverse = np.float16(1) / np.sqrt(spread)
    y = away * inverse * scale
    if len(inputs) > 2 and inputs[2] is not None:
        y = y + inputs[2]
    return [y, mean, inverse][: len(node.outputs)] if centred else [y]
