"""Cast and the operators that name a type: constants, EyeLike, Range, random numbers, Dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel, is_carried_float

__all__ = ["KERNELS", "cast_array", "numpy_dtype"]

_STRING = 8
_FLOAT = 1


def numpy_dtype(data_type: int) -> np.dtype[Any]:
    """Return the numpy dtype of an ONNX TensorProto data type (object for strings)."""
    import onnx_ir as ir

    return np.dtype(object) if data_type == _STRING else np.dtype(ir.DataType(data_type).numpy())


def cast_array(x: Array, dtype: np.dtype[Any], saturate: bool = True, round_mode: str = "up") -> Array:
    """Return x converted as ONNX's Cast does: float8 saturates unless told not to, strings are parsed."""
    if dtype.kind == "O":
        texts = [v if isinstance(v, str) else str(v) for v in x.reshape(-1)]
        return np.asarray(np.array(texts, dtype=object).reshape(x.shape))
    if x.dtype.kind in "OUT":
        numbers = [float(v) for v in x.reshape(-1)] if dtype.kind == "f" or "float" in dtype.name else None
        values = numbers if numbers is not None else [int(v) for v in x.reshape(-1)]
        return np.asarray(
            np.array(values, np.float64 if numbers is not None else np.int64).reshape(x.shape).astype(dtype)
        )
    if "float8" in dtype.name:
        from onnx import numpy_helper

        if "e8m0" in dtype.name:
            return np.asarray(numpy_helper.to_float8e8m0(x, saturate, round_mode)).astype(dtype)
        if saturate:
            return np.asarray(numpy_helper.saturate_cast(x, dtype))
    return x.astype(dtype, copy=False)


def _cast_to(call: Call, x: Array, dtype: np.dtype[Any]) -> Array:
    if call.float64 and is_carried_float(dtype) and is_carried_float(x.dtype):
        # Carried in float64: a cast to a narrower float type changes nothing.
        return x
    return cast_array(x, dtype, bool(call.attr("saturate", 1)), call.attr("round_mode", "up"))


def _constant(call: Call) -> Array:
    makers: dict[str, Callable[[Any], Array]] = {
        "value": np.asarray,
        "value_float": lambda v: np.array(v, np.float32),
        "value_floats": lambda v: np.array(v, np.float32),
        "value_int": lambda v: np.array(v, np.int64),
        "value_ints": lambda v: np.array(v, np.int64),
        "value_string": lambda v: np.array(v, object),
        "value_strings": lambda v: np.array(v, object),
    }
    (name,) = (name for name in makers if name in call.attributes)
    return makers[name](call.attributes[name])


def _constant_of_shape(call: Call) -> Array:
    value = call.attr("value", np.zeros(1, np.float32))
    return np.full([int(n) for n in call.array(0)], value.reshape(-1)[0], value.dtype)


def _eye_like(call: Call) -> Array:
    x = call.array(0)
    stated = call.attr("dtype")
    dtype = x.dtype if stated is None else numpy_dtype(int(stated))
    rows, columns = (x.shape[0], x.shape[-1])
    return np.eye(rows, columns, int(call.attr("k", 0))).astype(dtype)


def _random(call: Call) -> Array:
    """Return random numbers: same seed, same numbers. No two engines agree on them."""
    seed = call.attr("seed")
    generator = np.random.default_rng(None if seed is None else abs(int(np.float32(seed).view(np.int32))))
    if call.op_type.endswith("Like"):
        like = call.array(0)
        shape, dtype = list(like.shape), like.dtype
    else:
        shape, dtype = call.ints("shape"), np.dtype(np.float32)
    if (stated := call.attr("dtype")) is not None:
        dtype = numpy_dtype(int(stated))
    if "Normal" in call.op_type:
        values = call.attr("mean", 0.0) + call.attr("scale", 1.0) * generator.standard_normal(shape)
    else:
        values = generator.uniform(call.attr("low", 0.0), call.attr("high", 1.0), shape)
    return np.asarray(values).astype(dtype)


def _bernoulli(call: Call) -> Array:
    x, seed, stated = call.array(0), call.attr("seed"), call.attr("dtype")
    generator = np.random.default_rng(None if seed is None else abs(int(np.float32(seed).view(np.int32))))
    dtype = x.dtype if stated is None else numpy_dtype(int(stated))
    return (generator.uniform(size=x.shape) < x).astype(dtype)


def _multinomial(call: Call) -> Array:
    x, seed = call.array(0).astype(np.float64), call.attr("seed")
    generator = np.random.default_rng(None if seed is None else abs(int(np.float32(seed).view(np.int32))))
    dtype, count = numpy_dtype(int(call.attr("dtype", 6))), int(call.attr("sample_size", 1))
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.stack([generator.choice(x.shape[1], count, p=row) for row in weights]).astype(dtype)


def _dropout(call: Call) -> tuple[Array, ...]:
    x = call.array(0)
    ratio = call.optional(1)
    training = call.optional(2)
    share = 0.5 if ratio is None else float(ratio)
    if call.opset < 12 or training is None or not bool(training) or share == 0.0:
        return x, np.ones(x.shape, bool)
    seed = call.attr("seed")
    # The generator that the standard's own cases use.
    mask = np.asarray(np.random.RandomState(seed).uniform(0, 1.0, x.shape) >= share)
    return (x * mask / x.dtype.type(1.0 - share)).astype(x.dtype, copy=False), mask


KERNELS: dict[str, Kernel] = {
    "Cast": lambda call: _cast_to(call, call.array(0), numpy_dtype(int(call.attributes["to"]))),
    "CastLike": lambda call: _cast_to(call, call.array(0), call.array(1).dtype),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "RandomNormal": _random,
    "RandomNormalLike": _random,
    "RandomUniform": _random,
    "RandomUniformLike": _random,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
