"""Whether a model is valid ONNX by onnx's own checker, and writing a model in an older operator set."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from edgefuse.errors import InternalError
from edgefuse.graph.schemas import ir_version_for

__all__ = ["check_model", "set_opset"]

_LARGE_BYTES = 2**31 - 1


def check_model(model: ir.Model) -> None:
    """Raise InternalError where onnx's checker or its strict shape inference refuses the model.

    The operator set is the model's own, so a node that the set does not have is found. Meant for models that
    edgefuse wrote: a fault is our bug. Weights above 1 KiB are set aside; the checker needs none of them.
    """
    shallow, kept = model.clone(), []
    for name, value in list(shallow.graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > 1024:
            value.shape = ir.Shape(value.const_value.numpy().shape)
            shallow.graph.initializers.pop(name)
            shallow.graph.inputs.append(value)
            kept.append(name)
    proto = ir.serde.serialize_model(shallow)
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
    ) as error:
        raise InternalError(f"the model that was written is not valid ONNX: {error}") from error


def set_opset(model: ir.Model, version: int) -> None:
    """State operator set `version` and the IR version of its time, in place; nodes must be written in it."""
    model.graph.opset_imports[""] = version
    model.ir_version = ir_version_for(version)
    for graph in model.graphs():
        for node in graph:
            node.version = None
