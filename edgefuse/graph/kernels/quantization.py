"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: per tensor, per axis and per block.

The division is done in the type of the scale (float64 in the float64 executor), rounding is half to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph.kernels.call import Array, Call, Kernel, is_carried_float, is_float
from edgefuse.graph.kernels.types import cast_array, numpy_dtype

__all__ = ["KERNELS"]


def _spread(value: Array, x: Array, call: Call) -> Array:
    """Return a scale or zero point in a shape that broadcasts against x."""
    if value.size == 1:
        return value.reshape(())
    axis = int(call.attr("axis", 1))
    if not -x.ndim <= axis < x.ndim:
        raise InputError(f"{call.label}: axis {axis} is outside the tensor", got=f"rank {x.ndim}")
    axis %= x.ndim
    block = int(call.attr("block_size", 0))
    if block == 0:
        return value.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    repeated = np.repeat(value, block, axis=axis)
    return np.take(repeated, range(x.shape[axis]), axis=axis)


def _target(call: Call, zero_point: Array | None) -> np.dtype[Any]:
    if zero_point is not None:
        return zero_point.dtype
    stated = int(call.attr("output_dtype", 0))
    return numpy_dtype(stated) if stated else np.dtype(np.uint8)


def _integer_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    import ml_dtypes

    limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def _quantize(call: Call) -> Array:
    x, scale, zero_point = call.array(0), call.array(1), call.optional(2)
    dtype = _target(call, zero_point)
    precision = int(call.attr("precision", 0))
    if precision and not call.float64:
        x, scale = x.astype(numpy_dtype(precision)), scale.astype(numpy_dtype(precision))
    steps = np.asarray(x / _spread(scale, x, call))
    if is_float(dtype):
        if zero_point is not None and "float4" in dtype.name:
            steps = steps + _spread(zero_point, x, call).astype(steps.dtype)
        return cast_array(steps, dtype, bool(call.attr("saturate", 1)))
    low, high = _integer_limits(dtype)
    rounded = np.rint(steps.astype(np.float64))
    if zero_point is not None:
        rounded = rounded + _spread(zero_point, x, call).astype(np.float64)
    # NaN becomes the lower end, as a saturating conversion does on the devices that we know.
    return np.asarray(
        np.clip(np.nan_to_num(rounded, nan=low, posinf=high, neginf=low), low, high).astype(dtype)
    )


def _dequantize(call: Call) -> Array:
    x, scale, zero_point = call.array(0), call.array(1), call.optional(2)
    wide = x.astype(np.float64)
    if zero_point is not None and not is_float(x.dtype):
        wide = wide - _spread(zero_point, x, call).astype(np.float64)
    stated = int(call.attr("output_dtype", 0))
    dtype = scale.dtype if call.float64 or not stated else numpy_dtype(stated)
    # Native: one rounding to float32 of the difference (exact) and one of the product, as engines do.
    compute = np.dtype(np.float64) if scale.dtype == np.float64 else np.dtype(np.float32)
    result = wide.astype(compute) * _spread(scale, x, call).astype(compute)
    return np.asarray(result).astype(dtype, copy=False)


def _dynamic_quantize(call: Call) -> tuple[Array, ...]:
    x = call.array(0)
    high, low = max(0.0, float(x.max(initial=0))), min(0.0, float(x.min(initial=0)))
    kind = x.dtype.type if is_carried_float(x.dtype) else np.float32
    scale = kind(1.0) if high == low else kind(kind(kind(high) - kind(low)) / kind(255))
    zero_point = np.clip(np.rint(kind(0) - kind(low) / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero_point, 0, 255).astype(np.uint8)
    return y, np.array(scale, x.dtype), np.array(zero_point, np.uint8)


KERNELS: dict[str, Kernel] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
}
