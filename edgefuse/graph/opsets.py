"""Raising a model to the canonical operator set.

onnx's version converter does the work. It needs the graph but not the weights, so tensors above a kilobyte
are set aside while it runs: models of any size pass, and external data stays on disk.
"""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir as ir

from edgefuse.errors import InputError, UnsupportedError

__all__ = ["CANONICAL_OPSET", "OLDEST_OPSET", "newest_opset", "raise_opset"]

# The first set that has every operator that the recovery passes write: LayerNormalization (17), Gelu (20),
# RMSNormalization (23), Swish (24).
CANONICAL_OPSET = 24
OLDEST_OPSET = 7

# What a version adapter may have to read is far smaller (scales, axes, shapes).
_SET_ASIDE_BYTES = 1024


def newest_opset() -> int:
    """Return the newest version of the default operator set that the installed onnx knows."""
    return int(onnx.defs.onnx_opset_version())


def check_opset(version: int) -> None:
    """Raise InputError where the version is older or newer than what can be read."""
    if version < OLDEST_OPSET:
        raise InputError(
            f"the model uses operator set {version}",
            expected=f"operator set {OLDEST_OPSET} to {newest_opset()}",
            got=str(version),
            hint="export the model again with a newer opset (for PyTorch: opset_version=17)",
        )
    if version > newest_opset():
        raise InputError(
            f"the model uses operator set {version}, which onnx {onnx.__version__} does not know",
            expected=f"operator set {OLDEST_OPSET} to {newest_opset()}",
            got=str(version),
            hint="pip install --upgrade onnx, or export with an older opset",
        )


def raise_opset(model: ir.Model, version: int = CANONICAL_OPSET) -> ir.Model:
    """Return the model in operator set `version`; a model that is newer is returned as it is.

    Weights are moved over, never copied. Raises UnsupportedError where an operator has no conversion.
    """
    current = int(model.graph.opset_imports.get("", 1))
    if current >= version:
        return model
    kept = {
        name: value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
        and (isinstance(value.const_value, ir.ExternalTensor) or value.const_value.nbytes > _SET_ASIDE_BYTES)
    }
    inputs = list(model.graph.inputs)
    for name, value in kept.items():
        if value.shape is None and value.const_value is not None:
            value.shape = ir.Shape(value.const_value.numpy().shape)
        model.graph.initializers.pop(name)
        model.graph.inputs.append(value)
    proto = ir.serde.serialize_model(model)
    proto.ir_version = max(proto.ir_version, 8)
    try:
        converted = onnx.version_converter.convert_version(proto, version)
    except Exception as error:  # the C++ converter raises RuntimeError, ConvertError and others
        raise UnsupportedError(
            f"raising the model from operator set {current} to {version} failed: {error}",
            hint="export the model again with a newer opset",
        ) from error
    result = ir.serde.deserialize_model(converted)
    result.metadata_props.update(model.metadata_props)
    result.graph.inputs[len(inputs) :] = []
    _restore(result, kept)
    return result


def _restore(result: ir.Model, kept: dict[str, ir.Value]) -> None:
    """Give the set-aside tensors back: what stands in the graph under their names reads them again."""
    for graph in result.graphs():
        for node in graph:
            for index, value in enumerate(node.inputs):
                source = kept.get(value.name or "") if value is not None else None
                if source is None or value is None:
                    continue
                held = result.graph.initializers.get(source.name or "")
                if held is None:
                    held = ir.Value(
                        name=source.name, type=source.type, shape=source.shape, const_value=source.const_value
                    )
                    result.graph.register_initializer(held)
                node.replace_input_with(index, held)
    for index, output in enumerate(result.graph.outputs):
        source = kept.get(output.name or "")
        if source is not None and output.producer() is None and output.const_value is None:
            held = result.graph.initializers.get(source.name or "")
            if held is None:
                held = ir.Value(
                    name=source.name, type=source.type, shape=source.shape, const_value=source.const_value
                )
                result.graph.register_initializer(held)
            result.graph.outputs[index] = held
