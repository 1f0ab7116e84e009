"""MatMul, Gemm, Einsum and the integer products."""

from __future__ import annotations

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel

__all__ = ["KERNELS", "matmul"]


def matmul(a: Array, b: Array) -> Array:
    """Return a @ b in the dtype of a; 16-bit floats accumulate in float32, integers exactly modulo 2^n."""
    if a.dtype in (np.float32, np.float64) or a.dtype.kind in "iu":
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32))).astype(a.dtype)


def _gemm(call: Call) -> Array:
    a, b, c = call.array(0), call.array(1), call.optional(2)
    a = a.T if call.attr("transA", 0) else a
    b = b.T if call.attr("transB", 0) else b
    y = matmul(a, b)
    if (alpha := call.attr("alpha", 1.0)) != 1.0:
        y = (alpha * y).astype(a.dtype, copy=False)
    beta = call.attr("beta", 1.0)
    if c is not None and beta != 0.0:
        y = y + (c if beta == 1.0 else (beta * c).astype(a.dtype, copy=False))
    return y.astype(a.dtype, copy=False)


def _einsum(call: Call) -> Array:
    arrays = [np.asarray(value) for value in call.inputs]
    dtype = arrays[0].dtype
    if dtype not in (np.float32, np.float64) and dtype.kind not in "iu":
        arrays = [array.astype(np.float32) for array in arrays]
    result = np.einsum(call.attr("equation").replace(" ", ""), *arrays, optimize=True)
    return np.asarray(result).astype(dtype, copy=False)


def _exact(x: Array, zero_point: Array | None, side: str) -> Array:
    """Return x - zero_point in float64; per-row zero points of the left side, per-column of the right."""
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    zero_point = zero_point.astype(np.float64)
    if zero_point.ndim == 1 and zero_point.size > 1 and side == "left":
        zero_point = zero_point[:, None]
    return np.asarray(wide - zero_point)


def _matmul_integer(call: Call) -> Array:
    a, b = _exact(call.array(0), call.optional(2), "left"), _exact(call.array(1), call.optional(3), "right")
    return np.asarray(a @ b).astype(np.int32)


def _qlinear_matmul(call: Call) -> Array:
    a, b = _exact(call.array(0), call.array(2), "left"), _exact(call.array(3), call.array(5), "right")
    a_scale = call.array(1).astype(np.float64)
    a_scale = a_scale[:, None] if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    scale = a_scale * call.array(4).astype(np.float64) / call.array(6).astype(np.float64)
    zero_point = call.array(7)
    limits = np.iinfo(zero_point.dtype)
    rounded = np.rint((a @ b) * scale) + zero_point.astype(np.float64)
    return np.asarray(np.clip(rounded, limits.min, limits.max).astype(zero_point.dtype))


KERNELS: dict[str, Kernel] = {
    "MatMul": lambda call: matmul(call.array(0), call.array(1)),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
}
