"""Written-out normalisations: (x - mean) / sqrt(variance + eps) * gain + bias, however it is spelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgefuse.graph import DataType, Node, Value, attribute, constant, dims, input_value, is_float
from edgefuse.passes.expressions import Reading, close_to, stripped

__all__ = ["NORM_ROOTS", "Normalization", "read_normalization", "shaped_like"]

NORM_ROOTS = ("Add", "Sub", "Mul", "Div")
_MEANS = ("ReduceMean", "ReduceSum", "GlobalAveragePool")
_VIEWS = ("Reshape", "Unsqueeze", "Squeeze", "Expand")
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Normalization:
    """A normalisation that ends in `reading.root`.

    x: what is normalised, in the dtype of the result.  axes: ascending, from 0.  rank: of x.  epsilon: inside
    the root.  centred: whether the mean is subtracted (else it is an RMS norm).  gain, bias: float64, to be
    broadcast against x, or None where there is none.
    """

    reading: Reading
    x: Value
    axes: tuple[int, ...]
    rank: int
    epsilon: float
    centred: bool
    gain: np.ndarray | None
    bias: np.ndarray | None

    @property
    def trailing(self) -> bool:
        """Whether the axes are the last ones."""
        return self.axes == tuple(range(self.axes[0], self.rank))


def read_normalization(root: Node) -> Normalization | None:
    """Return the normalisation that ends in `root`, or None. Nothing is changed.

    Read: Sqrt and Div, Reciprocal, Div(1, .), Pow 0.5 and -0.5; squares as Pow or Mul; variance as
    mean((x - mean)^2), as E[x^2] - E[x]^2, with Max(., 0) around it; means as ReduceMean, ReduceSum by 1/N,
    GlobalAveragePool, kept dimensions or put back by Reshape or Unsqueeze; gain at any factor; bias by Add or
    Sub; x * m + (bias - mean * m) with m = gain / sqrt(...), as Keras writes it.
    """
    for read in (_plain, _biased, _keras):
        reading = Reading(root)
        found = read(reading)
        if found is not None and reading.closed():
            return found
    return None


def shaped_like(array: np.ndarray | None, shape: tuple[int, ...], default: float) -> np.ndarray | None:
    """Return `array` (None: all `default`) broadcast to `shape`, the last axes of x.

    None where it varies along other axes.
    """
    if array is None:
        return np.full(shape, default)
    extra = array.ndim - len(shape)
    if extra > 0:
        if any(size != 1 for size in array.shape[:extra]):
            return None
        array = array.reshape(array.shape[extra:])
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        return None


# --- the three outer forms --------------------------------------------------------------------------------


def _plain(reading: Reading) -> Normalization | None:
    return _scaled(reading, reading.root, None)


def _biased(reading: Reading) -> Normalization | None:
    root = reading.root
    if root.op_type not in ("Add", "Sub"):
        return None
    left, right = root.inputs[0], input_value(root, 1)
    array = _numbers(right)
    value, sign = left, 1.0 if root.op_type == "Add" else -1.0
    if array is None and root.op_type == "Add":
        array, value = _numbers(left), right
    if array is None or value is None:
        return None
    node = reading.inner(reading.through_casts(value), "Mul", "Div")
    return None if node is None else _scaled(reading, node, sign * array)


def _scaled(reading: Reading, node: Node, bias: np.ndarray | None) -> Normalization | None:
    """Read gain * (x - mean) / sqrt(variance + eps), or the same without the mean."""
    opened = reading.product(node)
    if opened is None:
        return None
    coefficient, factors = opened
    gain = _gain(coefficient, factors)
    computed = [(value, sign) for value, sign in factors if constant(value) is None]
    if gain is None or len(computed) != 2:
        return None
    for index in (0, 1):
        (inverse, sign), (top, top_sign) = computed[index], computed[1 - index]
        mark = len(reading.nodes)
        spread = _under_root(reading, inverse, sign) if top_sign == 1 else None
        if spread is not None:
            found = _around(reading, top, spread, gain, bias)
            if found is not None:
                return found
        del reading.nodes[mark:]
    return None


def _gain(coefficient: float, factors: list[tuple[Value, int]]) -> np.ndarray | None:
    """Return the product of the constant factors; None where one of them cannot be used."""
    gain = np.array(coefficient)
    for value, sign in factors:
        array = _numbers(value)
        if array is None:
            if constant(value) is not None:
                return None
            continue
        if sign < 0 and (array == 0).any():
            return None
        gain = gain * array if sign > 0 else gain / array
    return gain


def _numbers(value: Value | None) -> np.ndarray | None:
    array = constant(value)
    if array is None or array.dtype.kind not in "fV" or array.size == 0:
        return None
    numbers = array.astype(np.float64)
    return numbers if np.isfinite(numbers).all() else None


def _keras(reading: Reading) -> Normalization | None:
    """Read x * m + (bias - mean * m), m = gain / sqrt(variance + eps)."""
    root = reading.root
    if root.op_type not in ("Add", "Sub"):
        return None
    pairs = [(root.inputs[0], root.inputs[1])]
    if root.op_type == "Add":
        pairs.append((root.inputs[1], root.inputs[0]))
    for first, second in pairs:
        mark = len(reading.nodes)
        found = _keras_parts(reading, first, second, root.op_type == "Sub")
        if found is not None:
            return found
        del reading.nodes[mark:]
    return None


def _keras_parts(
    reading: Reading, first: Value | None, second: Value | None, subtracted: bool
) -> Normalization | None:
    scaled = reading.inner(first, "Mul")
    if scaled is None or second is None:
        return None
    bias: np.ndarray | None = None
    offset = reading.inner(second, "Mul") if subtracted else None
    if not subtracted:
        difference = reading.inner(second, "Sub")
        bias = _numbers(difference.inputs[0]) if difference is not None else None
        if difference is None or bias is None:
            return None
        offset = reading.inner(difference.inputs[1], "Mul")
    if offset is None:
        return None
    shared = [v for v in scaled.inputs if v is not None and any(v is other for other in offset.inputs)]
    if len(shared) != 1:
        return None
    multiplier = shared[0]
    x, mean = (_other(node, multiplier) for node in (scaled, offset))
    node = reading.producer(multiplier, "Mul", "Div", "Reciprocal", "Sqrt", "Pow")
    if x is None or mean is None or node is None:
        return None
    return _keras_spread(reading, node, multiplier, x, mean, bias)


def _other(node: Node, value: Value) -> Value | None:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _keras_spread(
    reading: Reading, node: Node, multiplier: Value, x: Value, mean: Value, bias: np.ndarray | None
) -> Normalization | None:
    opened = reading.product(node) or (1.0, [(multiplier, 1)])
    gain = _gain(*opened)
    computed = [(value, sign) for value, sign in opened[1] if constant(value) is None]
    if gain is None or len(computed) != 1:
        return None
    spread = _under_root(reading, *computed[0])
    axes = _mean_axes(reading, mean, x)
    if spread is None or axes is None:
        return None
    return _finished(reading, x, axes, spread, gain, bias, centred=True)


# --- the parts --------------------------------------------------------------------------------------------


def _under_root(reading: Reading, value: Value, sign: int) -> Value | None:
    """Return v where value^sign is 1 / sqrt(v): Sqrt, Pow 0.5 and -0.5, Sqrt(Reciprocal(v))."""
    value = reading.through_casts(value)
    node = reading.producer(value, "Sqrt", "Pow")
    if node is None or node.inputs[0] is None:
        return None
    power = 0.5 if node.op_type == "Sqrt" else reading.number(input_value(node, 1))
    if power is not None and power * sign == -0.5:
        return node.inputs[0]
    if power != 0.5 or sign != 1:
        return None
    inverse = reading.inner(node.inputs[0], "Reciprocal", "Div")
    opened = reading.product(inverse) if inverse is not None else None
    if opened is None or opened[0] != 1.0 or len(opened[1]) != 1 or opened[1][0][1] != -1:
        return None
    return opened[1][0][0]


def _around(
    reading: Reading, top: Value, spread: Value, gain: np.ndarray, bias: np.ndarray | None
) -> Normalization | None:
    """Read top as x - mean(x) where the variance belongs to it, else as x of an RMS norm."""
    mark = len(reading.nodes)
    difference = reading.producer(reading.through_casts(top), "Sub")
    if difference is not None and difference.inputs[0] is not None and difference.inputs[1] is not None:
        x = difference.inputs[0]
        axes = _mean_axes(reading, difference.inputs[1], x)
        if axes is not None:
            found = _finished(reading, x, axes, spread, gain, bias, centred=True)
            if found is not None:
                return found
    del reading.nodes[mark:]
    return _finished(reading, top, None, spread, gain, bias, centred=False)


def _finished(
    reading: Reading,
    x: Value,
    axes: tuple[int, ...] | None,
    spread: Value,
    gain: np.ndarray,
    bias: np.ndarray | None,
    *,
    centred: bool,
) -> Normalization | None:
    """Check the variance (or mean square) under the root against x, and collect everything."""
    found = dims(x)
    scale, epsilon, core = _through(reading, spread)
    if found is None or epsilon < 0:
        return None
    if centred and axes is not None:
        over = _variance_axes(reading, scale, core, x, axes)
    else:
        over = _square_axes(reading, scale, core, x)
    source = reading.input_like_root(x)
    if (
        over is None
        or (axes is not None and over != axes)
        or source is None
        or not _restores(spread, x, over)
    ):
        return None
    # LayerNormalization and RMSNormalization compute their statistics in float32 at most
    if source.dtype == DataType.DOUBLE or not is_float(source):
        return None
    if max(reading.rank, gain.ndim, 0 if bias is None else bias.ndim) > len(found):
        return None
    plain = gain.ndim == 0 and float(gain) == 1.0
    return Normalization(reading, source, over, len(found), epsilon, centred, None if plain else gain, bias)


def _through(reading: Reading, value: Value) -> tuple[float, float, Value]:
    """Return (scale, shift, core) with value = scale * core + shift, looking through views and Max(., 0).

    Readers other than the expected ones are found by `closed` at the end, so that the mean may be read twice.
    """
    scale, shift = 1.0, 0.0
    while True:
        node = value.producer()
        before = node.inputs[0] if node is not None and node.inputs else None
        if node is None or before is None:
            return scale, shift, value
        if node.op_type in (*_VIEWS, "Cast", "Identity"):
            if node.op_type == "Expand" and not _same_shape(before, value):
                return scale, shift, value
            reading.producer(value, node.op_type)
            value = before
            continue
        if node.op_type in ("Max", "Relu", "Clip") and scale > 0:
            bounds = reading.bounds(node)
            if bounds is not None and bounds[1] == 0 and bounds[2] > 1e30:
                reading.producer(value, node.op_type)
                value = bounds[0]
                continue
        step = reading.step(node) if node.op_type in ("Mul", "Div", "Add", "Sub") else None
        if step is None:
            return scale, shift, value
        reading.producer(value, node.op_type)
        scale, shift, value = scale * step[0], scale * step[1] + shift, step[2]


def _same_shape(a: Value, b: Value) -> bool:
    left, right = dims(a), dims(b)
    return left is not None and left == right and all(d is not None for d in left)


def _restores(value: Value, x: Value, axes: tuple[int, ...]) -> bool:
    """Return whether `value` stands against x as if the reduced dimensions were kept as ones.

    Views in between keep the number of elements, so one unknown dimension is settled by the others.
    """
    have, want = dims(value), dims(x)
    if have is None or want is None or len(have) != len(want) or any(have[axis] != 1 for axis in axes):
        return False
    unsettled = 0
    for axis, (h, w) in enumerate(zip(have, want, strict=True)):
        if axis in axes or (h == w and h is not None):
            continue
        if isinstance(h, int) and isinstance(w, int):
            return False
        unsettled += 1
    return unsettled <= 1


def _mean_axes(reading: Reading, value: Value, x: Value) -> tuple[int, ...] | None:
    """Return the axes where `value` is mean(x) along them, broadcast against x."""
    scale, shift, core = _through(reading, value)
    if shift != 0:
        return None
    axes = _reduction(reading, scale, core, lambda inner, squared: not squared and _same(inner, x), x)
    return axes if axes is not None and _restores(value, x, axes) else None


def _same(a: Value, b: Value) -> bool:
    return a is b or stripped(a) is stripped(b)


def _reduction(
    reading: Reading, scale: float, core: Value, accept: Callable[[Value, bool], bool], x: Value
) -> tuple[int, ...] | None:
    """Return the axes where scale * core is a mean, over axes of x, of something that `accept` takes.

    accept is told what is summed, and whether the sum is one of squares.
    """
    node = reading.producer(core, *_MEANS, "ReduceSumSquare")
    found = dims(x)
    if node is None or node.inputs[0] is None or found is None:
        return None
    rank = len(found)
    if node.op_type == "GlobalAveragePool":
        axes: tuple[int, ...] | None = tuple(range(2, rank))
    else:
        axes = _axes(node, rank)
    if axes is None or not accept(node.inputs[0], node.op_type == "ReduceSumSquare"):
        return None
    if node.op_type in ("ReduceMean", "GlobalAveragePool"):
        return axes if close_to(scale, 1.0, _TOLERANCE) else None
    count = 1.0
    for axis in axes:
        size = found[axis]
        if not isinstance(size, int):
            return None
        count *= size
    return axes if close_to(scale * count, 1.0, _TOLERANCE) else None


def _axes(node: Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes of a reduction, ascending and from 0; None where computed or none."""
    given = attribute(node, "axes")
    if given is None and input_value(node, 1) is not None:
        array = constant(input_value(node, 1))
        if array is None:
            return None
        given = array.reshape(-1).tolist()
    if not given:
        return None if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({int(axis) % rank for axis in given}))


def _square_axes(reading: Reading, scale: float, core: Value, x: Value) -> tuple[int, ...] | None:
    """Return the axes where scale * core is mean(x^2)."""

    def accept(value: Value, squared: bool) -> bool:
        return _same(value, x) if squared else _squares(reading, value, x)

    return _reduction(reading, scale, core, accept, x)


def _variance_axes(
    reading: Reading, scale: float, core: Value, x: Value, mean_axes: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the axes where scale * core is the variance of x: mean((x - mean)^2) or E[x^2] - E[x]^2."""
    mark = len(reading.nodes)

    def centred(value: Value, squared: bool) -> bool:
        inner = value if squared else _squared(reading, value)
        return inner is not None and _centred(reading, inner, x, mean_axes)

    axes = _reduction(reading, scale, core, centred, x)
    if axes is not None:
        return axes
    del reading.nodes[mark:]
    node = reading.producer(core, "Sub")
    if (
        node is None
        or node.inputs[0] is None
        or node.inputs[1] is None
        or not close_to(scale, 1.0, _TOLERANCE)
    ):
        return None
    inner_scale, inner_shift, inner = _through(reading, node.inputs[0])
    axes = _square_axes(reading, inner_scale, inner, x) if inner_shift == 0 else None
    mean = _squared(reading, node.inputs[1])
    if axes is None or mean is None:
        return None
    mean_scale, mean_shift, mean_core = _through(reading, mean)
    if mean_shift != 0:
        return None
    over = _reduction(reading, mean_scale, mean_core, lambda v, squared: not squared and _same(v, x), x)
    return axes if over == axes else None


def _squared(reading: Reading, value: Value) -> Value | None:
    """Return v where `value` is v^2, as Pow(v, 2) or Mul(v, v), views and Casts before it opened."""
    while (node := value.producer()) is not None and node.op_type in (*_VIEWS, "Cast", "Identity"):
        if node.inputs[0] is None or (node.op_type == "Expand" and not _same_shape(node.inputs[0], value)):
            return None
        reading.producer(value, node.op_type)
        value = node.inputs[0]
    node = reading.producer(value, "Pow", "Mul")
    if node is None:
        return None
    if node.op_type == "Pow":
        return node.inputs[0] if reading.number(input_value(node, 1)) == 2.0 else None
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None


def _squares(reading: Reading, value: Value, x: Value) -> bool:
    """Return whether `value` is x^2."""
    inner = _squared(reading, value)
    return inner is not None and _same(inner, x)


def _centred(reading: Reading, value: Value, x: Value, axes: tuple[int, ...]) -> bool:
    """Return whether `value` is x - mean(x) over `axes`."""
    while (node := value.producer()) is not None and node.op_type in ("Cast", "Identity"):
        if node.inputs[0] is None or reading.producer(value, node.op_type) is None:
            return False
        value = node.inputs[0]
    node = reading.producer(value, "Sub")
    if node is None or node.inputs[0] is None or node.inputs[1] is None or not _same(node.inputs[0], x):
        return False
    return _mean_axes(reading, node.inputs[1], x) == axes
