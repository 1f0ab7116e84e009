"""cancel_transposes: fewer Transposes, the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import attribute, constant
from edgefuse.passes.cancel_transposes import cancel_transposes
from tests.passes.graphs import Build, apply, ops
from tests.passes.random_graphs import ModelCase, random_models

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def turned(b: Build, x: str, perm: Sequence[int]) -> str:
    return b.op("Transpose", x, perm=list(perm))


def test_a_pair_that_undoes_itself_goes() -> None:
    b = Build()
    x = b.op("Relu", b.x([2, 3, 4, 5]))
    b.y(b.op("Neg", turned(b, turned(b, x, NHWC), NCHW)))
    model = b.model()
    assert apply(cancel_transposes, model)
    assert [n.op_type for n in model.graph if n.outputs[0].uses() or n.outputs[0].is_graph_output()] == [
        "Relu",
        "Neg",
    ]


def test_a_pair_becomes_one() -> None:
    b = Build()
    b.y(turned(b, turned(b, b.x([2, 3, 4]), (1, 2, 0)), (1, 0, 2)))
    model = b.model()
    assert apply(cancel_transposes, model).changed == 1
    assert attribute(next(iter(model.graph)), "perm") in ((1, 2, 0), (2, 1, 0))
    assert attribute(model.graph.outputs[0].producer(), "perm") == (2, 1, 0)  # type: ignore[arg-type]


def test_the_first_of_a_pair_stays_where_it_is_read_or_an_output() -> None:
    b = Build()
    t = turned(b, b.x([2, 3, 4]), (1, 2, 0))
    b.y(t, b.op("Neg", t), b.op("Abs", turned(b, t, (2, 0, 1))))
    model = b.model()
    assert apply(cancel_transposes, model)
    assert ops(model)["Transpose"] == 1


def test_default_order_is_reversed() -> None:
    b = Build()
    b.y(b.op("Neg", b.op("Transpose", b.op("Transpose", b.x([2, 3, 4])))))
    model = b.model()
    assert apply(cancel_transposes, model)
    assert model.graph.outputs[0].producer().inputs[0] is model.graph.inputs[0]  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [[2, 3, 1, 5], ["N", 3, 1, 5]])
def test_moving_a_size_of_one_is_a_reshape(shape: list[int | str]) -> None:
    b = Build()
    b.y(turned(b, b.x(shape), (0, 2, 1, 3)))
    model = b.model()
    assert apply(cancel_transposes, model).changed == 1
    assert ops(model) == {"Reshape": 1}


@pytest.mark.parametrize("shape", [["N", 3, 1, "M"], [2, 3, 2, 5], [2, 0, 1, 5]])
def test_moving_other_sizes_stays(shape: list[int | str]) -> None:
    b = Build()
    b.y(turned(b, b.x(shape), (0, 2, 1, 3)))
    assert not apply(cancel_transposes, b.model())


def region(b: Build, x: str, constants: bool = True) -> str:
    y = b.op("Relu", turned(b, x, NHWC))
    if constants:
        y = b.op("Mul", y, b.rand(3))
        y = b.op("Add", b.rand(1, 4, 1, 3), y)
        y = b.op("Clip", y, b.w(-1), b.w(2))
        y = b.op("PRelu", y, b.rand(5, 1))
    return y


@pytest.mark.parametrize("constants", [False, True])
def test_a_region_runs_in_the_order_of_its_source(constants: bool) -> None:
    b = Build()
    y = region(b, b.op("Sigmoid", b.x([2, 3, 4, 5])), constants)
    b.y(b.op("Neg", turned(b, y, NCHW)))
    model = b.model()
    assert apply(cancel_transposes, model)
    left = [n for n in model.graph if n.op_type == "Transpose" and n.outputs[0].uses()]
    assert not left


def test_a_region_of_two_sources_and_a_where() -> None:
    b = Build()
    x, z = b.x([2, 3, 4, 5]), b.x([2, 1, 4, 5], name="z")
    p, q = turned(b, x, NHWC), turned(b, z, NHWC)
    y = b.op("Where", b.op("Less", p, q), p, b.op("Mul", q, b.rand(3)))
    b.y(b.op("Neg", turned(b, y, NCHW)))
    model = b.model()
    assert apply(cancel_transposes, model)
    assert not [n for n in model.graph if n.op_type == "Transpose" and n.outputs[0].uses()]


def test_a_region_whose_ends_do_not_undo_each_other_keeps_one() -> None:
    b = Build()
    y = b.op("Relu", turned(b, b.x([2, 3, 4, 5]), NHWC))
    b.y(b.op("Neg", turned(b, y, NHWC)))
    model = b.model()
    assert apply(cancel_transposes, model)
    assert len([n for n in model.graph if n.op_type == "Transpose" and n.outputs[0].uses()]) == 1


def test_shared_constants_stay_for_their_other_reader() -> None:
    b = Build()
    w = b.rand(4, 5, 3)
    y = b.op("Mul", turned(b, b.x([2, 3, 4, 5]), NHWC), w)
    b.y(turned(b, y, NCHW), b.op("Neg", w))
    model = b.model()
    assert apply(cancel_transposes, model)
    assert constant(model.graph.initializers[w]).shape == (4, 5, 3)  # type: ignore[union-attr]


def left_regions() -> dict[str, Build]:
    made = {}
    for name in ("read", "output", "orders", "not turned", "axis", "rank"):
        b = Build()
        x = b.x([2, 3, 4, 4])
        y = b.op("Relu", turned(b, x, NHWC))
        more = []
        if name == "read":
            more = [b.op("Exp", y)]
        elif name == "output":
            more = [y]
        elif name == "orders":
            y = b.op("Add", y, turned(b, b.x([2, 3, 4, 4], name="z"), (0, 3, 2, 1)))
        elif name == "not turned":
            y = b.op("Add", y, b.x([2, 4, 4, 3], name="z"))
        elif name == "axis":
            y = b.op("Softmax", y)
        elif name == "rank":
            y = b.op("Add", y, b.x([3], name="z"))
        made[name] = b.y(*more, b.op("Neg", turned(b, y, NCHW)))
    return made


@pytest.mark.parametrize("name", left_regions())
def test_other_regions_stay(name: str) -> None:
    model = left_regions()[name].model()
    if name == "orders":  # one order could be had, but not with fewer Transposes
        before = ops(model)["Transpose"]
        apply(cancel_transposes, model)
        assert ops(model)["Transpose"] <= before
        return
    assert not apply(cancel_transposes, model)


def test_integers_and_bools_pass_through() -> None:
    b = Build()
    x = turned(b, b.x([2, 3], element=TensorProto.INT64), (1, 0))
    y = b.op("Add", x, b.w([5, 7], dtype=np.int64))
    b.y(turned(b, b.op("Cast", y, to=TensorProto.FLOAT), (1, 0)))
    assert apply(cancel_transposes, b.model())


@settings(max_examples=25)
@given(st.permutations(range(4)), st.permutations(range(4)), st.integers(0, 3), st.booleans())
def test_any_orders_keep_the_meaning(first: list[int], second: list[int], rank: int, outer: bool) -> None:
    b = Build()
    shape = [2, 1, 3, 4]
    after = [shape[p] for p in first]
    y = b.op("Tanh", turned(b, b.x(shape), first))
    y = b.op("Mul", y, b.rand(*after[4 - rank :]))
    b.y(turned(b, y, second), *([y] if outer else []))
    apply(cancel_transposes, b.model())


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(cancel_transposes)
