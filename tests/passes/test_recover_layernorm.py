"""recover_layernorm: every written-out form, traps (c11), random spellings.

Exact in real arithmetic; gain and bias are kept as they are: equal to 1e-9 in the float64 executor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import attribute, constant, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.passes.recover_instancenorm import recover_instancenorm
from edgefuse.passes.recover_layernorm import recover_layernorm
from tests.passes.graphs import Build, apply, dead_constants, ops

EPS = 1e-5


def mean(
    b: Build, x: str, axes: tuple[int, ...] = (-1,), form: str = "mean", count: int = 8, keep: int = 1
) -> str:
    """Write the mean; form "sum" divides by the count, "scaled" multiplies by its inverse."""
    kind = "ReduceMean" if form == "mean" else "ReduceSum"
    m = b.op(kind, x, b.ints(*axes), keepdims=keep)
    if form == "mean":
        return m
    return b.op("Div", m, b.w(float(count))) if form == "sum" else b.op("Mul", b.w(1 / count), m)


def square(b: Build, x: str, form: str = "pow") -> str:
    return b.op("Pow", x, b.w(2.0)) if form == "pow" else b.op("Mul", x, x)


def variance(b: Build, x: str, form: str = "centred", **how: Any) -> str:
    if form == "moments":
        return b.op("Sub", mean(b, square(b, x, "mul"), **how), square(b, mean(b, x, **how), "mul"))
    return mean(b, square(b, b.op("Sub", x, mean(b, x, **how))), **how)


def divided(b: Build, d: str, v: str, form: str = "div") -> str:
    if form == "pow":
        return b.op("Mul", d, b.op("Pow", v, b.w(-0.5)))
    if form == "powdiv":
        return b.op("Div", d, b.op("Pow", v, b.w(0.5)))
    if form == "inverse_first":
        return b.op("Mul", b.op("Sqrt", b.op("Reciprocal", v)), d)
    root = b.op("Sqrt", v)
    if form == "div":
        return b.op("Div", d, root)
    return b.op("Mul", b.op("Reciprocal", root) if form == "reciprocal" else b.op("Div", b.w(1.0), root), d)


def core(b: Build, x: str, eps: float = EPS, form: str = "div", **how: Any) -> str:
    d = b.op("Sub", x, mean(b, x, **how))
    v = mean(b, square(b, d), **how)
    return divided(b, d, b.op("Add", v, b.w(eps)) if eps else v, form)


def check(b: Build, out: str, taken: bool = True, left: dict[str, int] | None = None, **symbols: int) -> Any:
    """Run the pass; return the LayerNormalization (None where there is none)."""
    model = b.y(out).model()
    before = ops(model)
    assert bool(apply(recover_layernorm, model, **symbols)) == taken
    assert ops(model) == (before if not taken else left or {"LayerNormalization": 1})
    assert not dead_constants(model)
    return next((n for n in model.graph if n.op_type == "LayerNormalization"), None)


# --- taken ------------------------------------------------------------------------------------------------


def test_1_c11_with_gain_and_bias() -> None:
    b = Build(opset=13)
    x = b.x([1, 8, 64])
    mu = b.op("ReduceMean", x, axes=[-1], keepdims=1)
    d = b.op("Sub", x, mu)
    v = b.op("ReduceMean", b.op("Pow", d, b.w(2.0)), axes=[-1], keepdims=1)
    y = b.op("Div", d, b.op("Sqrt", b.op("Add", v, b.w(EPS))))
    y = b.op("Add", b.op("Mul", y, b.w(np.ones(64))), b.w(np.zeros(64)))
    model = b.y(y).model()
    apply(recover_layernorm, model, scale=400.0)
    assert ops(model) == {"LayerNormalization": 1}
    assert attribute(next(iter(model.graph)), "epsilon") == pytest.approx(EPS)


def test_c11_does_not_overflow_in_float16_any_more() -> None:
    b = Build(dtype=np.float16)
    x = b.x([1, 4, 64])
    model = b.y(core(b, x)).model()
    recover_layernorm(model)
    big = np.linspace(-400, 400, 256).reshape(1, 4, 64).astype(np.float16)
    (out,) = judge_session(model_to_bytes(model)).run(None, {"x": big})
    assert np.isfinite(out).all()
    assert abs(float(out.astype(np.float64).std()) - 1.0) < 1e-2


@pytest.mark.parametrize("form", ["div", "reciprocal", "over", "pow", "powdiv", "inverse_first"])
def test_3_inverse_root_forms(form: str) -> None:
    b = Build()
    check(b, core(b, b.x([2, 3, 8]), form=form))


def test_1_difference_written_twice() -> None:
    b = Build()
    x = b.x([2, 3, 8])
    v = b.op("Add", variance(b, x), b.w(EPS))
    check(b, divided(b, b.op("Sub", x, mean(b, x)), v))


def test_2_moments() -> None:
    for clamp in (False, True):
        b = Build()
        x = b.x([2, 3, 8])
        v = variance(b, x, "moments")
        if clamp:
            v = b.op("Max", b.w(0.0), v)
        check(b, divided(b, b.op("Sub", x, mean(b, x)), b.op("Add", b.w(EPS), v)))


@pytest.mark.parametrize("form", ["sum", "scaled"])
def test_4_means_by_sum(form: str) -> None:
    b = Build()
    x = b.x([2, 3, 8])
    d = b.op("Sub", x, mean(b, x, form=form))
    v = b.op("Add", mean(b, square(b, d, "mul"), form=form), b.w(EPS))
    check(b, divided(b, d, v))


@pytest.mark.parametrize("view", ["Reshape", "Unsqueeze"])
def test_4_dimensions_put_back(view: str) -> None:
    b = Build()
    x = b.x(["N", 8])

    def back(value: str) -> str:
        return b.op(view, value, b.ints(-1, 1) if view == "Reshape" else b.ints(1))

    m = mean(b, x, keep=0)
    v = b.op("Sub", mean(b, square(b, x), keep=0), square(b, m, "mul"))
    d = b.op("Sub", x, back(m))
    check(b, divided(b, d, b.op("Add", back(b.op("Max", v, b.w(0.0))), b.w(EPS))), N=3)


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8), (), (1,)])
@pytest.mark.parametrize("where", ["end", "root"])
def test_5_gain_and_bias_forms(shape: tuple[int, ...], where: str) -> None:
    b = Build()
    x = b.x([2, 3, 8])
    if where == "end":
        y = b.op("Mul", b.rand(*shape), core(b, x))
    else:
        d = b.op("Sub", x, mean(b, x))
        r = b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean(b, square(b, d)), b.w(EPS))))
        y = b.op("Mul", d, b.op("Mul", r, b.rand(*shape)))
    node = check(b, b.op("Sub", y, b.rand(*shape)))
    assert [np.asarray(constant(v)).shape for v in node.inputs[1:]] == [(8,), (8,)]


def test_5_without_gain_it_is_ones() -> None:
    b = Build()
    node = check(b, core(b, b.x([2, 8])))
    np.testing.assert_array_equal(constant(node.inputs[1]), np.ones(8, np.float32))
    assert len(node.inputs) == 2


@pytest.mark.parametrize("subtracted", [True, False])
@pytest.mark.parametrize("gain", [True, False])
def test_6_keras(gain: bool, subtracted: bool) -> None:
    b = Build()
    x = b.x([2, 3, 8])
    mu = mean(b, x)
    v = mean(b, square(b, b.op("Sub", x, mu), "mul"))
    m = b.op("Reciprocal", b.op("Sqrt", b.op("Add", v, b.w(EPS))))
    if gain:
        m = b.op("Mul", m, b.rand(8))
    scaled, offset = b.op("Mul", x, m), b.op("Mul", m, mu)
    y = b.op("Sub", scaled, offset) if subtracted else b.op("Add", b.op("Sub", b.rand(8), offset), scaled)
    check(b, y)


def test_7_variance_in_float32_between_casts() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 3, 8])
    d = b.op("Sub", x, mean(b, x))
    wide = b.op("Cast", d, to=TensorProto.FLOAT)
    v = b.op("ReduceMean", b.op("Pow", wide, b.w(2.0, dtype=np.float32)), b.ints(-1))
    root = b.op("Sqrt", b.op("Add", v, b.w(EPS, dtype=np.float32)))
    node = check(b, b.op("Div", d, b.op("Cast", root, to=TensorProto.FLOAT16)))
    assert node.inputs[0].name == "x"


def test_7_whole_core_in_float32() -> None:
    b = Build(dtype=np.float16)
    x = b.x([2, 3, 8])
    wide = b.op("Cast", x, to=TensorProto.FLOAT)
    b.dtype = np.dtype(np.float32)
    y = b.op("Cast", core(b, wide), to=TensorProto.FLOAT16)
    b.dtype = np.dtype(np.float16)
    model = b.y(b.op("Add", b.op("Mul", y, b.rand(8)), b.rand(8))).model()
    apply(recover_layernorm, model)
    assert ops(model)["LayerNormalization"] == 1
    assert not {"Sqrt", "ReduceMean", "Mul", "Add"} & set(ops(model))


def test_8_mean_variance_normalization() -> None:
    b = Build()
    model = b.y(b.op("MeanVarianceNormalization", b.x([2, 3, 8]), axes=[2]), shape=[2, 3, 8]).model()
    apply(recover_layernorm, model, 1e-8)
    assert ops(model) == {"LayerNormalization": 1}


def test_two_trailing_axes_with_full_gain() -> None:
    b = Build()
    x = b.x([2, 3, 4, 5])
    y = b.op("Mul", core(b, x, axes=(-2, -1)), b.rand(4, 5))
    node = check(b, b.op("Add", y, b.rand(4, 5)))
    assert attribute(node, "axis") == -2


def test_positive_axis_and_dynamic_batch() -> None:
    b = Build()
    check(b, core(b, b.x(["N", "T", 8]), axes=(2,)), N=2, T=3)


def test_size_from_the_gain() -> None:
    b = Build()
    x = b.x([2, "C"])
    check(b, b.op("Mul", core(b, x), b.rand(8)), C=8)


def test_zero_epsilon() -> None:
    b = Build()
    node = check(b, core(b, b.x([2, 8]), eps=0.0))
    assert attribute(node, "epsilon") == 0.0


def test_computed_gain_stays_outside() -> None:
    b = Build()
    x, gain = b.x([2, 3, 8]), b.x([8], "gain")
    check(b, b.op("Mul", core(b, x), gain), left={"LayerNormalization": 1, "Mul": 1})


def test_channel_gain_stays_outside() -> None:
    b = Build()
    check(b, b.op("Mul", core(b, b.x([2, 3, 8])), b.rand(3, 1)), left={"LayerNormalization": 1, "Mul": 1})


# --- left -------------------------------------------------------------------------------------------------


def test_epsilon_outside_the_root() -> None:
    b = Build()
    x = b.x([2, 8])
    d = b.op("Sub", x, mean(b, x))
    s = b.op("Add", b.op("Sqrt", mean(b, square(b, d))), b.w(EPS))
    check(b, b.op("Div", d, s), taken=False)


def test_epsilon_as_a_floor() -> None:
    b = Build()
    x = b.x([2, 8])
    d = b.op("Sub", x, mean(b, x))
    check(b, divided(b, d, b.op("Max", mean(b, square(b, d)), b.w(EPS))), taken=False)


def test_unbiased_variance() -> None:
    b = Build()
    x = b.x([2, 8])
    d = b.op("Sub", x, mean(b, x))
    check(b, divided(b, d, b.op("Add", mean(b, square(b, d), form="sum", count=7), b.w(EPS))), taken=False)


def test_negative_epsilon_and_scaled_variance() -> None:
    b = Build()
    x = b.x([2, 8])
    d = b.op("Sub", x, mean(b, x))
    check(b, divided(b, d, b.op("Sub", mean(b, square(b, d)), b.w(1e-9))), taken=False)
    b = Build()
    x = b.x([2, 8])
    d = b.op("Sub", x, mean(b, x))
    v = b.op("Mul", mean(b, square(b, d)), b.w(2.0))
    check(b, divided(b, d, b.op("Add", v, b.w(EPS))), taken=False)


def test_channels_of_nchw() -> None:
    b = Build()
    check(b, core(b, b.x([2, 8, 3, 3]), axes=(1,)), taken=False)


def test_different_axes_of_mean_and_variance() -> None:
    b = Build()
    x = b.x([2, 8, 8])
    d = b.op("Sub", x, mean(b, x, (-1,)))
    check(b, divided(b, d, b.op("Add", mean(b, square(b, d), (1,)), b.w(EPS))), taken=False)
    b = Build()
    x = b.x([2, 8, 8])
    v = variance(b, x, axes=(1,))
    check(b, divided(b, b.op("Sub", x, mean(b, x)), b.op("Add", v, b.w(EPS))), taken=False)


def test_variance_around_a_mean_over_another_axis() -> None:
    b = Build()
    x = b.x([2, 8, 8])
    other = b.op("Sub", x, mean(b, x, (1,)))
    v = b.op("Add", mean(b, square(b, other)), b.w(EPS))
    check(b, divided(b, b.op("Sub", x, mean(b, x)), v), taken=False)


def test_variance_of_another_tensor() -> None:
    b = Build()
    x, y = b.x([2, 8]), b.x([2, 8], "y")
    v = b.op("Add", variance(b, y), b.w(EPS))
    check(b, divided(b, b.op("Sub", x, mean(b, x)), v), taken=False)


def test_cube_and_absolute_deviation() -> None:
    for deviation in ("cube", "abs"):
        b = Build()
        x = b.x([2, 8])
        d = b.op("Sub", x, mean(b, x))
        s = b.op("Pow", d, b.w(4.0)) if deviation == "cube" else b.op("Abs", d)
        check(b, divided(b, d, b.op("Add", mean(b, s), b.w(EPS))), taken=False)


def test_lost_dimension_that_broadcasts_the_wrong_way() -> None:
    b = Build()
    x = b.x([8, 8])
    m = mean(b, x, keep=0)
    d = b.op("Sub", x, m)
    check(b, divided(b, d, b.op("Add", mean(b, square(b, d), keep=0), b.w(EPS))), taken=False)


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("where", ["mean", "difference", "root"])
def test_inner_tensor_that_is_needed(where: str, output: bool) -> None:
    b = Build()
    x = b.x([2, 8])
    m = mean(b, x)
    d = b.op("Sub", x, m)
    s = b.op("Sqrt", b.op("Add", mean(b, square(b, d)), b.w(EPS)))
    needed = {"mean": m, "difference": d, "root": s}[where]
    out = b.op("Div", d, s)
    model = (b.y(out, needed) if output else b.y(out, b.op("Abs", needed))).model()
    assert not apply(recover_layernorm, model)


def test_float64_tensors() -> None:
    b = Build()
    x = b.x([2, 8], element=TensorProto.DOUBLE)
    b.dtype = np.dtype(np.float64)
    model = b.y(core(b, x), element=TensorProto.DOUBLE).model()
    assert not apply(recover_layernorm, model)


def test_unknown_size_without_gain() -> None:
    b = Build()
    check(b, core(b, b.x([2, "C"])), taken=False, C=8)


def test_groupnorm_of_one_group_is_left_to_instancenorm() -> None:
    b = Build()
    x = b.x([2, 4, 3, 3])
    y = b.op("Add", b.op("Mul", core(b, x, axes=(1, 2, 3)), b.rand(4, 1, 1)), b.rand(4, 1, 1))
    model = b.y(y, shape=[2, 4, 3, 3]).model()
    assert not apply(recover_layernorm, model)
    assert recover_instancenorm(model)


def test_mvn_over_the_batch() -> None:
    b = Build()
    model = b.y(b.op("MeanVarianceNormalization", b.x([2, 3, 4, 4])), shape=[2, 3, 4, 4]).model()
    assert not recover_layernorm(model)


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    variance_form=st.sampled_from(["shared", "centred", "moments"]),
    mean_form=st.sampled_from(["mean", "sum", "scaled"]),
    root_form=st.sampled_from(["div", "reciprocal", "over", "pow", "powdiv", "inverse_first"]),
    axes=st.sampled_from([(-1,), (2,), (-2, -1), (1, 2)]),
    gain=st.sampled_from([None, (), (8,), (1, 8)]),
    bias=st.sampled_from([None, (), (8,), (1, 1, 8)]),
    swapped=st.booleans(),
    seed=st.integers(0, 999),
)
def test_random_spellings(
    variance_form: str,
    mean_form: str,
    root_form: str,
    axes: tuple[int, ...],
    gain: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
    swapped: bool,
    seed: int,
) -> None:
    b = Build(seed=seed)
    x = b.x([2, 3, 8])
    how: dict[str, Any] = {"axes": axes, "form": mean_form, "count": 8 if len(axes) == 1 else 24}
    d = b.op("Sub", x, mean(b, x, **how))
    if variance_form == "shared":
        v = mean(b, square(b, d), **how)
    elif variance_form == "centred":
        v = mean(b, square(b, b.op("Sub", x, mean(b, x, **how)), "mul"), **how)
    else:
        v = b.op("Sub", mean(b, square(b, x), **how), square(b, mean(b, x, **how)))
    v = b.op("Add", *((b.w(EPS), v) if swapped else (v, b.w(EPS))))
    y = divided(b, d, v, root_form)
    for kind, shape in (("Mul", gain), ("Add", bias)):
        if shape is not None:
            y = b.op(kind, *((b.rand(*shape), y) if swapped else (y, b.rand(*shape))))
    model = b.y(y).model()
    apply(recover_layernorm, model, 1e-6 if mean_form == "scaled" and len(axes) == 2 else 1e-9)
    if len(axes) == 1:
        assert ops(model) == {"LayerNormalization": 1}
