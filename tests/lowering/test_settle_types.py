"""Element types: what a target does not hold is replaced, ONNX's own int64 ports stay, nothing overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from small_models import OLD_READER, lowered_equal, one_node, operators

from edgefuse.errors import UnsupportedError
from edgefuse.graph import DataType, Model, all_nodes, attribute, constant, model_from_proto
from edgefuse.graph.check import check_model
from edgefuse.graph.schemas import operator_form
from edgefuse.lowering import OperatorLimit, lower_model

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 6)).astype(np.float32)
NARROW: dict[str, Any] = {
    "opset": 13,
    "operators": OLD_READER,
    "static": True,
    "index_dtype": "int32",
    "retype": {"double": "float", "float16": "float", "uint8": "int32"},
}
FLOATS_AND_INT32 = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.INT32})
FLOATS = frozenset({DataType.FLOAT, DataType.FLOAT16})


def no_int64_but_where_onnx_wants_it(model: Model) -> None:
    for node in all_nodes(model):
        form = operator_form(node.op_type, 13)
        assert form is not None
        for index, value in enumerate(node.inputs):
            port = form.input_port(index)
            if value is not None and value.dtype == DataType.INT64 and port is not None:
                assert DataType.INT32 not in port.types, (node.op_type, index)
        for value in node.outputs:
            array = constant(value)
            assert array is None or array.dtype != np.int64


def test_int64_indices_become_int32() -> None:
    ids = RNG.integers(0, 4, (2, 3))
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (int64[2,3] ids) => (float[2,3,6] y)'
        " { y = Gather(table, ids) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(X, "table"))
    model = model_from_proto(proto)
    made, notes = lowered_equal(model, {"ids": ids}, **NARROW)
    assert notes.input_casts == {"ids": ("int64", "int32")}
    assert made.graph.inputs[0].dtype == DataType.INT32
    no_int64_but_where_onnx_wants_it(made)


def test_shapes_stay_int64_where_onnx_insists() -> None:
    model = one_node("Reshape", {"x": X}, {"s": np.int64([3, 8])})
    made, notes = lowered_equal(model, {"x": X}, **NARROW)
    (node,) = all_nodes(made)
    assert node.inputs[1] is not None
    assert node.inputs[1].dtype == DataType.INT64
    assert not notes.input_casts


def test_an_int64_result_becomes_int32_under_its_name() -> None:
    model = one_node("ArgMax", {"x": X}, axis=1)
    made, notes = lowered_equal(model, {"x": X}, ort=False, **NARROW)
    assert notes.output_casts == {"y0": ("int64", "int32")}
    assert made.graph.outputs[0].dtype == DataType.INT32
    assert operators(made) == {"ArgMax", "Cast"}


def test_a_slice_to_the_end_is_clamped_to_int32() -> None:
    constants = {"starts": np.int64([1]), "ends": np.int64([2**63 - 1]), "axes": np.int64([1])}
    made, _ = lowered_equal(one_node("Slice", {"x": X}, constants), {"x": X}, **NARROW)
    (node,) = all_nodes(made)
    ends = constant(node.inputs[2])
    assert ends is not None
    assert int(ends.max()) <= 2**31 - 1


def test_a_large_integer_elsewhere_is_refused() -> None:
    ids = RNG.integers(0, 9, (3,))
    model = one_node("Add", {"ids": ids}, {"far": np.int64([2**40])})
    with pytest.raises(UnsupportedError, match=r"the_node.*Add.*int32 range") as caught:
        lower_model(model, **NARROW)
    assert str(2**40) in str(caught.value)


def test_double_and_float16_become_float32() -> None:
    x = X.astype(np.float64)
    made, notes = lowered_equal(
        one_node("Mul", {"x": x}, {"c": np.float64(0.1)}), {"x": x}, tolerance=1e-6, ort=False, **NARROW
    )
    assert notes.input_casts == {"x": ("double", "float")}
    assert notes.output_casts == {"y0": ("double", "float")}
    assert all(v.dtype == DataType.FLOAT for v in made.graph.initializers.values())
    half = X.astype(np.float16)
    made, notes = lowered_equal(one_node("Relu", {"x": half}), {"x": half}, ort=False, **NARROW)
    assert made.graph.inputs[0].dtype == DataType.FLOAT


def test_casts_between_replaced_types_go_away() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4,6] x) => (float[4,6] y)'
        " { h = Cast<to=10>(x) r = Relu(h) y = Cast<to=1>(r) }"
    )
    made, _ = lowered_equal(model_from_proto(proto), {"x": X}, tolerance=1e-6, ort=False, **NARROW)
    assert "Cast" not in operators(made)


def test_uint8_images_become_int32() -> None:
    x = RNG.integers(0, 255, (1, 3, 4, 4)).astype(np.uint8)
    made, notes = lowered_equal(one_node("Cast", {"x": x}, to=1), {"x": x}, **NARROW)
    assert notes.input_casts == {"x": ("uint8", "int32")}
    assert operators(made) == {"Cast"}


def test_an_operator_without_bool_runs_in_int32() -> None:
    a, b = RNG.random(20) > 0.5, RNG.random(20) > 0.5
    limits = {"Equal": OperatorLimit(types=FLOATS_AND_INT32)}
    readable = frozenset({"Equal", "Cast"})  # no logic to write it with
    made, _ = lowered_equal(
        one_node("Equal", {"a": a, "b": b}), {"a": a, "b": b}, opset=13, operators=readable, limits=limits
    )
    assert operators(made) == {"Equal", "Cast"}
    made, _ = lowered_equal(
        one_node("Equal", {"a": a, "b": b}), {"a": a, "b": b}, opset=13, operators=OLD_READER, limits=limits
    )
    assert operators(made) == {"And", "Or", "Not"}


def test_an_integer_sum_runs_in_float32_and_says_so() -> None:
    x = RNG.integers(0, 100, (4, 6))
    limits = {"ReduceSum": OperatorLimit(types=FLOATS)}
    model = one_node("ReduceSum", {"x": x}, {"axes": np.int64([1])})
    made, notes = lowered_equal(model, {"x": x}, ort=False, limits=limits, **NARROW)
    assert operators(made) == {"Cast", "ReduceSum"}
    assert any("ReduceSum of integers runs in float32, exact up to 2^24" in line for line in notes.lines)


def test_an_integer_clip_is_min_and_max() -> None:
    x = RNG.integers(-100, 100, (4, 6))
    limits = {"Clip": OperatorLimit(types=FLOATS, constant_inputs=(1, 2))}
    model = one_node("Clip", {"x": x}, {"low": np.int64(-5), "high": np.int64(7)})
    made, _ = lowered_equal(model, {"x": x}, ort=False, limits=limits, **NARROW)
    assert operators(made) == {"Min", "Max"}


def test_a_clip_with_computed_bounds_is_min_and_max() -> None:
    feeds = {"x": X, "low": np.array(-0.5, np.float32), "high": np.array(0.5, np.float32)}
    limits = {"Clip": OperatorLimit(constant_inputs=(1, 2))}
    made, notes = lowered_equal(one_node("Clip", feeds), feeds, limits=limits, **NARROW)
    assert operators(made) == {"Min", "Max"}
    assert "computed at run time" in notes.lines[0]


def test_small_integers_do_not_stop_wrapping_around() -> None:
    x = np.int8([100, 100])
    with pytest.raises(UnsupportedError, match=r"the_node.*wrap"):
        lower_model(one_node("Add", {"x": x}, {"c": np.int8([100])}), **NARROW)
    y = np.uint8([3, 200])
    with pytest.raises(UnsupportedError, match=r"the_node"):
        lower_model(one_node("Mul", {"y": y}, {"c": np.uint8([100])}), **NARROW)


@pytest.mark.parametrize(
    ("limit", "make", "words"),
    [
        (
            {"MaxPool": OperatorLimit(max_outputs=1, reason="it writes no indices")},
            lambda: one_node("MaxPool", {"x": X[None, None]}, outputs=2, kernel_shape=[2, 2]),
            ["the_node", "output 1", "it writes no indices"],
        ),
        (
            {"Resize": OperatorLimit(attributes={"mode": ("nearest", "linear")})},
            lambda: one_node(
                "Resize", {"x": X[None, None]}, {"r": None, "s": np.float32([1, 1, 2, 2])}, mode="cubic"
            ),
            ["the_node", "mode='cubic'", "nearest, linear"],
        ),
        (
            {"Conv": OperatorLimit(constant_inputs=(1,))},
            lambda: one_node("Conv", {"x": X[None, None], "w": X[None, None, :2, :2]}),
            ["the_node", "input 1 (w)", "run time"],
        ),
    ],
    ids=["outputs", "attribute", "constant"],
)
def test_limits_of_a_reader_are_held(limit: dict[str, OperatorLimit], make: Any, words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        lower_model(make(), opset=13, operators=OLD_READER, limits=limit)
    for word in words:
        assert word in str(caught.value)


def test_a_result_whose_size_depends_on_data_is_refused_where_shapes_are_fixed() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (int64[1, n] y) { y = NonZero(x) }'
    )
    with pytest.raises(UnsupportedError, match=r"NonZero.*depends on data"):
        lower_model(model_from_proto(proto), opset=17, static=True)
    made, _ = lower_model(model_from_proto(proto), opset=17)
    check_model(made)


def test_bodies_of_if_are_lowered_too() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (bool c, float[4,6] x) => (float[4,6] y) {
          y = If (c) <
            then_branch = a () => (float[4,6] t) { t = Gelu(x) },
            else_branch = b () => (float[4,6] e) { e = HardSwish(x) }
          >
        }"""
    )
    for flag in (True, False):
        feeds = {"c": np.array(flag), "x": X}
        made, _ = lowered_equal(model_from_proto(proto), feeds, tolerance=1e-6, **NARROW)
        assert not {"Gelu", "HardSwish"} & operators(made)
        assert attribute(next(n for n in all_nodes(made) if n.op_type == "If"), "then_branch") is not None
