"""remove_dead_code: what no output needs goes, the model's signature stays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from onnx import TensorProto, helper

from edgefuse.graph import clone_model
from edgefuse.graph.reference import Reference
from edgefuse.passes.remove_dead_code import remove_dead_code
from tests.passes.graphs import Build, apply, ops
from tests.passes.random_graphs import ModelCase, random_models


def test_chains_and_initializers_that_nobody_reads_go() -> None:
    b = Build()
    x = b.x([2, 3])
    b.op("Neg", b.op("Add", x, b.rand(3)))
    b.rand(7)
    b.y(b.op("Relu", x))
    model = b.model()
    assert apply(remove_dead_code, model).changed == 4
    assert ops(model) == {"Relu": 1}
    assert not model.graph.initializers


def test_unread_inputs_stay() -> None:
    b = Build()
    x, _ = b.x([2, 3]), b.x([4], name="unread")
    b.y(b.op("Relu", x))
    model = b.model()
    assert not apply(remove_dead_code, model)
    assert [v.name for v in model.graph.inputs] == ["x", "unread"]


def test_optional_outputs_that_nobody_reads_go() -> None:
    b = Build()
    x = b.x([3, 1, 2])
    b.nodes.append(
        helper.make_node("LSTM", [x, b.rand(1, 8, 2), b.rand(1, 8, 2)], ["y", "h", "c"], hidden_size=2)
    )
    b.y(b.op("Neg", "h"))
    model = b.model()
    apply(remove_dead_code, model)
    assert [v.name for v in next(iter(model.graph)).outputs] == ["", "h"]


def test_a_node_with_one_needed_output_stays() -> None:
    b = Build()
    b.nodes.append(helper.make_node("Split", [b.x([4, 2])], ["a", "b"], axis=0, num_outputs=2))
    b.y(b.op("Neg", "b"))
    model = b.model()
    assert not apply(remove_dead_code, model)
    assert ops(model) == {"Split": 1, "Neg": 1}


def test_inside_branches_and_what_a_dead_branch_read() -> None:
    b = Build()
    x = b.x([2])
    c = b.x([], name="c", element=TensorProto.BOOL)
    w = b.rand(2)
    info = helper.make_tensor_value_info

    def branch(op: str, n: str) -> object:
        nodes = [
            helper.make_node("Neg", ["x"], [f"dead{op}{n}"]),
            helper.make_node(op, ["x", w], [f"{op}{n}"]),
        ]
        return helper.make_graph(nodes, op + n, [], [info(f"{op}{n}", TensorProto.FLOAT, [2])])

    for n in "ab":
        b.nodes.append(
            helper.make_node("If", [c], [f"y{n}"], then_branch=branch("Add", n), else_branch=branch("Mul", n))
        )
    b.y("ya")
    model = b.model()
    before = clone_model(model)
    assert (
        remove_dead_code(model).changed == 7
    )  # the second If with its 4 nodes, a Neg in each branch of the first
    assert ops(model) == {"If": 1, "Add": 1, "Mul": 1}
    for flag in (True, False):
        data = {"x": np.float32([1, 2]), "c": np.array(flag)}
        assert np.array_equal(Reference(model).run(data)["ya"], Reference(before).run(data)["ya"])
    b.outputs.clear()
    model = b.y(b.op("Relu", x)).model()
    assert remove_dead_code(model)
    assert not model.graph.initializers  # w was read by the branches only
    assert not remove_dead_code(model)


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(remove_dead_code)
