"""eliminate_common_subexpressions: what is computed twice is computed once, names of outputs kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper

from edgefuse.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from edgefuse.passes.remove_dead_code import remove_dead_code
from edgefuse.passes.share_weights import share_weights
from tests.passes.graphs import Build, apply, conv, ops
from tests.passes.random_graphs import ModelCase, random_models


def test_equal_subgraphs_collapse_once_their_weights_are_shared() -> None:
    b = Build()
    x = b.x([1, 2, 5, 5])
    w = b.rng.uniform(-1, 1, (3, 2, 3, 3))
    ends = [b.op("Relu", b.op("Conv", x, b.w(w), pads=[1] * 4)) for _ in range(3)]
    b.y(b.op("Concat", *ends, axis=1))
    model = b.model()
    assert not apply(eliminate_common_subexpressions, model)
    assert share_weights(model).changed == 2
    assert apply(eliminate_common_subexpressions, model).changed == 4
    assert ops(model) == {"Conv": 1, "Relu": 1, "Concat": 1}


def test_operands_of_commutative_operators_in_either_order() -> None:
    b = Build()
    x, z = b.x([2, 3]), b.x([2, 3], name="z")
    b.y(b.op("Mul", b.op("Add", x, z), b.op("Add", z, x)))
    assert apply(eliminate_common_subexpressions, b.model()).changed == 1


def test_operands_of_sub_in_another_order_stay() -> None:
    b = Build()
    x, z = b.x([2, 3]), b.x([2, 3], name="z")
    b.y(b.op("Mul", b.op("Sub", x, z), b.op("Sub", z, x)))
    assert not apply(eliminate_common_subexpressions, b.model())


@pytest.mark.parametrize(("first", "second"), [({"axis": 0}, {"axis": 1}), ({"axis": 0}, {})])
def test_other_attributes_stay(first: dict[str, int], second: dict[str, int]) -> None:
    b = Build()
    x = b.x([3, 3])
    b.y(b.op("Add", b.op("Softmax", x, **first), b.op("Softmax", x, **second)))
    assert not apply(eliminate_common_subexpressions, b.model())


def test_two_equal_graph_outputs_keep_both_names() -> None:
    b = Build()
    x = b.x([2, 3])
    b.y(b.op("Relu", x, out="first"), b.op("Relu", x, out="second"))
    model = b.model()
    assert apply(eliminate_common_subexpressions, model).changed == 1
    assert [v.name for v in model.graph.outputs] == ["first", "second"]
    assert ops(model) == {"Relu": 1, "Identity": 1}


def test_the_output_may_be_the_second_one() -> None:
    b = Build()
    x = b.x([2, 3])
    b.y(b.op("Neg", b.op("Relu", x, out="inner"), out="neg"), b.op("Relu", x, out="outer"))
    model = b.model()
    assert apply(eliminate_common_subexpressions, model).changed == 1
    assert ops(model) == {"Relu": 1, "Neg": 1}


@pytest.mark.parametrize("random", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout"])
def test_random_operators_stay(random: str) -> None:
    b = Build()
    x = b.x([2, 3])
    more = [b.w(0.5), b.w(True, dtype=bool)] if random == "Dropout" else []
    b.y(b.op("Sub", b.op(random, x, *more), b.op(random, x, *more)))
    model = b.model()
    assert not eliminate_common_subexpressions(model)
    assert ops(model)[random] == 2


def lstm(fuller_first: bool) -> Build:
    b = Build()
    x = b.x([3, 1, 2])
    weights = [b.rand(1, 8, 2), b.rand(1, 8, 2)]
    outputs = [["y", "h1"], ["", "h2"]]
    for out in outputs if fuller_first else outputs[::-1]:
        b.nodes.append(helper.make_node("LSTM", [x, *weights], out, hidden_size=2))
    return b.y("y", b.op("Neg", "h1"), b.op("Neg", "h2"))


def test_a_node_that_leaves_outputs_out_is_merged_into_a_fuller_one() -> None:
    model = lstm(fuller_first=True).model()
    assert apply(eliminate_common_subexpressions, model).changed == 2  # the LSTM, then the second Neg
    assert ops(model)["LSTM"] == 1


def test_a_fuller_node_is_not_merged_into_one_that_leaves_outputs_out() -> None:
    model = lstm(fuller_first=False).model()
    remove_dead_code(model)  # writes the outputs that nobody reads as left out
    assert not apply(eliminate_common_subexpressions, model)
    assert ops(model)["LSTM"] == 2


def test_nodes_with_bodies_stay() -> None:
    b = Build()
    c = b.x([], name="c", element=TensorProto.BOOL)
    b.x([2])
    for n in "ab":
        bodies = [
            helper.make_graph(
                [helper.make_node(op, ["x"], [f"{op}{n}"])],
                op,
                [],
                [helper.make_tensor_value_info(f"{op}{n}", TensorProto.FLOAT, [2])],
            )
            for op in ("Relu", "Neg")
        ]
        b.nodes.append(helper.make_node("If", [c], [f"y{n}"], then_branch=bodies[0], else_branch=bodies[1]))
    b.y("ya", "yb")
    assert not eliminate_common_subexpressions(b.model())


def test_equal_convolutions_of_other_inputs_stay() -> None:
    b = Build()
    x = b.x([1, 2, 5, 5])
    first = conv(b, x, 2, 2)
    b.nodes.append(helper.make_node("Conv", [first, *b.nodes[0].input[1:]], ["again"], pads=[1] * 4))
    b.y("again")
    assert not apply(eliminate_common_subexpressions, b.model())


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(eliminate_common_subexpressions)
