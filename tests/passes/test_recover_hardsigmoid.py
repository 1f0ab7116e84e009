"""recover_hardsigmoid: forms taken and left, random spellings.

alpha and beta are rounded to float32 once: equal to 1e-6 in the float64 executor.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import attribute
from edgefuse.passes.recover_hardsigmoid import recover_hardsigmoid
from edgefuse.passes.recover_hardswish import recover_hardswish
from tests.passes.graphs import (
    Build,
    apply,
    conv,
    dead_constants,
    ops,
    spelled_clip,
    spelled_product,
    spelled_sum,
)

EXACT = 1e-6
WIDE = 8.0


def check(
    b: Build, out: str, taken: bool = True, left: dict[str, int] | None = None
) -> tuple[float, float] | None:
    """Run the pass; return (alpha, beta) of the HardSigmoid, None where there is none."""
    model = b.y(out).model()
    before = ops(model)
    assert bool(apply(recover_hardsigmoid, model, EXACT, scale=WIDE)) == taken
    assert ops(model) == (before if not taken else left or {"HardSigmoid": 1})
    assert not dead_constants(model)
    found = [n for n in model.graph if n.op_type == "HardSigmoid"]
    return (attribute(found[0], "alpha"), attribute(found[0], "beta")) if found else None


def clip(b: Build, x: str, low: float, high: float) -> str:
    return b.op("Clip", x, b.w(low), b.w(high))


SIXTH = (pytest.approx(1 / 6, rel=1e-6), pytest.approx(0.5, rel=1e-6))

# --- taken ------------------------------------------------------------------------------------------------


def test_1_clip_to_six() -> None:
    b = Build()
    assert check(b, b.op("Div", clip(b, b.op("Add", b.x([2, 3]), b.w(3.0)), 0.0, 6.0), b.w(6.0))) == SIXTH
    b = Build()
    assert check(b, b.op("Mul", b.w(1 / 6), clip(b, b.op("Add", b.x([2, 3]), b.w(3.0)), 0.0, 6.0))) == SIXTH


def test_2_clip_to_one() -> None:
    b = Build()
    inner = b.op("Add", b.op("Div", b.x([2, 3]), b.w(6.0)), b.w(0.5))
    assert check(b, clip(b, inner, 0.0, 1.0)) == SIXTH


@pytest.mark.parametrize(("a", "c"), [(0.2, 0.5), (2.0, -1.0), (-0.5, 0.25)])
def test_2_any_slope_and_shift(a: float, c: float) -> None:
    b = Build()
    inner = b.op("Add", b.op("Mul", b.x([2, 3]), b.w(a)), b.w(c))
    assert check(b, clip(b, inner, 0.0, 1.0)) == (pytest.approx(a), pytest.approx(c))
    b = Build()
    inner = b.op("Mul", b.op("Add", b.x([2, 3]), b.w(c / a)), b.w(a))
    assert check(b, clip(b, inner, 0.0, 1.0)) == (pytest.approx(a), pytest.approx(c))


def test_3_min_max_and_relu() -> None:
    for form in ("minmax", "maxmin", "relu"):
        b = Build()
        s = b.op("Add", b.x([2, 3]), b.w(3.0))
        if form == "minmax":
            c = b.op("Min", b.op("Max", s, b.w(0.0)), b.w(6.0))
        elif form == "maxmin":
            c = b.op("Max", b.w(0.0), b.op("Min", b.w(6.0), s))
        else:
            c = b.op("Min", b.w(6.0), b.op("Relu", s))
        assert check(b, b.op("Div", c, b.w(6.0))) == SIXTH


def test_4_one_minus() -> None:
    b = Build()
    inner = b.op("Div", clip(b, b.op("Add", b.x([2, 3]), b.w(3.0)), 0.0, 6.0), b.w(6.0))
    found = check(b, b.op("Sub", b.w(1.0), inner))
    assert found == (pytest.approx(-1 / 6), pytest.approx(0.5))


def test_outer_scale_of_the_layer_before_stays() -> None:
    b = Build()
    scaled = b.op("Add", b.op("Mul", conv(b, b.x([1, 2, 3, 3]), 2, 2), b.w(0.7)), b.w(0.2))
    out = b.op("Div", clip(b, b.op("Add", scaled, b.w(3.0)), 0.0, 6.0), b.w(6.0))
    assert check(b, out, left={"Conv": 1, "Mul": 1, "Add": 1, "HardSigmoid": 1}) == SIXTH


def test_inside_squeeze_and_excite() -> None:
    b = Build()
    x = b.x([1, 4, 3, 3])
    s = conv(b, b.op("GlobalAveragePool", x), 4, 4, k=1)
    gate = b.op("Div", clip(b, b.op("Add", s, b.w(3.0)), 0.0, 6.0), b.w(6.0))
    check(b, b.op("Mul", x, gate), left={"GlobalAveragePool": 1, "Conv": 1, "HardSigmoid": 1, "Mul": 1})


def test_old_operator_set() -> None:
    b = Build(opset=9)
    c = b.op("Clip", b.op("Add", b.x([2, 3]), b.w(3.0)), min=0.0, max=6.0)
    assert check(b, b.op("Div", c, b.w(6.0))) == SIXTH


def test_float16_division() -> None:
    b = Build(dtype=np.float16)
    check(b, b.op("Div", clip(b, b.op("Add", b.x([2, 3]), b.w(3.0)), 0.0, 6.0), b.w(6.0)))


def test_hardswish_comes_first() -> None:
    b = Build()
    x = b.x([2, 3])
    gate = b.op("Div", clip(b, b.op("Add", x, b.w(3.0)), 0.0, 6.0), b.w(6.0))
    model = b.y(b.op("Mul", x, gate)).model()
    recover_hardsigmoid(model)
    apply(recover_hardswish, model, EXACT)  # and in the other order it is found all the same
    assert ops(model) == {"HardSwish": 1}


# --- left -------------------------------------------------------------------------------------------------


OTHER = [(0.0, 6.0, 5.0), (0.0, 5.0, 6.0), (-1.0, 6.0, 6.0), (1.0, 6.0, 6.0)]


@pytest.mark.parametrize(("low", "high", "divisor"), OTHER)
def test_other_bounds(low: float, high: float, divisor: float) -> None:
    b = Build()
    check(b, b.op("Div", clip(b, b.op("Add", b.x([2, 3]), b.w(3.0)), low, high), b.w(divisor)), taken=False)


def test_relu6_is_no_hardsigmoid() -> None:
    b = Build()
    check(b, clip(b, b.x([2, 3]), 0.0, 6.0), taken=False)


def test_without_slope_or_without_shift() -> None:
    b = Build()
    check(b, clip(b, b.x([2, 3]), 0.0, 1.0), taken=False)
    b = Build()
    check(b, clip(b, b.op("Add", b.x([2, 3]), b.w(0.5)), 0.0, 1.0), taken=False)
    b = Build()
    check(b, clip(b, b.op("Mul", b.x([2, 3]), b.w(0.5)), 0.0, 1.0), taken=False)


def test_channel_constants() -> None:
    b = Build()
    inner = b.op("Add", b.op("Mul", b.x([2, 3]), b.rand(3)), b.w(0.5))
    check(b, clip(b, inner, 0.0, 1.0), taken=False)


def test_one_bound_only() -> None:
    b = Build()
    check(b, b.op("Min", b.op("Add", b.op("Mul", b.x([3]), b.w(0.2)), b.w(0.5)), b.w(1.0)), taken=False)


def test_computed_bound() -> None:
    b = Build()
    x, top = b.x([3]), b.x([], "top")
    inner = b.op("Add", b.op("Mul", x, b.w(0.2)), b.w(0.5))
    check(b, b.op("Clip", inner, b.w(0.0), top), taken=False)


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("where", ["sum", "clip"])
def test_inner_tensor_that_is_needed(where: str, output: bool) -> None:
    b = Build()
    s = b.op("Add", b.x([2, 3]), b.w(3.0))
    c = clip(b, s, 0.0, 6.0)
    out = b.op("Div", c, b.w(6.0))
    needed = {"sum": s, "clip": c}[where]
    model = (b.y(out, needed) if output else b.y(out, b.op("Abs", needed))).model()
    assert not apply(recover_hardsigmoid, model)


def test_integers() -> None:
    b = Build()
    x = b.x([2, 3], element=TensorProto.INT32)
    three, zero, six = (b.w(v, dtype=np.int32) for v in (3, 0, 6))
    out = b.op("Div", b.op("Clip", b.op("Add", x, three), zero, six), six)
    model = b.y(out, element=TensorProto.INT32).model()
    assert not apply(recover_hardsigmoid, model)


def test_constant_that_raises_the_rank() -> None:
    b = Build()
    s = b.op("Add", b.x([3]), b.w([[3.0]]))
    check(b, b.op("Div", clip(b, s, 0.0, 6.0), b.w(6.0)), taken=False)


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_random_spellings(data: st.DataObject) -> None:
    draw = data.draw
    b = Build()
    x = b.x([2, 16])
    if draw(st.booleans()):
        out = spelled_product(b, draw, [spelled_clip(b, draw, spelled_sum(b, draw, x, 3.0), 0.0, 6.0)], 1 / 6)
    else:
        inner = spelled_sum(b, draw, spelled_product(b, draw, [x], 1 / 6), 0.5)
        out = spelled_clip(b, draw, inner, 0.0, 1.0)
    assert check(b, out) == SIXTH


@settings(max_examples=40)
@given(
    a=st.floats(-2, 2),
    shift=st.floats(-4, 4),
    low=st.floats(-2, 2),
    width=st.floats(0.125, 8),
    divisor=st.sampled_from([0.5, 1.0, 6.0]),
    exact=st.booleans(),
)
def test_random_numbers_keep_their_meaning(
    a: float, shift: float, low: float, width: float, divisor: float, exact: bool
) -> None:
    low, width = (0.0, divisor) if exact else (low, width)
    b = Build()
    inner = b.op("Add", b.op("Mul", b.x([2, 16]), b.w(a)), b.w(shift))
    out = b.op("Div", clip(b, inner, low, low + width), b.w(divisor))
    apply(recover_hardsigmoid, b.y(out).model(), EXACT, scale=WIDE)
