"""What must stay in float32 whatever the data, and what need not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from small_models import OLD_READER, one_node

from edgefuse.graph import Model, all_nodes, model_from_proto
from edgefuse.lowering import lower_model
from edgefuse.lowering.float16_range import float16_fault

X = np.ones((2, 8), np.float32)


def parsed(body: str, **constants: np.ndarray) -> Model:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[2,8] x) => (float[2,m] y) {{ {body} }}'
    )
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, k) for k, a in constants.items())
    return model_from_proto(proto)


def faults(model: Model) -> dict[str, str]:
    return {node.op_type: float16_fault(node) for node in all_nodes(model)}


@pytest.mark.parametrize(
    ("make", "op_type", "words"),
    [
        (lambda: parsed("y = Mul(x, x)"), "Mul", "squares"),
        (lambda: parsed("y = Pow(x, p)", p=np.float32(2)), "Pow", "squares"),
        (lambda: parsed("s = Add(x, x) y = Pow(x, s)"), "Pow", "squares"),
        (lambda: parsed("y = ReduceSum(x, a)", a=np.int64([1])), "ReduceSum", "adds up"),
        (lambda: parsed("y = ReduceL2(x, a)", a=np.int64([1])), "ReduceL2", "squares"),
        (lambda: parsed("y = CumSum(x, a)", a=np.array(1)), "CumSum", "adds up"),
        (lambda: parsed("y = Exp(x)"), "Exp", "11.09"),
        (lambda: parsed("y = Add(x, c)", c=np.float32(-1e9)), "Add", "1e+09"),
        (lambda: parsed("y = Add(x, c)", c=np.float32(1e-12)), "Add", "is 0 in float16"),
        (lambda: parsed("y = Mul(x, c)", c=np.full((8,), 7e4, np.float32)), "Mul", "7e+04"),
        (lambda: parsed("y = LpNormalization <p=2> (x)"), "LpNormalization", "squares"),
        (lambda: one_node("ArgMax", {"x": X}), "ArgMax", "integers"),
        (lambda: one_node("LayerNormalization", {"x": X}, {"s": X[0]}), "LayerNormalization", "squares"),
    ],
)  # fmt: skip
def test_what_cannot_be_float16(make: Callable[[], Model], op_type: str, words: str) -> None:
    assert words in faults(make())[op_type]


@pytest.mark.parametrize(
    ("make", "op_type"),
    [
        (lambda: parsed("y = Mul(x, c)", c=np.float32(3)), "Mul"),
        (lambda: parsed("y = Pow(x, p)", p=np.float32(0.5)), "Pow"),
        (lambda: parsed("n = Abs(x) m = Neg(n) y = Exp(m)"), "Exp"),
        (lambda: parsed("t = ReduceMax(x, a) d = Sub(x, t) y = Exp(d)", a=np.int64([1])), "Exp"),
        (lambda: parsed("y = Add(x, c)", c=np.full((8,), 1e-9, np.float32)), "Add"),
        (lambda: parsed("y = Where(b, x, c)", b=np.array([True]), c=np.float32(-np.inf)), "Where"),
        (lambda: parsed("y = ReduceMean(x, a)", a=np.int64([1])), "ReduceMean"),
        (lambda: parsed("y = MatMul(x, w)", w=np.ones((8, 3), np.float32)), "MatMul"),
        (lambda: parsed("y = Softmax(x)"), "Softmax"),
        (lambda: parsed("y = Gelu(x)"), "Gelu"),
    ],
)
def test_what_may_be_float16(make: Callable[[], Model], op_type: str) -> None:
    assert faults(make())[op_type] == ""


def test_a_layer_norm_stays_in_float32_from_its_square_to_its_root() -> None:
    gain = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    model = one_node("LayerNormalization", {"x": X}, {"s": gain, "b": gain})
    made, _ = lower_model(model, opset=13, operators=OLD_READER)
    found = [(node.op_type, bool(float16_fault(node))) for node in all_nodes(made)]
    assert found == [
        ("ReduceMean", False),
        ("Sub", False),
        ("Mul", True),  # the square
        ("ReduceMean", True),  # reads squares
        ("Add", True),
        ("Sqrt", True),
        ("Div", False),  # its divisor is a root: as large as x
        ("Mul", False),
        ("Add", False),
    ]


def test_large_numbers_pass_through_reshapes_and_stop_at_a_root() -> None:
    model = parsed("s = Mul(x, x) r = Flatten(s) n = Neg(r) q = Relu(n) u = Sqrt(q) y = Abs(u)")
    found = faults(model)
    assert [op for op, why in found.items() if why] == ["Mul", "Flatten", "Neg", "Relu", "Sqrt"]
    assert "carries squares" in found["Sqrt"]
