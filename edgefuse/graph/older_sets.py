"""A model for an ONNX Runtime that is older than the canonical operator set.

Python 3.10 gets no ONNX Runtime newer than 1.23, which stops at operator set 23. What is new in the sets
after it (Swish) is written out by ONNX's own definition; every other operator means the same in both.
"""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir

from edgefuse.graph.access import all_nodes
from edgefuse.graph.schemas import expand_functions, operator_form

__all__ = ["for_installed_runtime", "newest_runtime_opset"]


@functools.cache
def newest_runtime_opset() -> int:
    """Return the newest default operator set that the installed ONNX Runtime loads (tried, newest first)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for version in range(onnx.defs.onnx_opset_version(), 6, -1):
        try:
            onnxruntime.InferenceSession(_smallest(version), options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: S112 - onnxruntime's errors share no base class; this one says: too new
            continue
        return version
    return 6


def for_installed_runtime(data: bytes) -> bytes:
    """Return `data` (a serialized model), rewritten where the installed runtime is older than its set."""
    proto = onnx.load_model_from_string(data)
    version = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=0)
    newest = newest_runtime_opset()
    if version <= newest:
        return data
    model = ir.serde.deserialize_model(proto)
    new = [n for n in all_nodes(model) if n.domain == "" and operator_form(n.op_type, newest) is None]
    expand_functions(model, new, version)
    model.graph.opset_imports[""] = newest
    return bytes(ir.serde.serialize_model(model).SerializeToString())


def _smallest(version: int) -> bytes:
    helper = onnx.helper
    shape = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", shape[:1], shape[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    return bytes(model.SerializeToString())
