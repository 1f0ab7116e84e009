"""Where a bias stands, and putting another in its place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgefuse.errors import InternalError
from edgefuse.graph import Model, Node, model_to_proto
from edgefuse.graph.reference import Reference
from edgefuse.lowering import apply_biases, bias_of
from tests.passes.graphs import Build, feeds


def _node(model: Model, name: str) -> Node:
    return next(n for n in model.graph if n.name == name)


def test_each_operator_says_where_its_bias_stands() -> None:
    b = Build()
    x = b.x([2, 4, 5, 5])
    b.op("Conv", x, b.rand(3, 4, 1, 1), name="bare")
    b.op("Conv", x, b.rand(3, 4, 1, 1), b.w([1, 2, 3]), name="full")
    b.op("ConvTranspose", x, b.rand(4, 3, 1, 1), name="up", group=2)
    flat = b.op("Flatten", x)
    b.op("Gemm", flat, b.rand(7, 100), b.w([5.0]), name="gemm", transB=1, beta=0.5)
    b.op("Gemm", flat, b.rand(100, 7), b.w([[5.0], [1.0]]), name="rows")
    b.op("MatMul", flat, b.rand(100, 2), name="alone")
    b.y(b.op("Add", b.op("MatMul", flat, b.rand(100, 2), name="mm"), b.w([[1, 2]]), name="add"))
    model = b.model()
    found = {n.name: bias_of(n) for n in model.graph if n.op_type not in ("Flatten", "Add")}
    rows = {name: None if f is None else (f[0], f[1].tolist()) for name, f in found.items()}
    assert rows == {
        "bare": ("bare", [0, 0, 0]),
        "full": ("full", [1, 2, 3]),
        "up": ("up", [0] * 6),
        "gemm": ("gemm", [2.5] * 7),
        "rows": None,
        "alone": ("alone", [0, 0]),
        "mm": ("add", [1, 2]),
    }


@pytest.mark.parametrize("trap", ["two readers", "graph output", "not per channel", "one number"])
def test_an_add_that_is_not_the_bias_of_this_product_is_left_alone(trap: str) -> None:
    b = Build()
    x = b.x([3, 4])
    product = b.op("MatMul", x, b.rand(4, 3), name="mm")
    constant = {"not per channel": b.rand(3, 1), "one number": b.w(2.0)}.get(trap) or b.rand(3)
    b.y(b.op("Add", product, constant))
    if trap == "two readers":
        b.y(b.op("Neg", product))
    if trap == "graph output":
        b.y(product)
    found = bias_of(_node(b.model(), "mm"))
    assert found is not None
    assert found[0] == "mm"


@pytest.mark.parametrize(("last", "output"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul", "Add"])
def test_the_new_bias_replaces_the_old_and_names_stay(kind: str, output: bool, last: bool) -> None:
    b = Build(seed=3)
    x = b.x([2, 4, 5, 5] if "Conv" in kind else [5, 4])
    if "Conv" in kind:
        y = b.op(kind, x, b.rand(4, 4, 3, 3), b.rand(4), name="n", out="y")
    elif kind == "Gemm":
        y = b.op(kind, x, b.rand(4, 4), b.rand(4), name="n", out="y", beta=3.0)
    else:
        y = b.op("MatMul", x, b.rand(4, 4), name="n" if kind == "MatMul" else None, out="y")
        if kind == "Add":
            y = b.op("Add", b.rand(1, 4), y, name="n", out="z")
    names = []
    if output:
        names.append(y)
    if not last:
        names.append(b.op("Mul", y, b.w(2.0), out="twice"))
    model = b.y(*(names or [y])).model()
    data = feeds(model)
    before = Reference(model).run(data)
    old = np.zeros(4) if kind == "MatMul" else bias_of_any(model, kind)
    new = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    apply_biases(model, {"n": new})
    onnx.checker.check_model(model_to_proto(model), full_check=True)
    after = Reference(model).run(data)
    assert list(after) == list(before)
    shape = (4, 1, 1) if "Conv" in kind else (4,)
    for name, array in after.items():
        factor = 2.0 if name == "twice" else 1.0
        np.testing.assert_allclose(
            array - before[name],
            np.broadcast_to(((new - old) * factor).reshape(shape), array.shape),
            atol=1e-9,
        )


def bias_of_any(model: Model, kind: str) -> np.ndarray:
    target = next(n for n in model.graph if n.op_type == ("MatMul" if kind == "Add" else kind))
    found = bias_of(target)
    assert found is not None
    return found[1].astype(np.float64)


def test_a_shared_bias_changes_for_the_named_node_only() -> None:
    b = Build(seed=3)
    x, w, shared = b.x([1, 4, 3, 3]), b.rand(4, 4, 1, 1), b.rand(4)
    one = b.op("Conv", x, w, shared, name="one")
    two = b.op("Conv", x, w, shared, name="two")
    model = b.y(one, two).model()
    apply_biases(model, {"one": np.zeros(4, np.float32)})
    data = feeds(model)
    got = Reference(model).run(data)
    assert not np.allclose(got[one], got[two])


def test_unknown_and_unfit_nodes_are_our_bugs() -> None:
    b = Build(seed=3)
    x = b.x([1, 4])
    model = b.y(b.op("Relu", b.op("Add", x, x, name="sum"), name="relu")).model()
    for name in ("gone", "relu", "sum"):
        with pytest.raises(InternalError, match=name):
            apply_biases(model, {name: np.zeros(4, np.float32)})
