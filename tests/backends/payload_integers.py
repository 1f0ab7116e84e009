"""The integers of a payload, read back out of its files by a reader that shares no code with the backends."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from edgefuse.backend import Lowered

__all__ = ["DECODERS", "Integers"]

_DTYPES = {"i8": np.int8, "u8": np.uint8, "f32": np.float32, "i32": np.int32, "i64": np.int64}


@dataclass(frozen=True)
class Integers:
    """weights: (int8 array, scale that broadcasts over it).  grids: (lowest, highest number, levels)."""

    weights: list[tuple[np.ndarray, np.ndarray]]
    grids: list[tuple[float, float, int]]


class _Ir:
    """OpenVINO IR: layers, and which port reads which."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        root = ElementTree.fromstring(files["model.xml"].decode())
        self.data = files["model.bin"]
        self.layers = {layer.attrib["id"]: layer for layer in root.iter("layer")}
        self.edges = {
            (edge.attrib["to-layer"], int(edge.attrib["to-port"])): edge.attrib["from-layer"]
            for edge in root.iter("edge")
        }

    def array(self, layer: ElementTree.Element) -> np.ndarray:
        """Return what a constant holds, also one that is reshaped first."""
        if layer.attrib["type"] == "Reshape":
            shape = self.array(self.source(layer, 1))
            return self.array(self.source(layer, 0)).reshape(shape)
        held = layer.find("data")
        assert held is not None
        start, size = int(held.attrib["offset"]), int(held.attrib["size"])
        shape = [int(d) for d in held.attrib["shape"].split(",") if d.strip()]
        dtype = _DTYPES[held.attrib["element_type"]]
        return np.frombuffer(self.data[start : start + size], dtype).reshape(shape)

    def source(self, layer: ElementTree.Element, port: int) -> ElementTree.Element:
        return self.layers[self.edges[layer.attrib["id"], port]]

    def readers(self, layer: ElementTree.Element) -> Iterator[ElementTree.Element]:
        return (self.layers[to] for (to, _), source in self.edges.items() if source == layer.attrib["id"])

    def of_type(self, kind: str) -> Iterator[ElementTree.Element]:
        return (layer for layer in self.layers.values() if layer.attrib["type"] == kind)


def _openvino(lowered: Lowered) -> Integers:
    ir = _Ir(lowered.files)
    weights = []
    for layer in ir.of_type("Const"):
        held = layer.find("data")
        if held is None or held.attrib["element_type"] != "i8":
            continue
        for convert in ir.readers(layer):
            assert convert.attrib["type"] == "Convert"
            for scaled in ir.readers(convert):
                assert scaled.attrib["type"] == "Multiply", "a weight has zero point 0"
                weights.append((ir.array(layer), ir.array(ir.source(scaled, 1))))
    grids = []
    for layer in ir.of_type("FakeQuantize"):
        held = layer.find("data")
        assert held is not None
        ends = [float(ir.array(ir.source(layer, port)).reshape(())) for port in (1, 2, 3, 4)]
        assert ends[:2] == ends[2:]
        grids.append((ends[0], ends[1], int(held.attrib["levels"])))
    return Integers(weights, grids)


def _example(lowered: Lowered) -> Integers:
    graph = onnx.load_model_from_string(lowered.files["model.onnx"]).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    readers = {name: node for node in graph.node for name in node.input}
    weights, grids = [], []
    for node in graph.node:
        if node.op_type not in ("ConvInteger", "MatMulInteger"):
            continue
        rounded = producers[node.input[0]]
        assert rounded.op_type == "QuantizeLinear"
        scale, zero = (constants[name] for name in rounded.input[1:])
        assert np.array_equal(constants[node.input[2]], zero)
        grids.append((float((0 - int(zero)) * scale), float((255 - int(zero)) * scale), 256))
        scaled = readers[readers[node.output[0]].output[0]]
        values = constants[node.input[1]]
        factor = constants[scaled.input[1]].reshape(-1) / scale
        shape = (-1, *[1] * (values.ndim - 1)) if node.op_type == "ConvInteger" else (-1,)
        weights.append((values, factor.reshape(shape)))
    return Integers(weights, grids)


# A family with int8 and a backend has a line here: its payload is decoded, whatever the format.
DECODERS: dict[str, Callable[[Lowered], Integers]] = {"openvino": _openvino, "_example": _example}
