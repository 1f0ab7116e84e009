"""What a runtime's reader takes: the data that lowering works by, and the questions it asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgefuse.errors import UnsupportedError
from edgefuse.graph import DataType, Node, Value, attribute, constant, input_value, source_name
from edgefuse.graph.schemas import OperatorForm, operator_form

__all__ = ["OLDEST_TARGET_OPSET", "OperatorLimit", "Reader", "refusal"]

# Below it, axes of Squeeze, Unsqueeze, Split and ReduceSum are attributes and Softmax flattens its input.
OLDEST_TARGET_OPSET = 13


@dataclass(frozen=True, slots=True)
class OperatorLimit:
    """What a reader asks of one operator beyond the ONNX standard.

    types: element types that it computes in (empty = those of the standard).  constant_inputs: indices of
    inputs that must be constants, or computed from constants alone.  attributes: name -> values taken.
    max_outputs: outputs that it writes (None = all).  reason: for the user.
    """

    types: frozenset[DataType] = frozenset()
    constant_inputs: tuple[int, ...] = ()
    attributes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    max_outputs: int | None = None
    reason: str = ""

    def fault(self, node: Node) -> str:
        """Return what of `node` (types apart) the reader does not take, or ""."""
        for index in self.constant_inputs:
            value = input_value(node, index)
            if value is not None and not _is_settled(value):
                return self._because(f"input {index} ({value.name}) is computed at run time, not a constant")
        for name, allowed in self.attributes.items():
            found = attribute(node, name)
            if found is not None and found not in allowed:
                return self._because(f"{name}={found!r} is not among {', '.join(map(str, allowed))}")
        if self.max_outputs is not None and any(
            value.uses() or value.is_graph_output() for value in node.outputs[self.max_outputs :]
        ):
            return self._because(f"output {self.max_outputs} is read")
        return ""

    def _because(self, text: str) -> str:
        return f"{text} ({self.reason})" if self.reason else text


def _is_settled(value: Value) -> bool:
    """Return whether the value is a constant or computed from constants alone (a dequantized weight)."""
    if constant(value) is not None:
        return True
    producer = value.producer()
    if producer is None or not producer.inputs:  # without inputs: a random draw
        return False
    return all(v is None or _is_settled(v) for v in producer.inputs)


@dataclass(frozen=True, slots=True)
class Reader:
    """A runtime's reader.

    opset: of the default operator set.  operators: that it knows, or None for all of that set.
    retype: element types that it does not hold -> the wider or narrower one that takes their place.
    static: every shape must be a number.
    """

    opset: int
    operators: frozenset[str] | None = None
    limits: Mapping[str, OperatorLimit] = field(default_factory=dict)
    retype: Mapping[DataType, DataType] = field(default_factory=dict)
    static: bool = False

    def form(self, op_type: str) -> OperatorForm | None:
        """Return the operator in the reader's operator set where it reads it, else None."""
        if self.operators is not None and op_type not in self.operators:
            return None
        return operator_form(op_type, self.opset)

    def missing(self, op_type: str) -> str:
        """Return why the reader does not read the operator at all, or ""."""
        if operator_form(op_type, self.opset) is None:
            return f"it is not in operator set {self.opset}"
        if self.operators is not None and op_type not in self.operators:
            return "the target does not read it"
        return ""

    def held(self, dtype: DataType) -> DataType:
        """Return the element type that takes the place of `dtype` on the target."""
        return self.retype.get(dtype, dtype)

    def fault(self, node: Node) -> str:
        """Return why the reader does not take this node as it is (element types apart), or ""."""
        limit = self.limits.get(node.op_type)
        return self.missing(node.op_type) or (limit.fault(node) if limit is not None else "")


def refusal(node: Node, why: str, hint: str | None = None) -> UnsupportedError:
    """Return the error that names a node which cannot be lowered, with the reason."""
    return UnsupportedError(
        f"node {source_name(node)!r}: {node.op_type} cannot be lowered to this target: {why}",
        hint=hint or "replace the operator before export, or take a target that runs it",
    )
