"""What a model must offer to become an artifact: inputs, sizes, dtypes; refused before any work is done."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.artifact.arrays import DTYPES
from edgefuse.errors import InputError, UnsupportedError, UsageError
from edgefuse.graph import (
    Model,
    Node,
    TensorType,
    Value,
    all_nodes,
    constant,
    dims,
    input_value,
    scalar,
    source_name,
)
from edgefuse.runtime.tensors import TensorInfo

__all__ = [
    "check_inputs",
    "check_labels",
    "check_memory",
    "check_operators",
    "check_shapes",
    "check_tensors",
]

# Runtimes count elements in 32 bits.
_LARGEST = 2**31 - 1
# What the manifest takes (edgefuse/artifact/manifest.py).
_LONGEST_NAME, _LONGEST_SYMBOL, _MOST_AXES = 500, 200, 32
_LONGEST_LABEL = 1000

# Each call draws anew: no judge can say whether a result is right.
_DRAWS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
# Operators that read or write values which are no tensors.
_HOLDS_MORE = re.compile("Sequence|^Optional")


def check_shapes(shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise UsageError where a size that the user states is no whole number that a runtime can count."""
    for name, sizes in shapes.items():
        for size in sizes:
            whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
            if not whole or not 1 <= size <= _LARGEST:
                raise UsageError(
                    f"the shape of input {name!r} cannot be",
                    expected=f"whole numbers from 1 to {_LARGEST}",
                    got=str(size),
                )


def check_inputs(model: Model, path: str) -> None:
    """Raise InputError where the model has no input, or one without a rank or with a size of 0."""
    if not model.graph.inputs:
        raise InputError(
            f"{path} has no inputs: all that it computes is constant", expected="at least one input"
        )
    for value in model.graph.inputs:
        shape = dims(value)
        if shape is None:
            raise InputError(
                f"{path}: input {value.name!r} has no shape",
                hint=f"state it: --shape {value.name}=1x3x224x224",
            )
        if 0 in shape:
            raise InputError(
                f"{path}: input {value.name!r} holds no element",
                expected="sizes of at least 1",
                got="x".join(map(str, shape)),
                hint="export the model with an open size, or with the real one",
            )


def check_operators(model: Model, path: str) -> None:
    """Raise UnsupportedError for what no artifact can promise, naming the node or value.

    Refused: operators that draw random numbers (their results differ from call to call, so that nothing can
    be verified), a Dropout that drops, and sequences or optional values at the model's edge or inside.
    """
    for side, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            if not _is_tensor(value):
                raise UnsupportedError(
                    f"{path}: {side} {value.name!r} is {_kind(value)}, and edgefuse runs tensors only",
                    expected="a tensor",
                    got=str(value.type),
                    hint="export the model with a tensor in its place, or one for each element",
                )
    for node in all_nodes(model):
        why = _drawn(node)
        if why:
            raise UnsupportedError(
                f"node {source_name(node)!r} ({node.op_type}) {why}: its result differs from call to call, "
                "and cannot be verified",
                hint="export the model for inference, or make the random numbers an input of it",
            )
        if _HOLDS_MORE.search(node.op_type):
            raise UnsupportedError(
                f"node {source_name(node)!r} ({node.op_type}): it works on a sequence or an optional value, "
                "and edgefuse runs tensors only",
                got=f"{node.op_type} of {', '.join(repr(v.name) for v in node.inputs if v is not None)}",
                hint="export the model with Split, Concat or Gather in place of operators on sequences",
            )


def _is_tensor(value: Value) -> bool:
    return value.type is None or isinstance(value.type, TensorType)


def _kind(value: Value) -> str:
    return "an optional value" if "Optional" in type(value.type).__name__ else "a sequence"


def _drawn(node: Node) -> str:
    """Return how the node draws random numbers, or ""."""
    if node.op_type in _DRAWS:
        return "draws random numbers"
    mode = input_value(node, 2)
    if node.op_type != "Dropout" or mode is None:
        return ""
    if constant(mode) is None:
        return f"drops values where {mode.name!r} says so at run time"
    ratio = input_value(node, 1)
    drops = scalar(mode) != 0.0 and (ratio is None or scalar(ratio) != 0.0)
    return "drops values as in training" if drops else ""


def check_tensors(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
    """Raise UnsupportedError for an input or output that an artifact cannot describe (docs/artifact.md)."""
    for side, infos in (("input", inputs), ("output", outputs)):
        for info in infos:
            name = info.name[:80]
            if info.dtype not in DTYPES:
                raise UnsupportedError(
                    f"{side} {name!r} is of a type that an artifact cannot hold",
                    expected=", ".join(sorted(DTYPES)),
                    got="text" if info.dtype == "object" else info.dtype,
                    hint="put a Cast before the model's edge when exporting",
                )
            if not 1 <= len(info.name) <= _LONGEST_NAME:
                raise UnsupportedError(
                    f"{side} {name!r} has a name that an artifact cannot hold",
                    expected=f"1 to {_LONGEST_NAME} characters",
                    got=f"{len(info.name)} characters",
                )
            if 0 in info.shape:
                raise UnsupportedError(f"{side} {name!r} holds no element", got=str(info.shape))
            if len(info.shape) > _MOST_AXES or any(len(str(size)) > _LONGEST_SYMBOL for size in info.shape):
                raise UnsupportedError(
                    f"{side} {name!r} has a shape that an artifact cannot hold",
                    expected=f"{_MOST_AXES} axes, symbols of {_LONGEST_SYMBOL} characters",
                )


def check_labels(labels: Sequence[str] | None, outputs: Sequence[TensorInfo]) -> None:
    """Raise InputError where a classifier has another number of classes than labels, or one is no name."""
    longest = max(labels or [], key=len, default="")
    if len(longest) > _LONGEST_LABEL:
        raise InputError(
            f"the labels do not look like class names: one has {len(longest)} characters",
            expected=f"at most {_LONGEST_LABEL}",
            got=f"{longest[:40]}...",
        )
    if labels is None or len(outputs) != 1 or len(outputs[0].shape) != 2:
        return
    classes = outputs[0].shape[1]
    if isinstance(classes, int) and classes != len(labels):
        raise InputError(
            f"the labels do not fit the model: output {outputs[0].name!r} has {classes} classes",
            expected=f"{classes} names, one a line",
            got=f"{len(labels)} names",
        )


def check_memory(inputs: Sequence[TensorInfo]) -> None:
    """Raise InputError where one sample alone is larger than this machine's memory. Symbols count as 1."""
    total = sum(
        math.prod(size for size in info.shape if isinstance(size, int)) * np.dtype(info.dtype).itemsize
        for info in inputs
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > memory:
        raise InputError(
            "one sample of the model's inputs is larger than the memory of this machine",
            expected=f"at most {memory >> 20} MiB",
            got=f"{total >> 20} MiB: " + ", ".join(str(info) for info in inputs),
            hint="state smaller sizes with --shape",
        )
