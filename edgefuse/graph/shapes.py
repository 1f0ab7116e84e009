"""Shape inference with symbolic dimensions kept, and binding of dimensions to numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.graph.access import all_nodes

__all__ = ["bind_dimensions", "infer_shapes"]


def infer_shapes(model: ir.Model) -> None:
    """Fill in dtype and shape of every value that onnx can infer, in place; the user's symbols are kept.

    What cannot be inferred (the output of a custom operator) keeps the shape that it has; `bind_dimensions`
    drops stale shapes first.
    """
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    level = logger.level
    logger.setLevel(logging.ERROR)  # a model that onnx cannot infer is reported by who needs the shape
    infer = onnx_ir.passes.common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    try:
        infer(model)
        while _fill_in(model):
            infer(model)
    finally:
        logger.setLevel(level)


# Operators of one output of the input's shape for which onnx (1.23) has no inference of its own.
_SAME_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})


def _fill_in(model: ir.Model) -> bool:
    """Give what onnx leaves without a shape the shape of its input; return whether anything was new."""
    found = False
    for node in all_nodes(model):
        source = node.inputs[0] if node.inputs else None
        if node.op_type in _SAME_SHAPE and source is not None and source.shape is not None:
            target = node.outputs[0]
            if target.shape is None:
                target.shape = source.shape.copy()
                target.type = target.type or source.type
                found = True
    return found


def bind_dimensions(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give graph inputs the shapes in `shapes` (by input name), in place, and infer the rest anew.

    A symbol bound by one input is bound wherever it stands. Raises UsageError for an unknown input, a wrong
    rank, or a number that contradicts the model.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    symbols: dict[str, int] = {}
    for name, wanted in shapes.items():
        value = inputs.get(name)
        if value is None:
            raise UsageError(
                f"the model has no input {name!r}{did_you_mean(name, list(inputs))}",
                expected="one of " + ", ".join(inputs),
            )
        _check_against(value, wanted, symbols)
    for value in inputs.values():
        if value.shape is not None:
            explicit = shapes.get(value.name or "")
            value.shape = ir.Shape(
                explicit
                if explicit is not None
                else [
                    symbols.get(str(d.value), d) if isinstance(d, ir.SymbolicDim) else d for d in value.shape
                ]
            )
        elif (value.name or "") in shapes:
            value.shape = ir.Shape(shapes[value.name or ""])
    forget_inner_shapes(model)
    infer_shapes(model)


def _check_against(value: ir.Value, wanted: Sequence[int], symbols: dict[str, int]) -> None:
    if value.shape is None:
        return
    if len(value.shape) != len(wanted):
        raise UsageError(
            f"input {value.name!r} has {len(value.shape)} dimensions",
            expected=str(value.shape),
            got="x".join(map(str, wanted)),
        )
    for have, want in zip(value.shape, wanted, strict=True):
        if want < 1:
            raise UsageError(f"input {value.name!r}: a dimension must be at least 1", got=str(want))
        symbol = None if isinstance(have, int) else have.value
        if isinstance(have, int):
            if have != want:
                raise UsageError(
                    f"input {value.name!r} has a fixed shape",
                    expected=str(value.shape),
                    got=str(list(wanted)),
                )
        elif symbol is not None and symbols.setdefault(str(symbol), want) != want:
            raise UsageError(
                f"dimension {symbol} of input {value.name!r} is bound to two numbers",
                expected=str(symbols[str(symbol)]),
                got=str(want),
            )


def forget_inner_shapes(model: ir.Model) -> None:
    """Drop the shapes of all values that nodes write, except where a custom operator writes them."""
    outputs = set(model.graph.outputs)
    for graph in model.graphs():
        for node in graph:
            if node.domain not in ("", "ai.onnx"):
                continue
            for value in node.outputs:
                if value not in outputs or value.shape is None:
                    value.shape = None
                else:  # rank stays known for outputs; numbers come back by inference
                    value.shape = ir.Shape([None] * len(value.shape))


def require_static(model: ir.Model, why: str) -> None:
    """Raise InputError naming the inputs whose shape is not all numbers; `why` ends the first line."""
    loose = [v for v in model.graph.inputs if v.shape is None or not v.shape.is_static()]
    if loose:
        listed = ", ".join(f"{v.name} {v.shape}" for v in loose)
        example = " ".join(f"--shape '{v.name}=1x3x224x224'" for v in loose[:1])
        raise InputError(
            f"the input shape of {listed} is not fixed, and {why}",
            hint=f"state it: {example}, or `shapes` in edgefuse.toml",
        )
