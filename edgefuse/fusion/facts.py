"""What a rule's condition may ask about a tensor: the functions of the language, and nothing else.

Each takes the tensor bound to a name of the pattern (None for an optional input that is not there). They
raise `Unknown` where the graph does not know the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.graph import Node, Value, attribute, constant, dims, input_value, is_float

__all__ = ["FACTS", "Fact", "Unknown"]


class Unknown(Exception):
    """The graph does not know; the condition that asked refuses the match."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A function of the language: what is called, and with how many arguments (least, most)."""

    function: Callable[..., Any]
    arity: tuple[int, int]


def shape(value: Value | None) -> tuple[int | str, ...]:
    """Return the dimensions: numbers, or symbols as text."""
    found = dims(value)
    if found is None or None in found:
        raise Unknown("shape")
    return tuple(d for d in found if d is not None)


def rank(value: Value | None) -> int:
    """Return the number of dimensions."""
    found = dims(value)
    if found is None:
        raise Unknown("rank")
    return len(found)


def dim(value: Value | None, index: int) -> int | str:
    """Return one dimension (negative counts from the end)."""
    found = dims(value)
    if found is None or not -len(found) <= index < len(found):
        raise Unknown("dim")
    size = found[index]
    if size is None:
        raise Unknown("dim")
    return size


def same_shape(*values: Value | None) -> bool:
    """Return whether all have one known shape (symbols count as equal when they are the same)."""
    return len({shape(value) for value in values}) == 1


def fits(small: Value | None, large: Value | None) -> bool:
    """Return whether `small` broadcasts into `large` without enlarging it."""
    inner, outer = shape(small), shape(large)
    if len(inner) > len(outer):
        return False
    return all(a in (1, b) for a, b in zip(reversed(inner), reversed(outer), strict=False))


def per_channel(value: Value | None, axis: int, of: Value | None) -> bool:
    """Return whether a constant varies along one axis of `of` at most: one number, or one a channel."""
    inner, outer = shape(value), shape(of)
    where = axis % len(outer) - (len(outer) - len(inner))
    if len(inner) > len(outer):
        return False
    return all(size == 1 or (i == where and size == outer[axis]) for i, size in enumerate(inner))


def elements(value: Value | None) -> int:
    """Return the number of elements."""
    count = 1
    for size in shape(value):
        if not isinstance(size, int):
            raise Unknown("elements")
        count *= size
    return count


def number(value: Value | None) -> float:
    """Return the number that a constant holds everywhere."""
    array = constant(value)
    if array is None or array.size == 0 or array.dtype.kind not in "fiub":
        raise Unknown("number")
    first = float(array.reshape(-1)[0])
    if array.size > 1 and not bool(np.all(array == array.reshape(-1)[0])):
        raise Unknown("number")
    return first


def close(value: Value | None, target: float, tolerance: float = 1e-4) -> bool:
    """Return whether a constant holds `target` everywhere, within a relative tolerance."""
    try:
        return abs(number(value) - target) <= tolerance * max(abs(target), 1e-12)
    except Unknown:
        return False


def abs_close(found: float, target: float, tolerance: float = 1e-4) -> bool:
    """Return whether a number (an attribute) is within `tolerance` of `target`."""
    return abs(found - target) <= tolerance


def numbers(value: Value | None) -> tuple[float, ...]:
    """Return all the numbers of a constant of at most 64 elements, in row-major order."""
    array = constant(value)
    if array is None or array.size > 64 or array.dtype.kind not in "fiub":
        raise Unknown("numbers")
    return tuple(array.reshape(-1).tolist())


def lowest(value: Value | None) -> float:
    """Return the smallest number of a constant."""
    array = constant(value)
    if array is None or array.size == 0 or array.dtype.kind not in "fiub":
        raise Unknown("lowest")
    return float(array.min())


def attr(value: Value | None, name: str, default: Any = None) -> Any:
    """Return an attribute of the node that writes the tensor; lists as tuples."""
    return attribute(_writer(value), name, default)


def op(value: Value | None) -> str:
    """Return the operator that writes the tensor."""
    return _writer(value).op_type


def axes(value: Value | None) -> tuple[int, ...]:
    """Return the axes, counted from the front, that the operator writing the tensor works along."""
    node = _writer(value)
    source = node.inputs[0]
    found = attribute(node, "axes")
    if found is None:
        given = constant(input_value(node, 1)) if node.op_type.startswith("Reduce") else None
        found = tuple(int(a) for a in given.reshape(-1)) if given is not None else None
    if found is None:
        single = attribute(node, "axis", -1 if "Norm" in node.op_type or "oftmax" in node.op_type else None)
        found = (single,) if single is not None else None
    if found is None:
        raise Unknown("axes")
    size = rank(source)
    return tuple(sorted(int(a) % size for a in found))


def last_axes(value: Value | None, count: int = 1) -> bool:
    """Return whether the operator works along exactly the last `count` axes."""
    size = rank(_writer(value).inputs[0])
    return axes(value) == tuple(range(size - count, size))


def groups(value: Value | None) -> str:
    """Return how a convolution is grouped: "one", "depthwise" (one input channel a group) or "some"."""
    node = _writer(value)
    count = int(attribute(node, "group", 1))
    if count == 1:
        return "one"
    channels = dim(node.inputs[0], 1)
    return "depthwise" if channels == count else "some"


def window(value: Value | None) -> tuple[int, ...]:
    """Return the window of the convolution or pool that writes the tensor."""
    node = _writer(value)
    given = attribute(node, "kernel_shape")
    if given is not None:
        return tuple(int(size) for size in given)
    weight = dims(input_value(node, 1))
    if weight is None or not all(isinstance(size, int) for size in weight):
        raise Unknown("window")
    return tuple(int(size) for size in weight[2:] if size is not None)


def strides(value: Value | None) -> tuple[int, ...]:
    """Return the strides of the convolution or pool; ones where none are written."""
    return _per_axis(value, "strides", 1)


def dilations(value: Value | None) -> tuple[int, ...]:
    """Return the dilations of the convolution or pool; ones where none are written."""
    return _per_axis(value, "dilations", 1)


def pads(value: Value | None) -> tuple[int, ...]:
    """Return the explicit padding (beginnings, then ends); unknown under auto_pad SAME."""
    if attr(value, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unknown("pads")
    given = attr(value, "pads")
    return tuple(int(p) for p in given) if given is not None else (0,) * (2 * len(window(value)))


def readers(value: Value | None) -> int:
    """Return how many nodes read the tensor."""
    return len({id(use.node) for use in value.uses()}) if value is not None else 0


def dtype(value: Value | None) -> str:
    """Return the element type: "float32", "int64", ..."""
    if value is None or value.dtype is None:
        raise Unknown("dtype")
    return str(value.dtype.numpy())


def _per_axis(value: Value | None, name: str, default: int) -> tuple[int, ...]:
    given = attribute(_writer(value), name)
    return tuple(int(v) for v in given) if given is not None else (default,) * len(window(value))


def _writer(value: Value | None) -> Node:
    node = value.producer() if value is not None else None
    if node is None:
        raise Unknown("writer")
    return node


FACTS: Mapping[str, Fact] = {
    "abs_close": Fact(abs_close, (2, 3)),
    "attr": Fact(attr, (2, 3)),
    "axes": Fact(axes, (1, 1)),
    "close": Fact(close, (2, 3)),
    "const": Fact(lambda value: constant(value) is not None, (1, 1)),
    "dilations": Fact(dilations, (1, 1)),
    "dim": Fact(dim, (2, 2)),
    "dtype": Fact(dtype, (1, 1)),
    "elements": Fact(elements, (1, 1)),
    "fits": Fact(fits, (2, 2)),
    "given": Fact(lambda value: value is not None, (1, 1)),
    "groups": Fact(groups, (1, 1)),
    "is_float": Fact(is_float, (1, 1)),
    "is_input": Fact(lambda value: value is not None and value.is_graph_input(), (1, 1)),
    "last_axes": Fact(last_axes, (1, 2)),
    "len": Fact(len, (1, 1)),
    "lowest": Fact(lowest, (1, 1)),
    "number": Fact(number, (1, 1)),
    "numbers": Fact(numbers, (1, 1)),
    "op": Fact(op, (1, 1)),
    "pads": Fact(pads, (1, 1)),
    "per_channel": Fact(per_channel, (3, 3)),
    "rank": Fact(rank, (1, 1)),
    "readers": Fact(readers, (1, 1)),
    "same_shape": Fact(same_shape, (2, 8)),
    "shape": Fact(shape, (1, 1)),
    "strides": Fact(strides, (1, 1)),
    "window": Fact(window, (1, 1)),
}
