"""cancel_reshapes: one form for all that reshapes, one Reshape for several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.graph import Model, constant
from edgefuse.passes.cancel_reshapes import cancel_reshapes
from tests.passes.graphs import Build, apply, ops
from tests.passes.random_graphs import ModelCase, random_models

Dims = list[int | str]


def target(model: Model) -> list[int]:
    """Return the target of the Reshape that writes the only output."""
    node = model.graph.outputs[0].producer()
    assert node is not None
    assert node.op_type == "Reshape"
    array = constant(node.inputs[1])
    assert array is not None
    return [int(n) for n in array]


FORMS: dict[str, tuple[Dims, Callable[[Build, str], str], list[int]]] = {
    "squeeze": ([2, 1, 3, 1], lambda b, x: b.op("Squeeze", x, b.ints(1)), [2, 3, 1]),
    "squeeze all": ([2, 1, 3, 1], lambda b, x: b.op("Squeeze", x), [2, 3]),
    "squeeze to a scalar": ([1, 1], lambda b, x: b.op("Squeeze", x), []),
    "squeeze from behind": (["N", 1, 3, 1], lambda b, x: b.op("Squeeze", x, b.ints(-1, 1)), [-1, 3]),
    "squeeze, copied": (["N", "M", 1, 3], lambda b, x: b.op("Squeeze", x, b.ints(2)), [0, 0, 3]),
    "unsqueeze": ([2, 3], lambda b, x: b.op("Unsqueeze", x, b.ints(0, -1)), [1, 2, 3, 1]),
    "unsqueeze, unknown": (["N", 3], lambda b, x: b.op("Unsqueeze", x, b.ints(1)), [-1, 1, 3]),
    "unsqueeze, copied": (["N", "M"], lambda b, x: b.op("Unsqueeze", x, b.ints(2)), [0, 0, 1]),
    "flatten": ([2, 3, 4], lambda b, x: b.op("Flatten", x), [2, 12]),
    "flatten at 0": ([2, 3, 4], lambda b, x: b.op("Flatten", x, axis=0), [1, 24]),
    "flatten from behind": ([2, 3, 4], lambda b, x: b.op("Flatten", x, axis=-1), [6, 4]),
    "flatten, unknown": (["N", 3, 4], lambda b, x: b.op("Flatten", x), [-1, 12]),
    "flatten, unknown merged": (["N", 3, 4], lambda b, x: b.op("Flatten", x, axis=2), [-1, 4]),
    "reshape, worked out": ([2, 3, 4], lambda b, x: b.op("Reshape", x, b.ints(0, -1)), [2, 12]),
    "reshape, copied as rest": (["N", 3, 4], lambda b, x: b.op("Reshape", x, b.ints(0, 12)), [-1, 12]),
    "reshape, allowzero": ([2, 3], lambda b, x: b.op("Reshape", x, b.ints(3, 2), allowzero=1), [3, 2]),
}


@pytest.mark.parametrize("name", FORMS)
def test_one_form(name: str) -> None:
    shape, make, wanted = FORMS[name]
    b = Build()
    b.y(make(b, b.x(shape)))
    model = b.model()
    assert apply(cancel_reshapes, model, N=2, M=5).changed == 1
    assert target(model) == wanted


STAYS: dict[str, tuple[Dims, Callable[[Build, str], str]]] = {
    "squeeze of unknown sizes": (["N", "M"], lambda b, x: b.op("Squeeze", x)),
    "squeeze that moves two": ([1, "N", "M"], lambda b, x: b.op("Squeeze", x, b.ints(0))),
    "unsqueeze that moves two": (["N", "M"], lambda b, x: b.op("Unsqueeze", x, b.ints(0))),
    "flatten of two": (["N", "M", "K"], lambda b, x: b.op("Flatten", x, axis=1)),
    "reshape": ([2, 6], lambda b, x: b.op("Reshape", x, b.ints(3, 4))),
    "reshape with a rest": (["N", 6], lambda b, x: b.op("Reshape", x, b.ints(-1, 3))),
    "reshape, copied": (["N", "M"], lambda b, x: b.op("Reshape", x, b.ints(0, 0, 1))),
    "empty": ([2, 0], lambda b, x: b.op("Reshape", x, b.ints(0, 0), allowzero=1)),
    "computed": ([2, 6], lambda b, x: b.op("Reshape", x, b.op("Shape", b.x([12, 1], name="z")))),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    shape, make = STAYS[name]
    b = Build()
    b.y(make(b, b.x(shape)))
    model = b.model()
    if "of unknown" in name:
        assert not cancel_reshapes(model)  # onnx infers no rank, so its checker refuses the model itself
        return
    assert not apply(cancel_reshapes, model, N=2, M=3, K=4)


def test_unknown_rank_stays() -> None:
    b = Build()
    b.y(b.op("Flatten", b.x(None)))
    assert not cancel_reshapes(b.model())


def test_a_chain_becomes_one() -> None:
    b = Build()
    x = b.op("Relu", b.x(["N", 4, 6]))
    y = b.op("Reshape", b.op("Unsqueeze", b.op("Flatten", x), b.ints(1)), b.ints(-1, 2, 12))
    b.y(y)
    model = b.model()
    assert apply(cancel_reshapes, model)
    assert model.graph.outputs[0].producer().inputs[0].producer().op_type == "Relu"  # type: ignore[union-attr]


def test_the_first_stays_where_it_is_read_or_an_output() -> None:
    b = Build()
    first = b.op("Reshape", b.x([2, 6]), b.ints(3, 4))
    b.y(first, b.op("Neg", first), b.op("Reshape", first, b.ints(12)))
    model = b.model()
    assert apply(cancel_reshapes, model).changed == 1
    assert ops(model) == {"Reshape": 2, "Neg": 1}
    assert model.graph.outputs[0].name == first


def test_a_second_with_a_copied_size_reads_the_first() -> None:
    b = Build()
    first = b.op("Reshape", b.x(["N", "M", 6]), b.ints(0, 0, 2, 3))
    b.y(b.op("Reshape", first, b.ints(0, 0, 3, 2)))
    model = b.model()
    assert not apply(cancel_reshapes, model)


def softmax(shape: Dims, cut: int, back: str, op: str = "Softmax", read: bool = False) -> Build:
    """The form into which an old Softmax is raised: two-dimensional and back."""
    b = Build()
    x = b.op("Relu", b.x(shape))
    flat = b.op("Flatten", x, axis=cut)
    y = b.op(op, flat, **({"axis": -1} if op == "Softmax" else {}))
    wanted = b.op("Shape", x) if back == "shape" else b.ints(*[int(d) for d in back.split()])
    return b.y(b.op("Neg", b.op("Reshape", y, wanted)), *([y] if read else []))


@pytest.mark.parametrize(
    ("shape", "cut", "back", "op"),
    [
        (["N", "M", 5], 2, "shape", "Softmax"),
        (["N", 5, "M"], 2, "shape", "Softmax"),
        (["N", 5, "M"], -1, "shape", "LogSoftmax"),
        ([2, 3, 5], 2, "shape", "Softmax"),
        ([2, 3, 5], 2, "2 3 5", "Softmax"),
        (["N", 3, 5], 2, "-1 3 5", "LogSoftmax"),
        (["N", "M", 5], 1, "shape", "Tanh"),
    ],
)
def test_there_and_back_around_an_operator_goes(shape: Dims, cut: int, back: str, op: str) -> None:
    model = softmax(shape, cut, back, op).model()
    assert apply(cancel_reshapes, model)
    left = [n.op_type for n in model.graph if n.op_type != "Shape" and any(o.uses() for o in n.outputs)]
    assert left == ["Relu", op]


@pytest.mark.parametrize(
    ("shape", "cut", "back", "read"),
    [
        ([2, 3, 5], 1, "2 3 5", False),  # the sum runs over two dimensions (an opset-12 Softmax on axis 1)
        ([2, 3, 5], 2, "3 2 5", False),
        ([2, 3, 5], 2, "2 3 5", True),
        ([2, 3, 5], 2, "2 15", False),
    ],
)
def test_there_and_elsewhere_stays(shape: Dims, cut: int, back: str, read: bool) -> None:
    model = softmax(shape, cut, back, read=read).model()
    apply(cancel_reshapes, model)
    assert ops(model)["Reshape"] == 2


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_any_chain_keeps_the_meaning(shape: list[int], data: st.DataObject) -> None:
    b = Build()
    y = b.x(shape)
    total = int(np.prod(shape))
    for _ in range(3):
        split = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
        y = data.draw(
            st.sampled_from(
                [
                    lambda y=y, s=split: b.op("Reshape", y, b.ints(s, -1)),
                    lambda y=y: b.op("Flatten", y, axis=0),
                    lambda y=y: b.op("Unsqueeze", y, b.ints(0)),
                    lambda y=y: b.op("Squeeze", y),
                    lambda y=y: b.op("Relu", y),
                ]
            )
        )()
    b.y(y)
    apply(cancel_reshapes, b.model())


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(cancel_reshapes)
