"""The example family: the payload is the planned model itself, for ONNX Runtime with its optimiser off.

Every node runs as one kernel, so only groups of one node are legal. int8 is written in ONNX's own integer
operators: what a planned Conv or MatMul reads is rounded (QuantizeLinear), multiplied in integers
(ConvInteger, MatMulInteger: u8 by s8 into int32) and scaled back to float (Cast, Mul).
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import Any

import numpy as np

from edgefuse.backend import YES, Backend, Candidate, GroupReadback, Kernel, Lowered, Probe, Readback, Verdict
from edgefuse.device import Target
from edgefuse.errors import InternalError
from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    clone_model,
    constant,
    input_value,
    model_to_bytes,
    replace_node,
)
from edgefuse.lowering import apply_biases, lower_model
from edgefuse.plans import Format, Group, Plan, Precision
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight

__all__ = ["FamilyBackend"]

_INTEGER = {"Conv": "ConvInteger", "MatMul": "MatMulInteger"}


class FamilyBackend(Backend):
    """ONNX Runtime on the CPU, one kernel a node."""

    family = "_example"

    def probe(self) -> Probe:
        """Return the installed ONNX Runtime, without importing it."""
        if importlib.util.find_spec("onnxruntime") is None:
            return Probe(False, install="pip install 'edgefuse[build]'")
        return Probe(True, version=metadata.version("onnxruntime"), detail="CPU, optimiser off")

    def _prepare(self, model: Model, target: Target) -> Model:
        return lower_model(model, opset=int(target.runtime.opset))[0]

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        if len(candidate.nodes) > 1:
            return Verdict(False, "the optimiser is off: each node is a kernel of its own")
        if precision == "fp16" or output.dtype != "float32":
            return Verdict(False, "the example computes in fp32 and int8, and writes float32")
        if precision == "int8":
            return _int8(candidate.anchor)
        return YES

    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        payload = clone_model(model)
        planned = {name for group in plan.groups if group.precision == "int8" for name in group.nodes}
        # Names first: writing one node renames what the next one reads.
        reads = [(node, node.inputs[0].name or "") for node in payload.graph if node.name in planned]  # type: ignore[union-attr]
        apply_biases(payload, quantized.biases)
        for node, read in reads:
            _write_integers(node, quantized.activations[read], quantized.weights[(node.name or "", 1)])
        requires = {"onnxruntime": target.runtime.requirements[0]}
        return Lowered({"model.onnx": model_to_bytes(payload)}, entry="model.onnx", requires=requires)

    def _readback(self, engine: Any, plan: Plan) -> Readback:
        rows: list[tuple[str, str, float]] = getattr(engine, "kernels", list)()
        if not rows:
            raise InternalError("readback needs an engine opened with profile=True that has run once")
        kernels = tuple(
            Kernel(name, kind, (name,), "int8" if kind in _INTEGER.values() else "fp32", ms=ms)
            for name, kind, ms in rows
        )
        found = {kernel.name: kernel for kernel in kernels}
        return Readback(kernels, tuple(_confirm(group, found) for group in plan.groups))


def _int8(node: Node) -> Verdict:
    if node.op_type not in _INTEGER:
        return Verdict(False, f"ONNX has no integer form of {node.op_type}")
    if constant(node.inputs[0]) is not None or constant(input_value(node, 1)) is None:
        return Verdict(False, "int8 needs a computed input and constant weights")
    if node.op_type == "MatMul" and constant(node.inputs[1]).ndim != 2:  # type: ignore[union-attr]
        return Verdict(False, "int8 needs a weight of rank 2, whose last axis is the output")
    if any(value.dtype != DataType.FLOAT for value in node.inputs if value is not None):
        return Verdict(False, "the integer form is scaled back to float32 only")
    return YES


def _write_integers(node: Node, read: QuantizedActivation, weight: QuantizedWeight) -> None:
    """Replace a Conv or MatMul by its integer form; the integers and scales are the ones given."""
    graph, name = node.graph, node.name or ""
    assert graph is not None
    # One factor and one bias an output channel: axis 1 of a convolution's result, the last of a product's.
    per_channel = (-1, *[1] * (weight.values.ndim - 2)) if node.op_type == "Conv" else (-1,)
    factor = (np.float32(read.scale) * weight.scale.astype(np.float32)).reshape(per_channel)
    scale = add_constant(graph, np.array(read.scale, np.float32), f"{name}_x_scale")
    zero = add_constant(graph, np.array(read.zero_point, np.uint8), f"{name}_x_zero")
    values = add_constant(graph, weight.values, f"{name}_w")
    factors = add_constant(graph, factor, f"{name}_factor")

    def step(operator: str, inputs: list[Value | None], attributes: dict[str, Any] | None = None) -> Node:
        stem = f"{name}_{operator.lower()}"
        return add_node(node, operator, inputs, attributes, stem=stem, sources=[node])

    rounded = step("QuantizeLinear", [node.inputs[0], scale, zero])
    own = {key: attribute(node, key) for key in node.attributes}
    product = step(_INTEGER[node.op_type], [rounded.outputs[0], values, zero], own)
    real = step("Cast", [product.outputs[0]], {"to": int(DataType.FLOAT)})
    result = step("Mul", [real.outputs[0], factors])
    bias = input_value(node, 2)
    if bias is not None:
        shape = add_constant(graph, np.array(per_channel, np.int64), f"{name}_b_shape")
        result = step("Add", [result.outputs[0], step("Reshape", [bias, shape]).outputs[0]])
    result.outputs[0].type, result.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
    replace_node(node, result.outputs)
    product.name = name  # readback finds the group by it


def _confirm(group: Group, found: dict[str, Kernel]) -> GroupReadback:
    kernel = found.get(group.nodes[0])
    if kernel is None:
        return GroupReadback(group.id, False, "", "", None, "ONNX Runtime reports no kernel of this name")
    why = ""
    if len(group.nodes) > 1:
        why = "one kernel a node: the optimiser is off"
    elif kernel.precision != group.precision:
        why = f"planned {group.precision}, ran {kernel.precision}"
    return GroupReadback(group.id, not why, kernel.name, kernel.precision, kernel.ms, why)
