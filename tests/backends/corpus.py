"""Small models that every family is tried on: the shapes of real networks, and what trips runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["CORPUS", "Net", "feeds_of", "model_of"]

F32, F16, U8, I64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.UINT8,
    TensorProto.INT64,
    TensorProto.BOOL,
)


class Net:
    """One graph as it is written down; constants are seeded, so that a name always means the same model."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def x(self, *shape: int | str, name: str = "x", kind: int = F32) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def y(self, *names: str, kind: int = F32) -> None:
        self.outputs += [helper.make_tensor_value_info(name, kind, None) for name in names]

    def w(self, *shape: int, scale: float = 0.3, dtype: Any = np.float32) -> str:
        return self.const(self.rng.normal(0, scale, shape).astype(dtype))

    def const(self, array: Any, dtype: Any = None) -> str:
        name = f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.const(numbers, np.int64)

    def op(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        result = out or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [result], name=f"n{len(self.nodes)}", **attributes))
        return result

    def many(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        results = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, results, name=f"n{len(self.nodes)}", **attributes))
        return results

    def conv(self, x: str, c_in: int, c_out: int, k: int = 3, groups: int = 1, **attributes: Any) -> str:
        attributes.setdefault("pads", [k // 2] * 4)
        weight = self.w(c_out, c_in // groups, k, k, scale=(2 / (c_in // groups * k * k)) ** 0.5)
        return self.op("Conv", x, weight, self.w(c_out), group=groups, **attributes)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def conv_chain(n: Net) -> None:
    h = n.x(1, 3, 16, 16)
    for c_in, c_out in ((3, 8), (8, 16), (16, 16)):
        h = n.op("Relu", n.conv(h, c_in, c_out))
    n.y(h)


def residual(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x(1, 3, 12, 12), 3, 16))
    for _ in range(2):
        inner = n.conv(n.op("Relu", n.conv(h, 16, 16)), 16, 16, k=1)
        h = n.op("Relu", n.op("Add", inner, h))
    n.y(n.conv(h, 16, 4, k=1))


def depthwise(n: Net) -> None:
    h = n.conv(n.x(1, 3, 16, 16), 3, 16, strides=[2, 2])
    low, high = n.const(0.0, np.float32), n.const(6.0, np.float32)
    h = n.op("Clip", n.conv(n.op("Clip", h, low, high), 16, 16, groups=16), low, high)
    n.y(n.conv(h, 16, 24, k=1))


def squeeze_excite(n: Net) -> None:
    h = n.op("HardSwish", n.conv(n.x(1, 3, 10, 10), 3, 16))
    s = n.op("Relu", n.conv(n.op("GlobalAveragePool", h), 16, 4, k=1))
    s = n.op("HardSigmoid", n.conv(s, 4, 16, k=1), alpha=1 / 6, beta=0.5)
    n.y(n.op("Mul", h, s))


def classifier(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x(1, 3, 12, 12), 3, 16))
    h = n.op("Flatten", n.op("GlobalAveragePool", n.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])))
    n.y(n.op("Softmax", n.op("Gemm", h, n.w(10, 16), n.w(10), transB=1), out="scores"))


def attention(n: Net) -> None:
    x = n.x(1, 12, 32)
    heads = [
        n.op(
            "Transpose",
            n.op("Reshape", n.op("MatMul", x, n.w(32, 32, scale=0.2)), n.ints(1, 12, 4, 8)),
            perm=p,
        )
        for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    ]
    weights = n.op("Softmax", n.op("Div", n.op("MatMul", heads[0], heads[1]), n.const(8**0.5, np.float32)))
    h = n.op("Transpose", n.op("MatMul", weights, heads[2]), perm=[0, 2, 1, 3])
    n.y(n.op("Add", n.op("MatMul", n.op("Reshape", h, n.ints(1, 12, 32)), n.w(32, 32)), x))


def perceptron(n: Net) -> None:
    x = n.x(2, 6, 24)
    h = n.op("LayerNormalization", x, n.w(24), n.w(24), axis=-1)
    h = n.op("Gelu", n.op("Add", n.op("MatMul", h, n.w(24, 48)), n.w(48)))
    n.y(n.op("Add", n.op("MatMul", h, n.w(48, 24)), x))


def lstm(n: Net) -> None:
    y, h, _ = n.many("LSTM", n.x(5, 2, 6), n.w(1, 32, 6), n.w(1, 32, 8), n.w(1, 64), outputs=3, hidden_size=8)
    n.y(n.op("Squeeze", y, n.ints(1)), n.op("Relu", h))


def gru(n: Net) -> None:
    y, _ = n.many(
        "GRU",
        n.x(5, 2, 6),
        n.w(2, 24, 6),
        n.w(2, 24, 8),
        n.w(2, 48),
        outputs=2,
        hidden_size=8,
        direction="bidirectional",
    )
    n.y(y)


def resize(n: Net) -> None:
    h = n.conv(n.x(1, 3, 8, 8), 3, 8)
    scales = n.const([1, 1, 2, 2], np.float32)
    up = n.op(
        "Resize",
        h,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    linear = n.op("Resize", h, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    n.y(n.op("Add", up, linear))


def concat_split(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x(1, 3, 8, 8), 3, 12))
    a, b, c = n.many("Split", h, n.ints(2, 4, 6), outputs=3, axis=1)
    n.y(n.conv(n.op("Concat", c, n.op("Sigmoid", b), a, axis=1), 12, 6))


def dynamic_batch(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x("batch", 3, 8, 8), 3, 8))
    n.y(n.op("Gemm", n.op("Flatten", n.op("GlobalAveragePool", h)), n.w(8, 5), n.w(5)))


def outputs_before_and_after(n: Net) -> None:
    before = n.conv(n.x(1, 3, 8, 8), 3, 8)
    after = n.op("Relu", before, out="after")
    n.y(before, after, n.conv(after, 8, 4))


def picture(n: Net) -> None:
    x = n.op("Cast", n.x(1, 8, 8, 3, kind=U8), to=F32)
    x = n.op("Transpose", n.op("Div", x, n.const(255, np.float32)), perm=[0, 3, 1, 2])
    n.y(n.op("Relu", n.conv(n.op("Sub", x, n.const(np.full((3, 1, 1), 0.45), np.float32)), 3, 8)))


def odd_names(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x(1, 3, 8, 8, name="Bild / 画像 0"), 3, 8), out="a b:c")
    n.y("a b:c", n.conv(h, 8, 4), n.op("Sigmoid", h, out="sortie é"))


def scalars(n: Net) -> None:
    h = n.conv(n.x(1, 3, 6, 6), 3, 4)
    n.y(n.op("ReduceMean", h, keepdims=0), n.op("ReduceMax", h, n.ints(0, 1, 2, 3), keepdims=0))


def unused_input(n: Net) -> None:
    n.x(1, 3, 4, 4, name="nobody")
    n.y(n.op("Relu", n.conv(n.x(1, 3, 4, 4), 3, 4)))


def half(n: Net) -> None:
    x = n.x(1, 3, 8, 8, kind=F16)
    h = n.op("Conv", x, n.w(8, 3, 3, 3, dtype=np.float16), n.w(8, dtype=np.float16), pads=[1] * 4)
    n.y(n.op("Relu", h), kind=F16)


def no_weights(n: Net) -> None:
    a, b = n.x(2, 3, name="a"), n.x(2, 3, name="b")
    n.y(n.op("Add", a, b), n.op("MatMul", a, n.op("Transpose", b, perm=[1, 0])))


def passed_through(n: Net) -> None:
    x = n.x(1, 3, 4, 4)
    n.y(n.op("Identity", x, out="same"), n.conv(x, 3, 4))


def constant_output(n: Net) -> None:
    n.y(n.op("Identity", n.const([[1.0, 2.0]], np.float32), out="anchors"), n.op("Relu", n.x(2, 2)))


def embedding(n: Net) -> None:
    h = n.op("Gather", n.w(20, 16), n.x(1, 6, name="tokens", kind=I64), axis=0)
    n.y(n.op("MatMul", n.op("ReduceMean", h, n.ints(1), keepdims=0), n.w(16, 3)))


def decisions(n: Net) -> None:
    h = n.conv(n.x(1, 3, 4, 4), 3, 5)
    n.y(n.op("ArgMax", h, axis=1, keepdims=0), kind=I64)
    n.y(n.op("Greater", h, n.const(0.2, np.float32)), kind=BOOL)


def transposed(n: Net) -> None:
    h = n.op("ConvTranspose", n.x(1, 4, 6, 6), n.w(4, 8, 2, 2), n.w(8), strides=[2, 2])
    n.y(n.op("Relu", h))


def pools(n: Net) -> None:
    h = n.conv(n.x(1, 3, 11, 11), 3, 8)
    h = n.op("MaxPool", h, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    n.y(n.op("AveragePool", h, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1))


def normalized(n: Net) -> None:
    h = n.conv(n.op("Pad", n.x(1, 3, 8, 8), n.ints(0, 0, 1, 1, 0, 0, 1, 1)), 3, 8, pads=[0] * 4)
    var = n.const(np.linspace(0.5, 2, 8), np.float32)
    h = n.op("Relu", n.op("BatchNormalization", h, n.w(8), n.w(8), n.w(8), var))
    n.y(n.op("InstanceNormalization", h, n.w(8), n.w(8)))


def one_and_three_dimensions(n: Net) -> None:
    n.y(n.op("Relu", n.op("Conv", n.x(1, 4, 20, name="sound"), n.w(8, 4, 5), n.w(8), pads=[2, 2])))
    n.y(n.op("Relu", n.op("Conv", n.x(1, 2, 4, 6, 6, name="volume"), n.w(4, 2, 3, 3, 3), pads=[1] * 6)))


def shared_weight(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x(1, 8, 8, 8), 8, 8))
    weight = n.w(8, 8, 3, 3, scale=0.15)
    for _ in range(2):
        h = n.op("Relu", n.op("Conv", h, weight, pads=[1] * 4))
    n.y(h)


def shared_activation(n: Net) -> None:
    h = n.op("Relu", n.conv(n.x(1, 3, 8, 8), 3, 8))
    n.y(n.conv(h, 8, 6), n.conv(h, 8, 6, k=1), n.op("Sigmoid", h))


CORPUS: dict[str, Callable[[Net], None]] = {
    f.__name__: f
    for f in (
        conv_chain,
        residual,
        depthwise,
        squeeze_excite,
        classifier,
        attention,
        perceptron,
        lstm,
        gru,
        resize,
        concat_split,
        dynamic_batch,
        outputs_before_and_after,
        picture,
        odd_names,
        scalars,
        unused_input,
        half,
        no_weights,
        passed_through,
        constant_output,
        embedding,
        decisions,
        transposed,
        pools,
        normalized,
        one_and_three_dimensions,
        shared_weight,
        shared_activation,
    )
}


def model_of(name: str) -> onnx.ModelProto:
    net = Net(seed=sum(name.encode()))
    CORPUS[name](net)
    return net.model()


def feeds_of(model: onnx.ModelProto, seed: int, batch: int = 2) -> dict[str, np.ndarray]:
    """Return seeded inputs; an open size is `batch`."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape: Sequence[int] = [d.dim_value or batch for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind in "iu":
            made[value.name] = rng.integers(0, 20, shape).astype(dtype)
        else:
            made[value.name] = rng.uniform(-1, 1, shape).astype(dtype)
    return made
