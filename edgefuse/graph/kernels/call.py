"""One operator call as a kernel sees it, and the number types that kernels treat as floating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from edgefuse.errors import InputError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Array", "Call", "Kernel", "RunGraph", "is_carried_float", "is_float"]

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
# A kernel returns one array, or a tuple with one entry for each output (an entry may be a sequence or None).
Kernel: TypeAlias = "Callable[[Call], Array | tuple[Any, ...]]"
RunGraph: TypeAlias = "Callable[[ir.Graph, Sequence[Any]], list[Any]]"

# Carried in float64 by the float64 executor. float8 and float4 are quantized formats and stay as they are.
_CARRIED = frozenset({"float16", "bfloat16", "float32", "float64"})


def is_carried_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is float16, bfloat16, float32 or float64."""
    return dtype.name in _CARRIED


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is any floating type, the eight- and four-bit ones included."""
    return dtype.kind == "f" or "float" in dtype.name


@dataclass(frozen=True, slots=True)
class Call:
    """The inputs and attributes of one node, ready to compute.

    inputs: an array, a list (ONNX sequence) or None (an optional input left out) for each node input.
    attributes: Python values; FLOAT attributes are rounded to float32 as the file format does.
    opset: version of the operator's domain.  float64: floats are carried in float64 (casts to a narrower
    float do nothing).  outputs: number of outputs the node names.  run_graph: runs a subgraph of the
    node on its inputs and returns its outputs.
    """

    label: str
    op_type: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]
    opset: int
    float64: bool
    outputs: int
    run_graph: RunGraph | None = field(default=None, repr=False)

    def get(self, index: int) -> Any:
        """Return input `index`, or None where the node leaves it out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def optional(self, index: int) -> Array | None:
        """Return input `index` as an array, or None where the node leaves it out."""
        value = self.get(index)
        return None if value is None else np.asarray(value)

    def array(self, index: int) -> Array:
        """Return input `index` as an array.  Raises InputError where the node leaves it out."""
        value = self.get(index)
        if value is None:
            raise InputError(f"{self.label}: input {index} is missing")
        return np.asarray(value)

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return a list attribute as ints; `default` (or an empty list) where it is absent."""
        value = self.attributes.get(name)
        if value is None:
            value = default if default is not None else ()
        return [int(v) for v in value]

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value, or `default` where it is absent."""
        value = self.attributes.get(name)
        return default if value is None else value

    def int_list(self, name: str, index: int) -> list[int] | None:
        """Return what old opsets hold in attribute `name` and new ones in input `index`; None if neither."""
        if (value := self.optional(index)) is not None:
            return [int(v) for v in value.reshape(-1)]
        if (stored := self.attributes.get(name)) is not None:
            return [int(v) for v in stored]
        return None

    def subgraph(self, name: str, inputs: Sequence[Any]) -> list[Any]:
        """Run the subgraph held in attribute `name` and return its outputs."""
        if self.run_graph is None:
            raise InputError(f"{self.label}: a subgraph cannot run outside a model")
        return self.run_graph(self.attributes[name], inputs)
