"""recover_silu: forms taken and left, random spellings.

Exact, since alpha is the model's: equal to 1e-9 in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import attribute, constant
from edgefuse.passes.recover_silu import recover_silu
from tests.passes.graphs import Build, apply, conv, dead_constants, ops, spelled_product, spelled_sum

WIDE = 6.0


def check(b: Build, out: str, taken: bool = True, left: dict[str, int] | None = None) -> float:
    """Run the pass; return alpha of the Swish (0.0 where there is none)."""
    model = b.y(out).model()
    before = ops(model)
    assert bool(apply(recover_silu, model, scale=WIDE)) == taken
    assert ops(model) == (before if not taken else left or {"Swish": 1})
    assert not dead_constants(model)
    return next((float(attribute(n, "alpha", 1.0)) for n in model.graph if n.op_type == "Swish"), 0.0)


# --- taken ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [True, False])
def test_1_plain(swapped: bool) -> None:
    b = Build()
    x = b.x([2, 8])
    s = b.op("Sigmoid", x)
    assert check(b, b.op("Mul", s, x) if swapped else b.op("Mul", x, s)) == 1.0


def test_1_c07_after_conv_in_a_chain() -> None:
    b = Build()
    x = b.x([1, 4, 6, 6])
    for _ in range(3):
        c = conv(b, x, 4, 4)
        x = b.op("Mul", c, b.op("Sigmoid", c))
    check(b, x, left={"Conv": 3, "Swish": 3})


@pytest.mark.parametrize("alpha", [1.702, 0.5, -1.0, 3.0])
def test_2_alpha(alpha: float) -> None:
    b = Build()
    x = b.x([2, 8])
    found = check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", b.w(alpha), x))))
    assert found == float(np.float32(alpha))


def test_2_alpha_by_division_and_negation() -> None:
    b = Build()
    x = b.x([2, 8])
    assert check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Div", x, b.w(2.0))))) == 0.5
    b = Build()
    x = b.x([2, 8])
    assert check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Neg", x)))) == -1.0


def test_3_written_with_exp() -> None:
    b = Build()
    x = b.x([2, 8])
    assert check(b, b.op("Div", x, b.op("Add", b.w(1.0), b.op("Exp", b.op("Neg", x))))) == 1.0
    b = Build()
    x = b.x([2, 8])
    gate = b.op("Div", b.w(1.0), b.op("Add", b.op("Exp", b.op("Mul", x, b.w(-2.0))), b.w(1.0)))
    assert check(b, b.op("Mul", gate, x)) == 2.0
    b = Build()
    x = b.x([2, 8])
    gate = b.op("Reciprocal", b.op("Add", b.op("Exp", b.op("Neg", x)), b.w(1.0)))
    assert check(b, b.op("Mul", gate, x)) == 1.0


def test_4_constant_factor() -> None:
    b = Build()
    x = b.x([2, 8])
    model = b.y(b.op("Mul", b.op("Mul", x, b.op("Sigmoid", x)), b.w(3.0))).model()
    apply(recover_silu, model, scale=WIDE)
    assert ops(model) == {"Swish": 1, "Mul": 1}
    assert [float(constant(v)) for n in model.graph for v in n.inputs if constant(v) is not None] == [3.0]


def test_channel_factor_stays_outside() -> None:
    b = Build()
    x = b.x([1, 4, 3, 3])
    check(b, b.op("Mul", b.op("Mul", x, b.op("Sigmoid", x)), b.rand(4, 1, 1)), left={"Swish": 1, "Mul": 1})


def test_swiglu_gate_stays_outside() -> None:
    b = Build()
    x, up = b.x([2, 8]), b.x([2, 8], "up")
    check(b, b.op("Mul", b.op("Mul", x, b.op("Sigmoid", x)), up), left={"Swish": 1, "Mul": 1})


def test_sigmoid_in_float32_between_casts() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 8])
    gate = b.op("Cast", b.op("Sigmoid", b.op("Cast", x, to=TensorProto.FLOAT)), to=TensorProto.FLOAT16)
    model = b.y(b.op("Mul", x, gate)).model()
    apply(recover_silu, model, scale=WIDE)
    assert ops(model)["Swish"] == 1
    assert ops(model)["Sigmoid"] == ops(model)["Mul"] == 0


def test_old_operator_set_and_dynamic_shape() -> None:
    b = Build(opset=9)
    x = b.x(["N", 3])
    check(b, b.op("Mul", x, b.op("Sigmoid", x)))


# --- left -------------------------------------------------------------------------------------------------


def test_gate_of_another_tensor() -> None:
    b = Build()
    x, y = b.x([2, 8]), b.x([2, 8], "y")
    check(b, b.op("Mul", x, b.op("Sigmoid", y)), taken=False)


def test_gate_of_the_pooled_tensor() -> None:
    b = Build()
    x = b.x([1, 4, 3, 3])
    check(b, b.op("Mul", x, b.op("Sigmoid", b.op("GlobalAveragePool", x))), taken=False)


def test_shift_in_or_after_the_sigmoid() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Add", x, b.w(1.0)))), taken=False)
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Mul", x, b.op("Add", b.op("Sigmoid", x), b.w(1.0))), taken=False)


def test_square_in_the_sigmoid() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, x))), taken=False)


def test_channel_alpha() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.rand(8)))), taken=False)


def test_alpha_zero_and_factor_zero() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.w(0.0)))), taken=False)
    b = Build()
    x = b.x([2, 8])
    out = b.op("Mul", b.op("Mul", x, b.op("Sigmoid", x)), b.w(0.0))
    check(b, out, left={"Swish": 1, "Mul": 1})


def test_division_by_the_sigmoid_and_other_sums_of_exp() -> None:
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Div", x, b.op("Sigmoid", x)), taken=False)
    b = Build()
    x = b.x([2, 8])
    check(b, b.op("Div", x, b.op("Add", b.w(2.0), b.op("Exp", b.op("Neg", x)))), taken=False)


@pytest.mark.parametrize("output", [True, False])
def test_sigmoid_that_is_needed(output: bool) -> None:
    b = Build()
    x = b.x([2, 8])
    s = b.op("Sigmoid", x)
    out = b.op("Mul", x, s)
    model = (b.y(out, s) if output else b.y(out, b.op("Abs", s))).model()
    assert not apply(recover_silu, model)


def test_constant_that_raises_the_rank() -> None:
    b = Build()
    x = b.x([8])
    check(b, b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.w([[2.0]])))), taken=False)


def test_scaled_tensor_is_its_own_x() -> None:
    b = Build()
    x = b.op("Mul", b.x([2, 8]), b.w(2.0))
    check(b, b.op("Mul", x, b.op("Sigmoid", x)), left={"Mul": 1, "Swish": 1})


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_random_spellings(data: st.DataObject) -> None:
    draw = data.draw
    b = Build()
    x = b.x([2, 16])
    alpha = draw(st.sampled_from([1.0, 2.0, 0.25, -0.5]))
    if draw(st.booleans()):
        gate = b.op("Sigmoid", spelled_product(b, draw, [x], alpha))
        out = spelled_product(b, draw, [x, gate])
    else:
        out = b.op("Div", x, spelled_sum(b, draw, b.op("Exp", spelled_product(b, draw, [x], -alpha)), 1.0))
    assert check(b, out) == alpha


@settings(max_examples=40)
@given(a=st.floats(-2, 2), shift=st.floats(-2, 2), factor=st.floats(-2, 2), seed=st.integers(0, 99))
def test_random_numbers_keep_their_meaning(a: float, shift: float, factor: float, seed: int) -> None:
    b = Build(seed=seed)
    x = b.x([2, 16])
    s = b.op("Sigmoid", b.op("Add", b.op("Mul", x, b.w(a)), b.w(shift)))
    apply(recover_silu, b.y(b.op("Mul", b.op("Mul", b.w(factor), x), s)).model(), 2e-6)
