"""Writing the nodes that take the place of one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefuse.graph import (
    Attr,
    AttributeType,
    DataType,
    Model,
    Node,
    Shape,
    TensorType,
    Value,
    add_constant,
    add_node,
    constant,
    input_value,
    static_shape,
)
from edgefuse.lowering.reader import Reader, refusal

__all__ = ["Builder"]


class Builder:
    """Adds nodes right before `node`, in the place of which they will stand.

    Constants go into the main graph, so that bodies of If and Loop see them too.
    """

    def __init__(self, model: Model, node: Node, reader: Reader) -> None:
        self.model = model
        self.node = node
        self.reader = reader

    def input(self, index: int) -> Value:
        """Return the node's input at `index`; refuses a node that leaves it out."""
        value = input_value(self.node, index)
        if value is None:
            raise refusal(self.node, f"input {index} is missing")
        return value

    def op(
        self,
        op_type: str,
        *inputs: Value | None,
        like: Value | None = None,
        dtype: DataType | None = None,
        outputs: int = 1,
        **attributes: Any,
    ) -> Value:
        """Return the first output of a new node.

        like: the value whose type and shape it has; dtype: its element type where only that is known.
        """
        made = add_node(
            self.node,
            op_type,
            inputs,
            attributes,
            like=like,
            outputs=outputs,
            stem=f"{self.node.name}_{op_type.lower()}",
        )
        if dtype is not None:
            made.outputs[0].type = TensorType(dtype)
        return made.outputs[0]

    def node_of(self, op_type: str, *inputs: Value | None, outputs: int, **attributes: Any) -> Node:
        """Return a new node of several outputs."""
        return add_node(
            self.node,
            op_type,
            inputs,
            attributes,
            outputs=outputs,
            stem=f"{self.node.name}_{op_type.lower()}",
        )

    def constant(self, array: Any, dtype: DataType | None = None) -> Value:
        """Return a constant; `dtype` converts it (round to nearest for floats)."""
        array = np.asarray(array)
        if dtype is not None:
            array = array.astype(dtype.numpy())
        return add_constant(self.model.graph, array, f"{self.node.name}_c")

    def integers(self, *numbers: int) -> Value:
        """Return a one-dimensional int64 constant: a shape, axes, starts."""
        return self.constant(np.array(numbers, dtype=np.int64))

    def number(self, number: float, like: Value | None = None) -> Value:
        """Return a scalar constant of the element type of `like` (default: of the node's first input)."""
        return self.constant(np.array(number), self.dtype(like if like is not None else self.node.inputs[0]))

    def dtype(self, value: Value | None) -> DataType:
        """Return the element type of a value; raises UnsupportedError where it is not known."""
        if value is None or value.dtype is None:
            name = value.name if value is not None else "input"
            raise refusal(self.node, f"the element type of {name!r} is not known")
        return value.dtype

    def rank(self, value: Value | None) -> int:
        """Return the number of dimensions; raises UnsupportedError where it is not known."""
        if value is None or value.shape is None:
            name = value.name if value is not None else "input"
            raise refusal(self.node, f"the rank of {name!r} is not known")
        return len(value.shape)

    def sizes(self, value: Value | None) -> tuple[int, ...]:
        """Return the shape as numbers; raises UnsupportedError where it is not fixed."""
        found = static_shape(value)
        if found is None or value is None:
            raise refusal(
                self.node,
                f"the shape of {value.name if value else 'input'!r} is not fixed",
                hint="state the input shapes (--shape NAME=1x3x224x224)",
            )
        return found

    def size(self, value: Value | None, axis: int) -> int:
        """Return one dimension as a number; raises UnsupportedError where it is not fixed."""
        rank = self.rank(value)
        found = value.shape[axis % rank] if value is not None and value.shape is not None else None
        if not isinstance(found, int):
            name = value.name if value is not None else "input"
            raise refusal(
                self.node,
                f"dimension {axis} of {name!r} is not fixed",
                hint="state the input shapes (--shape NAME=1x3x224x224)",
            )
        return found

    def constant_input(self, index: int, what: str) -> np.ndarray | None:
        """Return the constant at input `index` (None where left out); refuses one computed at run time."""
        value = input_value(self.node, index)
        if value is None:
            return None
        array = constant(value)
        if array is None:
            raise refusal(self.node, f"its {what} ({value.name}) must be a constant")
        return array

    def shape_of(self, value: Value) -> Value:
        """Return the shape of `value` as an int64 tensor: a constant where it is fixed, else a Shape node."""
        found = static_shape(value)
        if found is not None:
            return self.integers(*found)
        made = self.op("Shape", value, dtype=DataType.INT64)
        made.shape = Shape([self.rank(value)])
        return made

    def cast(self, value: Value, dtype: DataType) -> Value:
        """Return `value` in another element type (itself where it has it)."""
        if value.dtype == dtype:
            return value
        made = self.op("Cast", value, like=value, to=int(dtype))
        made.type = TensorType(dtype)
        return made

    def chain(self, op_type: str, values: Sequence[Value], like: Value | None = None) -> Value:
        """Return a two-input operator applied along `values` from the left."""
        result = values[0]
        for value in values[1:]:
            result = self.op(op_type, result, value, like=like)
        return result

    @staticmethod
    def ints(name: str, numbers: Sequence[int]) -> Attr:
        """Return an attribute that holds a list of integers."""
        return Attr(name, AttributeType.INTS, tuple(numbers))

    @staticmethod
    def text(name: str, word: str) -> Attr:
        """Return an attribute that holds a word."""
        return Attr(name, AttributeType.STRING, word)

    @staticmethod
    def number_attribute(name: str, number: int) -> Attr:
        """Return an attribute that holds one integer."""
        return Attr(name, AttributeType.INT, number)
