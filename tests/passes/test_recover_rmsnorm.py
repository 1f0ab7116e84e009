"""recover_rmsnorm: forms taken and left, random spellings.  Exact: equal to 1e-9 in the float64 executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import attribute, constant
from edgefuse.passes.recover_layernorm import recover_layernorm
from edgefuse.passes.recover_rmsnorm import recover_rmsnorm
from tests.passes.graphs import Build, apply, dead_constants, ops

EPS = 1e-6


def power(b: Build, x: str, form: str = "pow", axes: tuple[int, ...] = (-1,), count: int = 8) -> str:
    """Write mean(x^2)."""
    if form == "sumsquare":
        return b.op("Div", b.op("ReduceSumSquare", x, b.ints(*axes)), b.w(float(count)))
    squared = b.op("Mul", x, x) if form == "mul" else b.op("Pow", x, b.w(2.0))
    if form == "sum":
        return b.op("Mul", b.op("ReduceSum", squared, b.ints(*axes)), b.w(1 / count))
    return b.op("ReduceMean", squared, b.ints(*axes))


def norm(b: Build, x: str, root: str = "reciprocal", eps: float = EPS, **how: Any) -> str:
    v = b.op("Add", b.w(eps), power(b, x, **how))
    if root == "pow":
        return b.op("Mul", b.op("Pow", v, b.w(-0.5)), x)
    if root == "inverse_first":
        return b.op("Mul", x, b.op("Sqrt", b.op("Div", b.w(1.0), v)))
    s = b.op("Sqrt", v)
    return b.op("Div", x, s) if root == "div" else b.op("Mul", x, b.op("Reciprocal", s))


def check(b: Build, out: str, taken: bool = True, left: dict[str, int] | None = None, **symbols: int) -> Any:
    model = b.y(out).model()
    before = ops(model)
    assert bool(apply(recover_rmsnorm, model, **symbols)) == taken
    assert ops(model) == (before if not taken else left or {"RMSNormalization": 1})
    assert not dead_constants(model)
    return next((n for n in model.graph if n.op_type == "RMSNormalization"), None)


# --- taken ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["pow", "mul", "sum", "sumsquare"])
def test_1_squares(form: str) -> None:
    b = Build()
    node = check(b, norm(b, b.x([2, 3, 8]), form=form))
    assert attribute(node, "epsilon") == pytest.approx(EPS)
    np.testing.assert_array_equal(constant(node.inputs[1]), np.ones(8, np.float32))


@pytest.mark.parametrize("root", ["reciprocal", "div", "pow", "inverse_first"])
def test_2_roots(root: str) -> None:
    b = Build()
    check(b, norm(b, b.x([2, 3, 8]), root))


@pytest.mark.parametrize("shape", [(8,), (1, 8), ()])
def test_3_gain(shape: tuple[int, ...]) -> None:
    b = Build()
    check(b, b.op("Mul", b.rand(*shape), norm(b, b.x(["N", 3, 8]))), N=2)


def test_3_bias_stays_an_add() -> None:
    b = Build()
    y = b.op("Add", b.op("Mul", norm(b, b.x([2, 8])), b.rand(8)), b.rand(8))
    check(b, y, left={"RMSNormalization": 1, "Add": 1})


def test_4_llama_in_float16() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 8])
    wide = b.op("Cast", x, to=TensorProto.FLOAT)
    v = b.op("ReduceMean", b.op("Pow", wide, b.w(2.0, dtype=np.float32)), b.ints(-1))
    r = b.op("Reciprocal", b.op("Sqrt", b.op("Add", v, b.w(EPS, dtype=np.float32))))
    y = b.op("Cast", b.op("Mul", wide, r), to=TensorProto.FLOAT16)
    model = b.y(b.op("Mul", b.rand(8), y)).model()
    apply(recover_rmsnorm, model)
    node = next(n for n in model.graph if n.op_type == "RMSNormalization")
    assert node.inputs[0] is model.graph.inputs[0]
    assert "Sqrt" not in ops(model)


def test_computed_gain_stays_outside() -> None:
    b = Build()
    x, gain = b.x([2, 8]), b.x([8], "gain")
    check(b, b.op("Mul", norm(b, x), gain), left={"RMSNormalization": 1, "Mul": 1})


def test_two_trailing_axes() -> None:
    b = Build()
    check(b, b.op("Mul", norm(b, b.x([2, 3, 4, 2]), axes=(-2, -1)), b.rand(4, 2)))


# --- left -------------------------------------------------------------------------------------------------


def test_layernorm_is_not_split() -> None:
    b = Build()
    x = b.x([2, 8])
    d = b.op("Sub", x, b.op("ReduceMean", x, b.ints(-1)))
    check(b, norm(b, d), taken=False)
    model = b.model()
    assert recover_layernorm(model)
    assert ops(model) == {"LayerNormalization": 1}


def test_epsilon_outside_the_root() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Div", x, b.op("Add", b.op("Sqrt", power(b, x)), b.w(EPS))), taken=False)


def test_l2_norm_without_the_mean() -> None:
    b = Build()
    x = b.x([2, 8])
    s = b.op("Sqrt", b.op("ReduceSum", b.op("Mul", x, x), b.ints(-1)))
    check(b, b.op("Div", x, s), taken=False)


def test_mean_of_another_tensor_and_of_another_power() -> None:
    b = Build()
    x, y = b.x([2, 8]), b.x([2, 8], "y")
    v = b.op("Add", power(b, y), b.w(EPS))
    check(b, b.op("Div", x, b.op("Sqrt", v)), taken=False)
    b = Build()
    x = b.x([2, 8])
    v = b.op("ReduceMean", b.op("Pow", x, b.w(4.0)), b.ints(-1))
    check(b, b.op("Div", x, b.op("Sqrt", v)), taken=False)


def test_multiplied_by_the_root() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Mul", x, b.op("Sqrt", b.op("Add", power(b, x), b.w(EPS)))), taken=False)


def test_axis_that_is_not_last() -> None:
    b = Build()
    check(b, norm(b, b.x([2, 8, 3]), axes=(1,)), taken=False)


@pytest.mark.parametrize("output", [True, False])
def test_inner_tensor_that_is_needed(output: bool) -> None:
    b = Build()
    x = b.x([2, 8])
    s = b.op("Sqrt", b.op("Add", power(b, x), b.w(EPS)))
    out = b.op("Div", x, s)
    model = (b.y(out, s) if output else b.y(out, b.op("Abs", s))).model()
    assert not apply(recover_rmsnorm, model)


def test_unknown_size_without_gain() -> None:
    b = Build()
    check(b, norm(b, b.x([2, "C"])), taken=False, C=8)


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    form=st.sampled_from(["pow", "mul", "sum", "sumsquare"]),
    root=st.sampled_from(["reciprocal", "div", "pow", "inverse_first"]),
    axis=st.sampled_from([-1, 2, 1]),
    gain=st.sampled_from([None, (), (8,), (3, 1)]),
    swapped=st.booleans(),
)
def test_random_spellings(
    form: str, root: str, axis: int, gain: tuple[int, ...] | None, swapped: bool
) -> None:
    b = Build()
    x = b.x([2, 3, 8])
    y = norm(b, x, root, form=form, axes=(axis,), count=3 if axis == 1 else 8)
    if gain is not None:
        y = b.op("Mul", *((b.rand(*gain), y) if swapped else (y, b.rand(*gain))))
    model = b.y(y).model()
    apply(recover_rmsnorm, model, 1e-6)
    assert ops(model)["RMSNormalization"] == (0 if axis == 1 else 1)
    assert ops(model)["Mul"] <= (1 if axis != 1 and gain == (3, 1) else 4 if axis == 1 else 0)
