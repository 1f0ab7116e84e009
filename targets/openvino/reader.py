"""The model in the forms that OpenVINO's ONNX reader gets right: reader.toml as limits, and rewrites."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph import (
    Model,
    Node,
    Value,
    all_nodes,
    attribute,
    clone_model,
    constant,
    infer_shapes,
    input_value,
    opset,
    remove_node,
    replace_value,
    source_name,
    static_shape,
)
from edgefuse.graph.schemas import expand_functions, has_function_body
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import steps
from edgefuse.lowering.reader import OperatorLimit, Reader, refusal

__all__ = ["readable"]

_WHOLE_NUMBER_ARITHMETIC = frozenset(
    ["Add", "Sub", "Mul", "Div", "Mod", "Pow", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
)
# With axes computed at run time OpenVINO knows no rank of the result, and its CPU plugin refuses that.
_AXES_DECIDE_THE_RANK = frozenset({"Squeeze", "Unsqueeze"})


@functools.cache
def _table() -> tuple[Mapping[str, OperatorLimit], Mapping[str, str]]:
    """Return (limits, reasons why an operator is never read rightly), both by operator."""
    rows: list[dict[str, Any]] = msgspec.toml.decode(Path(__file__).with_name("reader.toml").read_bytes())[
        "restriction"
    ]
    limits = {
        op_type: OperatorLimit(
            constant_inputs=tuple(row.get("constant_inputs", ())),
            attributes={name: tuple(values) for name, values in row.get("attributes", {}).items()},
            reason=row["reason"],
        )
        for row in rows
        for op_type in row["operators"]
    }
    return limits, {op: row["reason"] for row in rows if row.get("never") for op in row["operators"]}


def readable(model: Model) -> Model:
    """Return `model`, or a copy of it with the same float meaning that OpenVINO's reader gets right.

    Raises UnsupportedError naming the node that cannot be written in another way, with the reason.
    """
    _require_int32(model)
    reader = Reader(opset(model), None, _table()[0])
    if not any(_fault(node, reader) for node in all_nodes(model)):
        return model
    made = clone_model(model)
    bodies = []
    for node in list(all_nodes(made)):
        why = _fault(node, reader)
        if why and not _rewrite(made, node, reader):
            if not has_function_body(node.op_type, opset(made)):
                raise refusal(node, why)
            bodies.append(node)
    expand_functions(made, bodies, opset(made))
    infer_shapes(made)
    return made


def _require_int32(model: Model) -> None:
    """Raise UnsupportedError for arithmetic on a whole number that 32 bits do not hold.

    The CPU plugin computes whole numbers in 32 bits: 3 * 2^40 came out as 2^31 - 3, without a word. Ends of a
    Slice and the like may be as large as they please; they are cut off at the size.
    """
    for node in all_nodes(model):
        if node.op_type not in _WHOLE_NUMBER_ARITHMETIC or node.domain:
            continue
        for value in node.inputs:
            array = constant(value)
            if array is not None and array.dtype.kind in "iu" and array.size and _beyond_int32(array):
                raise UnsupportedError(
                    f"node {source_name(node)!r} ({node.op_type}) computes with whole numbers beyond 32 bits",
                    expected="whole numbers from -2^31 to 2^31 - 1: OpenVINO's CPU plugin computes in int32",
                    got=f"a constant of up to {int(np.abs(array.astype(object)).max())}",
                    hint="compute it in float, or outside of the model",
                )


def _beyond_int32(array: np.ndarray) -> bool:
    return int(array.max()) > 2**31 - 1 or int(array.min()) < -(2**31)


def _fault(node: Node, reader: Reader) -> str:
    """Return why the reader would get the node wrong, or ""."""
    if node.domain not in ("", "ai.onnx"):
        return ""
    limits, never = _table()
    if node.op_type in never:
        return never[node.op_type]
    if _rank_at_run_time(node):
        return "its axes are computed at run time, so that OpenVINO does not know the rank of its result"
    if node.op_type == "Attention" and _causal_mask_with_past(node):
        return "OpenVINO's reader places the causal mask wrongly beside a mask and past keys"
    limit = limits.get(node.op_type)
    return limit.fault(node) if limit is not None else ""


def _causal_mask_with_past(node: Node) -> bool:
    mask, past = input_value(node, 3), input_value(node, 4)
    return bool(attribute(node, "is_causal", 0)) and mask is not None and past is not None


def _rank_at_run_time(node: Node) -> bool:
    axes = input_value(node, 1)
    if axes is None or constant(axes) is not None or static_shape(node.outputs[0]) is None:
        return False
    return node.op_type in _AXES_DECIDE_THE_RANK or (
        node.op_type.startswith("Reduce") and not attribute(node, "keepdims", 1)
    )


def _rewrite(model: Model, node: Node, reader: Reader) -> bool:
    """Write the node in another way; False where that can only be its body in the ONNX standard, if any."""
    make = Builder(model, node, reader)
    if _rank_at_run_time(node):
        new: Sequence[Value | None] = [_static_rank(node, make)]
    elif node.op_type == "SpaceToDepth":
        new = [_space_to_depth_crd(node, make)]
    elif attribute(node, "layout", 0):
        new = steps()[node.op_type][-1].rewrite(node, make) or ()
    else:
        return False
    for old, value in zip(node.outputs, new, strict=True):
        if value is not None:
            replace_value(old, value)
    remove_node(node)
    return True


def _static_rank(node: Node, make: Builder) -> Value:
    """The shape is known without the axes: a Reshape to it, of a reduction after one that keeps the rank."""
    shape = make.integers(*make.sizes(node.outputs[0]))
    source = node.inputs[0]
    if node.op_type.startswith("Reduce"):
        kept = {name: attribute(node, name) for name in node.attributes} | {"keepdims": 1}
        source = make.op(node.op_type, *node.inputs, dtype=make.dtype(node.outputs[0]), **kept)
    return make.op("Reshape", source, shape, like=node.outputs[0])


def _space_to_depth_crd(node: Node, make: Builder) -> Value:
    """[N, C, H, W] -> [N, C, H/b, b, W/b, b] -> [N, C, b, b, H/b, W/b] -> [N, C b b, H/b, W/b]."""
    block = int(attribute(node, "blocksize"))
    n, c, h, w = make.sizes(node.inputs[0])
    rows, columns = h // block, w // block
    dtype = make.dtype(node.inputs[0])
    split = make.op("Reshape", node.inputs[0], make.integers(n, c, rows, block, columns, block), dtype=dtype)
    turned = make.op("Transpose", split, dtype=dtype, perm=[0, 1, 3, 5, 2, 4])
    return make.op("Reshape", turned, make.integers(n, c * block**2, rows, columns), like=node.outputs[0])
