"""Elementwise arithmetic and activations.

What numpy has under another name is a table row; float16 and bfloat16 stay in their dtype, as the standard
says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from math import erf as _erf_scalar
from typing import Any

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel

__all__ = ["KERNELS", "erf", "sigmoid", "softplus"]


def _unary(function: Callable[[Array], Array]) -> Kernel:
    def kernel(call: Call) -> Array:
        x = call.array(0)
        return np.asarray(function(x)).astype(x.dtype, copy=False)

    return kernel


def _binary(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(call: Call) -> Array:
        a, b = call.array(0), call.array(1)
        return np.asarray(function(a, b)).astype(a.dtype, copy=False)

    return kernel


def _comparison(function: Callable[[Array, Array], Array]) -> Kernel:
    return lambda call: np.asarray(function(call.array(0), call.array(1)))


def _many(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(call: Call) -> Array:
        arrays = [np.asarray(value) for value in call.inputs]
        return np.asarray(reduce(function, arrays)).astype(arrays[0].dtype, copy=False)

    return kernel


@lru_cache(maxsize=1)
def _erf_table() -> Array:
    """Return erf at 0, 1/64, 2/64 … 6; past 6 erf is 1 to the last bit of a float64."""
    return np.array([_erf_scalar(k / 64.0) for k in range(6 * 64 + 1)])


def erf(x: Array) -> Array:
    """Return the error function of a float64 array, to about 1 ulp (NaN stays NaN).

    Taylor series about the nearest of 385 table points: with h(d) = exp(-2xd - d²) = Σ aₙ dⁿ,
    erf(x+d) = erf(x) + 2/√π e^(-x²) Σ aₙ d^(n+1)/(n+1), and (n+1) aₙ₊₁ = -2x aₙ - 2 aₙ₋₁. |d| ≤ 1/128, so
    nine terms leave less than 1e-18.
    """
    magnitude = np.minimum(np.abs(x), 6.0)
    index = np.rint(np.nan_to_num(magnitude) * 64.0)
    point = index / 64.0
    step = magnitude - point
    before, coefficient = np.zeros_like(point), np.ones_like(point)
    power = step.copy()
    total = power.copy()
    for n in range(1, 9):
        before, coefficient = coefficient, (-2.0 * point * coefficient - 2.0 * before) / n
        power *= step
        total += coefficient * power / (n + 1)
    table = _erf_table()[index.astype(np.int64)]
    return np.asarray(np.copysign(table + 2.0 / np.sqrt(np.pi) * np.exp(-point * point) * total, x))


def _erf(x: Array) -> Array:
    return erf(x.astype(np.float64))


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow, in the dtype of x."""
    e = np.exp(-np.abs(x))
    one = x.dtype.type(1)
    return np.asarray(np.where(x >= 0, one / (one + e), e / (one + e)).astype(x.dtype, copy=False))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)) without overflow, in the dtype of x."""
    return np.asarray(
        (np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))).astype(x.dtype, copy=False)
    )


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    # Integers truncate towards zero, numpy's floor_divide does not.
    quotient = np.floor_divide(a, b)
    remainder = a - quotient * b
    return np.asarray(quotient + ((remainder != 0) & ((a < 0) != (b < 0))).astype(a.dtype))


def _power(call: Call) -> Array:
    base, exponent = call.array(0), call.array(1)
    if base.dtype.kind in "iu" and not (exponent.dtype.kind in "iu" and (exponent >= 0).all()):
        return np.power(base.astype(np.float64), exponent).astype(base.dtype)
    if base.dtype.kind in "iu":
        return np.asarray(np.power(base, exponent.astype(base.dtype)))
    # An exponent of another type must not raise or lower the precision of the base.
    return np.asarray(np.power(base, exponent.astype(base.dtype)).astype(base.dtype, copy=False))


def _modulo(call: Call) -> Array:
    a, b = call.array(0), call.array(1)
    return np.asarray(np.fmod(a, b) if call.attr("fmod", 0) else np.mod(a, b)).astype(a.dtype, copy=False)


def _mean(call: Call) -> Array:
    arrays = [np.asarray(value) for value in call.inputs]
    total = reduce(np.add, arrays)
    return np.asarray(total / total.dtype.type(len(arrays))).astype(arrays[0].dtype, copy=False)


def _clip(call: Call) -> Array:
    x = call.array(0)
    low, high = call.optional(1), call.optional(2)
    if call.opset < 11:
        low = None if (v := call.attr("min")) is None else np.asarray(v, x.dtype)
        high = None if (v := call.attr("max")) is None else np.asarray(v, x.dtype)
    if low is not None:
        x = np.maximum(x, low.reshape(()))
    if high is not None:
        # The upper bound wins where the bounds are crossed, as min(max(x, low), high) says.
        x = np.minimum(x, high.reshape(()))
    return x


def _leaky_relu(call: Call) -> Array:
    x = call.array(0)
    return np.where(x < 0, x * x.dtype.type(call.attr("alpha", float(np.float32(0.01)))), x)


def _prelu(call: Call) -> Array:
    x, slope = call.array(0), call.array(1)
    return np.where(x < 0, x * slope, x).astype(x.dtype, copy=False)


def _elu(call: Call) -> Array:
    x = call.array(0)
    return np.where(x < 0, x.dtype.type(call.attr("alpha", 1.0)) * np.expm1(np.minimum(x, 0)), x)


def _celu(call: Call) -> Array:
    x = call.array(0)
    alpha = x.dtype.type(call.attr("alpha", 1.0))
    zero = x.dtype.type(0)
    return np.asarray(np.maximum(x, zero) + np.minimum(zero, alpha * np.expm1(np.minimum(x, zero) / alpha)))


def _selu(call: Call) -> Array:
    x = call.array(0)
    # Defaults of the standard, as the float32 that an attribute holds.
    alpha = call.attr("alpha", float(np.float32(1.67326319217681884765625)))
    gamma = call.attr("gamma", float(np.float32(1.05070102214813232421875)))
    below = alpha * gamma * np.expm1(np.minimum(x, x.dtype.type(0)))
    return np.asarray(np.where(x <= 0, below, gamma * x).astype(x.dtype, copy=False))


def _thresholded_relu(call: Call) -> Array:
    x = call.array(0)
    return np.where(x > x.dtype.type(call.attr("alpha", 1.0)), x, x.dtype.type(0))


def _hard_sigmoid(call: Call) -> Array:
    x = call.array(0)
    alpha, beta = call.attr("alpha", float(np.float32(0.2))), call.attr("beta", 0.5)
    return np.asarray(np.clip(x.dtype.type(alpha) * x + x.dtype.type(beta), x.dtype.type(0), x.dtype.type(1)))


def _hard_swish(call: Call) -> Array:
    x = call.array(0)
    return np.asarray(x * np.clip(x / x.dtype.type(6) + x.dtype.type(0.5), x.dtype.type(0), x.dtype.type(1)))


def _gelu(call: Call) -> Array:
    x = call.array(0)
    wide = x.astype(np.float64)
    if call.attr("approximate", "none") == "tanh":
        inner = np.sqrt(2.0 / np.pi) * (wide + 0.044715 * wide**3)
        return np.asarray((0.5 * wide * (1.0 + np.tanh(inner))).astype(x.dtype))
    return (0.5 * wide * (1.0 + erf(wide / np.sqrt(2.0)))).astype(x.dtype)


def _swish(call: Call) -> Array:
    x = call.array(0)
    return np.asarray(x * sigmoid(x * x.dtype.type(call.attr("alpha", 1.0))))


def _mish(x: Array) -> Array:
    return np.asarray(x * np.tanh(softplus(x)))


def _where(call: Call) -> Array:
    return np.where(call.array(0).astype(bool), call.array(1), call.array(2))


def _is_inf(call: Call) -> Array:
    x = call.array(0)
    found = np.zeros(x.shape, bool)
    if call.attr("detect_positive", 1):
        found |= np.isposinf(x) if x.dtype.kind == "f" else np.isinf(x) & (x > 0)
    if call.attr("detect_negative", 1):
        found |= np.isneginf(x) if x.dtype.kind == "f" else np.isinf(x) & (x < 0)
    return found


def _relu(x: Array) -> Array:
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def _reciprocal(x: Array) -> Array:
    return np.asarray(x.dtype.type(1) / x)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": _erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "Identity": lambda x: x,
    "Log": np.log,
    "Mish": _mish,
    "Neg": np.negative,
    "Reciprocal": _reciprocal,
    "Relu": _relu,
    "Round": np.rint,
    "Sigmoid": sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
}


def _identity(call: Call) -> Any:
    # Sequences and absent optionals pass too.
    return (call.get(0),)


KERNELS: dict[str, Kernel] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _binary(_divide),
    "Pow": _power,
    "Mod": _modulo,
    "Sum": _many(np.add),
    "Max": _many(np.maximum),
    "Min": _many(np.minimum),
    "Mean": _mean,
    "Equal": _comparison(np.equal),
    "Greater": _comparison(np.greater),
    "GreaterOrEqual": _comparison(np.greater_equal),
    "Less": _comparison(np.less),
    "LessOrEqual": _comparison(np.less_equal),
    "And": _comparison(np.logical_and),
    "Or": _comparison(np.logical_or),
    "Xor": _comparison(np.logical_xor),
    "Not": lambda call: np.logical_not(call.array(0)),
    "Where": _where,
    "IsInf": _is_inf,
    "IsNaN": lambda call: np.isnan(call.array(0)),
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "ThresholdedRelu": _thresholded_relu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Gelu": _gelu,
    "Swish": _swish,
    "Identity": _identity,
}
