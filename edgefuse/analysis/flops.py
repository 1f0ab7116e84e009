"""FLOPs, multiply-accumulates, bytes and parameters of one node, from shapes alone.

Convention: 1 multiply-accumulate (MAC) = 2 FLOPs; one addition, comparison, division, rounding or
transcendental function = 1 FLOP (the whole table, with its reasons, is operators.toml). A bias counts one
addition an output element. Bytes are those of one pass over each tensor in the model's own types: caches are
not modelled. A dimension that is not a number is never guessed: it is bound by the caller or reported.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgefuse.graph import Node, Value, attribute, constant, dims, element_bytes, input_value, is_float

if TYPE_CHECKING:
    from edgefuse.analysis.contractions import Work

__all__ = ["OpCost", "Shapes", "UnknownCostError", "node_cost", "node_weights"]

_PRECISION_BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0}


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of one node, or the sum of several.

    flops, macs: operations (flops include 2 x macs).  read_bytes: computed inputs.  write_bytes: outputs.
    weight_bytes: constants read.  parameters: elements of weights (more than one element, not int64 or bool).
    float_elements, float_bytes: the floating-point part of all bytes above, as elements and as bytes.
    unknown: why the cost is not known ("" = known); then every figure is 0. If, Loop and Scan count the FLOPs
    of their bodies (If: the dearer branch), and the bytes of their own inputs and outputs only.
    """

    flops: int = 0
    macs: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    weight_bytes: int = 0
    parameters: int = 0
    float_elements: int = 0
    float_bytes: int = 0
    unknown: str = ""

    @property
    def traffic_bytes(self) -> int:
        """All bytes read and written, in the model's own types."""
        return self.read_bytes + self.write_bytes + self.weight_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte of traffic (arithmetic intensity); 0.0 where nothing moves."""
        return self.flops / self.traffic_bytes if self.traffic_bytes else 0.0

    def traffic_at(self, precision: str) -> float:
        """Return the bytes moved if every floating-point tensor were stored in fp32, fp16 or int8."""
        return self.traffic_bytes - self.float_bytes + self.float_elements * _PRECISION_BYTES[precision]


class UnknownCostError(Exception):
    """A cost that shapes do not say; its text is the reason. Never leaves this room."""


class Shapes:
    """Shapes and sizes of values, with symbolic dimensions bound by the caller."""

    def __init__(self, binding: Mapping[str, int] | None = None) -> None:
        self.binding = dict(binding or {})

    def of(self, value: Value | None) -> tuple[int, ...]:
        """Return the shape. Raises UnknownCostError naming the value and the dimension."""
        found = dims(value)
        if value is None or found is None:
            raise UnknownCostError(f"the shape of {value.name if value else 'a missing input'} is unknown")
        shape = []
        for dim in found:
            number = self.binding.get(dim) if isinstance(dim, str) else dim
            if not isinstance(number, int):
                raise UnknownCostError(f"dimension {dim or '?'} of {value.name} is not a number")
            shape.append(number)
        return tuple(shape)

    def elements(self, value: Value | None) -> int:
        """Return the number of elements."""
        return math.prod(self.of(value))

    def bytes(self, value: Value) -> int:
        """Return the size in bytes, rounded up."""
        elements = self.elements(value)
        try:
            return math.ceil(elements * element_bytes(value))
        except TypeError as error:
            raise UnknownCostError(f"{value.name} holds {value.dtype}, which has no fixed size") from error


@dataclass(frozen=True, slots=True)
class _Table:
    """operators.toml as sets and mappings."""

    view: frozenset[str]
    alias: frozenset[str]
    elementwise: frozenset[str]
    first_input_is_data: frozenset[str]
    reads_what_it_writes: frozenset[str]
    data_dependent: frozenset[str]
    per_output_element: Mapping[str, int]
    per_output_element_and_further_input: Mapping[str, int]
    per_input_element: Mapping[str, int]
    per_window_element: Mapping[str, int]


@functools.cache
def operator_table() -> _Table:
    """Return operators.toml, read once."""
    import msgspec

    text = (Path(__file__).parent / "operators.toml").read_bytes()
    raw = msgspec.toml.decode(text)
    return msgspec.convert(raw, _Table)


def node_cost(
    node: Node, binding: Mapping[str, int] | None = None, constants: Set[Value] = frozenset()
) -> OpCost:
    """Return the cost of one node.

    binding: numbers for symbolic dimension names.  constants: computed values to count as weights
    (`foldable_values`); initializers always do, and a node that writes nothing else costs nothing.
    """
    shapes = Shapes(binding)
    if node.outputs and all(value in constants for value in node.outputs):
        return OpCost()
    try:
        if node.domain in ("", "ai.onnx") and node.op_type in operator_table().view:
            return OpCost()
        work = _work(node, shapes)
        return _with_traffic(node, shapes, constants, work)
    except UnknownCostError as reason:
        return OpCost(unknown=str(reason))


def _work(node: Node, shapes: Shapes) -> Work:
    """Return (flops, macs) of the node. Raises UnknownCostError."""
    from edgefuse.analysis.contractions import CONTRACTIONS

    if node.domain not in ("", "ai.onnx"):
        raise UnknownCostError(f"{node.domain}.{node.op_type} is a custom operator")
    table, op = operator_table(), node.op_type
    handler: Callable[[Node, Shapes], Work] | None = CONTRACTIONS.get(op)
    if handler is not None:
        return handler(node, shapes)
    if op in table.data_dependent:
        raise UnknownCostError(f"the work of {op} depends on the values")
    if op in table.per_output_element:
        rate = table.per_output_element[op]
        return (rate * shapes.elements(node.outputs[0]) if rate else 0), 0
    if op in table.per_output_element_and_further_input:
        rate = table.per_output_element_and_further_input[op] * (len(node.inputs) - 1)
        return rate * shapes.elements(node.outputs[0]), 0
    if op in table.per_input_element:
        return table.per_input_element[op] * shapes.elements(input_value(node, 0)), 0
    if op in table.per_window_element:
        window = math.prod(attribute(node, "kernel_shape", ()))
        return table.per_window_element[op] * window * shapes.elements(node.outputs[0]), 0
    raise UnknownCostError(f"the cost of {op} is not described")


def _with_traffic(node: Node, shapes: Shapes, constants: Set[Value], work: Work) -> OpCost:
    table, op = operator_table(), node.op_type
    outputs = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    write = sum(shapes.bytes(value) for value in outputs)
    weights = node_weights(node, shapes, constants)
    moved = [(value, shapes.bytes(value)) for value in outputs]
    read = 0
    for value in dict.fromkeys(v for v in node.inputs if v is not None):
        stored = stored_weight(value, constants)
        size = shapes.bytes(stored)
        if op in table.reads_what_it_writes and value is node.inputs[0]:
            size = min(size, write)
        moved.append((stored, size))
        read += 0 if stored in weights else size
    floats = [(value, size) for value, size in moved if is_float(value)]
    return OpCost(
        flops=work[0],
        macs=work[1],
        read_bytes=read,
        write_bytes=write,
        weight_bytes=sum(size for _, size in moved) - read - write,
        parameters=sum(weights.values()),
        float_elements=sum(round(size / element_bytes(value)) for value, size in floats),
        float_bytes=sum(size for _, size in floats),
    )


def node_weights(node: Node, shapes: Shapes, constants: Set[Value] = frozenset()) -> dict[Value, int]:
    """Return the constant inputs of a node, as an engine stores them, each with its number of parameters."""
    return {
        stored_weight(value, constants): _parameters(node, value, stored_weight(value, constants), shapes)
        for value in node.inputs
        if value is not None and (value in constants or value.const_value is not None)
    }


def stored_weight(value: Value, constants: Set[Value]) -> Value:
    """Return the tensor that an engine keeps for a value: the integers behind a constant DequantizeLinear."""
    producer = value.producer()
    if value in constants and producer is not None and producer.op_type == "DequantizeLinear":
        integers = producer.inputs[0]
        return integers if integers is not None else value
    return value


def _parameters(node: Node, value: Value, stored: Value, shapes: Shapes) -> int:
    """Return how many parameters a constant input holds: 0 for one that only says where or how."""
    first_only = node.op_type in operator_table().first_input_is_data
    if first_only and value is not node.inputs[0]:
        return 0
    kind = stored.dtype
    if kind is None or kind.name in ("INT64", "UINT64", "BOOL", "STRING"):
        return 0
    elements = shapes.elements(stored)
    return elements if elements > 1 else 0


def constant_number(node: Node, index: int) -> int | None:
    """Return the integer that the constant input at `index` holds, or None."""
    array = constant(input_value(node, index))
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
