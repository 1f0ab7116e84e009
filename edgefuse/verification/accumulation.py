"""What a long sum loses in float16 and float32, step by step, and what other orders of adding keep.

Emulated in numpy with a rounding after every addition, as a kernel with one accumulator does it: the worst
that a device may do. Sources of the orders: Kahan 1965 (Further remarks on reducing truncation errors);
pairwise: Higham 1993 (The accuracy of floating point summation), section 3. Neumaier's order is not here: its
correction is itself a plain sum and stops growing in float16 (0.86 for the plain 0.93, 65536 terms).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefuse.verification.metric import Array

__all__ = ["ORDERS", "Accumulation", "layer_norm", "measure_layer_norm", "measure_sum", "sum_in_order"]

Sum = Callable[[Array], Array]


def _plain(x: Array) -> Array:
    """Return sums over the last axis, one addition after the other."""
    total: Array = np.add.accumulate(x, axis=-1, dtype=x.dtype)[..., -1]
    return total


def _kahan(x: Array) -> Array:
    total = np.zeros(x.shape[:-1], x.dtype)
    lost = np.zeros_like(total)
    for k in range(x.shape[-1]):
        term = x[..., k] - lost
        grown = total + term
        lost = (grown - total) - term
        total = grown
    return total


def _pairwise(x: Array) -> Array:
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        odd = x[..., 2 * half :]
        x = np.concatenate([x[..., :half] + x[..., half : 2 * half], odd], axis=-1)
    return x[..., 0]


def _two_stages(x: Array) -> Array:
    """Return sums of about sqrt(n) parts of sqrt(n) terms: what a split reduction in a graph computes."""
    count = x.shape[-1]
    parts = next(n for n in range(int(count**0.5), 0, -1) if count % n == 0)
    return _plain(_plain(x.reshape(*x.shape[:-1], parts, count // parts)))


ORDERS: Mapping[str, Sum] = {
    "plain": _plain,
    "two stages": _two_stages,
    "pairwise": _pairwise,
    "kahan": _kahan,
}


def sum_in_order(array: Array, order: str, dtype: npt.DTypeLike) -> Array:
    """Return the sums over the last axis in `dtype`, added in this order (a key of ORDERS).

    array: [..., n] with n >= 1.  A sum beyond the end of the dtype is infinite, as on a device.
    """
    with np.errstate(all="ignore"):
        return ORDERS[order](np.asarray(array, dtype))


def layer_norm(array: Array, order: str, dtype: npt.DTypeLike, epsilon: float = 1e-5) -> Array:
    """Return LayerNormalization over the last axis without scale and bias, every step in `dtype`."""
    with np.errstate(all="ignore"):
        x = np.asarray(array, dtype)
        count = x.dtype.type(min(x.shape[-1], np.finfo(x.dtype).max))
        mean = ORDERS[order](x) / count
        away = x - mean[..., None]
        spread = ORDERS[order](away * away) / count + x.dtype.type(epsilon)
        return np.asarray(away / np.sqrt(spread)[..., None])


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The error of one reduction by order of adding.

    what: the operator.  elements: how many are added up.  dtype: of every step.
    errors: order -> max|difference| / max|float64 result|; infinity for a result that is not finite.
    """

    what: str
    elements: int
    dtype: str
    errors: Mapping[str, float]

    @property
    def before(self) -> float:
        """Return the error of adding one after the other."""
        return self.errors["plain"]

    def gain(self, order: str) -> float:
        """Return how many times smaller the error of `order` is than the plain one."""
        error = self.errors[order]
        return self.before / error if error else float("inf")

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; infinity becomes None."""
        finite = {order: e if np.isfinite(e) else None for order, e in self.errors.items()}
        return {"what": self.what, "elements": self.elements, "dtype": self.dtype, "errors": finite}


def measure_sum(
    array: Array, dtype: npt.DTypeLike, *, mean: bool = False, orders: Sequence[str] = tuple(ORDERS)
) -> Accumulation:
    """Return the error of the sums (or means) over the last axis of `array` in `dtype`.

    The right answer is the float64 sum of the numbers as `dtype` holds them: rounding of inputs is not
    counted. A mean is divided after the sum.
    """
    held = np.asarray(array, dtype)
    count = held.shape[-1] if mean else 1
    wanted = held.astype(np.float64).sum(axis=-1) / count
    errors = {}
    for order in orders:
        with np.errstate(all="ignore"):
            got = sum_in_order(held, order, held.dtype) / held.dtype.type(count)
        errors[order] = _error(got, wanted)
    return Accumulation("mean" if mean else "sum", held.shape[-1], held.dtype.name, errors)


def measure_layer_norm(
    array: Array, dtype: npt.DTypeLike, epsilon: float = 1e-5, *, orders: Sequence[str] = tuple(ORDERS)
) -> Accumulation:
    """Return the error of LayerNormalization over the last axis of `array` in `dtype`, as `measure_sum`."""
    held = np.asarray(array, dtype)
    wanted = layer_norm(held, "plain", np.float64, epsilon)
    errors = {order: _error(layer_norm(held, order, held.dtype, epsilon), wanted) for order in orders}
    return Accumulation("LayerNormalization", held.shape[-1], held.dtype.name, errors)


def _error(got: Array, wanted: Array) -> float:
    difference = np.abs(got.astype(np.float64) - wanted)
    if not np.isfinite(difference).all():
        return float("inf")
    scale = float(np.abs(wanted).max(initial=0.0))
    error = float(difference.max(initial=0.0))
    return error / scale if scale else (0.0 if error == 0.0 else float("inf"))
