"""recover_gelu: erf, tanh and quick forms, traps, random spellings.

Float32 constants of the written forms are off by 1e-8 to 1e-6 of the ideal: equal to 2e-6 in float64.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import attribute
from edgefuse.passes.recover_gelu import recover_gelu
from tests.passes.graphs import Build, apply, dead_constants, ops, spelled_product, spelled_sum

EXACT = 2e-6
WIDE = 5.0
ROOT2, SLOPE = 1.4142135, 0.7978845608


def erf_gate(b: Build, x: str, root: float = ROOT2) -> str:
    return b.op("Add", b.op("Erf", b.op("Div", x, b.w(root))), b.w(1.0))


def tanh_gate(b: Build, x: str, slope: float = SLOPE, cubic: float = 0.044715) -> str:
    cube = b.op("Mul", b.op("Pow", x, b.w(3.0)), b.w(cubic))
    return b.op("Add", b.op("Tanh", b.op("Mul", b.op("Add", x, cube), b.w(slope))), b.w(1.0))


def check(
    b: Build, out: str, taken: bool = True, left: dict[str, int] | None = None, tolerance: float = EXACT
) -> None:
    model = b.y(out).model()
    before = ops(model)
    assert bool(apply(recover_gelu, model, tolerance, scale=WIDE)) == taken
    assert ops(model) == (before if not taken else left or {"Gelu": 1})
    assert not dead_constants(model)


# --- taken ------------------------------------------------------------------------------------------------


def test_1_c08_erf_half_at_the_end() -> None:
    b = Build()
    x = b.x([2, 64])
    check(b, b.op("Mul", b.op("Mul", x, erf_gate(b, x)), b.w(0.5)))


def test_1_half_first_and_root_by_mul() -> None:
    b = Build()
    x = b.x([2, 64])
    erf = b.op("Erf", b.op("Mul", b.w(math.sqrt(0.5)), x))
    check(b, b.op("Mul", b.op("Add", b.w(1.0), erf), b.op("Mul", b.w(0.5), x)))


def test_1_half_inside_the_sum() -> None:
    b = Build()
    x = b.x([2, 64])
    erf = b.op("Erf", b.op("Div", x, b.w(ROOT2)))
    check(b, b.op("Mul", x, b.op("Add", b.op("Mul", erf, b.w(0.5)), b.w(0.5))))


def test_1_shortened_root_of_two() -> None:
    b = Build()
    x = b.x([2, 64])
    check(b, b.op("Mul", b.op("Mul", x, erf_gate(b, x, 1.4142)), b.w(0.5)), tolerance=1e-5)


def test_2_c09_tanh_with_pow() -> None:
    b = Build()
    x = b.x([2, 64])
    model = b.y(b.op("Mul", b.op("Mul", x, b.w(0.5)), tanh_gate(b, x))).model()
    apply(recover_gelu, model, EXACT, scale=WIDE)
    assert ops(model) == {"Gelu": 1}
    assert attribute(next(iter(model.graph)), "approximate") in ("tanh", b"tanh")


def test_2_cube_by_two_muls_as_jax_writes_it() -> None:
    b = Build()
    x = b.x([2, 64])
    cube = b.op("Mul", x, b.op("Mul", x, b.op("Mul", b.w(0.044715), x)))
    t = b.op("Tanh", b.op("Mul", b.w(SLOPE), b.op("Add", x, cube)))
    check(b, b.op("Mul", x, b.op("Mul", b.w(0.5), b.op("Add", b.w(1.0), t))))


def test_2_factored_polynomial() -> None:
    b = Build()
    x = b.x([2, 64])
    square = b.op("Mul", x, x)
    inner = b.op("Add", b.op("Mul", square, b.w(0.044715)), b.w(1.0))
    t = b.op("Tanh", b.op("Mul", b.op("Mul", x, b.w(SLOPE)), inner))
    check(b, b.op("Mul", b.op("Mul", b.op("Add", t, b.w(1.0)), x), b.w(0.5)))


def test_3_quick_gelu_keeps_its_alpha() -> None:
    b = Build()
    x = b.x([2, 64])
    model = b.y(b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.w(1.702))))).model()
    apply(recover_gelu, model, 1e-9, scale=WIDE)
    assert ops(model) == {"Swish": 1}
    assert attribute(next(iter(model.graph)), "alpha") == pytest.approx(float(np.float32(1.702)), abs=0)


def test_4_without_the_half() -> None:
    b = Build()
    x = b.x([2, 64])
    check(b, b.op("Mul", x, erf_gate(b, x)), left={"Gelu": 1, "Mul": 1})


def test_5_erf_in_float32_between_casts() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 64])
    wide = b.op("Cast", b.op("Div", x, b.w(ROOT2)), to=TensorProto.FLOAT)
    erf = b.op("Cast", b.op("Erf", wide), to=TensorProto.FLOAT16)
    check(b, b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.w(1.0))), b.w(0.5)), tolerance=3e-5)


def test_float16_constants() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 64])
    check(b, b.op("Mul", b.op("Mul", x, b.w(0.5)), tanh_gate(b, x)), tolerance=3e-5)


def test_between_linears() -> None:
    b = Build()
    x = b.op("Add", b.op("MatMul", b.x([2, 3, 8]), b.rand(8, 16)), b.rand(16))
    y = b.op("MatMul", b.op("Mul", b.op("Mul", x, erf_gate(b, x)), b.w(0.5)), b.rand(16, 8))
    check(b, y, left={"MatMul": 2, "Add": 1, "Gelu": 1})


# --- left -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [1.5, 1.0, 1.41, 2.0])
def test_other_root(root: float) -> None:
    b = Build()
    x = b.x([2, 4])
    check(b, b.op("Mul", b.op("Mul", x, erf_gate(b, x, root)), b.w(0.5)), taken=False)


@pytest.mark.parametrize(("slope", "cubic"), [(0.8, 0.044715), (SLOPE, 0.0447), (SLOPE, 0.05), (SLOPE, 0.0)])
def test_other_tanh(slope: float, cubic: float) -> None:
    b = Build()
    x = b.x([2, 4])
    check(b, b.op("Mul", b.op("Mul", x, tanh_gate(b, x, slope, cubic)), b.w(0.5)), taken=False)


def test_square_beside_the_cube() -> None:
    b = Build()
    x = b.x([2, 4])
    odd = b.op("Add", x, b.op("Mul", b.op("Pow", x, b.w(3.0)), b.w(0.044715)))
    both = b.op("Add", odd, b.op("Mul", b.op("Mul", x, x), b.w(0.1)))
    gate = b.op("Add", b.op("Tanh", b.op("Mul", both, b.w(SLOPE))), b.w(1.0))
    check(b, b.op("Mul", b.op("Mul", x, gate), b.w(0.5)), taken=False)


def test_other_shift_in_the_gate() -> None:
    b = Build()
    x = b.x([2, 4])
    gate = b.op("Add", b.op("Erf", b.op("Div", x, b.w(ROOT2))), b.w(1.001))
    check(b, b.op("Mul", b.op("Mul", x, gate), b.w(0.5)), taken=False)
    b = Build()
    x = b.x([2, 4])
    gate = b.op("Sub", b.w(1.0), b.op("Erf", b.op("Div", x, b.w(ROOT2))))
    check(b, b.op("Mul", b.op("Mul", x, gate), b.w(0.5)), taken=False)


def test_erf_of_another_tensor() -> None:
    b = Build()
    x, y = b.x([2, 4]), b.x([2, 4], "y")
    check(b, b.op("Mul", b.op("Mul", x, erf_gate(b, y)), b.w(0.5)), taken=False)


def test_plain_silu_is_not_gelu() -> None:
    b = Build()
    x = b.x([2, 4])
    check(b, b.op("Mul", x, b.op("Sigmoid", x)), taken=False)


@pytest.mark.parametrize("output", [True, False])
def test_inner_tensor_that_is_needed(output: bool) -> None:
    b = Build()
    x = b.x([2, 4])
    gate = erf_gate(b, x)
    out = b.op("Mul", b.op("Mul", x, gate), b.w(0.5))
    model = (b.y(out, gate) if output else b.y(out, b.op("Abs", gate))).model()
    assert not apply(recover_gelu, model)


def test_constant_that_raises_the_rank() -> None:
    b = Build()
    x = b.x([4])
    gate = b.op("Add", b.op("Erf", b.op("Div", x, b.w([[ROOT2]]))), b.w(1.0))
    check(b, b.op("Mul", b.op("Mul", x, gate), b.w(0.5)), taken=False)


def test_channel_constant_in_the_erf() -> None:
    b = Build()
    x = b.x([2, 4])
    gate = b.op("Add", b.op("Erf", b.op("Div", x, b.w([ROOT2] * 4))), b.w(1.0))
    check(b, b.op("Mul", b.op("Mul", x, gate), b.w(0.5)), taken=False)


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_random_spellings(data: st.DataObject) -> None:
    draw = data.draw
    b = Build()
    x = b.x([2, 64])
    if draw(st.booleans()):
        inner = b.op("Erf", spelled_product(b, draw, [x], math.sqrt(0.5)))
    else:
        cube = b.op("Pow", x, b.w(3.0)) if draw(st.booleans()) else spelled_product(b, draw, [x, x, x])
        cubic = spelled_product(b, draw, [cube], 0.044715)
        total = b.op("Add", *draw(st.permutations([x, cubic])))
        inner = b.op("Tanh", spelled_product(b, draw, [total], SLOPE))
    check(b, spelled_product(b, draw, [x, spelled_sum(b, draw, inner, 1.0)], 0.5))


@settings(max_examples=40)
@given(
    a=st.floats(0.25, 2),
    c=st.floats(-1, 1),
    shift=st.floats(-2, 2),
    kind=st.sampled_from(["Erf", "Tanh", "Sigmoid"]),
)
def test_random_numbers_keep_their_meaning(a: float, c: float, shift: float, kind: str) -> None:
    b = Build()
    x = b.x([2, 16])
    inner = b.op("Add", b.op("Mul", x, b.w(a)), b.op("Mul", b.op("Pow", x, b.w(3.0)), b.w(c)))
    out = b.op("Mul", x, b.op("Add", b.op(kind, inner), b.w(shift)))
    assert not apply(recover_gelu, b.y(out).model())
