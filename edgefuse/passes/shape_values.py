"""Sizes as the graph computes them: small integer tensors whose elements are numbers or dimensions.

A `Size` is a number times named dimensions ("2 * N * H"); what is no product (a sum, a rounded quotient)
becomes a name of its own, equal to itself wherever it is computed the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.graph import DataType, Node, Value, attribute, constant, dims, input_value

__all__ = ["Size", "SizeTensor", "SizeTracker", "known_numbers"]

# Longer tensors are data, not sizes.
_LONGEST = 64
_WIDE = frozenset(int(t) for t in (DataType.INT32, DataType.INT64, DataType.FLOAT, DataType.DOUBLE))
_NAMELESS = ("", "?", "-1", "None")


@dataclass(frozen=True, slots=True)
class Size:
    """number * product of names; names are sorted. Without names it is a plain number.

    >>> Size(2, ("N",)).times(Size(3, ("H",)))
    Size(number=6, names=('H', 'N'))
    >>> Size(6, ("H", "N")).over(Size(3, ("N",)))
    Size(number=2, names=('H',))
    """

    number: int
    names: tuple[str, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether the size is known."""
        return not self.names

    @property
    def is_positive(self) -> bool:
        """Whether the size is surely above zero: a positive multiple of dimensions (at least 1 each)."""
        return self.number > 0 and not any(name.startswith("(") for name in self.names)

    def times(self, other: Size) -> Size:
        """Return the product."""
        if self.number == 0 or other.number == 0:
            return Size(0)
        return Size(self.number * other.number, tuple(sorted(self.names + other.names)))

    def plus(self, other: Size) -> Size:
        """Return the sum; of unlike sizes, a new name."""
        if self.names == other.names:
            total = self.number + other.number
            return Size(total, self.names if total else ())
        if self.number == 0 or other.number == 0:
            return other if self.number == 0 else self
        first, second = sorted([self.text(), other.text()])
        return Size(1, (f"({first} + {second})",))

    def over(self, other: Size) -> Size | None:
        """Return the quotient where it is surely whole, else None."""
        if other.number == 0 or self.number % other.number:
            return None
        left = list(self.names)
        for name in other.names:
            if name not in left:
                return None
            left.remove(name)
        return Size(self.number // other.number, tuple(left))

    def text(self) -> str:
        """Return the size as text, the same for equal sizes."""
        return " * ".join([str(self.number), *self.names])


@dataclass(frozen=True, slots=True)
class SizeTensor:
    """The elements of a tensor of rank 0 or 1."""

    sizes: tuple[Size, ...]
    rank: int


def known_numbers(tensor: SizeTensor | None) -> np.ndarray | None:
    """Return int64 [n] or [] where every element is a number, else None."""
    if tensor is None or not all(s.is_number for s in tensor.sizes):
        return None
    array = np.array([s.number for s in tensor.sizes], np.int64)
    return array if tensor.rank else array.reshape(())


class SizeTracker:
    """What is known of each small integer tensor; nodes are shown to it in graph order.

    Whole numbers carried in a float type are followed too (exporters scale sizes in float); below 2**24 that
    is exact.
    """

    def __init__(self) -> None:
        self._found: dict[Value, SizeTensor] = {}
        self._held: list[Value] = []  # keeps id() of a value without symbols unique
        self.same: dict[str, Size] = {}  # names found to be another size (a number, or one other name)

    def resolved(self, name: str) -> Size | None:
        """Return the size that a name was found to be, or None where it stands for itself."""
        found = self.same.get(name)
        while found is not None and found.names and found.names[0] in self.same:
            found = self.same[found.names[0]]
        return found

    def of(self, value: Value | None) -> SizeTensor | None:
        """Return the elements of a value, or None where nothing is known of it."""
        if value is None:
            return None
        if value in self._found:
            return self._found[value]
        array = constant(value)
        if array is None or array.ndim > 1 or array.size > _LONGEST or array.dtype.kind not in "iubf":
            return None
        if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.floor(array)).all()):
            return None
        return SizeTensor(tuple(Size(int(n)) for n in array.reshape(-1)), array.ndim)

    def dims_of(self, value: Value | None) -> tuple[Size, ...] | None:
        """Return the shape of a value; a dimension without a name gets one of its own."""
        shape = dims(value)
        if shape is None or value is None:
            return None
        sizes = []
        for axis, d in enumerate(shape):
            if isinstance(d, int):
                sizes.append(Size(d))
            elif d is None or d.strip() in _NAMELESS:
                self._held.append(value)
                sizes.append(Size(1, (f"?{id(value)}.{axis}",)))
            else:
                sizes.append(self.resolved(d) or Size(1, (d,)))
        return tuple(sizes)

    def visit(self, node: Node) -> None:
        """Work out what the node's outputs are, where it computes sizes."""
        if node.domain not in ("", "ai.onnx"):
            return
        if node.op_type == "Split":
            self._split(node)
            return
        rule = _RULES.get(node.op_type)
        if rule is None:
            return
        found = rule(self, node)
        if found is not None and len(found.sizes) <= _LONGEST:
            self._found[node.outputs[0]] = found

    def _split(self, node: Node) -> None:
        whole, parts = self.of(node.inputs[0]), constant(input_value(node, 1))
        if whole is None or whole.rank != 1:
            return
        count = len(node.outputs)
        if parts is None:
            if input_value(node, 1) is not None:
                return
            each = -(-len(whole.sizes) // count)
            parts = np.array([min(each, len(whole.sizes) - i * each) for i in range(count)])
        start = 0
        for value, length in zip(node.outputs, parts, strict=True):
            self._found[value] = SizeTensor(whole.sizes[start : start + int(length)], 1)
            start += int(length)


def _shape(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    sizes = tracker.dims_of(node.inputs[0])
    if sizes is None:
        return None
    return SizeTensor(sizes[slice(attribute(node, "start", 0), attribute(node, "end"))], 1)


def _size(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    sizes = tracker.dims_of(node.inputs[0])
    return None if sizes is None else SizeTensor((_product(sizes),), 0)


def _product(sizes: Sequence[Size]) -> Size:
    total = Size(1)
    for size in sizes:
        total = total.times(size)
    return total


def _same(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    return tracker.of(node.inputs[0])


def _cast(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    # bool and the short floats do not hold every size
    return tracker.of(node.inputs[0]) if int(attribute(node, "to")) in _WIDE else None


def _gather(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    data, indices = tracker.of(node.inputs[0]), constant(input_value(node, 1))
    if data is None or data.rank != 1 or indices is None or indices.ndim > 1:
        return None
    chosen = indices.reshape(-1).tolist()
    if any(not -len(data.sizes) <= i < len(data.sizes) for i in chosen):
        return None
    return SizeTensor(tuple(data.sizes[i] for i in chosen), indices.ndim)


def _slice(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    data = tracker.of(node.inputs[0])
    bounds = [known_numbers(tracker.of(input_value(node, i))) for i in (1, 2)]
    steps = (
        known_numbers(tracker.of(input_value(node, 4))) if input_value(node, 4) is not None else np.array([1])
    )
    start, end = bounds
    if data is None or data.rank != 1 or start is None or end is None or steps is None or start.size != 1:
        return None
    step = int(steps.reshape(-1)[0])
    first, last = int(start.reshape(-1)[0]), int(end.reshape(-1)[0])
    if step < 0 and last < -len(data.sizes):
        return SizeTensor(data.sizes[first::step], 1)
    return SizeTensor(data.sizes[first:last:step], 1)


def _concat(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    sizes: list[Size] = []
    for value in node.inputs:
        part = tracker.of(value)
        if part is None or part.rank != 1:
            return None
        sizes.extend(part.sizes)
    return SizeTensor(tuple(sizes), 1)


def _unsqueeze(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    data, axes = tracker.of(node.inputs[0]), constant(input_value(node, 1))
    if data is None or data.rank != 0 or axes is None or axes.size != 1:
        return None
    return SizeTensor(data.sizes, 1)


def _squeeze(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    data = tracker.of(node.inputs[0])
    if data is None or data.rank != 1 or len(data.sizes) != 1:
        return None
    return SizeTensor(data.sizes, 0)


def _reshape(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    data, target = tracker.of(node.inputs[0]), constant(input_value(node, 1))
    if data is None or target is None or target.size > 1 or (target.size == 0 and len(data.sizes) != 1):
        return None
    return SizeTensor(data.sizes, int(target.size))


def _pairwise(
    combine: Callable[[Size, Size], Size | None],
) -> Callable[[SizeTracker, Node], SizeTensor | None]:
    def rule(tracker: SizeTracker, node: Node) -> SizeTensor | None:
        parts = [tracker.of(value) for value in node.inputs]
        if not parts or any(p is None for p in parts):
            return None
        result = parts[0]
        for part in parts[1:]:
            if result is None or part is None:
                return None
            result = _broadcast(result, part, combine)
        return result

    return rule


def _broadcast(
    left: SizeTensor, right: SizeTensor, combine: Callable[[Size, Size], Size | None]
) -> SizeTensor | None:
    count = max(len(left.sizes), len(right.sizes))
    if {len(left.sizes), len(right.sizes)} - {1, count}:
        return None
    a = left.sizes * (count if len(left.sizes) == 1 else 1)
    b = right.sizes * (count if len(right.sizes) == 1 else 1)
    sizes = [combine(x, y) for x, y in zip(a, b, strict=True)]
    found = tuple(s for s in sizes if s is not None)
    return SizeTensor(found, max(left.rank, right.rank)) if len(found) == count else None


def _minus(left: Size, right: Size) -> Size:
    return left.plus(Size(-right.number, right.names))


def _min(left: Size, right: Size) -> Size | None:
    if left == right:
        return left
    return Size(min(left.number, right.number)) if left.is_number and right.is_number else None


def _max(left: Size, right: Size) -> Size | None:
    if left == right:
        return left
    if left.is_number and right.is_number:
        return Size(max(left.number, right.number))
    for one, other in ((left, right), (right, left)):
        if one.is_number and one.number <= 1 and other.is_positive:
            return other
    return None


def _equal(left: Size, right: Size) -> Size | None:
    if left == right:
        return Size(1)
    if left.is_number and right.is_number:
        return Size(0)
    for one, other in ((left, right), (right, left)):
        if one.is_number and one.number <= 0 and other.is_positive:
            return Size(0)
    return None


def _divide(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    source = node.inputs[0]
    integers = source is not None and source.dtype is not None and source.dtype.is_integer()

    def over(left: Size, right: Size) -> Size | None:
        exact = left.over(right)
        if exact is not None or not integers or right.number == 0:
            return exact
        if left.is_number and right.is_number:
            quotient = abs(left.number) // abs(right.number)  # the standard cuts towards zero
            return Size(quotient if left.number * right.number >= 0 else -quotient)
        return Size(1, (f"({left.text()} // {right.text()})",))

    return _pairwise(over)(tracker, node)


def _where(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    condition = known_numbers(tracker.of(node.inputs[0]))
    yes, no = tracker.of(input_value(node, 1)), tracker.of(input_value(node, 2))
    if condition is None or yes is None or no is None:
        return None
    chosen = condition.reshape(-1)
    count = max(chosen.size, len(yes.sizes), len(no.sizes))
    if {chosen.size, len(yes.sizes), len(no.sizes)} - {1, count}:
        return None
    sizes = tuple(
        (yes if chosen[i % chosen.size] else no).sizes[
            i % len((yes if chosen[i % chosen.size] else no).sizes)
        ]
        for i in range(count)
    )
    return SizeTensor(sizes, max(condition.ndim, yes.rank, no.rank))


def _reduce_prod(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    data = tracker.of(node.inputs[0])
    if data is None or data.rank != 1:
        return None
    return SizeTensor((_product(data.sizes),), int(attribute(node, "keepdims", 1)))


def _filled(tracker: SizeTracker, node: Node) -> SizeTensor | None:
    count, value = known_numbers(tracker.of(node.inputs[0])), attribute(node, "value")
    if count is None or count.size != 1 or not 0 <= int(count.reshape(-1)[0]) <= _LONGEST:
        return None
    number = 0 if value is None else value.reshape(-1)[0]
    if number != int(number):
        return None
    return SizeTensor((Size(int(number)),) * int(count.reshape(-1)[0]), 1)


_RULES: dict[str, Callable[[SizeTracker, Node], SizeTensor | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _cast,
    "Floor": _same,
    "Ceil": _same,
    "Round": _same,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Add": _pairwise(Size.plus),
    "Sub": _pairwise(_minus),
    "Mul": _pairwise(Size.times),
    "Min": _pairwise(_min),
    "Max": _pairwise(_max),
    "Equal": _pairwise(_equal),
    "Div": _divide,
    "Where": _where,
    "ReduceProd": _reduce_prod,
    "ConstantOfShape": _filled,
}
