"""Models back to ONNX files."""

from __future__ import annotations

import os
from collections.abc import Callable

import onnx
import onnx_ir as ir

from edgefuse.errors import InputError

__all__ = ["model_to_bytes", "model_to_bytes_without", "model_to_proto", "write_model"]

# protobuf refuses messages of 2 GiB and more
_PROTOBUF_LIMIT = 2**31 - 1


def model_to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as a protobuf message (weights inside; raises InputError from 2 GiB on)."""
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if size >= _PROTOBUF_LIMIT:
        raise InputError(
            f"the model holds {size} bytes of weights, more than one protobuf message may",
            hint="write_model(..., external=True) puts the weights beside the file",
        )
    return ir.serde.serialize_model(model)


def model_to_bytes(model: ir.Model) -> bytes:
    """Return the model as the bytes of an ONNX file; the same model gives the same bytes."""
    data: bytes = model_to_proto(model).SerializeToString(deterministic=True)
    return data


def model_to_bytes_without(model: ir.Model, leave_out: Callable[[str, bytes], bool]) -> bytes:
    """Return the model as `model_to_bytes` does, without the data of some weights.

    leave_out: asked for the name and the little-endian bytes of each initializer of the main graph.
    `restore_model` takes the bytes of those again.
    """
    proto = model_to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.HasField("raw_data") and leave_out(tensor.name, tensor.raw_data):
            tensor.ClearField("raw_data")
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def write_model(model: ir.Model, path: str | os.PathLike[str], external: bool = False) -> None:
    """Write the model to `path`; with external=True its weights go to `PATH.data` beside it."""
    if external:
        ir.save(model, path, external_data=os.path.basename(os.fspath(path)) + ".data")
        return
    with open(path, "wb") as file:
        file.write(model_to_bytes(model))
