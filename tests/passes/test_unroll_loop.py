"""unroll_loop: Loops of a known small number of turns are written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgefuse.graph import Model, infer_shapes
from edgefuse.passes.contract import PassResult
from edgefuse.passes.unroll_loop import MAX_TURNS, unroll_loop
from tests.passes.graphs import Build, apply, ops

INFO = helper.make_tensor_value_info


def unrolled(model: Model) -> PassResult:
    """Run the pass as the pipeline does, shapes inferred after it: onnx gives none to a Loop's outputs."""
    result = unroll_loop(model)
    infer_shapes(model)
    return result


def node(op: str, inputs: Sequence[str], output: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attrs)


def body(
    condition: str = "through", suffix: str = "", inner: Sequence[onnx.NodeProto] = ()
) -> onnx.GraphProto:
    """x' = x * w + turn, scanned: x' and the turn."""
    s = suffix
    nodes = [
        *inner,
        node("Cast", [f"turn{s}"], f"number{s}", to=TensorProto.FLOAT),
        node("Mul", [f"carried{s}", "w"], f"scaled{s}"),
        node("Add", [f"scaled{s}", f"number{s}"], f"next{s}"),
        node("Identity", [f"next{s}"], f"row{s}"),
    ]
    if condition == "through":
        nodes.append(node("Identity", [f"go{s}"], f"on{s}"))
    elif condition == "computed":
        nodes += [
            node("ReduceSum", [f"next{s}"], f"sum{s}", keepdims=0),
            node("Less", [f"sum{s}", "limit"], f"on{s}"),
        ]
    else:
        nodes.append(
            helper.make_node(
                "Constant", [], [f"on{s}"], value=onnx.numpy_helper.from_array(np.array(condition == "true"))
            )
        )
    inputs = [
        INFO(f"turn{s}", TensorProto.INT64, []),
        INFO(f"go{s}", TensorProto.BOOL, []),
        INFO(f"carried{s}", TensorProto.FLOAT, [2]),
    ]
    outputs = [
        INFO(f"on{s}", TensorProto.BOOL, []),
        INFO(f"next{s}", TensorProto.FLOAT, [2]),
        INFO(f"row{s}", TensorProto.FLOAT, [2]),
    ]
    return helper.make_graph(nodes, f"body{s}", inputs, outputs)


def build(
    turns: int | None,
    condition: str = "through",
    start: bool | None = True,
    scan: bool = True,
    inner: Sequence[onnx.NodeProto] = (),
) -> Build:
    b = Build()
    x = b.op("Relu", b.x([2]))
    b.w([0.5, -1.5], "w")
    b.w(1e9, "limit")
    count = b.x([], name="m", element=TensorProto.INT64) if turns is None else b.w(turns, "m", dtype=np.int64)
    first = "" if start is None else b.w(start, "c", dtype=bool)
    outputs = ["last", "rows"] if scan else ["last", ""]
    b.nodes.append(helper.make_node("Loop", [count, first, x], outputs, body=body(condition, inner=inner)))
    return b.y("last", *(["rows"] if scan else []))


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("condition", ["through", "true"])
@pytest.mark.parametrize("start", [True, None])
def test_known_turns_are_written_out(turns: int, condition: str, start: bool | None) -> None:
    model = build(turns, condition, start).model()
    assert apply(unrolled, model).changed == 1
    found = ops(model)
    assert "Loop" not in found
    assert found["Mul"] == turns
    assert found["Concat"] == 1


@settings(max_examples=10)
@given(st.integers(1, 6))
def test_any_turns_keep_the_meaning(turns: int) -> None:
    assert apply(unrolled, build(turns).model()).changed == 1


@pytest.mark.parametrize(
    "build_",
    [
        build(None),
        build(MAX_TURNS + 1),
        build(2**62),
        build(3, condition="computed"),
        build(3, condition="false"),
        build(3, start=False),
        build(0),
    ],
    ids=["computed turns", "many turns", "endless", "computed condition", "ends after one", "never", "none"],
)
def test_other_loops_stay(build_: Build) -> None:
    model = build_.model()
    assert not unroll_loop(model)
    assert ops(model)["Loop"] == 1


def test_a_carried_value_that_is_handed_through() -> None:
    b = Build()
    b.x([2])
    nodes = [node("Identity", ["go"], "on"), node("Neg", ["first"], "swapped")]
    inputs = [
        INFO("turn", TensorProto.INT64, []),
        INFO("go", TensorProto.BOOL, []),
        INFO("first", TensorProto.FLOAT, [2]),
        INFO("second", TensorProto.FLOAT, [2]),
    ]
    outputs = [
        INFO("on", TensorProto.BOOL, []),
        INFO("second", TensorProto.FLOAT, [2]),
        INFO("swapped", TensorProto.FLOAT, [2]),
    ]
    graph = helper.make_graph(nodes, "body", inputs, outputs)
    b.nodes.append(
        helper.make_node("Loop", [b.w(3, dtype=np.int64), "", "x", b.rand(2)], ["p", "q"], body=graph)
    )
    model = b.y("p", "q").model()
    assert apply(unrolled, model).changed == 1
    assert [v.name for v in model.graph.outputs] == ["p", "q"]


def test_a_carried_value_that_grows() -> None:
    b = Build()
    b.x([2])
    nodes = [node("Concat", ["grown", "x"], "longer", axis=0)]
    inputs = [
        INFO("turn", TensorProto.INT64, []),
        INFO("go", TensorProto.BOOL, []),
        INFO("grown", TensorProto.FLOAT, None),
    ]
    outputs = [INFO("go", TensorProto.BOOL, []), INFO("longer", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "body", inputs, outputs)
    b.nodes.append(helper.make_node("Loop", [b.w(3, dtype=np.int64), "", "x"], ["y"], body=graph))
    model = b.y("y").model()
    assert apply(unrolled, model).changed == 1
    assert ops(model)["Concat"] == 3


def test_nested_loops() -> None:
    deeper = helper.make_node("Loop", ["m", "", "carried"], ["lastd", "rowsd"], body=body("through", "d"))
    uses = node("Add", ["lastd", "w"], "unused")
    model = build(2, inner=[deeper, uses]).model()
    assert apply(unrolled, model).changed == 3
    assert "Loop" not in ops(model)


def test_turns_without_carried_values() -> None:
    b = Build()
    b.x([2])
    nodes = [node("Cast", ["turn"], "number", to=TensorProto.FLOAT), node("Mul", ["x", "number"], "row")]
    graph = helper.make_graph(
        nodes,
        "body",
        [INFO("turn", TensorProto.INT64, []), INFO("go", TensorProto.BOOL, [])],
        [INFO("go", TensorProto.BOOL, []), INFO("row", TensorProto.FLOAT, [2])],
    )
    b.nodes.append(helper.make_node("Loop", [b.w(4, dtype=np.int64), ""], ["rows"], body=graph))
    model = b.y("rows").model()
    assert apply(unrolled, model).changed == 1
