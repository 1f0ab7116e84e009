"""share_weights: equal constants become one, and only equal ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper

from edgefuse.graph import model_from_proto, model_to_proto
from edgefuse.passes.share_weights import share_weights
from tests.passes.graphs import Build, apply
from tests.passes.random_graphs import ModelCase, random_models


def two_constants(first: np.ndarray, second: np.ndarray) -> Build:
    b = Build()
    x = b.x([2, 3])
    y = b.op("Add", x, b.w(first, "first", dtype=first.dtype))
    return b.y(b.op("Mul", y, b.w(second, "second", dtype=second.dtype)))


def test_equal_weights_become_the_first() -> None:
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = two_constants(w, w.copy()).model()
    result = apply(share_weights, model)
    assert result.changed == 1
    assert "24 bytes" in result.notes[0]
    assert list(model.graph.initializers) == ["first"]


def test_large_weights_that_differ_between_the_samples_stay_apart() -> None:
    w = np.zeros((256, 256), np.float32)
    other = w.copy()
    other[77, 131] = 1e-3
    b = Build()
    x = b.x([2, 256])
    b.y(b.op("MatMul", b.op("MatMul", x, b.w(w)), b.w(other)), b.op("MatMul", x, b.w(w)))
    model = b.model()
    assert apply(share_weights, model).changed == 1
    assert len(model.graph.initializers) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.float32([0.0]), np.float32([-0.0])),
        (np.float32([1.0]), np.float32([1.0 + 1e-7])),
        (np.float32([[1, 2, 3]]), np.float32([1, 2, 3])),
        (np.float32([1, 2, 3]), np.float32([3, 2, 1])),
    ],
)
def test_unequal_constants_stay(first: np.ndarray, second: np.ndarray) -> None:
    model = two_constants(first, second).model()
    assert not apply(share_weights, model)
    assert len(model.graph.initializers) == 2


def test_same_numbers_of_another_dtype_stay() -> None:
    b = Build()
    x = b.x([2])
    half = b.op("Cast", b.w([1, 2], dtype=np.float16), to=TensorProto.FLOAT)
    b.y(b.op("Add", b.op("Add", x, half), b.w([1, 2])))
    assert not apply(share_weights, b.model())


def test_strings_are_shared() -> None:
    words = [helper.make_tensor(n, TensorProto.STRING, [2], [b"a", b"b"]) for n in ("s", "t")]
    nodes = [
        helper.make_node("StringConcat", ["x", "s"], ["m"]),
        helper.make_node("StringConcat", ["m", "t"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], words)
    model = model_from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    )
    assert share_weights(model).changed == 1
    onnx.checker.check_model(model_to_proto(model))


def test_a_constant_read_in_a_branch_is_shared_too() -> None:
    b = Build()
    x = b.x([2])
    c = b.x([], name="c", element=TensorProto.BOOL)
    w, v = b.w([1, 2]), b.w([1, 2])
    info = helper.make_tensor_value_info
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x", v], [f"{op}_y"])], op, [], [info(f"{op}_y", TensorProto.FLOAT, [2])]
        )
        for op in ("Add", "Mul")
    ]
    b.nodes.append(helper.make_node("If", [c], ["y"], then_branch=branches[0], else_branch=branches[1]))
    b.y("y", b.op("Add", x, w))
    model = b.model()
    assert share_weights(model).changed == 1
    assert list(model.graph.initializers) == [w]
    assert not share_weights(model)


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(share_weights)
