"""What the onnx wheel computes where we have no kernel: its reference operators and function bodies."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgefuse.errors import UnsupportedError
from edgefuse.graph.kernels.call import Call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgefuse.graph.kernels.call import Kernel

__all__ = ["LibraryOps"]

# Attributes that name the type of a computation; DOUBLE where floats are carried in float64.
_TYPE_ATTRIBUTES = ("output_datatype", "softmax_precision")
_DOUBLE = 11
# Their reference operators round to float32 inside whatever they are given; their function bodies only cast.
_ROUNDING_OPS = frozenset({"LinearAttention", "CausalConvWithState"})
_KNOWN_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


class LibraryOps:
    """Kernels and function bodies out of the onnx wheel, built once for each node."""

    def __init__(self, *, float64: bool) -> None:
        self._float64 = float64
        self._kernels: dict[tuple[ir.Node, int], Kernel] = {}
        self._bodies: dict[Any, ir.Function | None] = {}

    def kernel(self, node: ir.Node, domain: str, opset: int, attributes: Mapping[str, ir.Attr]) -> Kernel:
        """Return a kernel around the wheel's reference operator.

        Raises UnsupportedError naming the node, its operator and domain where the wheel has none.
        """
        fixed = not any(attribute.is_ref() for attribute in node.attributes.values())
        key = (node, opset)
        if fixed and key in self._kernels:
            return self._kernels[key]
        loaded = _load(node, domain, opset)
        instance = loaded(self._proto(node, domain, opset, attributes), _run_params(domain, opset))

        def run(call: Call) -> tuple[Any, ...]:
            inputs = list(call.inputs)
            while inputs and inputs[-1] is None:
                inputs.pop()
            return tuple(instance.run(*inputs))

        if fixed:
            self._kernels[key] = run
        return run

    def function_body(
        self,
        node: ir.Node,
        domain: str,
        opset: int,
        inputs: tuple[Any, ...],
        attributes: Mapping[str, ir.Attr],
    ) -> ir.Function | None:
        """Return the function body of an operator that the wheel defines by one and has no kernel for."""
        rounds = self._float64 and domain == "" and node.op_type in _ROUNDING_OPS
        if not rounds and domain == "" and _registered(node.op_type):
            return None
        types = tuple(v.dtype.name if isinstance(v, np.ndarray) else "" for v in inputs)
        key = (node, opset, types)
        if key not in self._bodies:
            self._bodies[key] = _function_body(node, domain, opset, inputs, attributes)
        return self._bodies[key]

    def _proto(self, node: ir.Node, domain: str, opset: int, attributes: Mapping[str, ir.Attr]) -> Any:
        import onnx

        proto = _proto(node, domain, attributes)
        if not self._float64:
            return proto
        try:
            known = onnx.defs.get_schema(node.op_type, opset, domain).attributes
        except onnx.defs.SchemaError:
            return proto
        for name in _TYPE_ATTRIBUTES:
            if name in known:
                kept = [attribute for attribute in proto.attribute if attribute.name != name]
                del proto.attribute[:]
                proto.attribute.extend([*kept, onnx.helper.make_attribute(name, _DOUBLE)])
        return proto


def _proto(node: ir.Node, domain: str, attributes: Mapping[str, ir.Attr]) -> Any:
    import onnx

    names = [f"i{index}" if value is not None else "" for index, value in enumerate(node.inputs)]
    outputs = [f"o{index}" for index in range(len(node.outputs))]
    proto = onnx.helper.make_node(node.op_type, names, outputs, name=node.name or "", domain=domain)
    proto.attribute.extend(ir.serde.serialize_attribute(attribute) for attribute in attributes.values())
    return proto


def _run_params(domain: str, opset: int) -> dict[str, Any]:
    return {"log": lambda *_: None, "opsets": {"": opset, domain: opset}, "verbose": 0, "new_ops": None}


def _registered(op_type: str) -> bool:
    return op_type in _registered_operators()


@lru_cache(maxsize=1)
def _registered_operators() -> frozenset[str]:
    from onnx.reference.ops import _op_list

    return frozenset(_op_list._build_registered_operators())


def _function_body(
    node: ir.Node, domain: str, opset: int, inputs: tuple[Any, ...], attributes: Mapping[str, ir.Attr]
) -> ir.Function | None:
    import onnx

    if domain not in _KNOWN_DOMAINS:
        return None
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        proto = schema.function_body
    elif schema.has_context_dependent_function:
        types = [
            onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for v in inputs
            if v is not None
        ]
        text = schema.get_context_dependent_function(
            _proto(node, domain, attributes).SerializeToString(), [t.SerializeToString() for t in types]
        )
        proto = onnx.FunctionProto.FromString(text)
    else:
        return None
    function = ir.serde.deserialize_function(proto)
    for name, declared in schema.attributes.items():
        # The body does not repeat the schema's defaults.
        if declared.default_value.type and (
            name not in function.attributes or function.attributes[name].value is None
        ):
            default: Any = ir.from_proto(declared.default_value)
            function.attributes[name] = ir.Attr(name, default.type, default.value)
    return function


def _load(node: ir.Node, domain: str, opset: int) -> Any:
    from onnx.reference import ops
    from onnx.reference.ops import aionnx_preview, aionnx_preview_training, aionnxml

    loaders = {
        "": ops.load_op,
        "ai.onnx.ml": aionnxml.load_op,
        "ai.onnx.preview": aionnx_preview.load_op,
        "ai.onnx.preview.training": aionnx_preview_training.load_op,
    }
    named = f"node '{node.name or '?'}' ({domain + '.' if domain else ''}{node.op_type})"
    if domain not in loaders:
        raise UnsupportedError(
            f"{named}: no kernel for operator '{node.op_type}' of domain '{domain}'",
            hint="export the model with plain ONNX operators, or give an extension that claims this domain",
        )
    try:
        return loaders[domain](domain, node.op_type, opset)
    except Exception as error:
        # The wheel raises errors of several classes for "there is none".
        raise UnsupportedError(
            f"{named}: no kernel for operator '{node.op_type}' at opset {opset}",
            hint="rewrite the node with other ONNX operators; `edgefuse inspect` lists where it stands",
        ) from error
