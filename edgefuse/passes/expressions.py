"""Written-out functions read as algebra: products, polynomials, saturations.

A recovery pass does not list the orders in which a function may be written. It takes the outermost node,
reads the product that ends there as coefficient * factors, reads what stands inside as a polynomial of x, and
compares numbers. Every node that was looked through is kept in the `Reading`; the rewrite happens only where
nobody outside reads any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    all_nodes,
    constant,
    dims,
    input_value,
    is_float,
    remove_node,
    replace_node,
    scalar,
    sole_reader,
)
from edgefuse.passes.channel_affine import drop_unused

__all__ = ["Reading", "close_to", "outermost_first", "stripped"]

_MAX_DEGREE = 6
_MAX_DEPTH = 24
_ONE, _HELD = 2e-6, 1e-5


def outermost_first(model: Model, *op_types: str) -> Iterator[Node]:
    """Yield the nodes of these operators from the end of the graph on, without those removed meanwhile."""
    for node in list(all_nodes(model))[::-1]:
        if node.op_type in op_types and not node.domain and node.graph is not None:
            yield node


def close_to(number: float, target: float, tolerance: float) -> bool:
    """Return whether `number` is within `tolerance` (relative to the target, absolute below one)."""
    return abs(number - target) <= tolerance * max(abs(target), 1e-12)


def stripped(value: Value) -> Value:
    """Return what stands before the Casts between float types (and Identities) that end in `value`."""
    for _ in range(_MAX_DEPTH):
        node = value.producer()
        if node is None or node.op_type not in ("Cast", "Identity") or node.domain:
            return value
        before = node.inputs[0]
        if before is None or not (is_float(before) and is_float(value)):
            return value
        value = before
    return value


@dataclass(slots=True)
class Reading:
    """One attempt to read a function that ends in `root`; methods return None where they cannot.

    nodes: what was looked through so far, the root first.  rank: of the highest-ranked constant seen.
    """

    root: Node
    nodes: list[Node] = field(default_factory=list)
    rank: int = 0

    def __post_init__(self) -> None:
        self.nodes.append(self.root)

    def producer(self, value: Value | None, *op_types: str) -> Node | None:
        """Return the node that writes `value` where it is one of `op_types`, and record it."""
        node = value.producer() if value is not None else None
        if node is None or node.op_type not in op_types or node.domain or node.graph is not self.root.graph:
            return None
        self.nodes.append(node)
        return node

    def number(self, value: Value | None) -> float | None:
        """Return the finite number that a constant of one element holds."""
        found = scalar(value)
        if found is None or not np.isfinite(found):
            return None
        array = constant(value)
        self.rank = max(self.rank, array.ndim if array is not None else 0)
        return found

    def inner(self, value: Value | None, *op_types: str) -> Node | None:
        """Return `producer(value)` where nobody but the reader it came from reads `value`."""
        return (
            self.producer(value, *op_types) if value is not None and sole_reader(value) is not None else None
        )

    def through_casts(self, value: Value) -> Value:
        """Return what stands before Casts between float types with one reader, recording them."""
        for _ in range(_MAX_DEPTH):
            node = value.producer()
            if node is None or node.op_type not in ("Cast", "Identity") or sole_reader(value) is None:
                return value
            before = node.inputs[0]
            if before is None or not (is_float(before) and is_float(value)):
                return value
            if self.producer(value, "Cast", "Identity") is None:
                return value
            value = before
        return value

    def product(self, node: Node, depth: int = 0) -> tuple[float, list[tuple[Value, int]]] | None:
        """Return the output of a Mul, Div, Neg or Reciprocal as (coefficient, [(factor, +1 or -1)]).

        Nested ones are opened where nobody else reads them; constants of one element join the coefficient,
        larger ones are factors.
        """
        if node.op_type not in ("Mul", "Div", "Neg", "Reciprocal") or depth > _MAX_DEPTH:
            return None
        coefficient = -1.0 if node.op_type == "Neg" else 1.0
        factors: list[tuple[Value, int]] = []
        for index, value in enumerate(node.inputs):
            sign = -1 if node.op_type == "Reciprocal" or (node.op_type == "Div" and index == 1) else 1
            part = self._factor(value, depth)
            if part is None or (sign < 0 and part[0] == 0):
                return None
            coefficient *= part[0] ** sign
            factors.extend((leaf, exponent * sign) for leaf, exponent in part[1])
        return coefficient, factors

    def _factor(self, value: Value | None, depth: int) -> tuple[float, list[tuple[Value, int]]] | None:
        if value is None:
            return None
        found = self.number(value)
        if found is not None:
            return found, []
        value = self.through_casts(value)
        nested = self.inner(value, "Mul", "Div", "Neg", "Reciprocal")
        if nested is None:
            return 1.0, [(value, 1)]
        mark = len(self.nodes)
        opened = self.product(nested, depth + 1)
        if opened is None:
            del self.nodes[mark - 1 :]
            return 1.0, [(value, 1)]
        return opened

    def affine(self, value: Value) -> tuple[float, float, Value]:
        """Return (scale, shift, core) with value = scale * core + shift, the core as far in as possible."""
        *_, last = self.affine_steps(value)
        return last

    def affine_steps(self, value: Value) -> Iterator[tuple[float, float, Value]]:
        """Yield (scale, shift, core) after nothing, one, two ... nodes with a scalar constant were opened."""
        scale, shift = 1.0, 0.0
        for _ in range(_MAX_DEPTH):
            value = self.through_casts(value)
            yield scale, shift, value
            mark = len(self.nodes)
            node = self.inner(value, "Mul", "Div", "Add", "Sum", "Sub", "Neg")
            step = self.step(node) if node is not None else None
            if step is None:
                del self.nodes[mark:]
                return
            factor, term, value = step
            scale, shift = scale * factor, scale * term + shift

    def step(self, node: Node) -> tuple[float, float, Value] | None:
        """Return (scale, shift, inner value) of one node with a scalar constant."""
        first, second = node.inputs[0], input_value(node, 1)
        if node.op_type == "Neg":
            return (-1.0, 0.0, first) if first is not None else None
        left, right = self.number(first), self.number(second)
        if len(node.inputs) != 2:
            return None
        if (left is None) == (right is None) or first is None or second is None:
            return None
        value, number = (second, left) if right is None else (first, right)
        if number is None:
            return None
        if node.op_type == "Mul":
            return number, 0.0, value
        if node.op_type in ("Add", "Sum"):
            return 1.0, number, value
        if node.op_type == "Sub":
            return (1.0, -number, value) if right is not None else (-1.0, number, value)
        return (1.0 / number, 0.0, value) if right is not None and number != 0 else None

    def saturation(self, value: Value) -> tuple[Value, float, float] | None:
        """Return (inner, low, high) of Clip, Min, Max, Relu and their nestings; None where there is none."""
        low, high = -np.inf, np.inf
        found = False
        for _ in range(_MAX_DEPTH):
            mark = len(self.nodes)
            current = self.through_casts(value)
            node = self.inner(current, "Clip", "Min", "Max", "Relu")
            bounds = self.bounds(node) if node is not None else None
            if bounds is None or bounds[1] > bounds[2]:
                del self.nodes[mark:]
                return (value, low, high) if found else None
            # clip(clip(v, l, h), low, high) = clip(v, clip(l, low, high), clip(h, low, high))
            value, inner_low, inner_high = bounds
            low, high = min(max(inner_low, low), high), min(max(inner_high, low), high)
            found = True
        return None

    def bounds(self, node: Node) -> tuple[Value, float, float] | None:
        """Return (inner, low, high) of one Clip, Min, Max or Relu with constant bounds."""
        value = node.inputs[0]
        if node.op_type == "Relu":
            return (value, 0.0, np.inf) if value is not None else None
        if node.op_type == "Clip":
            low, high = input_value(node, 1), input_value(node, 2)
            bottom = -np.inf if low is None else self._limit(low)
            top = np.inf if high is None else self._limit(high)
            if value is None or bottom is None or top is None:
                return None
            return value, bottom, top
        if len(node.inputs) != 2:
            return None
        left, right = self._limit(node.inputs[0]), self._limit(node.inputs[1])
        value, limit = (node.inputs[1], left) if right is None else (node.inputs[0], right)
        if (left is None) == (right is None) or value is None or limit is None:
            return None
        return (value, -np.inf, limit) if node.op_type == "Min" else (value, limit, np.inf)

    def _limit(self, value: Value | None) -> float | None:
        """Return a bound; infinities and the largest float are no bound at all."""
        found = scalar(value)
        if found is None or np.isnan(found):
            return None
        array = constant(value)
        self.rank = max(self.rank, array.ndim if array is not None else 0)
        return found

    def polynomial(self, value: Value, x: Value, depth: int = 0) -> dict[int, float] | None:
        """Return {degree: coefficient} of `value` as a polynomial of `x`, at most of degree 6."""
        if value is x or stripped(value) is stripped(x):
            return {1: 1.0}
        found = self.number(value)
        if found is not None:
            return {0: found}
        node = self.producer(value, "Mul", "Div", "Add", "Sum", "Sub", "Neg", "Pow", "Cast", "Identity")
        if node is None or depth > _MAX_DEPTH or not is_float(value):
            return None
        first = self._part(node, 0, x, depth)
        if first is None or node.op_type in ("Cast", "Identity"):
            return first
        if node.op_type == "Neg":
            return {degree: -c for degree, c in first.items()}
        if node.op_type == "Pow":
            return _power(first, self.number(input_value(node, 1)))
        second = self._part(node, 1, x, depth) if len(node.inputs) == 2 else None
        return None if second is None else _combined(node.op_type, first, second)

    def _part(self, node: Node, index: int, x: Value, depth: int) -> dict[int, float] | None:
        value = input_value(node, index)
        return None if value is None else self.polynomial(value, x, depth + 1)

    def linear(self, value: Value, x: Value) -> tuple[float, float] | None:
        """Return (slope, intercept) where `value` is slope * x + intercept."""
        found = self.polynomial(value, x)
        if found is None or any(degree > 1 and c != 0 for degree, c in found.items()):
            return None
        return found.get(1, 0.0), found.get(0, 0.0)

    def closed(self) -> bool:
        """Return whether nothing outside reads what the rewrite would remove."""
        inside = set(self.nodes)
        for node in self.nodes:
            if node is self.root:
                continue
            for value in node.outputs:
                if value.is_graph_output() or any(use.node not in inside for use in value.uses()):
                    return False
        return True

    def fits(self, x: Value) -> bool:
        """Return whether x is a float tensor whose rank the constants do not raise."""
        found = dims(x)
        return is_float(x) and (self.rank == 0 or (found is not None and len(found) >= self.rank))

    def input_like_root(self, x: Value) -> Value | None:
        """Return x, or x before its Casts, whichever has the dtype of the root's output; else None."""
        wanted = self.root.outputs[0].dtype
        for _ in range(_MAX_DEPTH):
            if x.dtype == wanted:
                return x
            node = x.producer()
            before = node.inputs[0] if node is not None and node.op_type in ("Cast", "Identity") else None
            if before is None or not is_float(before):
                return None
            x = before
        return None

    def factor(self, number: float) -> float | None:
        """Return what the result has to be multiplied by: 1.0 where `number` is one to 2e-6.

        None where the dtype of the result cannot hold the number to 1e-5 (0.99976 in float16).
        """
        element = self.root.outputs[0].dtype
        if close_to(number, 1.0, _ONE):
            return 1.0
        if number == 0 or element is None:
            return None
        held = float(np.array(number, element.numpy()).astype(np.float64))
        return number if close_to(held, number, _HELD) else None

    def rewrite(
        self,
        model: Model,
        op_type: str,
        inputs: list[Value | None],
        attributes: dict[str, Any] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Put `op_type`(inputs), times `scale` where that is not one, in the place of all nodes read."""
        root, result = self.root, self.root.outputs[0]
        nodes = list(dict.fromkeys(self.nodes))
        new = add_node(root, op_type, inputs, attributes, like=result, sources=nodes[::-1]).outputs[0]
        if scale != 1.0 and result.dtype is not None:
            factor = add_constant(model.graph, np.array(scale, result.dtype.numpy()), f"{root.name}_scale")
            new = add_node(root, "Mul", [new, factor], like=result, sources=[root]).outputs[0]
        read = [value for node in nodes for value in node.inputs]
        replace_node(root, [new])
        remaining = [node for node in nodes if node is not root]
        while True:
            dead = [n for n in remaining if not any(v.uses() or v.is_graph_output() for v in n.outputs)]
            if not dead:
                break
            for node in dead:
                remove_node(node)
            remaining = [node for node in remaining if node not in dead]
        for value in read:
            if value is not None and value.graph is not None:
                drop_unused(value.graph, value)


def _power(base: dict[int, float], exponent: float | None) -> dict[int, float] | None:
    if exponent is None or exponent != int(exponent) or not 1 <= exponent <= _MAX_DEGREE:
        return None
    result: dict[int, float] | None = {0: 1.0}
    for _ in range(int(exponent)):
        result = _combined("Mul", result, base) if result is not None else None
    return result


def _combined(op_type: str, a: dict[int, float], b: dict[int, float]) -> dict[int, float] | None:
    """Return a op b of two polynomials; Div only by a constant."""
    if op_type == "Div":
        divisor = b.get(0, 0.0)
        return {d: c / divisor for d, c in a.items()} if set(b) == {0} and divisor != 0 else None
    if op_type in ("Add", "Sum", "Sub"):
        sign = -1.0 if op_type == "Sub" else 1.0
        return {d: a.get(d, 0.0) + sign * b.get(d, 0.0) for d in {*a, *b}}
    result: dict[int, float] = {}
    for d, c in a.items():
        for e, f in b.items():
            result[d + e] = result.get(d + e, 0.0) + c * f
    return result if max(result, default=0) <= _MAX_DEGREE else None
