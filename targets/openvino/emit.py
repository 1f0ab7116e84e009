"""A plan written as OpenVINO IR.

The canonical graph goes through OpenVINO's own ONNX reader. What int8 needs is put into the graph before:

* an activation that an int8 group reads: FakeQuantize with 256 levels over [low, high], zero exact. One for a
  tensor, shared by all its int8 readers; float readers keep the float tensor.
* a weight: int8 constants, Convert, Multiply by the scale per output channel. Weights of 7 bits are integers
  of at most 63; as ranges they are the doubled range at 255 levels of which only the middle is used.

Encodings that fall to fp32 without a word (measured): activation ranges per channel, weights of 127 or 128
levels, a grid without zero, only one of the two quantized. None of them is written here.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.errors import InternalError, ToolMissingError, UnsupportedError
from edgefuse.graph import (
    DataType,
    Model,
    Node,
    TensorType,
    Value,
    add_constant,
    add_node,
    clone_model,
    constant,
    dims,
    is_float,
    model_to_bytes,
    source_name,
    static_shape,
)
from edgefuse.lowering import apply_biases
from edgefuse.plans import Plan
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight
from edgefuse.targets.openvino.engine import import_openvino

__all__ = ["FAKE_QUANTIZE_SUFFIX", "quantized_graph", "write_ir"]

FAKE_QUANTIZE_SUFFIX = "/fq"
_DOMAIN = "org.openvinotoolkit"
# What OpenVINO names by a counter that runs on through the process: "Convert_20", "Constant_3680".
_COUNTED = re.compile(r".*_\d+")


def quantized_graph(model: Model, plan: Plan, quantized: Quantized) -> Model:
    """Return a copy of `model` in which the plan's int8 groups read quantized tensors."""
    copy = clone_model(model)
    nodes = {node.name: node for node in copy.graph}
    shared: dict[int, Value] = {}
    for group in plan.groups:
        if group.precision != "int8":
            continue
        inside = {id(v) for name in group.nodes for v in nodes[name].outputs}
        for name in group.nodes:
            _quantize_inputs(nodes[name], inside, quantized, shared)
    apply_biases(copy, quantized.biases)
    if shared:
        copy.graph.opset_imports[_DOMAIN] = 1
    return copy


def _quantize_inputs(node: Node, inside: set[int], quantized: Quantized, shared: dict[int, Value]) -> None:
    for index, value in enumerate(node.inputs):
        if value is None or id(value) in inside or not is_float(value):
            continue
        weight = quantized.weights.get((node.name or "", index))
        if weight is not None:
            node.replace_input_with(index, _weight(node, value, weight))
        elif constant(value) is None:
            parameters = quantized.activations.get(value.name or "")
            if parameters is None:
                raise InternalError(f"node {node.name!r} is planned in int8 and {value.name!r} has no range")
            if id(value) not in shared:
                shared[id(value)] = _fake_quantize(node, value, parameters)
            node.replace_input_with(index, shared[id(value)])


def _fake_quantize(before: Node, value: Value, parameters: QuantizedActivation) -> Value:
    graph = before.graph
    assert graph is not None
    levels = parameters.high - parameters.low + 1
    low = np.float32((parameters.low - parameters.zero_point) * parameters.scale)
    high = np.float32((parameters.high - parameters.zero_point) * parameters.scale)
    limits = [
        add_constant(graph, np.array(x, np.float32), f"{value.name}_{n}")
        for n, x in (("low", low), ("high", high))
    ]
    producer = value.producer()
    anchor = before if producer is None else _first_after(producer, before)
    wide = _cast(anchor, value, DataType.FLOAT)
    made = add_node(
        anchor,
        "FakeQuantize",
        [wide, *limits, *limits],
        {"levels": levels},
        like=wide,
        stem=f"{value.name}{FAKE_QUANTIZE_SUFFIX}",
        domain=_DOMAIN,
        sources=[before],
    )
    return _cast(anchor, made.outputs[0], value.dtype)


def _cast(before: Node, value: Value, dtype: DataType | None) -> Value:
    """Return `value` in `dtype`: ranges and scales are float32, and a float16 model reads float16."""
    if dtype is None or value.dtype in (None, dtype):
        return value
    made = add_node(before, "Cast", [value], {"to": int(dtype)}, like=value, stem=f"{value.name}_cast")
    made.outputs[0].type = TensorType(dtype)
    return made.outputs[0]


def _first_after(producer: Node, reader: Node) -> Node:
    """Return the node right behind the producer, so that every reader of the shared tensor comes later."""
    graph = producer.graph
    assert graph is not None
    following = False
    for node in graph:
        if following:
            return node
        following = node is producer
    return reader


def _weight(node: Node, value: Value, weight: QuantizedWeight) -> Value:
    graph = node.graph
    assert graph is not None
    stem = f"{value.name}_int8"
    scale = weight.scale.astype(np.float32)
    if weight.axis is None:
        scale = scale.reshape(())
    inputs = [add_constant(graph, weight.values, stem), add_constant(graph, scale, f"{stem}_scale")]
    attributes = {} if weight.axis is None else {"axis": weight.axis}
    made = add_node(
        node, "DequantizeLinear", inputs, attributes, like=value, stem=f"{stem}_dq", sources=[node]
    )
    made.outputs[0].type = TensorType(DataType.FLOAT)
    return _cast(node, made.outputs[0], value.dtype)


def write_ir(model: Model) -> tuple[bytes, bytes]:
    """Return (xml, bin) of the graph as OpenVINO IR; the same graph gives the same bytes.

    Raises ToolMissingError without OpenVINO, UnsupportedError naming the operators that its reader refuses.
    """
    try:
        openvino = import_openvino()
    except ImportError as error:
        raise ToolMissingError(
            "writing the payload needs OpenVINO, which is not installed",
            hint="pip install 'edgefuse[openvino]'",
        ) from error
    try:
        network = openvino.Core().read_model(model_to_bytes(model))
    except RuntimeError as error:
        raise UnsupportedError(
            "OpenVINO cannot read the model: " + _refused_operators(str(error)),
            hint="another target, or replace the operator before export",
        ) from error
    _name_inputs(network, model)
    _check_shapes(network, model)
    _name_by_position(network)
    with tempfile.TemporaryDirectory(prefix="edgefuse-") as folder:
        path = Path(folder) / "model.xml"
        openvino.save_model(network, str(path), compress_to_fp16=False)
        return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def _refused_operators(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "failed" in line.lower() or "unsupported" in line.lower()]
    return " ".join((told or lines)[-2:])[:400]


# What these read of the input is its type or its sizes (and nothing at all: a ratio matters in training).
_NOT_THE_NUMBERS = {("CastLike", 1), ("Dropout", 1), ("Shape", 0), ("Size", 0)}


def _name_inputs(network: Any, model: Model) -> None:
    """Give every input of the network its user's name back where the reader lost it.

    The reader leaves out inputs that it does not need, and keeps the order of the rest. Raises
    UnsupportedError where it left out one that decides the result.
    """
    names = [value.name or "" for value in model.graph.inputs]
    held = [set(port.get_names()) & set(names) for port in network.inputs]
    found = {name for known in held for name in known}
    nameless = [port for port, known in zip(network.inputs, held, strict=True) if not known]
    lost = [v for v in model.graph.inputs if v.name not in found and (v.uses() or v.is_graph_output())]
    if len(nameless) < len(lost):
        lost = [value for value in lost if _decides(value)]
    if len(nameless) < len(lost):
        value = lost[0]
        reader = next(use.node for use in value.uses())
        raise UnsupportedError(
            f"OpenVINO cannot read the model: its reader ignores the input {value.name!r} of node "
            f"{source_name(reader)!r} ({reader.op_type})",
            hint="make it a constant before export, or take another target",
        )
    for port, value in zip(nameless, lost, strict=False):
        port.get_tensor().add_names({value.name})


def _decides(value: Value) -> bool:
    """Return whether the numbers in an input matter: it is not empty, and read for more than its shape."""
    if 0 in (dims(value) or ()):
        return False
    return any((use.node.op_type, use.idx) not in _NOT_THE_NUMBERS for use in value.uses())


def _check_shapes(network: Any, model: Model) -> None:
    """Raise UnsupportedError where the reader makes another shape of an output than the model says."""
    by_name = {name: port for port in network.outputs for name in port.get_names()}
    for value in model.graph.outputs:
        wanted, port = static_shape(value), by_name.get(value.name or "")
        if wanted is None or port is None or not port.get_partial_shape().is_static:
            continue
        got = tuple(port.get_shape())
        if got != wanted:
            raise UnsupportedError(
                f"OpenVINO reads the model as another one: the shape of its output {value.name!r}",
                expected="x".join(map(str, wanted)),
                got="x".join(map(str, got)),
                hint="another target, or another form of the operator that writes it",
            )


def _name_by_position(network: Any) -> None:
    """Replace the reader's counted names by positions, so that a second build writes the same file."""
    taken = {op.get_friendly_name() for op in network.get_ordered_ops()}
    for position, op in enumerate(network.get_ordered_ops()):
        if _COUNTED.fullmatch(op.get_friendly_name()) and not any(out.get_names() for out in op.outputs()):
            name = f"{op.get_type_name()}.{position}"
            while name in taken:
                name += "."
            taken.add(name)
            op.set_friendly_name(name)
