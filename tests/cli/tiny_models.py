"""Small ONNX files for the tests of the command line and of the composition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUT = (1, 3, 16, 16)
CLASSES = 5


def save(graph: onnx.GraphProto, path: Path, opset: int = 17) -> Path:
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(proto, path)
    return path


def conv_net(path: Path, seed: int = 0, channels: int = 16, batch: int | str = 1) -> Path:
    """Write a classifier: two Conv + Relu, a pool and a Gemm, with random weights."""
    random = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "conv2", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["d"], "relu2"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], "pool"),
        helper.make_node("Flatten", ["e"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3"], ["y"], "head", transB=1),
    ]
    weights = [
        weight("w1", channels, 3, 3, 3),
        weight("w2", channels, channels, 3, 3),
        weight("w3", CLASSES, channels),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (batch, *INPUT[1:]))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (batch, CLASSES))
    return save(helper.make_graph(nodes, "net", [x], [y], weights), path)


def one_node(
    path: Path,
    op_type: str,
    shape: Sequence[int | str] | None,
    *constants: np.ndarray,
    element: int = TensorProto.FLOAT,
    out: Sequence[int | str] | None = None,
    output: str = "y",
) -> Path:
    """Write a model of one node from `x` to `output`; `constants` are its further inputs."""
    held = [numpy_helper.from_array(np.asarray(array), f"k{i}") for i, array in enumerate(constants)]
    node = helper.make_node(op_type, ["x", *(t.name for t in held)], [output], "only")
    x = helper.make_tensor_value_info("x", element, shape)
    y = helper.make_tensor_value_info(output, element, shape if out is None else out)
    return save(helper.make_graph([node], "one", [x], [y], held), path)


def samples(count: int = 16, seed: int = 1) -> np.ndarray:
    """Return inputs for `conv_net`: float32 [count, 3, 16, 16], standard normal."""
    return np.random.default_rng(seed).standard_normal((count, *INPUT[1:])).astype(np.float32)
