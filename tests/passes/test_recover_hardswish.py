"""recover_hardswish: every written-out form, traps, random spellings.

The rewrite is exact up to the float32 constants of the written form (1/6): equal to 1e-6 in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import constant, source_name
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


def gate6(b: Build, x: str) -> str:
    return b.op("Clip", b.op("Add", x, b.w(3.0)), b.w(0.0), b.w(6.0))


def check(
    b: Build, out: str, taken: bool = True, left: dict[str, int] | None = None, tolerance: float = EXACT
) -> None:
    model = b.y(out).model()
    before = ops(model)
    assert bool(apply(recover_hardswish, model, tolerance, scale=WIDE)) == taken
    assert ops(model) == (before if not taken else left or {"HardSwish": 1})
    assert not dead_constants(model)


# --- taken ------------------------------------------------------------------------------------------------


def test_1_divided_at_the_end() -> None:
    b = Build()
    x = b.x([2, 3, 4, 4])
    check(b, b.op("Div", b.op("Mul", x, gate6(b, x)), b.w(6.0)))


def test_1_multiplied_by_a_sixth_at_either_factor() -> None:
    b = Build()
    x = b.x([2, 3, 4, 4])
    check(b, b.op("Mul", b.op("Mul", x, b.w(1 / 6)), gate6(b, x)))
    b = Build()
    x = b.x([2, 3, 4, 4])
    check(b, b.op("Mul", b.op("Div", gate6(b, x), b.w([6.0])), x))


def test_2_clip_to_one() -> None:
    b = Build()
    x = b.x([2, 3])
    inner = b.op("Add", b.op("Div", x, b.w(6.0)), b.w(0.5))
    check(b, b.op("Mul", x, b.op("Clip", inner, b.w(0.0), b.w(1.0))))


def test_3_hardsigmoid() -> None:
    b = Build()
    x = b.x([2, 3])
    check(b, b.op("Mul", b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), x))


def test_4_relu6_as_min_of_relu() -> None:
    b = Build()
    x = b.x([2, 3])
    gate = b.op("Min", b.op("Relu", b.op("Add", b.w(3.0), x)), b.w(6.0))
    check(b, b.op("Div", b.op("Mul", x, gate), b.w(6.0)))


def test_5_the_sixth_is_elsewhere() -> None:
    b = Build()
    x = b.x([2, 3])
    model = b.y(b.op("Mul", x, gate6(b, x))).model()
    assert apply(recover_hardswish, model, EXACT, scale=WIDE).changed == 1
    assert ops(model) == {"HardSwish": 1, "Mul": 1}
    factor = [constant(v) for n in model.graph for v in n.inputs if constant(v) is not None]
    assert len(factor) == 1
    assert factor[0] == pytest.approx(6.0)


def test_from_old_operator_sets() -> None:
    for opset in (7, 10, 13):
        b = Build(opset=opset)
        x = b.x([2, 3])
        s = b.op("Add", x, b.w(3.0))
        c = b.op("Clip", s, b.w(0.0), b.w(6.0)) if opset > 10 else b.op("Clip", s, min=0.0, max=6.0)
        check(b, b.op("Div", b.op("Mul", x, c), b.w(6.0)))


def test_float16_divided_by_six() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 64])
    check(b, b.op("Div", b.op("Mul", x, gate6(b, x)), b.w(6.0)))


def test_float16_sixth_is_too_far_off() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 64])
    check(b, b.op("Mul", x, b.op("Mul", gate6(b, x), b.w(1 / 6))), taken=False)


def test_gate_computed_in_float32_between_casts() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 8])
    wide = b.op("Cast", x, to=TensorProto.FLOAT)
    s = b.op(
        "Clip", b.op("Add", wide, b.w(3.0, dtype=np.float32)), *(b.w(v, dtype=np.float32) for v in (0.0, 6.0))
    )
    half = b.op("Cast", b.op("Div", s, b.w(6.0, dtype=np.float32)), to=TensorProto.FLOAT16)
    out = b.op("Mul", x, half)
    model = b.y(out).model()
    apply(recover_hardswish, model, EXACT, scale=WIDE)
    assert ops(model)["HardSwish"] == 1
    assert ops(model)["Clip"] == ops(model)["Mul"] == 0


def test_two_of_the_same_input() -> None:
    b = Build()
    x = b.op("Relu", b.x([2, 3]))
    first = b.op("Div", b.op("Mul", x, gate6(b, x)), b.w(6.0))
    second = b.op("Div", b.op("Mul", gate6(b, x), x), b.w(6.0))
    check(b, b.op("Add", first, second), left={"HardSwish": 2, "Relu": 1, "Add": 1})


def test_result_that_is_a_graph_output_and_names() -> None:
    b = Build()
    x = b.x([2, 3])
    m = b.op("Mul", x, gate6(b, x), name="act/mul")
    out = b.op("Div", m, b.w(6.0), name="act/div")
    model = b.y(out).model()
    recover_hardswish(model)
    assert model.graph.outputs[0].name == out
    node = next(iter(model.graph))
    assert "act/mul" in source_name(node)
    assert "act/div" in source_name(node)


def test_x_of_unknown_rank_with_scalars() -> None:
    b = Build()
    x = b.x(None)
    model = b.y(b.op("Div", b.op("Mul", x, gate6(b, x)), b.w(6.0))).model()
    assert recover_hardswish(model).changed == 1


def test_channel_scale_after_it_stays() -> None:
    b = Build()
    x = b.x([1, 4, 3, 3])
    h = b.op("Div", b.op("Mul", x, gate6(b, x)), b.w(6.0))
    check(b, b.op("Mul", h, b.rand(4, 1, 1)), left={"HardSwish": 1, "Mul": 1})


# --- left -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "low", "high", "divisor"),
    [
        (3.0, 0.0, 5.0, 6.0),
        (2.5, 0.0, 6.0, 6.0),
        (3.0, -1.0, 6.0, 6.0),
        (3.0, 1.0, 6.0, 6.0),
        (3.001, 0.0, 6.0, 6.0),
    ],
)
def test_other_numbers(shift: float, low: float, high: float, divisor: float) -> None:
    b = Build()
    x = b.x([2, 3])
    gate = b.op("Clip", b.op("Add", x, b.w(shift)), b.w(low), b.w(high))
    check(b, b.op("Div", b.op("Mul", x, gate), b.w(divisor)), taken=False)


def test_other_slope() -> None:
    b = Build()
    x = b.x([2, 3])
    check(b, b.op("Mul", x, b.op("HardSigmoid", x)), taken=False)


def test_negative_gate() -> None:
    b = Build()
    x = b.x([2, 3])
    out = b.op("Div", b.op("Mul", x, gate6(b, x)), b.w(-6.0))
    check(b, out, left={"HardSwish": 1, "Mul": 1, "Div": 1})


def test_gate_of_another_tensor() -> None:
    b = Build()
    x, y = b.x([2, 3]), b.x([2, 3], "y")
    check(b, b.op("Div", b.op("Mul", x, gate6(b, y)), b.w(6.0)), taken=False)


def test_squeeze_and_excite() -> None:
    b = Build()
    x = conv(b, b.x([1, 4, 5, 5]), 4, 4)
    s = b.op("HardSigmoid", b.op("GlobalAveragePool", x), alpha=1 / 6, beta=0.5)
    check(b, b.op("Mul", x, s), taken=False)


@pytest.mark.parametrize("where", ["sum", "clip", "product"])
@pytest.mark.parametrize("output", [True, False])
def test_inner_tensor_that_is_needed(where: str, output: bool) -> None:
    b = Build()
    x = b.x([2, 3])
    s = b.op("Add", x, b.w(3.0))
    c = b.op("Clip", s, b.w(0.0), b.w(6.0))
    m = b.op("Mul", x, c)
    needed = {"sum": s, "clip": c, "product": m}[where]
    out = b.op("Div", m, b.w(6.0))
    model = (b.y(out, needed) if output else b.y(out, b.op("Abs", needed))).model()
    result = apply(recover_hardswish, model, EXACT, scale=WIDE)
    if where == "product":  # HardSwish * 6 takes the place of the product, the division stays
        assert ops(model)["HardSwish"] == 1
        assert ops(model)["Div"] == 1
    else:
        assert not result


def test_integers() -> None:
    b = Build()
    x = b.x([2, 3], element=TensorProto.INT32)
    three, zero, six = (b.w(v, dtype=np.int32) for v in (3, 0, 6))
    gate = b.op("Clip", b.op("Add", x, three), zero, six)
    model = b.y(b.op("Div", b.op("Mul", x, gate), six), element=TensorProto.INT32).model()
    assert not apply(recover_hardswish, model)


def test_constant_that_raises_the_rank() -> None:
    b = Build()
    x = b.x([3])
    gate = b.op("Clip", b.op("Add", x, b.w([[3.0]])), b.w(0.0), b.w(6.0))
    check(b, b.op("Div", b.op("Mul", x, gate), b.w(6.0)), taken=False)


def test_bounds_the_wrong_way_round() -> None:
    b = Build()
    x = b.x([3])
    gate = b.op("Clip", b.op("Add", x, b.w(3.0)), b.w(6.0), b.w(0.0))
    check(b, b.op("Div", b.op("Mul", x, gate), b.w(6.0)), taken=False)


def test_x_times_x() -> None:
    b = Build()
    x = b.x([3])
    check(b, b.op("Mul", x, x), taken=False)


def test_division_by_the_gate() -> None:
    b = Build()
    x = b.x([3])
    check(b, b.op("Div", x, b.op("Add", gate6(b, x), b.w(1.0))), taken=False)


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_random_spellings(data: st.DataObject) -> None:
    draw = data.draw
    b = Build()
    x = b.op("Relu", b.op("Neg", b.x([2, 3, 4]))) if draw(st.booleans()) else b.x([2, 3, 4])
    extra = ops_of(b)
    form = draw(st.sampled_from(["six", "one", "op"]))
    if form == "six":
        gate, coefficient = spelled_clip(b, draw, spelled_sum(b, draw, x, 3.0), 0.0, 6.0), 1 / 6
    elif form == "one":
        inner = spelled_sum(b, draw, spelled_product(b, draw, [x], 1 / 6), 0.5)
        gate, coefficient = spelled_clip(b, draw, inner, 0.0, 1.0), 1.0
    else:
        gate, coefficient = b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), 1.0
    check(b, spelled_product(b, draw, [x, gate], coefficient), left={"HardSwish": 1, **extra})


def ops_of(b: Build) -> dict[str, int]:
    return {node.op_type: 1 for node in b.nodes}


@settings(max_examples=40)
@given(
    shift=st.floats(-4, 4),
    low=st.floats(-4, 4),
    width=st.floats(0.125, 8),
    divisor=st.floats(0.5, 8),
    seed=st.integers(0, 99),
)
def test_random_numbers_keep_their_meaning(
    shift: float, low: float, width: float, divisor: float, seed: int
) -> None:
    b = Build(seed=seed)
    x = b.x([2, 16])
    gate = b.op("Clip", b.op("Add", x, b.w(shift)), b.w(low), b.w(low + width))
    apply(recover_hardswish, b.y(b.op("Div", b.op("Mul", x, gate), b.w(divisor))).model(), EXACT, scale=WIDE)
