"""remove_identity: each numbered case of its docstring, taken and left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper

from edgefuse.passes.remove_identity import remove_identity
from tests.passes.graphs import Build, apply, ops
from tests.passes.random_graphs import ModelCase, random_models

Case = Callable[[Build, str], str]

# x is [2, 3, 4, 1]
TAKEN: dict[str, Case] = {
    "identity": lambda b, x: b.op("Identity", x),
    "dropout": lambda b, x: b.op("Dropout", x),
    "dropout with a ratio": lambda b, x: b.op("Dropout", x, b.w(0.5)),
    "dropout, training false": lambda b, x: b.op("Dropout", x, b.w(0.5), b.w(False, dtype=bool)),
    "cast": lambda b, x: b.op("Cast", x, to=TensorProto.FLOAT),
    "cast like": lambda b, x: b.op("CastLike", x, b.w(0.5)),
    "reshape": lambda b, x: b.op("Reshape", x, b.ints(0, 3, -1, 1)),
    "unsqueeze by nothing": lambda b, x: b.op("Unsqueeze", x, b.ints()),
    "expand": lambda b, x: b.op("Expand", x, b.ints(2, 3, 4, 1)),
    "expand by ones": lambda b, x: b.op("Expand", x, b.ints(1, 1)),
    "transpose": lambda b, x: b.op("Transpose", x, perm=[0, 1, 2, 3]),
    "pad": lambda b, x: b.op("Pad", x, b.ints(*[0] * 8)),
    "pad, reflect": lambda b, x: b.op("Pad", x, b.ints(*[0] * 8), mode="reflect"),
    "slice": lambda b, x: b.op("Slice", x, b.ints(0), b.ints(2**63 - 1), b.ints(1), b.ints(1)),
    "slice to the size": lambda b, x: b.op("Slice", x, b.ints(0, 0), b.ints(3, 4), b.ints(1, 2)),
    "concat": lambda b, x: b.op("Concat", x, axis=1),
    "sum": lambda b, x: b.op("Sum", x),
    "mean": lambda b, x: b.op("Mean", x),
    "split": lambda b, x: b.op("Split", x, axis=1, num_outputs=1),
    "tile": lambda b, x: b.op("Tile", x, b.ints(1, 1, 1, 1)),
    "resize": lambda b, x: b.op("Resize", x, "", b.w([1, 1, 1, 1]), mode="nearest"),
    "resize to the size": lambda b, x: b.op("Resize", x, "", "", b.ints(2, 3, 4, 1), mode="linear"),
    "add 0": lambda b, x: b.op("Add", x, b.w(0)),
    "0 added": lambda b, x: b.op("Add", b.w(np.zeros((3, 1, 1))), x),
    "sub 0": lambda b, x: b.op("Sub", x, b.w(np.zeros((2, 3, 4, 1)))),
    "mul 1": lambda b, x: b.op("Mul", b.w([1]), x),
    "div 1": lambda b, x: b.op("Div", x, b.w(np.ones((1, 3, 1, 1)))),
    "pow 1": lambda b, x: b.op("Pow", x, b.w(1)),
    "reduce": lambda b, x: b.op("ReduceMean", x, b.ints(3)),
    "max pool": lambda b, x: b.op("MaxPool", x, kernel_shape=[1, 1]),
    "average pool": lambda b, x: b.op("AveragePool", x, kernel_shape=[1, 1], strides=[1, 1]),
    "clip": lambda b, x: b.op("Clip", x),
    "depth to space": lambda b, x: b.op("DepthToSpace", x, blocksize=1),
}

LEFT: dict[str, Case] = {
    "dropout in training": lambda b, x: b.op("Dropout", x, b.w(0.0), b.w(True, dtype=bool)),
    "cast to half": lambda b, x: b.op("Cast", b.op("Cast", x, to=TensorProto.DOUBLE), to=TensorProto.FLOAT),
    "reshape": lambda b, x: b.op("Reshape", x, b.ints(2, 4, 3, 1)),
    "expand": lambda b, x: b.op("Expand", x, b.ints(2, 3, 4, 2)),
    "expand to a higher rank": lambda b, x: b.op("Expand", x, b.ints(1, 1, 1, 1, 1)),
    "transpose": lambda b, x: b.op("Transpose", x, perm=[0, 1, 3, 2]),
    "transpose without an order": lambda b, x: b.op("Transpose", x),
    "pad": lambda b, x: b.op("Pad", x, b.ints(0, 0, 0, 0, 0, 0, 1, 0)),
    "slice backwards": lambda b, x: b.op("Slice", x, b.ints(2), b.ints(-9), b.ints(1), b.ints(-1)),
    "slice from 1": lambda b, x: b.op("Slice", x, b.ints(1), b.ints(2**63 - 1), b.ints(1)),
    "slice short": lambda b, x: b.op("Slice", x, b.ints(0), b.ints(2), b.ints(1)),
    "concat": lambda b, x: b.op("Concat", x, x, axis=1),
    "tile": lambda b, x: b.op("Tile", x, b.ints(1, 1, 1, 2)),
    "resize": lambda b, x: b.op("Resize", x, "", b.w([1, 1, 2, 1]), mode="nearest"),
    "resize that moves": lambda b, x: b.op(
        "Resize",
        x,
        "",
        b.w([1, 1, 1, 1]),
        mode="nearest",
        nearest_mode="ceil",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    ),
    "resize, same size but another scale": lambda b, x: b.op(
        "Resize", x, "", b.w([1, 1, 1.2, 1]), mode="linear"
    ),
    "add 0 that broadens": lambda b, x: b.op("Add", x, b.w(np.zeros((2, 3, 4, 5)))),
    "add 0 of a higher rank": lambda b, x: b.op("Add", x, b.w(np.zeros((1, 1, 1, 1, 1)))),
    "0 minus": lambda b, x: b.op("Sub", b.w(0), x),
    "1 over": lambda b, x: b.op("Div", b.w(1), x),
    "mul 1 and more": lambda b, x: b.op("Mul", x, b.w([[[1]], [[1]], [[1.001]]])),
    "reduce": lambda b, x: b.op("ReduceMean", x, b.ints(2)),
    "reduce, dropped": lambda b, x: b.op("ReduceMean", x, b.ints(3), keepdims=0),
    "reduce all": lambda b, x: b.op("ReduceSum", x),
    "norm": lambda b, x: b.op("ReduceL2", x, b.ints(3)),
    "pool": lambda b, x: b.op("MaxPool", x, kernel_shape=[2, 1]),
    "pool with strides": lambda b, x: b.op("MaxPool", x, kernel_shape=[1, 1], strides=[2, 1]),
    "clip": lambda b, x: b.op("Clip", x, b.w(0)),
}


def around(case: Case, last: bool = False) -> Build:
    b = Build()
    x = b.op("Relu", b.x([2, 3, 4, 1]))
    y = case(b, x)
    return b.y(y if last else b.op("Neg", y))


@pytest.mark.parametrize("name", TAKEN)
def test_takes(name: str) -> None:
    model = around(TAKEN[name]).model()
    assert apply(remove_identity, model).changed == 1
    assert ops(model) == {"Relu": 1, "Neg": 1}


@pytest.mark.parametrize("name", TAKEN)
def test_output_keeps_its_name(name: str) -> None:
    model = around(TAKEN[name], last=True).model()
    wanted = model.graph.outputs[0].name
    assert apply(remove_identity, model).changed == 1
    assert ops(model) == {"Relu": 1}
    assert next(iter(model.graph)).outputs[0].name == wanted


@pytest.mark.parametrize("name", LEFT)
def test_leaves(name: str) -> None:
    if name == "dropout in training":  # the reference draws at random; only the graph is compared
        model = around(LEFT[name]).model()
        assert not remove_identity(model)
        return
    assert not apply(remove_identity, around(LEFT[name]).model())


@pytest.mark.parametrize("kind", ["Identity", "Dropout"])
def test_between_graph_input_and_output_an_identity_stays(kind: str) -> None:
    b = Build()
    b.y(b.op(kind, b.x([2, 3])))
    model = b.model()
    apply(remove_identity, model)
    assert ops(model) == {"Identity": 1}


def test_two_outputs_of_one_value_keep_both_names() -> None:
    b = Build()
    x = b.op("Relu", b.x([2, 3]))
    b.y(b.op("Identity", x, out="first"), b.op("Dropout", x, out="second"), b.op("Neg", x, out="third"))
    model = b.model()
    assert apply(remove_identity, model)
    assert [v.name for v in model.graph.outputs] == ["first", "second", "third"]
    assert ops(model) == {"Relu": 1, "Identity": 1, "Neg": 1}


def test_output_of_an_idle_node_that_is_read_inside_stays_an_output() -> None:
    b = Build()
    mid = b.op("Identity", b.op("Relu", b.x([2, 3])), out="mid")
    b.y(mid, b.op("Neg", mid))
    model = b.model()
    assert apply(remove_identity, model).changed == 1
    assert ops(model) == {"Relu": 1, "Neg": 1}


def test_dropout_whose_mask_is_read_stays() -> None:
    b = Build()
    x = b.x([2, 3])
    b.nodes.append(helper.make_node("Dropout", [x], ["y", "mask"]))
    b.y("y").y("mask", element=TensorProto.BOOL)
    assert not apply(remove_identity, b.model())


def test_reshape_of_one_unknown_size_is_taken_and_of_two_left() -> None:
    for shape, target, changed in ((["N", 3, 4], (-1, 3, 4), 1), (["N", "M", 4], (-1, 3, 4), 0)):
        b = Build()
        x = b.op("Relu", b.x(shape))
        b.y(b.op("Neg", b.op("Reshape", x, b.ints(*target))))
        assert apply(remove_identity, b.model(), M=3).changed == changed


@pytest.mark.parametrize(("target", "changed"), [((1, 3), 1), ((3,), 1), ((2, 3), 0), ((1, 1, 3), 0)])
def test_expand_among_unknown_sizes(target: tuple[int, ...], changed: int) -> None:
    b = Build()
    x = b.op("Relu", b.x(["N", 3]))
    b.y(b.op("Neg", b.op("Expand", x, b.ints(*target))))
    assert apply(remove_identity, b.model(), N=2).changed == changed


@pytest.mark.parametrize(("end", "changed"), [(10**9, 1), (2**31 - 1, 1), (3, 0)])
def test_slice_among_unknown_sizes(end: int, changed: int) -> None:
    b = Build()
    x = b.op("Relu", b.x(["N", 3]))
    b.y(b.op("Neg", b.op("Slice", x, b.ints(0, 0), b.ints(3, end), b.ints(1, 0))))
    assert apply(remove_identity, b.model(), N=5).changed == changed


def test_integer_constants_and_dtypes_stay() -> None:
    b = Build()
    x = b.op("Cast", b.x([4], element=TensorProto.INT64), to=TensorProto.INT32)
    b.y(b.op("Add", x, b.w([0], dtype=np.int32)), element=TensorProto.INT32)
    model = b.model()
    assert apply(remove_identity, model).changed == 1
    assert ops(model) == {"Cast": 1}


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(remove_identity)
