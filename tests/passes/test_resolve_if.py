"""resolve_if: the branch taken stands in the place of the If."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgefuse.passes.remove_dead_code import remove_dead_code
from edgefuse.passes.resolve_if import resolve_if
from tests.passes.graphs import Build, apply, ops

INFO = helper.make_tensor_value_info


def graph(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], constants: Sequence[onnx.TensorProto] = ()
) -> onnx.GraphProto:
    infos = [INFO(o, TensorProto.FLOAT, None) for o in outputs]
    return helper.make_graph(nodes, "_".join(outputs), [], infos, constants)


def node(op: str, inputs: Sequence[str], output: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output])


def build(
    condition: bool | None, then: onnx.GraphProto, other: onnx.GraphProto, outputs: Sequence[str] = ("y",)
) -> Build:
    b = Build()
    b.x([2, 3])
    c = b.x([], name="c", element=TensorProto.BOOL) if condition is None else b.w(condition, "c", dtype=bool)
    b.nodes.append(node("Relu", ["x"], "r"))
    b.nodes.append(helper.make_node("If", [c], list(outputs), then_branch=then, else_branch=other))
    return b


@pytest.mark.parametrize(("condition", "taken"), [(True, "Exp"), (False, "Neg")])
def test_the_branch_taken_stays(condition: bool, taken: str) -> None:
    model = (
        build(condition, graph([node("Exp", ["r"], "t")], ["t"]), graph([node("Neg", ["r"], "e")], ["e"]))
        .y("y")
        .model()
    )
    assert apply(resolve_if, model).changed == 1
    assert ops(model) == {"Relu": 1, taken: 1}


def test_a_computed_condition_stays() -> None:
    b = build(None, graph([node("Exp", ["r"], "t")], ["t"]), graph([node("Neg", ["r"], "e")], ["e"])).y("y")
    model = b.model()
    assert not resolve_if(model)
    assert ops(model)["If"] == 1


def test_branches_that_hand_outer_values_through() -> None:
    then = graph([node("Identity", ["r"], "t"), node("Identity", ["x"], "t2")], ["t", "t2"])
    other = graph([node("Neg", ["r"], "e"), node("Neg", ["x"], "e2")], ["e", "e2"])
    for flag in (True, False):
        b = build(flag, then, other, ["y", "z"]).y("y", "z")
        model = b.model()
        assert apply(resolve_if, model).changed == 1
        assert [v.name for v in model.graph.outputs] == ["y", "z"]


def test_one_value_returned_twice_keeps_both_names() -> None:
    then = graph([node("Exp", ["r"], "t")], ["t", "t"])
    other = graph([node("Neg", ["r"], "e"), node("Abs", ["r"], "e2")], ["e", "e2"])
    model = build(True, then, other, ["y", "z"]).y("y", "z").model()
    assert apply(resolve_if, model).changed == 1
    assert [v.name for v in model.graph.outputs] == ["y", "z"]


def test_nested_and_constants_of_the_branch() -> None:
    weight = onnx.numpy_helper.from_array(np.float32([1, 2, 3]), "w")
    inner = helper.make_node(
        "If",
        ["c"],
        ["i"],
        then_branch=graph([node("Mul", ["r", "w"], "m")], ["m"], [weight]),
        else_branch=graph([node("Sub", ["r", "r"], "s")], ["s"]),
    )
    then = graph([inner, node("Exp", ["i"], "t")], ["t"])
    model = build(True, then, graph([node("Neg", ["r"], "e")], ["e"])).y("y").model()
    assert apply(resolve_if, model).changed == 2
    assert ops(model) == {"Relu": 1, "Mul": 1, "Exp": 1}


def test_what_the_other_branch_read_is_free_again() -> None:
    b = build(
        True, graph([node("Exp", ["r"], "t")], ["t"]), graph([node("Add", ["r", "big"], "e")], ["e"])
    ).y("y")
    b.w(np.ones((2, 3)), "big")
    model = b.model()
    assert resolve_if(model)
    assert not model.graph.initializers["big"].uses()
    assert remove_dead_code(model)
    assert not model.graph.initializers


def test_an_if_inside_a_computed_if_stays() -> None:
    inner = helper.make_node(
        "If",
        ["k"],
        ["i"],
        then_branch=graph([node("Abs", ["r"], "m")], ["m"]),
        else_branch=graph([node("Neg", ["r"], "s")], ["s"]),
    )
    b = build(None, graph([inner], ["i"]), graph([node("Neg", ["r"], "e")], ["e"])).y("y")
    b.w(True, "k", dtype=bool)
    model = b.model()
    assert not resolve_if(model)
    assert ops(model)["If"] == 2
