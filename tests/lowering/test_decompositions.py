"""Every decomposition equals the operator that it stands for, written in exactly the operators it names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import OLD_READER, lowered_equal, one_node, operators

from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model
from edgefuse.lowering import OperatorLimit, lower_model
from edgefuse.lowering.decompositions import Decomposition, decompositions

RNG = np.random.default_rng(7)
# Written by any decomposition without being counted: they move or name values.
FREE = frozenset({"Identity", "Cast", "Constant"})


def floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 3).astype(np.float32)


def plain(
    op_type: str, x: np.ndarray | None = None, **attributes: Any
) -> tuple[Model, dict[str, np.ndarray]]:
    x = floats(2, 5, 4) if x is None else x
    return one_node(op_type, {"x": x}, **attributes), {"x": x}


def with_constants(
    op_type: str, x: np.ndarray, constants: dict[str, np.ndarray | None], **attributes: Any
) -> tuple[Model, dict[str, np.ndarray]]:
    return one_node(op_type, {"x": x}, constants, **attributes), {"x": x}


def several(op_type: str, *arrays: np.ndarray, **attributes: Any) -> tuple[Model, dict[str, np.ndarray]]:
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    return one_node(op_type, feeds, **attributes), feeds


def channels(count: int) -> np.ndarray:
    return (RNG.random(count) + 0.5).astype(np.float32)


def images() -> np.ndarray:
    return floats(2, 6, 5, 4)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return RNG.random(shape) > 0.5


def specials() -> np.ndarray:
    return np.array([1.0, -np.inf, np.inf, np.nan, 0.0, 3e38], np.float32)


ONE = np.float32(0.05)
CASES: dict[str, list[Callable[[], tuple[Model, dict[str, np.ndarray]]]]] = {
    "HardSwish": [lambda: plain("HardSwish")],
    "HardSigmoid": [lambda: plain("HardSigmoid"), lambda: plain("HardSigmoid", alpha=0.3, beta=0.1)],
    "Swish": [lambda: plain("Swish"), lambda: plain("Swish", alpha=1.702)],
    "Gelu": [lambda: plain("Gelu"), lambda: plain("Gelu", approximate="tanh")],
    "Mish": [lambda: plain("Mish")],
    "Softplus": [lambda: plain("Softplus"), lambda: plain("Softplus", floats(3, 3) * 40)],
    "Softsign": [lambda: plain("Softsign")],
    "Celu": [lambda: plain("Celu", alpha=0.7)],
    "Elu": [lambda: plain("Elu", alpha=1.3)],
    "ThresholdedRelu": [lambda: plain("ThresholdedRelu", alpha=0.8)],
    "Shrink": [lambda: plain("Shrink", lambd=1.0, bias=0.4)],
    "PRelu": [lambda: with_constants("PRelu", images(), {"slope": floats(6, 1, 1)})],
    "Clip": [
        lambda: with_constants("Clip", images(), {"low": np.float32(-1), "high": np.float32(1.5)}),
        lambda: with_constants("Clip", images(), {"low": None, "high": np.float32(1.5)}),
    ],
    "LayerNormalization": [
        lambda: with_constants("LayerNormalization", floats(2, 5, 8), {"s": channels(8), "b": floats(8)}),
        lambda: with_constants("LayerNormalization", floats(2, 5, 8), {"s": floats(5, 8)}, axis=1),
        lambda: with_constants("LayerNormalization", floats(2, 8) * 400, {"s": channels(8)}, epsilon=1e-3),
        lambda: with_constants("LayerNormalization", floats(2, 5, 8), {"s": channels(8)}, outputs=3),
    ],
    "RMSNormalization": [
        lambda: with_constants("RMSNormalization", floats(2, 5, 8), {"s": channels(8)}),
        lambda: with_constants("RMSNormalization", floats(2, 5, 8), {"s": floats(5, 8)}, axis=1),
    ],
    "GroupNormalization": [
        partial(
            with_constants,
            "GroupNormalization",
            images(),
            {"s": channels(6), "b": floats(6)},
            num_groups=groups,
        )
        for groups in (1, 3, 6)
    ],
    "InstanceNormalization": [
        lambda: with_constants("InstanceNormalization", images(), {"s": channels(6), "b": floats(6)})
    ],
    "MeanVarianceNormalization": [
        lambda: plain("MeanVarianceNormalization", images()),
        lambda: plain("MeanVarianceNormalization", images(), axes=[1, 3]),
    ],
    "LpNormalization": [
        lambda: plain("LpNormalization", p=1, axis=1),
        lambda: plain("LpNormalization", p=2, axis=-1),
    ],
    "Reciprocal": [lambda: plain("Reciprocal")],
    "Mod": [
        lambda: several("Mod", integers(-20, 20, 40), integers(1, 7, 40)),
        lambda: several("Mod", integers(-20, 20, 40), -integers(1, 7, 40)),
        lambda: several("Mod", integers(-20, 20, 40), -integers(1, 7, 40), fmod=1),
        lambda: several("Mod", integers(0, 20, 40, dtype=np.uint8), integers(1, 7, 40, dtype=np.uint8)),
        lambda: several("Mod", floats(40), floats(40) + 4, fmod=1),
    ],
    "Xor": [lambda: several("Xor", bools(9, 1), bools(1, 9))],
    "IsInf": [
        lambda: plain("IsInf", specials()),
        lambda: plain("IsInf", specials(), detect_negative=0),
        lambda: plain("IsInf", specials(), detect_positive=0),
        lambda: plain("IsInf", specials(), detect_positive=0, detect_negative=0),
    ],
    "IsNaN": [lambda: plain("IsNaN", specials())],
    "CastLike": [lambda: with_constants("CastLike", floats(4) * 9, {"t": np.int32([1])})],
    "Sum": [lambda: several("Sum", floats(3, 4), floats(4), floats(3, 1))],
    "Mean": [lambda: several("Mean", floats(3, 4), floats(4), floats(3, 1))],
    "GreaterOrEqual": [lambda: several("GreaterOrEqual", integers(0, 3, 30), integers(0, 3, 30))],
    "LessOrEqual": [lambda: several("LessOrEqual", specials(), specials()[::-1].copy())],
    "Equal": [lambda: several("Equal", bools(20), bools(20))],
    "Sign": [lambda: plain("Sign")],
    **{
        name: [
            lambda name=name: with_constants(name, abs(images()) + 1, {"a": np.int64([1, -1])}),
            lambda name=name: with_constants(name, abs(images()) + 1, {"a": np.int64([2])}, keepdims=0),
            lambda name=name: plain(name, abs(images()) + 1, keepdims=0),
        ]
        for name in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
    },
    "GlobalAveragePool": [lambda: plain("GlobalAveragePool", images())],
    "GlobalMaxPool": [lambda: plain("GlobalMaxPool", images())],
    "GlobalLpPool": [lambda p=p: plain("GlobalLpPool", images(), p=p) for p in (1, 2, 3)],
    "OneHot": [
        partial(
            with_constants,
            "OneHot",
            integers(-6, 6, 3, 4),
            {"d": np.int64(6), "v": np.float32([-1, 2])},
            axis=axis,
        )
        for axis in (-1, 0, 1)
    ],
    "Hardmax": [
        lambda: plain("Hardmax", axis=1),
        lambda: plain("Hardmax", np.float32([[1, 3, 3], [2, 2, 1]])),
    ],
    "Trilu": [
        lambda: plain("Trilu"),
        lambda: with_constants("Trilu", floats(4, 6), {"k": np.int64(2)}, upper=0),
        lambda: with_constants("Trilu", np.full((4, 4), -np.inf, np.float32), {"k": np.int64(1)}),
    ],
    "Compress": [
        lambda: with_constants("Compress", floats(3, 4), {"c": np.array([True, False, True])}, axis=0),
        lambda: with_constants("Compress", floats(3, 4), {"c": np.arange(12) % 3 == 0}),
    ],
    "EyeLike": [lambda: plain("EyeLike", floats(3, 5), k=1)],
    "QuantizeLinear": [
        lambda: with_constants("QuantizeLinear", floats(50), {"s": ONE, "z": np.uint8(120)}),
        lambda: with_constants("QuantizeLinear", floats(50), {"s": ONE, "z": np.int8(-3)}),
        lambda: with_constants("QuantizeLinear", images(), {"s": channels(6) / 9, "z": np.zeros(6, np.int8)}),
        lambda: with_constants("QuantizeLinear", np.float32([0.5, 1.5, 2.5, -0.5]), {"s": np.float32(1)}),
    ],
    "DequantizeLinear": [
        lambda: with_constants(
            "DequantizeLinear", integers(0, 255, 50, dtype=np.uint8), {"s": ONE, "z": np.uint8(120)}
        ),
        lambda: with_constants(
            "DequantizeLinear", integers(-9, 9, 3, 4, dtype=np.int8), {"s": channels(4)}, axis=-1
        ),
    ],
    "QLinearConv": [
        lambda: with_constants(
            "QLinearConv",
            integers(0, 255, 1, 3, 6, 6, dtype=np.uint8),
            {
                "xs": ONE,
                "xz": np.uint8(128),
                "w": integers(-127, 127, 4, 3, 3, 3, dtype=np.int8),
                "ws": channels(4) / 100,
                "wz": np.zeros(4, np.int8),
                "ys": np.float32(0.2),
                "yz": np.uint8(100),
                "b": integers(-500, 500, 4, dtype=np.int32),
            },
            pads=[1, 1, 1, 1],
        )
    ],
    "QLinearMatMul": [
        lambda: with_constants(
            "QLinearMatMul",
            integers(0, 255, 5, 6, dtype=np.uint8),
            {
                "as": ONE,
                "az": np.uint8(128),
                "b": integers(-127, 127, 6, 4, dtype=np.int8),
                "bs": np.float32(0.01),
                "bz": np.int8(0),
                "ys": np.float32(0.2),
                "yz": np.uint8(100),
            },
        )
    ],
    "MatMulInteger": [
        lambda: with_constants(
            "MatMulInteger",
            integers(0, 255, 5, 6, dtype=np.uint8),
            {"b": integers(-127, 127, 6, 4, dtype=np.int8), "az": np.uint8(7), "bz": np.int8(0)},
        )
    ],
    "ConvInteger": [
        lambda: with_constants(
            "ConvInteger",
            integers(0, 255, 1, 3, 6, 6, dtype=np.uint8),
            {"w": integers(0, 255, 4, 3, 3, 3, dtype=np.uint8), "xz": np.uint8(7)},
        )
    ],
}
ROWS = [row for rows in decompositions().values() for row in rows]


def test_every_decomposition_has_cases() -> None:
    assert set(CASES) == {row.op_type for row in ROWS}
    assert len(ROWS) >= 45


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op_type}-by-{'-'.join(row.needs[:2])}")
def test_a_decomposition_equals_its_operator(row: Decomposition) -> None:
    readable = frozenset({*row.needs, *FREE})
    # where an alternative needs the operator itself, what it asks of its inputs is what forces it
    limits = {row.op_type: OperatorLimit(constant_inputs=())}
    for make in CASES[row.op_type]:
        model, feeds = make()
        made, notes = lowered_equal(
            model, feeds, tolerance=1e-6, opset=24, operators=readable, static=True, limits=limits
        )
        assert operators(made) <= readable
        assert any(line.startswith(row.op_type) for line in notes.lines)


def test_a_decomposition_that_needs_no_second_round_is_preferred() -> None:
    model, feeds = plain("HardSwish")
    made, _ = lowered_equal(model, feeds, opset=24, operators=frozenset({"Add", "Clip", "Mul", "Div"}))
    assert operators(made) == {"Add", "Clip", "Mul", "Div"}
    # 1/6 is a float32 attribute there
    made, _ = lowered_equal(model, feeds, tolerance=1e-6, opset=13, operators=OLD_READER)
    assert operators(made) == {"HardSigmoid", "Mul"}


def test_decompositions_chain() -> None:
    model, feeds = plain("Mish")
    readable = frozenset({"Abs", "Neg", "Exp", "Add", "Log", "Relu", "Tanh", "Mul"})
    made, _ = lowered_equal(model, feeds, tolerance=1e-6, opset=24, operators=readable)
    assert operators(made) <= readable


def test_a_quantized_pair_becomes_float_rounding_without_casts() -> None:
    import onnx

    x = floats(2, 8)
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [info("x", 1, [2, 8])],
        [info("y", 1, [2, 8])],
        [onnx.numpy_helper.from_array(ONE, "s"), onnx.numpy_helper.from_array(np.uint8(100), "z")],
    )
    from edgefuse.graph import model_from_proto

    model = model_from_proto(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    )
    readable = OLD_READER - {"QuantizeLinear", "DequantizeLinear"}
    made, _ = lowered_equal(model, {"x": x}, tolerance=1e-6, opset=13, operators=readable)
    assert operators(made) == {"Div", "Round", "Add", "Clip", "Sub", "Mul"}


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
    scale=st.sampled_from([1e-2, 1.0, 400.0]),
)
def test_layer_normalization_on_any_shape(shape: list[int], data: st.DataObject, scale: float) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rest = shape[axis:]
    op_type = data.draw(st.sampled_from(["LayerNormalization", "RMSNormalization"]))
    x = (np.random.default_rng(len(shape)).standard_normal(shape) * scale).astype(np.float32)
    gain = np.linspace(0.5, 1.5, int(np.prod(rest)), dtype=np.float32).reshape(rest)
    model = one_node(op_type, {"x": x}, {"scale": gain}, axis=axis, epsilon=1e-5)
    lowered_equal(model, {"x": x}, opset=13, operators=OLD_READER, static=True, ort=False)


@settings(max_examples=30)
@given(
    groups=st.integers(1, 4),
    width=st.integers(1, 3),
    spatial=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    batch=st.integers(1, 3),
)
def test_group_normalization_on_any_shape(groups: int, width: int, spatial: list[int], batch: int) -> None:
    count = groups * width
    x = np.random.default_rng(count).standard_normal((batch, count, *spatial)).astype(np.float32)
    constants = {"s": channels(count), "b": floats(count)}
    model = one_node("GroupNormalization", {"x": x}, constants, num_groups=groups)
    lowered_equal(model, {"x": x}, opset=17, operators=OLD_READER, static=True, ort=False)


@settings(max_examples=40)
@given(
    a=st.lists(st.integers(-1000, 1000), min_size=1, max_size=20),
    b=st.integers(-50, 50).filter(bool),
    fmod=st.sampled_from([0, 1]),
)
def test_mod_of_any_integers(a: list[int], b: int, fmod: int) -> None:
    x = np.array(a, np.int64)
    model = one_node("Mod", {"x": x}, {"b": np.int64([b])}, fmod=fmod)
    made, _ = lowered_equal(
        model, {"x": x}, tolerance=0.0, opset=13, operators=OLD_READER, index_dtype="int32", ort=False
    )
    assert "Mod" not in operators(made)


def attention(**attributes: Any) -> tuple[Model, dict[str, np.ndarray]]:
    return several("Attention", floats(1, 2, 4, 8), floats(1, 2, 6, 8), floats(1, 2, 6, 8), **attributes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: attention(),
        lambda: attention(scale=0.2, softcap=3.0),
        lambda: attention(is_causal=1),
        lambda: with_constants(
            "RotaryEmbedding", floats(1, 2, 5, 8), {"c": floats(1, 5, 4), "s": floats(1, 5, 4)}
        ),
        lambda: with_constants("CenterCropPad", floats(7, 3), {"shape": np.int64([4, 6])}),
    ],
    ids=["attention", "attention-softcap", "attention-causal", "rotary", "crop"],
)
def test_what_onnx_defines_by_a_body_is_written_by_it(
    make: Callable[[], tuple[Model, dict[str, np.ndarray]]],
) -> None:
    model, feeds = make()
    made, _ = lowered_equal(model, feeds, tolerance=1e-6, opset=13, operators=OLD_READER, static=True)
    assert operators(made) <= OLD_READER
    assert not {"Shape", "Size", "Range", "If"} & operators(made)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: plain("Det", floats(3, 3))[0], ["the_node", "Det", "does not read"]),
        (lambda: several("BitShift", integers(0, 9, 4, dtype=np.uint8), integers(0, 3, 4, dtype=np.uint8),
                         direction="LEFT")[0], ["the_node", "BitShift"]),
        (lambda: several("OneHot", integers(0, 3, 4), np.int64(5), np.float32([0, 1]))[0],
         ["the_node", "OneHot", "depth", "constant"]),
        (lambda: several("Trilu", floats(3, 3), np.int64(1))[0], ["the_node", "Trilu", "diagonal"]),
        (lambda: several("GridSample", floats(1, 1, 3, 3), floats(1, 2, 2, 2))[0], ["GridSample", "13"]),
        (lambda: plain("NonZero")[0], ["the_node", "NonZero"]),
    ],
    ids=["Det", "BitShift", "OneHot", "Trilu", "GridSample", "NonZero"],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_by_name(model: Callable[[], Model], words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        lower_model(model(), opset=13, operators=OLD_READER)
    for word in words:
        assert word in str(caught.value)


def test_hardmax_needs_the_size_of_its_axis() -> None:
    x = floats(2, 3)
    model = one_node("Hardmax", {"x": x}, shapes={"x": ["n", "c"]})
    with pytest.raises(UnsupportedError, match="dimension 1 of 'x' is not fixed"):
        lower_model(model, opset=13, operators=OLD_READER)
