"""The judges' tools: ONNX Runtime with its optimiser off, and two measures of how far two arrays are apart.

`edgefuse.graph.reference` offers all of them beside the executor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph.kernels.call import Array
from edgefuse.graph.older_sets import for_installed_runtime, newest_runtime_opset
from edgefuse.graph.opsets import CANONICAL_OPSET

if TYPE_CHECKING:
    import onnx
    import onnxruntime

__all__ = ["judge_session", "max_relative_error", "signal_to_noise_db"]

# Input of the right-hand matrix and of its zero point.
_INTEGER_PRODUCTS = {"MatMulInteger": (1, 3), "QLinearMatMul": (3, 5)}
_INT8 = 3
_SHIFT = 128


def judge_session(model: bytes | str | os.PathLike[str], threads: int = 1) -> onnxruntime.InferenceSession:
    """Return an ONNX Runtime session that is fit to judge: CPU, optimiser off, deterministic, quiet.

    model: serialized ModelProto or a path (needed for external data).

    A default session is no judge. On CPUs without VNNI its fused u8s8 kernels add pairs of products in
    saturating int16: of 47 int8 models 32 (s8s8) to 36 (u8s8) lost at least 5 dB against exact simulation of
    their Q/DQ nodes, the worst 52.6 dB to 0.1 dB; and its optimiser merges a Relu into a quantized node that
    is a graph output too. With ORT_DISABLE_ALL all 47 agree within 1 dB (1.32.0, AVX2, 2026-11).

    That leaves MatMulInteger and QLinearMatMul of uint8 with int8, which saturate too (255 * -128 summed 32
    times: half of the exact value). session.x64quantprecision=1 is set, but it works through an optimiser
    pass and only on constant weights, so their int8 operand is shifted to uint8 here, which changes no result
    and takes the exact kernel. ConvInteger and QLinearConv are exact as they are.
    Raises UnsupportedError where the type of such an operand cannot be known: `Reference` judges that model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    source = _without_saturation(model)
    if isinstance(source, bytes) and newest_runtime_opset() < CANONICAL_OPSET:
        source = for_installed_runtime(source)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _without_saturation(model: bytes | str | os.PathLike[str]) -> bytes | str:
    """Return the model itself, or one whose integer products take ONNX Runtime's exact kernel."""
    import onnx
    from onnx import inliner

    if isinstance(model, bytes):
        if not any(name.encode() in model for name in _INTEGER_PRODUCTS):
            return model
        proto = onnx.load_model_from_string(model)
    else:
        path = os.fspath(model)
        proto = onnx.load(path, load_external_data=False)
        if not _holds_products(proto):
            return path
        proto = onnx.load(path)
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    types = _element_types(proto)
    for number, graph in enumerate(_graphs(proto.graph)):
        _shift_products(graph, types, f"__judge_{number}")
    return bytes(proto.SerializeToString())


def _holds_products(proto: onnx.ModelProto) -> bool:
    nodes = [node for graph in _graphs(proto.graph) for node in graph.node]
    nodes += [node for function in proto.functions for node in function.node]
    return any(node.op_type in _INTEGER_PRODUCTS for node in nodes)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Return name -> TensorProto element type of what is known in the main graph and its subgraphs."""
    import onnx

    types: dict[str, int] = {}
    for graph in _graphs(onnx.shape_inference.infer_shapes(proto).graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            types[value.name] = value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            types[tensor.name] = tensor.data_type
    return types


def _shift_products(graph: onnx.GraphProto, types: dict[str, int], prefix: str) -> None:
    from onnx import helper

    nodes: list[Any] = []
    for index, node in enumerate(graph.node):
        if node.op_type in _INTEGER_PRODUCTS and node.domain in ("", "ai.onnx"):
            place, zero_place = _INTEGER_PRODUCTS[node.op_type]
            kind = types.get(node.input[place], 0)
            if kind == 0:
                raise UnsupportedError(
                    f"node '{node.name}' ({node.op_type}): the type of input {place} is not known, and ONNX "
                    "Runtime saturates int8 there",
                    hint="judge this model by edgefuse.graph.reference.Reference, which is exact",
                )
            if kind == _INT8:
                name = f"{prefix}_{index}"
                nodes += _shifted(node, place, name + "_b")
                if zero_place < len(node.input) and node.input[zero_place]:
                    nodes += _shifted(node, zero_place, name + "_z")
                else:
                    while len(node.input) <= zero_place:
                        node.input.append("")
                    node.input[zero_place] = name + "_z"
                    value = helper.make_tensor(name + "_v", 2, [], [_SHIFT])
                    nodes.append(helper.make_node("Constant", [], [name + "_z"], value=value))
        nodes.append(node)
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _shifted(node: onnx.NodeProto, place: int, name: str) -> list[onnx.NodeProto]:
    """Return nodes that compute input `place` + 128 as uint8, and let the node read that."""
    from onnx import TensorProto, helper

    shift = helper.make_tensor(name + "_v", TensorProto.INT32, [], [_SHIFT])
    source, node.input[place] = node.input[place], name
    return [
        helper.make_node("Cast", [source], [name + "_w"], to=TensorProto.INT32),
        helper.make_node("Constant", [], [name + "_s"], value=shift),
        helper.make_node("Add", [name + "_w", name + "_s"], [name + "_a"]),
        helper.make_node("Cast", [name + "_a"], [name], to=TensorProto.UINT8),
    ]


def max_relative_error(result: Array, reference: Array) -> float:
    """Return max|result - reference| / max|reference| of two arrays of one shape, computed in float64.

    0.0 for two empty or two equal arrays; inf where the shapes differ, where NaN or infinities do not
    stand at the same places with the same sign, or where the reference is all zero and the result is not.
    """
    result, reference = np.asarray(result), np.asarray(reference)
    if result.shape != reference.shape:
        return float("inf")
    if result.dtype.kind in "OUS" or reference.dtype.kind in "OUS":
        return 0.0 if bool(np.all(result == reference)) else float("inf")
    ours, theirs = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(theirs)
    if (
        not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True)
        or not np.isfinite(ours[finite]).all()
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    error = float(np.abs(ours[finite] - theirs[finite]).max())
    scale = float(np.abs(theirs[finite]).max())
    if error == 0.0:
        return 0.0
    return error / scale if scale > 0.0 else float("inf")


def signal_to_noise_db(result: Array, reference: Array) -> float:
    """Return 10 log10(sum reference^2 / sum (result - reference)^2) in dB, computed in float64.

    inf where they are equal; -inf where shapes differ, the result is not finite, or the reference is all zero
    and the result is not.
    """
    ours, theirs = np.asarray(result).astype(np.float64), np.asarray(reference).astype(np.float64)
    if ours.shape != theirs.shape or not np.isfinite(ours).all():
        return float("-inf")
    noise = float(np.square(ours - theirs).sum())
    signal = float(np.square(theirs).sum())
    if noise == 0.0:
        return float("inf")
    return 10.0 * float(np.log10(signal / noise)) if signal > 0.0 else float("-inf")
