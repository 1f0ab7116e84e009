"""Small seeded models, one for each kind of failure that people meet with int8 and with converters.

`KINDS[name]()` gives (ModelProto, sampler); sampler(rng) gives one sample. `CUSTOM` is the one kind that may
be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Sampler = Callable[[np.random.Generator], dict[str, np.ndarray]]
Made = tuple[onnx.ModelProto, Sampler]

KINDS: dict[str, Callable[[], Made]] = {}
CUSTOM = "custom_operator"


def kind(build: Callable[[], Made]) -> Callable[[], Made]:
    KINDS[build.__name__] = build
    return build


class Net:
    """A graph under construction; every method that adds a node returns the name it writes."""

    def __init__(self, opset: int = 17, ir: int = 8, seed: int = 7) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset, self.ir = opset, ir
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.imports = [helper.make_opsetid("", opset)]

    def input(self, *shape: int | str, name: str = "x", dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def const(self, array: Any, dtype: Any = np.float32, name: str = "") -> str:
        name = name or f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def add(self, op: str, *inputs: str, out: str = "", name: str | None = None, **attributes: Any) -> str:
        out = out or f"{op.lower()}{len(self.nodes)}"
        name = f"{op}_{len(self.nodes)}" if name is None else name
        self.nodes.append(helper.make_node(op, inputs, [out], name=name, **attributes))
        return out

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return self.rng.standard_normal(shape) * scale

    def conv(
        self,
        x: str,
        channels: int,
        out: int,
        size: int = 3,
        groups: int = 1,
        weight: np.ndarray | None = None,
        bias: bool = True,
        gain: float = 1.0,
        **extra: Any,
    ) -> str:
        if weight is None:
            fan_in = channels // groups * size * size
            weight = self.normal(out, channels // groups, size, size, scale=gain / fan_in**0.5)
        reads = [x, self.const(weight)] + ([self.const(self.normal(out, scale=0.1))] if bias else [])
        attributes = {"kernel_shape": [size, size], "group": groups, "pads": [size // 2] * 4, **extra}
        return self.add("Conv", *reads, **attributes)

    def norm(self, x: str, channels: int, least: float = 0.5, most: float = 2.0) -> str:
        held = [
            self.rng.uniform(least, most, channels),
            self.normal(channels, scale=0.2),
            self.normal(channels, scale=0.1),
            self.rng.uniform(0.5, 2, channels),
        ]
        return self.add("BatchNormalization", x, *map(self.const, held))

    def linear(self, x: str, reads: int, writes: int, scale: float = 0.0) -> str:
        return self.add("MatMul", x, self.const(self.normal(reads, writes, scale=scale or reads**-0.5)))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "case", self.inputs, self.outputs, self.weights)
        return helper.make_model(graph, opset_imports=self.imports, ir_version=self.ir)


def even(*shape: int, low: float = -1.0, high: float = 1.0, name: str = "x") -> Sampler:
    return lambda rng: {name: rng.uniform(low, high, shape).astype(np.float32)}


def _one(net: Net, y: str, shape: Sequence[int | str], sampler: Sampler) -> Made:
    net.output(y, *shape)
    return net.model(), sampler


@kind
def skip_of_another_range() -> Made:
    n = Net()
    x = n.input(1, 12, 10, 10)
    branch = n.conv(n.add("Relu", n.norm(n.conv(x, 12, 12), 12)), 12, 12, gain=0.04)
    y = n.conv(n.add("Relu", n.add("Add", n.norm(branch, 12), x)), 12, 8)
    return _one(n, y, (1, 8, 10, 10), even(1, 12, 10, 10, low=-15, high=15))


@kind
def uneven_pads_and_hard_swish() -> Made:
    n = Net()
    x = n.input(1, 3, 20, 20)
    a = n.add("HardSwish", n.norm(n.conv(x, 3, 12, pads=[0, 0, 1, 1], strides=[2, 2]), 12))
    b = n.add("HardSwish", n.norm(n.conv(a, 12, 12, groups=12), 12, 0.02, 3))
    return _one(
        n, n.add("Add", n.norm(n.conv(b, 12, 12, size=1), 12), a), (1, 12, 10, 10), even(1, 3, 20, 20)
    )


@kind
def depthwise_of_three_decades() -> Made:
    n = Net()
    x = n.input(1, 24, 10, 10)
    decades = np.logspace(-1.5, 1.5, 24)
    deep = n.normal(24, 1, 3, 3) * decades[:, None, None, None]
    point = n.normal(8, 24, 1, 1) / decades[None, :, None, None]
    y = n.conv(n.add("Relu", n.conv(x, 24, 24, groups=24, weight=deep)), 24, 8, size=1, weight=point)
    return _one(n, y, (1, 8, 10, 10), even(1, 24, 10, 10))


@kind
def boxes_beside_scores() -> Made:
    n = Net()
    x = n.input(1, 12, 6, 6)
    boxes = n.add("Mul", n.add("Sigmoid", n.conv(x, 12, 4, size=1)), n.const([320.0]))
    scores = n.add("Sigmoid", n.conv(x, 12, 9, size=1))
    flat = [n.add("Reshape", t, n.ints(1, c, 36)) for t, c in ((boxes, 4), (scores, 9))]
    return _one(n, n.add("Concat", *flat, axis=1), (1, 13, 36), even(1, 12, 6, 6))


@kind
def silu_chain() -> Made:
    n = Net()
    x = n.input(1, 12, 10, 10)
    for _ in range(3):
        c = n.conv(x, 12, 12)
        x = n.add("Mul", n.add("Sigmoid", c), c)
    return _one(n, x, (1, 12, 10, 10), even(1, 12, 10, 10, low=-3, high=3))


@kind
def gelu_of_erf() -> Made:
    n = Net()
    m = n.add("Add", n.linear(n.input(1, 6, 24), 24, 48), n.const(n.normal(48, scale=0.1)))
    erf = n.add("Erf", n.add("Mul", m, n.const(np.float32(0.70710677))))
    half = n.add("Mul", n.add("Mul", m, n.add("Add", erf, n.const(np.float32(1)))), n.const(np.float32(0.5)))
    return _one(n, n.linear(half, 48, 24), (1, 6, 24), even(1, 6, 24, low=-2, high=2))


@kind
def gelu_of_tanh() -> Made:
    n = Net()
    m = n.linear(n.input(1, 6, 24), 24, 32)
    cube = n.add("Mul", n.add("Mul", n.add("Mul", m, m), m), n.const(np.float32(0.044715)))
    t = n.add("Tanh", n.add("Mul", n.add("Add", m, cube), n.const(np.float32(0.7978846))))
    y = n.add("Mul", n.add("Mul", n.const(np.float32(0.5)), m), n.add("Add", t, n.const(np.float32(1))))
    return _one(n, y, (1, 6, 32), even(1, 6, 24, low=-2, high=2))


@kind
def layer_norm_of_large_numbers() -> Made:
    """The square of 500 is no float16."""
    n = Net(13, 7)
    x = n.input(1, 6, 48)
    d = n.add("Sub", x, n.add("ReduceMean", x, axes=[-1], keepdims=1))
    v = n.add("ReduceMean", n.add("Mul", d, d), axes=[-1], keepdims=1)
    y = n.add("Div", d, n.add("Sqrt", n.add("Add", v, n.const(np.float32(1e-5)))))
    y = n.add("Add", n.add("Mul", y, n.const(np.ones(48))), n.const(np.zeros(48)))
    return _one(n, n.linear(y, 48, 16), (1, 6, 16), even(1, 6, 48, low=-500, high=500))


@kind
def layer_norm_between_linears() -> Made:
    n = Net()
    a = n.linear(n.input(1, 6, 48), 48, 48)
    a = n.add("LayerNormalization", a, n.const(np.ones(48)), n.const(np.zeros(48)), axis=-1)
    return _one(n, n.linear(n.add("Relu", a), 48, 16), (1, 6, 16), even(1, 6, 48))


@kind
def mask_of_the_lowest_number() -> Made:
    n = Net()
    x = n.input(1, 6, 24)
    q, k, v = (n.linear(x, 24, 24) for _ in range(3))
    mask = np.triu(np.full((6, 6), -3.4e38, np.float32), 1)
    s = n.add("Add", n.add("MatMul", q, n.add("Transpose", k, perm=[0, 2, 1])), n.const(mask))
    return _one(n, n.add("MatMul", n.add("Softmax", s, axis=-1), v), (1, 6, 24), even(1, 6, 24))


@kind
def product_of_probabilities() -> Made:
    n = Net()
    s = n.add("Softmax", n.linear(n.input(1, 6, 24), 24, 12, scale=0.8), axis=-1)
    return _one(n, n.linear(s, 12, 8), (1, 6, 8), even(1, 6, 24))


@kind
def leaky_and_parametric_relu() -> Made:
    n = Net()
    a = n.add("LeakyRelu", n.conv(n.input(1, 6, 10, 10), 6, 8), alpha=0.2)
    y = n.add("PRelu", n.conv(a, 8, 8), n.const(n.rng.uniform(0.1, 0.5, (8, 1, 1))))
    return _one(n, y, (1, 8, 10, 10), even(1, 6, 10, 10))


@kind
def squeeze_and_excite() -> Made:
    n = Net()
    a = n.add("HardSwish", n.conv(n.input(1, 12, 10, 10), 12, 12, groups=12))
    s = n.add("Relu", n.conv(n.add("GlobalAveragePool", a), 12, 4, size=1))
    s = n.add("HardSigmoid", n.conv(s, 4, 12, size=1), alpha=1 / 6, beta=0.5)
    return _one(
        n, n.conv(n.add("Mul", a, s), 12, 12, size=1), (1, 12, 10, 10), even(1, 12, 10, 10, low=-2, high=2)
    )


@kind
def outlier_channel() -> Made:
    n = Net()
    a = n.add("Relu", n.linear(n.input(1, 6, 24), 24, 24))

    def sampler(rng: np.random.Generator) -> dict[str, np.ndarray]:
        x = rng.standard_normal((1, 6, 24)).astype(np.float32)
        x[..., 5] *= 100
        return {"x": x}

    return _one(n, n.linear(a, 24, 12), (1, 6, 12), sampler)


@kind
def pairs_of_one_sign() -> Made:
    """255 x 127 + 255 x 127 does not fit int16."""
    n = Net()
    weight = np.ones((8, 48, 1, 1)) * n.rng.choice([-0.5, 0.5], (8, 1, 1, 1))
    y = n.conv(n.input(1, 48, 6, 6), 48, 8, size=1, weight=weight)
    return _one(n, y, (1, 8, 6, 6), even(1, 48, 6, 6, low=0.9))


@kind
def norm_behind_relu() -> Made:
    n = Net()
    y = n.norm(n.add("Relu", n.conv(n.input(1, 6, 10, 10), 6, 8)), 8)
    return _one(n, n.conv(y, 8, 8), (1, 8, 10, 10), even(1, 6, 10, 10))


@kind
def norm_before_padding() -> Made:
    """The norm's shift is not there in the padding: it does not fold at the border."""
    n = Net()
    return _one(n, n.conv(n.norm(n.input(1, 6, 10, 10), 6), 6, 8), (1, 8, 10, 10), even(1, 6, 10, 10))


@kind
def dense_block() -> Made:
    n = Net()
    x = n.input(1, 6, 10, 10)
    c = n.add("Concat", n.conv(x, 6, 6), x, axis=1)
    return _one(n, n.conv(n.add("Relu", n.norm(c, 12)), 12, 8), (1, 8, 10, 10), even(1, 6, 10, 10))


@kind
def shared_weights() -> Made:
    n = Net()
    x = n.input(1, 8, 8, 8)
    w, b = n.const(n.normal(8, 8, 3, 3, scale=0.2), name="w"), n.const(n.normal(8), name="b")
    a = n.add("Conv", x, w, b, out="w_1", kernel_shape=[3, 3], pads=[1] * 4)
    y = n.add("Conv", n.add("Relu", a), w, b, kernel_shape=[3, 3], pads=[1] * 4)
    return _one(n, y, (1, 8, 8, 8), even(1, 8, 8, 8))


@kind
def names_that_repeat() -> Made:
    n = Net()
    a = n.add("Relu", n.conv(n.input(1, 6, 8, 8), 6, 6), name="same")
    b = n.add("Relu", n.conv(a, 6, 6), name="same")
    y = n.add("Add", a, b, name="")
    for node in n.nodes:
        node.name = "conv" if node.op_type == "Conv" else node.name
    return _one(n, y, (1, 6, 8, 8), even(1, 6, 8, 8))


@kind
def inputs_left_out() -> Made:
    n = Net()
    c = n.add("Clip", n.conv(n.input(1, 6, 6, 6), 6, 8), "", n.const(np.float32(5)))
    r = n.add(
        "Resize",
        c,
        "",
        "",
        n.ints(1, 8, 12, 12),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return _one(n, n.conv(r, 8, 4), (1, 4, 12, 12), even(1, 6, 6, 6))


@kind
def clip_between_constants() -> Made:
    n = Net()
    c = n.conv(n.input(1, 6, 8, 8), 6, 8, gain=4)
    low, high = (n.add("Constant", value=numpy_helper.from_array(np.float32(bound))) for bound in (0, 6))
    return _one(n, n.conv(n.add("Clip", c, low, high), 8, 8), (1, 8, 8, 8), even(1, 6, 8, 8, low=-3, high=3))


@kind
def clip_by_attributes() -> Made:
    n = Net(9, 4)
    c = n.add("Clip", n.conv(n.input(1, 6, 8, 8), 6, 8, gain=4), min=0.0, max=6.0)
    return _one(n, n.conv(c, 8, 8), (1, 8, 8, 8), even(1, 6, 8, 8, low=-3, high=3))


@kind
def weights_listed_as_inputs() -> Made:
    n = Net(9, 3)
    made, sampler = _one(n, n.add("Relu", n.conv(n.input(1, 6, 8, 8), 6, 8)), (1, 8, 8, 8), even(1, 6, 8, 8))
    for weight in made.graph.initializer:
        made.graph.input.append(
            helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        )
    return made, sampler


@kind
def output_read_inside() -> Made:
    n = Net()
    c = n.conv(n.input(1, 6, 8, 8), 6, 8)
    n.output(c, 1, 8, 8, 8)
    return _one(n, n.add("Relu", c), (1, 8, 8, 8), even(1, 6, 8, 8))


@kind
def two_kinds_of_pad() -> Made:
    n = Net()
    around = n.ints(0, 0, 1, 1, 0, 0, 1, 1)
    p = n.add("Pad", n.input(1, 6, 8, 8), around, mode="constant")
    p = n.add("Pad", n.conv(p, 6, 8, pads=[0] * 4), around, mode="reflect")
    return _one(n, n.conv(p, 8, 8, pads=[0] * 4), (1, 8, 8, 8), even(1, 6, 8, 8))


@kind
def transposed_in_groups() -> Made:
    """[in, out / groups, ...]: the channels of both groups lie on one axis, each with a range of its own."""
    n = Net()
    weight = n.normal(6, 5, 3, 3) * np.logspace(-1, 0.5, 5)[None, :, None, None]
    y = n.add(
        "ConvTranspose",
        n.input(1, 6, 7, 7),
        n.const(weight),
        n.const(n.rng.uniform(0, 1, 10)),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
        output_padding=[1, 1],
        group=2,
    )
    return _one(n, n.add("Relu", y), (1, 10, 14, 14), even(1, 6, 7, 7))


@kind
def open_batch_and_sizes() -> Made:
    n = Net()
    a = n.add("Relu", n.norm(n.conv(n.input("N", 3, "H", "W"), 3, 8), 8))
    a = n.add("Flatten", n.add("GlobalAveragePool", a))
    y = n.add("Gemm", a, n.const(n.normal(8, 5)), n.const(np.zeros(5)))
    return _one(n, y, ("N", 5), even(2, 3, 12, 20, low=-2, high=2))


@kind
def softmax_before_opset_13() -> Made:
    n = Net(12, 7)
    y = n.add("Softmax", n.conv(n.input(1, 6, 4, 4), 6, 8), axis=1)
    return _one(n, y, (1, 8, 4, 4), even(1, 6, 4, 4, low=-3, high=3))


@kind
def constant_if_and_selection() -> Made:
    n = Net()
    x = n.input(1, 3, 6, 6)
    bodies = []
    for branch in ("yes", "no"):
        weight = n.const(n.normal(4, 3, 1, 1))
        held = helper.make_node("Conv", [x, weight], [branch], name=f"conv_{branch}", kernel_shape=[1, 1])
        out = helper.make_tensor_value_info(branch, TensorProto.FLOAT, [1, 4, 6, 6])
        bodies.append(helper.make_graph([held], branch, [], [out]))
    a = n.add(
        "If", n.const(np.array(True), np.bool_), out="picked", then_branch=bodies[0], else_branch=bodies[1]
    )
    a = n.add("Abs", a)
    boxes = n.add("Reshape", a, n.ints(1, -1, 4))
    score = n.add("Transpose", n.add("ReduceMean", boxes, axes=[2], keepdims=1), perm=[0, 2, 1])
    y = n.add(
        "NonMaxSuppression",
        boxes,
        n.add("Sigmoid", score),
        n.ints(8),
        n.const(np.array([0.5])),
        n.const(np.array([0.1])),
    )
    n.output(y, "found", 3, dtype=TensorProto.INT64)
    return _one(n, a, (1, 4, 6, 6), even(1, 3, 6, 6))


@kind
def camera_bytes() -> Made:
    n = Net()
    x = n.input(1, 20, 24, 3, dtype=TensorProto.UINT8)
    f = n.add("Transpose", n.add("Cast", x, to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    mean, spread = np.array([123.0, 117.0, 104.0]), np.array([58.0, 57.0, 57.0])
    f = n.add("Sub", f, n.const(mean.reshape(1, 3, 1, 1)))
    f = n.add("Div", f, n.const(spread.reshape(1, 3, 1, 1)))
    y = n.add("Relu", n.conv(f, 3, 8, strides=[2, 2]))
    return _one(n, y, (1, 8, 10, 12), lambda rng: {"x": rng.integers(0, 256, (1, 20, 24, 3), dtype=np.uint8)})


@kind
def trained_quantizers() -> Made:
    n = Net()
    x = n.input(1, 4, 8, 8)
    grid = (n.const(np.float32(0.02)), n.const(np.uint8(105), np.uint8))
    d = n.add("DequantizeLinear", n.add("QuantizeLinear", x, *grid), *grid)
    weight = n.const(n.rng.integers(-127, 127, (6, 4, 3, 3)), np.int8)
    w = n.add("DequantizeLinear", weight, n.const(np.full(6, 0.01)), n.const(np.zeros(6), np.int8), axis=0)
    y = n.add("Conv", d, w, kernel_shape=[3, 3], pads=[1] * 4)
    return _one(n, y, (1, 6, 8, 8), even(1, 4, 8, 8, low=-2, high=2.8))


@kind
def half_precision_inside() -> Made:
    n = Net()
    a = n.add("Cast", n.input(1, 6, 8, 8), to=TensorProto.FLOAT16)
    weight = n.const(n.normal(8, 6, 3, 3, scale=0.2), np.float16)
    c = n.add("Relu", n.add("Conv", a, weight, kernel_shape=[3, 3], pads=[1] * 4))
    return _one(n, n.add("Cast", c, to=TensorProto.FLOAT), (1, 8, 8, 8), even(1, 6, 8, 8))


@kind
def channel_shuffle() -> Made:
    n = Net()
    c = n.conv(n.input(1, 12, 6, 6), 12, 12, size=1)
    n.nodes.append(helper.make_node("Split", [c, n.ints(6, 6)], ["left", "right"], name="split", axis=1))
    right = n.add("Relu", n.conv("right", 6, 6, groups=6))
    r = n.add("Reshape", n.add("Concat", "left", right, axis=1), n.ints(1, 2, 6, 6, 6))
    r = n.add("Reshape", n.add("Transpose", r, perm=[0, 2, 1, 3, 4]), n.ints(1, 12, 6, 6))
    return _one(n, n.conv(r, 12, 8, size=1), (1, 8, 6, 6), even(1, 12, 6, 6))


@kind
def cubic_resize() -> Made:
    n = Net()
    c = n.conv(n.input(1, 4, 7, 7), 4, 6)
    r = n.add(
        "Resize",
        c,
        "",
        n.const([1.0, 1.0, 2.0, 2.0]),
        mode="cubic",
        coordinate_transformation_mode="half_pixel",
        cubic_coeff_a=-0.75,
    )
    return _one(n, n.conv(r, 6, 4), (1, 4, 14, 14), even(1, 4, 7, 7))


@kind
def custom_operator() -> Made:
    n = Net()
    n.imports.append(helper.make_opsetid("com.example", 1))
    c = n.conv(n.input(1, 4, 8, 8), 4, 4)
    return _one(n, n.add("Secret", c, domain="com.example"), (1, 4, 8, 8), even(1, 4, 8, 8))


@kind
def local_function() -> Made:
    n = Net(18, 8)
    n.imports.append(helper.make_opsetid("inside", 1))
    y = n.add("Block", n.input(1, 4, 8, 8), n.const(n.normal(4, 4, 3, 3, scale=0.2)), domain="inside")
    made, sampler = _one(n, y, (1, 4, 8, 8), even(1, 4, 8, 8))
    body = [
        helper.make_node("Conv", ["a", "w"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    made.functions.append(
        helper.make_function("inside", "Block", ["a", "w"], ["y"], body, [helper.make_opsetid("", 18)])
    )
    return made, sampler


@kind
def recurrent_policy() -> Made:
    n = Net()
    x = n.input(4, 1, 6)
    held = [n.const(n.normal(1, 48, reads, scale=0.2)) for reads in (6, 12)]
    n.nodes.append(helper.make_node("LSTM", [x, *held], ["all", "last"], name="lstm", hidden_size=12))
    y = n.add("Gemm", n.add("Squeeze", "last", n.ints(0)), n.const(n.normal(12, 5, scale=0.3)))
    return _one(n, y, (1, 5), even(4, 1, 6))


@kind
def scale_and_shift() -> Made:
    n = Net()
    c = n.conv(n.input(1, 6, 8, 8), 6, 8, bias=False)
    c = n.add(
        "Add", n.add("Mul", c, n.const(n.rng.uniform(0.5, 2, (1, 8, 1, 1)))), n.const(n.normal(8, 1, 1))
    )
    return _one(n, n.add("Relu", c), (1, 8, 8, 8), even(1, 6, 8, 8))


@kind
def weights_in_a_file() -> Made:
    n = Net()
    a = n.add("Relu", n.linear(n.input(4, 96), 96, 96))
    return _one(n, n.linear(a, 96, 8), (4, 8), even(4, 96))


@kind
def offset_that_cancels() -> Made:
    """What the first product writes is the small difference of large terms: no 8-bit grid holds it."""
    n = Net()
    weight = n.normal(24, 16, scale=0.2)
    a = n.add("MatMul", n.input(1, 6, 24), n.const(weight - weight.mean(axis=0)), name="difference")

    def sampler(rng: np.random.Generator) -> dict[str, np.ndarray]:
        offset = rng.uniform(60, 80)
        return {"x": (offset + rng.standard_normal((1, 6, 24))).astype(np.float32)}

    return _one(n, n.linear(n.add("Relu", a), 16, 8), (1, 6, 8), sampler)
