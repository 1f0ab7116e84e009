"""recover_instancenorm: InstanceNorm and GroupNorm forms taken and left, random spellings.

Exact in real arithmetic: equal to 1e-9 in the float64 executor. onnx infers no shape for GroupNormalization,
so graph outputs state theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.graph import attribute, constant
from edgefuse.passes.recover_instancenorm import recover_instancenorm
from edgefuse.passes.recover_layernorm import recover_layernorm
from tests.passes.graphs import Build, apply, dead_constants, ops

EPS = 1e-5
SHAPE = [2, 6, 4, 5]


def core(b: Build, x: str, axes: tuple[int, ...] = (2, 3), pooled: bool = False, eps: float = EPS) -> str:
    def mean(value: str) -> str:
        return b.op("GlobalAveragePool", value) if pooled else b.op("ReduceMean", value, b.ints(*axes))

    d = b.op("Sub", x, mean(x))
    return b.op("Div", d, b.op("Sqrt", b.op("Add", mean(b.op("Mul", d, d)), b.w(eps))))


def grouped(b: Build, x: str, groups: int, back: str = "shape", target: tuple[int, ...] | None = None) -> str:
    flat = b.op("Reshape", x, b.ints(*(target or (0, groups, -1))))
    n = b.op("InstanceNormalization", flat, b.w(np.ones(groups)), b.w(np.zeros(groups)), epsilon=EPS)
    return b.op("Reshape", n, b.op("Shape", x) if back == "shape" else b.ints(*SHAPE))


def check(
    b: Build,
    out: str,
    kind: str,
    taken: bool = True,
    left: dict[str, int] | None = None,
    tolerance: float = 1e-9,
) -> Any:
    model = b.y(out, shape=SHAPE).model()
    before = ops(model)
    assert bool(apply(recover_instancenorm, model, tolerance)) == taken
    assert ops(model) == (before if not taken else left or {kind: 1})
    assert not dead_constants(model)
    return next((n for n in model.graph if n.op_type == kind), None)


# --- taken ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), ()])
@pytest.mark.parametrize("pooled", [True, False])
def test_1_instancenorm_with_gain_and_bias(pooled: bool, shape: tuple[int, ...]) -> None:
    b = Build()
    y = b.op("Mul", core(b, b.x(SHAPE), pooled=pooled), b.rand(*shape))
    node = check(b, b.op("Add", b.rand(*shape), y), "InstanceNormalization")
    assert attribute(node, "epsilon") == pytest.approx(EPS)
    assert np.asarray(constant(node.inputs[1])).shape == (6,)


def test_1_without_gain() -> None:
    b = Build()
    node = check(b, core(b, b.x(SHAPE), (-2, -1)), "InstanceNormalization")
    np.testing.assert_array_equal(constant(node.inputs[1]), np.ones(6, np.float32))
    np.testing.assert_array_equal(constant(node.inputs[2]), np.zeros(6, np.float32))


def test_1_three_dimensions() -> None:
    b = Build()
    model = b.y(core(b, b.x([2, 4, 9]), (2,))).model()
    apply(recover_instancenorm, model)
    assert ops(model) == {"InstanceNormalization": 1}


def test_2_one_group() -> None:
    b = Build()
    y = b.op("Add", b.op("Mul", core(b, b.x(SHAPE), (1, 2, 3)), b.rand(6, 1, 1)), b.rand(6, 1, 1))
    node = check(b, y, "GroupNormalization")
    assert attribute(node, "num_groups") == 1


@pytest.mark.parametrize("back", ["shape", "numbers"])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_3_reshaped_groups(groups: int, back: str) -> None:
    b = Build()
    y = grouped(b, b.x(SHAPE), groups, back)
    node = check(
        b, b.op("Add", b.op("Mul", y, b.rand(6, 1, 1)), b.rand(6, 1, 1)), "GroupNormalization", tolerance=1e-7
    )
    assert attribute(node, "num_groups") == groups


def test_3_group_gain_and_static_target() -> None:
    b = Build()
    x = b.x(SHAPE)
    flat = b.op("Reshape", x, b.ints(2, 3, 40))
    n = b.op("InstanceNormalization", flat, b.rand(3), b.rand(3))
    check(b, b.op("Reshape", n, b.ints(*SHAPE)), "GroupNormalization")


def test_3_written_out_between_the_reshapes() -> None:
    b = Build()
    x = b.x(SHAPE)
    n = core(b, b.op("Reshape", x, b.ints(0, 2, -1)), (-1,))
    model = b.y(b.op("Reshape", n, b.op("Shape", x)), shape=SHAPE).model()
    recover_layernorm(model)
    apply(recover_instancenorm, model)
    assert ops(model) == {"GroupNormalization": 1}


def test_4_mean_variance_normalization() -> None:
    for axes, kind in (([2, 3], "InstanceNormalization"), ([1, 2, 3], "GroupNormalization")):
        b = Build()
        check(b, b.op("MeanVarianceNormalization", b.x(SHAPE), axes=axes), kind, tolerance=1e-8)


# --- left -------------------------------------------------------------------------------------------------


def test_full_gain_stays_outside() -> None:
    b = Build()
    y = b.op("Mul", core(b, b.x(SHAPE)), b.rand(4, 5))
    check(b, y, "InstanceNormalization", left={"InstanceNormalization": 1, "Mul": 1})


def test_axes_that_fit_no_operator() -> None:
    for axes in ((1,), (3,), (1, 3), (0, 2, 3)):
        b = Build()
        check(b, core(b, b.x(SHAPE), axes), "", taken=False)


def test_unknown_channels() -> None:
    b = Build()
    model = b.y(core(b, b.x([2, "C", 3, 3]))).model()
    assert not apply(recover_instancenorm, model, C=4)


@pytest.mark.parametrize("target", [(4, 3, -1), (-1, 6, 20), (2, 4, -1), (1, 6, -1)])
def test_reshapes_that_cut_channels_or_samples(target: tuple[int, ...]) -> None:
    b = Build()
    x = b.x(SHAPE)
    flat = b.op("Reshape", x, b.ints(*target))
    groups = target[1]
    n = b.op("InstanceNormalization", flat, b.w(np.ones(groups)), b.w(np.zeros(groups)))
    model = b.y(b.op("Reshape", n, b.ints(*SHAPE)), shape=SHAPE).model()
    assert not apply(recover_instancenorm, model)


def test_reshaped_back_to_another_shape() -> None:
    b = Build()
    x = b.x(SHAPE)
    flat = b.op("Reshape", x, b.ints(0, 2, -1))
    n = b.op("InstanceNormalization", flat, b.w(np.ones(2)), b.w(np.zeros(2)))
    model = b.y(b.op("Reshape", n, b.ints(2, 6, 5, 4)), shape=[2, 6, 5, 4]).model()
    assert not apply(recover_instancenorm, model)


def test_shape_of_another_tensor() -> None:
    b = Build()
    x, other = b.x(["N", 6, "H", "W"]), b.x(["N", 6, "W", "H"], "other")
    flat = b.op("Reshape", x, b.ints(0, 2, -1))
    n = b.op("InstanceNormalization", flat, b.w(np.ones(2)), b.w(np.zeros(2)))
    model = b.y(b.op("Reshape", n, b.op("Shape", other))).model()
    assert not recover_instancenorm(model)


@pytest.mark.parametrize("output", [True, False])
def test_inner_tensor_that_is_needed(output: bool) -> None:
    b = Build()
    x = b.x(SHAPE)
    flat = b.op("Reshape", x, b.ints(0, 2, -1))
    n = b.op("InstanceNormalization", flat, b.w(np.ones(2)), b.w(np.zeros(2)))
    y = b.op("Reshape", n, b.ints(*SHAPE))
    model = (b.y(y, shape=SHAPE).y(n) if output else b.y(y, shape=SHAPE).y(b.op("Abs", n))).model()
    assert not apply(recover_instancenorm, model)


def test_layernorm_with_a_gain_along_the_group() -> None:
    b = Build()
    x = b.x(SHAPE)
    flat = b.op("Reshape", x, b.ints(0, 2, -1))
    n = b.op("LayerNormalization", flat, b.rand(60))
    check(b, b.op("Reshape", n, b.ints(*SHAPE)), "", taken=False)


def test_plain_instancenorm_is_left() -> None:
    b = Build()
    check(b, b.op("InstanceNormalization", b.x(SHAPE), b.rand(6), b.rand(6)), "", taken=False)


# --- random -----------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    groups=st.sampled_from([1, 2, 3, 4, 6]),
    form=st.sampled_from(["reshape", "core"]),
    axes=st.sampled_from([(2, 3), (1, 2, 3), (3,), (1,)]),
    gain=st.sampled_from([None, (), (6, 1, 1), (1, 6, 1, 1), (5,)]),
    bias=st.sampled_from([None, (), (6, 1, 1), (4, 5)]),
    seed=st.integers(0, 999),
)
def test_random_spellings(
    groups: int,
    form: str,
    axes: tuple[int, ...],
    gain: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
    seed: int,
) -> None:
    b = Build(seed=seed)
    x = b.x(SHAPE)
    y = grouped(b, x, groups) if form == "reshape" else core(b, x, axes)
    if gain is not None:
        y = b.op("Mul", y, b.rand(*gain))
    if bias is not None:
        y = b.op("Add", b.rand(*bias), y)
    model = b.y(y, shape=SHAPE).model()
    result = apply(recover_instancenorm, model, 1e-6)
    fits = 6 % groups == 0 if form == "reshape" else axes in ((2, 3), (1, 2, 3))
    assert bool(result) == fits
