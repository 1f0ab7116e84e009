"""Operators in the form of operator set 13: equal where it can say the same, else refused by attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import OLD_READER, lowered_equal, one_node, operators

from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model, all_nodes, attribute, constant, opset
from edgefuse.graph.check import check_model
from edgefuse.graph.schemas import NO_DEFAULT, newest_form, operator_form
from edgefuse.lowering import lower_model

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 6, 8)).astype(np.float32)
OLD: dict[str, Any] = {"opset": 13, "operators": OLD_READER, "static": True}


def the_node(model: Model, op_type: str) -> Any:
    (found,) = [node for node in all_nodes(model) if node.op_type == op_type]
    return found


@pytest.mark.parametrize(
    "name", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"]
)
@pytest.mark.parametrize("axes", [[1], [-1, 2], [0, 1, 2, 3]])
def test_reductions_take_their_axes_as_an_attribute(name: str, axes: list[int]) -> None:
    model = one_node(name, {"x": X}, {"axes": np.int64(axes)}, keepdims=0)
    made, _ = lowered_equal(model, {"x": X}, **OLD)
    node = the_node(made, name)
    assert len(node.inputs) == 1
    assert tuple(attribute(node, "axes")) == tuple(axes)


@pytest.mark.parametrize("name", ["ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceLogSum", "ReduceMax"])
def test_a_reduction_over_no_axis_is_its_elementwise_part(name: str) -> None:
    x = abs(X) + 1
    model = one_node(name, {"x": x}, {"axes": np.int64([])}, noop_with_empty_axes=1)
    made, _ = lowered_equal(model, {"x": x}, **OLD)
    assert name not in operators(made)


def test_a_reduction_without_axes_is_over_all() -> None:
    made, _ = lowered_equal(one_node("ReduceMean", {"x": X}), {"x": X}, **OLD)
    assert attribute(the_node(made, "ReduceMean"), "axes") is None


@settings(max_examples=30)
@given(size=st.integers(1, 17), count=st.integers(1, 6), axis=st.sampled_from([0, 1, -1]))
def test_split_into_a_number_of_outputs(size: int, count: int, axis: int) -> None:
    chunk = -(-size // count)
    if size - chunk * (count - 1) < 0:
        return
    x = RNG.standard_normal((size, size)).astype(np.float32)
    model = one_node("Split", {"x": x}, outputs=count, num_outputs=count, axis=axis)
    made, _ = lowered_equal(model, {"x": x}, **OLD)
    assert all(attribute(node, "num_outputs") is None for node in all_nodes(made))


@settings(max_examples=30)
@given(data=st.data(), mode=st.sampled_from(["constant", "edge", "reflect"]))
def test_pads_of_some_axes(data: st.DataObject, mode: str) -> None:
    axes = data.draw(st.lists(st.integers(-2, 3), min_size=1, max_size=2, unique_by=lambda a: a % 4))
    pads = [data.draw(st.integers(0, 1)) for _ in range(2 * len(axes))]
    constants = {"p": np.int64(pads), "v": np.float32(0.5), "a": np.int64(axes)}
    made, _ = lowered_equal(one_node("Pad", {"x": X}, constants, mode=mode), {"x": X}, **OLD)
    assert all(len(node.inputs) <= 3 for node in all_nodes(made) if node.op_type == "Pad")


@pytest.mark.parametrize(
    ("constants", "more"),
    [
        ({"roi": None, "scales": np.float32([2, 0.5])}, {"axes": [2, 3]}),
        ({"roi": None, "scales": None, "sizes": np.int64([9, 5])}, {"axes": [-2, 3], "mode": "linear"}),
        ({"roi": None, "scales": np.float32([1, 1, 2, 2])}, {"keep_aspect_ratio_policy": "stretch"}),
        ({"roi": None, "scales": np.float32([1, 1, 2, 2])}, {"antialias": 0, "mode": "linear"}),
    ],
)
def test_resize_of_some_axes(constants: dict[str, Any], more: dict[str, Any]) -> None:
    model = one_node("Resize", {"x": X}, constants, **more)
    made, _ = lowered_equal(model, {"x": X}, tolerance=1e-6, **OLD)
    node = the_node(made, "Resize")
    assert not {"axes", "antialias", "keep_aspect_ratio_policy"} & set(node.attributes)
    given_sizes = constant(node.inputs[2])
    if given_sizes is None or given_sizes.size == 0:
        given_sizes = constant(node.inputs[3])
    assert given_sizes is not None
    assert given_sizes.size == 4


@pytest.mark.parametrize(("start", "end"), [(1, 3), (-2, None), (0, -1), (5, 9)])
@pytest.mark.parametrize("fixed", [True, False])
def test_part_of_a_shape(start: int, end: int | None, fixed: bool) -> None:
    more = {"start": start} if end is None else {"start": start, "end": end}
    shapes = {} if fixed else {"x": [2, 3, "h", "w"]}
    model = one_node("Shape", {"x": X}, shapes=shapes, **more)
    # float64 carries no int: both runs give integers, and the float32 session is not needed
    lowered_equal(model, {"x": X}, ort=False, opset=13, operators=OLD_READER)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first_recurrences(name: str, direction: str) -> None:
    gates, dirs = {"LSTM": 4, "GRU": 3, "RNN": 1}[name], 2 if direction == "bidirectional" else 1
    x = RNG.standard_normal((3, 5, 4)).astype(np.float32)
    h0 = RNG.standard_normal((3, dirs, 6)).astype(np.float32)
    constants = {
        "w": RNG.standard_normal((dirs, gates * 6, 4)).astype(np.float32),
        "r": RNG.standard_normal((dirs, gates * 6, 6)).astype(np.float32),
        "b": None,
        "s": None,
        "h0": h0,
    }
    outputs = 3 if name == "LSTM" else 2
    model = one_node(name, {"x": x}, constants, outputs=outputs, hidden_size=6, direction=direction, layout=1)
    # ONNX Runtime's CPU kernels take no layout=1: the lowered model alone runs there
    made, _ = lowered_equal(model, {"x": x}, ort=False, **OLD)
    assert "layout" not in the_node(made, name).attributes


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, {"MaxPool", "AveragePool"}),
        ({"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}, {"MaxPool", "AveragePool"}),
        (
            {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
            {"MaxPool", "AveragePool"},
        ),
    ],
)
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_pools_round_down(op_type: str, more: dict[str, Any], kept: set[str]) -> None:
    x = RNG.standard_normal((1, 2, 7, 8)).astype(np.float32) - 5
    made, _ = lowered_equal(one_node(op_type, {"x": x}, **more), {"x": x}, **OLD)
    assert operators(made) <= kept
    assert not attribute(the_node(made, op_type), "ceil_mode", 0)


def test_a_counted_pad_keeps_the_rounding_of_the_node() -> None:
    x = RNG.standard_normal((1, 2, 6, 6)).astype(np.float32)
    more = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
    made, _ = lowered_equal(one_node("AveragePool", {"x": x}, **more), {"x": x}, **OLD)
    assert attribute(the_node(made, "AveragePool"), "ceil_mode") == 1


def test_a_dilated_average_is_a_convolution() -> None:
    model = one_node("AveragePool", {"x": X}, kernel_shape=[2, 2], dilations=[2, 2])
    made, _ = lowered_equal(model, {"x": X}, tolerance=1e-6, **OLD)
    assert operators(made) == {"Conv"}


def test_attributes_at_their_default_are_dropped() -> None:
    model = one_node("Reshape", {"x": X}, {"s": np.int64([2, -1])}, allowzero=0)
    made, _ = lowered_equal(model, {"x": X}, **OLD)
    assert "allowzero" not in the_node(made, "Reshape").attributes
    check_model(made)


def test_a_newer_target_keeps_the_newer_form() -> None:
    model = one_node("ReduceMean", {"x": X}, {"axes": np.int64([1])})
    made, _ = lowered_equal(model, {"x": X}, opset=18)
    assert len(the_node(made, "ReduceMean").inputs) == 2
    assert (opset(made), made.ir_version) == (18, 8)


def test_a_gridsample_before_20_has_its_old_mode_names() -> None:
    grid = (RNG.random((2, 4, 5, 2)) * 2 - 1).astype(np.float32)
    model = one_node("GridSample", {"x": X, "grid": grid}, mode="linear")
    made, _ = lowered_equal(model, {"x": X, "grid": grid}, tolerance=1e-6, ort=False, opset=16)
    assert attribute(the_node(made, "GridSample"), "mode") == "bilinear"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: one_node("Resize", {"x": X}, {"r": None, "s": np.float32([1, 1, 0.5, 0.5])}, antialias=1,
                          mode="linear"), ["Resize", "antialias", "13"]),
        (lambda: one_node("Resize", {"x": X}, {"r": None, "s": None, "z": np.int64([9, 9])}, axes=[2, 3],
                          keep_aspect_ratio_policy="not_larger"), ["Resize", "not_larger"]),
        (lambda: one_node("Resize", {"x": X}, {"r": None, "s": np.float32([1, 1, 2, 2])},
                          coordinate_transformation_mode="half_pixel_symmetric"), ["half_pixel_symmetric"]),
        (lambda: one_node("Pad", {"x": X}, {"p": np.int64([0, 0, 1, 1, 0, 0, 1, 1])}, mode="wrap"),
         ["Pad", "wrap"]),
        (lambda: one_node("BatchNormalization", {"x": X}, {k: np.ones(3, np.float32) for k in "sbmv"},
                          outputs=3, training_mode=1), ["BatchNormalization", "training_mode=1"]),
        (lambda: one_node("ScatterND", {"x": X}, {"i": np.int64([[0]]), "u": X[:1]}, reduction="add"),
         ["ScatterND", "reduction='add'"]),
        (lambda: one_node("AveragePool", {"x": X}, kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1]),
         ["AveragePool", "dilations"]),
        (lambda: one_node("LpPool", {"x": X}, kernel_shape=[2, 2], dilations=[2, 2]),
         ["LpPool", "dilations"]),
        (lambda: one_node("ReduceMax", {"x": X, "axes": np.int64([1])}, shapes={"axes": [1]}),
         ["ReduceMax", "axes"]),
    ],
    ids=["antialias", "aspect", "symmetric", "wrap", "training", "scatter", "dilated-average", "dilated-lp",
         "runtime-axes"],
)  # fmt: skip
def test_what_the_older_form_cannot_say_is_refused(make: Callable[[], Model], words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        lower_model(make(), opset=13, operators=OLD_READER)
    for word in ["the_node", *words]:
        assert word in str(caught.value)


def test_operator_sets_below_13_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="older than what edgefuse writes"):
        lower_model(one_node("Relu", {"x": X}), opset=11)


def test_what_onnx_says_of_an_operator() -> None:
    old, new = operator_form("Resize", 13), newest_form("Resize")
    assert old is not None
    assert new is not None
    assert set(new.attributes) - set(old.attributes) == {"antialias", "axes", "keep_aspect_ratio_policy"}
    assert new.attributes["antialias"] == 0
    assert operator_form("Resize", 13) is old
    conv = operator_form("Conv", 13)
    assert conv is not None
    assert conv.attributes["group"] == 1
    assert conv.attributes["kernel_shape"] is NO_DEFAULT
    assert conv.input_port(3) is None
    concat = operator_form("Concat", 13)
    assert concat is not None
    assert concat.input_port(7) == concat.inputs[0]
    assert operator_form("Gelu", 13) is None
    assert operator_form("Upsample", 13) is None
    # scale per group, withdrawn: not the operator of 21
    assert operator_form("GroupNormalization", 18) is None
