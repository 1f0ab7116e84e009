"""fold_scale_shift: cases taken and left, traps c22 c33 c44 c56, random broadcast forms.

Folded weights stay float32: equal to 1e-6 relative in the float64 executor. Merged
constants round once: 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.graph import constant, source_name
from edgefuse.passes.fold_scale_shift import fold_scale_shift
from tests.passes.graphs import Build, apply, conv, dead_constants, ops

FOLD = 1e-6
FORMS = [(kind, swapped) for kind in ("Mul", "Add", "Sum", "Sub") for swapped in (0, 1)] + [("Div", 0)]
CHANNEL = [(1, 4, 1, 1), (4, 1, 1), (1, 1, 1), (1,), ()]


def affine(b: Build, kind: str, x: str, shape: tuple[int, ...], swapped: bool = False) -> str:
    c = b.rand(*shape, low=0.5, high=2.0)
    return b.op(kind, c, x) if swapped else b.op(kind, x, c)


# --- after a producer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", CHANNEL)
@pytest.mark.parametrize(("kind", "swapped"), FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_after_conv(kind: str, swapped: int, shape: tuple[int, ...], bias: bool) -> None:
    b = Build()
    model = b.y(
        b.op("Relu", affine(b, kind, conv(b, b.x([1, 4, 5, 5]), 4, 4, bias=bias), shape, bool(swapped)))
    ).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model) == {"Conv": 1, "Relu": 1}
    assert not dead_constants(model)


def test_c56_scale_and_shift_after_conv() -> None:
    b = Build()
    y = conv(b, b.x([1, 8, 8, 8]), 8, 8, bias=False)
    y = b.op("Relu", b.op("Add", b.op("Mul", y, b.rand(1, 8, 1, 1)), b.rand(8, 1, 1)))
    model = b.y(y).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 2
    assert ops(model) == {"Conv": 1, "Relu": 1}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_after_conv_transpose(groups: int) -> None:
    b = Build()
    t = b.op("ConvTranspose", b.x([1, 4, 5, 5]), b.rand(4, 8 // groups, 2, 2), group=groups, strides=[2, 2])
    model = b.y(b.op("Sub", b.op("Mul", t, b.rand(8, 1, 1)), b.rand(8, 1, 1))).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"ConvTranspose": 1}


@pytest.mark.parametrize("shape", [(5,), (1, 5), (), (1, 1)])
def test_after_gemm(shape: tuple[int, ...]) -> None:
    b = Build()
    g = b.op("Gemm", b.x([3, 4]), b.rand(4, 5), b.rand(5), alpha=0.3, beta=0.5)
    model = b.y(affine(b, "Add", affine(b, "Div", g, shape), shape)).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Gemm": 1}


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_after_matmul_add(rank: int) -> None:
    b = Build()
    m = b.op("MatMul", b.x([2, 3, 3, 4][4 - rank :]), b.rand(4, 5))
    model = b.y(b.op("Mul", b.op("Add", m, b.rand(5)), b.rand(5))).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"MatMul": 1, "Add": 1}


def test_after_batched_matmul() -> None:
    b = Build()
    model = b.y(b.op("Mul", b.op("MatMul", b.x([2, 3, 4]), b.rand(2, 4, 5)), b.rand(5))).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"MatMul": 1}


def test_bias_of_matmul_is_left_where_it_is() -> None:
    b = Build()
    model = b.y(b.op("Add", b.op("MatMul", b.x([3, 4]), b.rand(4, 5)), b.rand(5))).model()
    assert not apply(fold_scale_shift, model)


def test_scalar_scale_and_vector_bias_of_matmul() -> None:
    b = Build()
    m = b.op("Add", b.op("MatMul", b.x([3, 4]), b.rand(4, 5)), b.w(0.5))
    model = b.y(b.op("Mul", m, b.rand(5))).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"MatMul": 1, "Add": 1}


def test_shift_onto_a_conv_with_computed_weight() -> None:
    b = Build()
    c = b.op("Conv", b.x([1, 4, 5, 5]), b.x([6, 4, 3, 3], "k"))
    model = b.y(b.op("Add", c, b.rand(6, 1, 1))).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_after_normalisation_over_the_last_axis(kind: str) -> None:
    b = Build()
    n = b.op(kind, b.x([2, 3, 8]), b.rand(8))
    n = b.op("Mul", n, b.rand(8))
    model = b.y(b.op("Add", n, b.rand(8)) if kind == "LayerNormalization" else n).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {kind: 1}


@pytest.mark.parametrize("kind", ["InstanceNormalization", "GroupNormalization"])
def test_after_normalisation_with_channel_scale(kind: str) -> None:
    b = Build()
    extra = {"num_groups": 2} if kind == "GroupNormalization" else {}
    n = b.op(kind, b.x([2, 6, 4, 4]), b.rand(6), b.rand(6), **extra)
    out = b.op("Add", b.op("Mul", n, b.rand(6, 1, 1)), b.rand(1, 6, 1, 1))
    model = b.y(out, shape=[2, 6, 4, 4]).model()
    for node in model.graph:  # onnx infers nothing for GroupNormalization
        node.outputs[0].shape, node.outputs[0].type = model.graph.inputs[0].shape, model.graph.inputs[0].type
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {kind: 1}


def test_shift_is_not_for_rmsnorm_nor_channel_scale_for_layernorm() -> None:
    b = Build()
    n = b.op("RMSNormalization", b.x([2, 3, 8]), b.rand(8))
    model = b.y(b.op("Add", n, b.rand(8))).model()
    assert not apply(fold_scale_shift, model)
    b = Build()
    n = b.op("LayerNormalization", b.x([2, 8, 8]), b.rand(8))
    model = b.y(b.op("Mul", n, b.rand(8, 1))).model()
    assert not apply(fold_scale_shift, model)


# --- before a consumer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", CHANNEL)
@pytest.mark.parametrize("kind", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_before_conv(kind: str, shape: tuple[int, ...], groups: int) -> None:
    b = Build()
    model = b.y(conv(b, affine(b, kind, b.x([1, 4, 5, 5]), shape), 4, 8, groups=groups, pads=[0] * 4)).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize(("kind", "taken"), [("Mul", True), ("Div", True), ("Add", False), ("Sub", False)])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 0, 0]])
def test_c22_only_a_scale_passes_zero_padding(kind: str, taken: bool, pads: list[int]) -> None:
    b = Build()
    model = b.y(conv(b, affine(b, kind, b.x([1, 4, 6, 6]), (4, 1, 1)), 4, 4, pads=pads)).model()
    assert bool(apply(fold_scale_shift, model, FOLD)) == taken


@pytest.mark.parametrize(("kind", "taken"), [("Mul", True), ("Add", False)])
def test_before_conv_with_same_padding(kind: str, taken: bool) -> None:
    b = Build()
    x = affine(b, kind, b.x([1, 4, 6, 6]), (4, 1, 1))
    model = b.y(b.op("Conv", x, b.rand(4, 4, 3, 3), auto_pad="SAME_UPPER")).model()
    assert bool(apply(fold_scale_shift, model, FOLD)) == taken


def test_swapped_sub_before_padding_is_left() -> None:
    b = Build()
    model = b.y(conv(b, affine(b, "Sub", b.x([1, 4, 6, 6]), (4, 1, 1), swapped=True), 4, 4)).model()
    assert not apply(fold_scale_shift, model)


@pytest.mark.parametrize(("kind", "taken"), [("Mul", True), ("Add", False)])
@pytest.mark.parametrize("groups", [1, 2])
def test_before_conv_transpose(kind: str, taken: bool, groups: int) -> None:
    b = Build()
    x = affine(b, kind, b.x([1, 4, 5, 5]), (4, 1, 1))
    model = b.y(b.op("ConvTranspose", x, b.rand(4, 3, 3, 3), group=groups, pads=[1] * 4)).model()
    assert bool(apply(fold_scale_shift, model, FOLD)) == taken


@pytest.mark.parametrize("kind", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_before_gemm(kind: str, trans_b: int) -> None:
    b = Build()
    weight = b.rand(5, 4) if trans_b else b.rand(4, 5)
    x = affine(b, kind, b.x([3, 4]), (4,))
    model = b.y(b.op("Gemm", x, weight, b.rand(5), transB=trans_b, alpha=0.5, beta=3.0)).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Gemm": 1}


def test_before_gemm_with_transposed_input() -> None:
    b = Build()
    model = b.y(b.op("Gemm", affine(b, "Mul", b.x([4, 4]), (4, 1)), b.rand(4, 5), transA=1)).model()
    assert apply(fold_scale_shift, model, FOLD)
    b = Build()
    model = b.y(b.op("Gemm", affine(b, "Mul", b.x([4, 4]), (4,)), b.rand(4, 5), transA=1)).model()
    assert not apply(fold_scale_shift, model)


@pytest.mark.parametrize("kind", ["Mul", "Add"])
@pytest.mark.parametrize("bias", [True, False])
def test_before_matmul(kind: str, bias: bool) -> None:
    b = Build()
    m = b.op("MatMul", affine(b, kind, b.x([2, 3, 4]), (4,)), b.rand(4, 5))
    model = b.y(b.op("Add", m, b.rand(5)) if bias else m).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == ({"MatMul": 1, "Add": 1} if bias or kind == "Add" else {"MatMul": 1})


def test_c44_preprocessing_before_a_padded_conv() -> None:
    b = Build()
    x = b.x([1, 8, 8, 3], element=TensorProto.UINT8)
    f = b.op("Transpose", b.op("Cast", x, to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    f = b.op("Sub", f, b.w(np.array([123.7, 116.3, 103.5]).reshape(1, 3, 1, 1)))
    f = b.op("Div", f, b.w(np.array([58.4, 57.1, 57.4]).reshape(1, 3, 1, 1)))
    model = b.y(b.op("Relu", conv(b, f, 3, 8, strides=[2, 2]))).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model) == {"Cast": 1, "Transpose": 1, "Sub": 1, "Conv": 1, "Relu": 1}


def test_preprocessing_before_an_unpadded_conv_is_gone() -> None:
    b = Build()
    f = b.op("Div", b.op("Sub", b.x([1, 3, 8, 8]), b.rand(3, 1, 1)), b.rand(3, 1, 1, low=1, high=2))
    model = b.y(conv(b, f, 3, 8, pads=[0] * 4)).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Conv": 1}


# --- a scalar factor that is moved first ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Add", "Sub"])
@pytest.mark.parametrize("shape", [(), (4, 1, 1)])
@pytest.mark.parametrize("transposed", [True, False])
def test_4_scale_behind_a_shift_before_padding(kind: str, shape: tuple[int, ...], transposed: bool) -> None:
    b = Build()
    x = affine(b, kind, affine(b, "Mul", b.op("HardSwish", b.x([1, 4, 6, 6])), ()), shape)
    y = b.op("ConvTranspose", x, b.rand(4, 3, 3, 3), pads=[1] * 4) if transposed else conv(b, x, 4, 4)
    model = b.y(y).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model)["Mul"] == 0
    assert ops(model)[kind] == 1
    assert not dead_constants(model)


def test_4_left_for_channel_scales_other_readers_and_tiny_factors() -> None:
    b = Build()
    x = affine(b, "Add", affine(b, "Mul", b.x([1, 4, 6, 6]), (4, 1, 1)), ())
    assert not apply(fold_scale_shift, b.y(conv(b, x, 4, 4)).model())
    b = Build()
    x = affine(b, "Add", affine(b, "Mul", b.x([1, 4, 6, 6]), ()), ())
    assert not apply(fold_scale_shift, b.y(conv(b, x, 4, 4), conv(b, x, 4, 4)).model())
    b = Build()
    m = affine(b, "Mul", b.x([1, 4, 6, 6]), ())
    assert not apply(fold_scale_shift, b.y(conv(b, affine(b, "Add", m, ()), 4, 4), m).model())
    b = Build()
    x = affine(b, "Add", b.op("Mul", b.x([1, 4, 6, 6]), b.w(1e-6)), ())
    assert not apply(fold_scale_shift, b.y(conv(b, x, 4, 4)).model())


@pytest.mark.parametrize("bias", [True, False])
def test_5_query_scale_behind_reshape_and_transpose(bias: bool) -> None:
    b = Build()
    q = b.op("MatMul", b.x([1, 6, 8]), b.rand(8, 8))
    q = b.op("Add", q, b.rand(8)) if bias else q
    q = b.op("Transpose", b.op("Reshape", q, b.ints(1, 6, 2, 4)), perm=[0, 2, 1, 3])
    k = b.x([1, 2, 4, 6], "k")
    model = b.y(b.op("MatMul", b.op("Div", q, b.w(2.0)), k)).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model)["Div"] == ops(model)["Mul"] == 0
    assert ops(model)["MatMul"] == 2


@pytest.mark.parametrize("layout", ["Flatten", "Reshape", "pool"])
def test_5_factor_before_flatten_and_gemm(layout: str) -> None:
    b = Build()
    x = b.op("Mul", b.w(0.8), b.op("Relu", b.x([2, 4, 3, 3])))
    count = 36
    if layout == "pool":
        x, count = b.op("GlobalAveragePool", x), 4
    x = b.op("Flatten", x) if layout != "Reshape" else b.op("Reshape", x, b.ints(0, -1))
    model = b.y(b.op("Gemm", x, b.rand(count, 5), b.rand(5))).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model)["Mul"] == 0


def test_5_factor_of_more_dimensions_than_the_flattened_tensor() -> None:
    b = Build()
    x = affine(b, "Mul", b.op("Relu", b.x([2, 4, 3, 3])), (1, 1, 1, 1))
    model = b.y(b.op("MatMul", b.op("Flatten", x), b.rand(36, 5))).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model) == {"Relu": 1, "Flatten": 1, "MatMul": 1}


def test_5_overflow_of_float16_is_left() -> None:
    b = Build(dtype=np.float16)
    x = b.op("Flatten", b.op("Mul", b.op("Relu", b.x([2, 4, 3, 3])), b.w(600.0)))
    assert not fold_scale_shift(b.y(b.op("MatMul", x, b.w(np.full((36, 5), 600.0)))).model())


def test_5_left_for_channel_factors_shifts_and_other_readers() -> None:
    for kind, shape in (("Mul", (4, 1, 1)), ("Add", ())):
        b = Build()
        x = b.op("Flatten", affine(b, kind, b.op("Relu", b.x([2, 4, 3, 3])), shape))
        assert not apply(fold_scale_shift, b.y(b.op("MatMul", x, b.rand(36, 5))).model())
    b = Build()
    x = affine(b, "Mul", b.op("Relu", b.x([2, 4])), ())
    flat = b.op("Reshape", x, b.ints(0, -1))
    assert not apply(fold_scale_shift, b.y(b.op("MatMul", flat, b.rand(4, 5)), flat).model())
    b = Build()
    q = b.op("MatMul", b.x([1, 6, 8]), b.rand(8, 8))
    r = b.op("Reshape", q, b.ints(1, 6, 2, 4))
    assert not apply(fold_scale_shift, b.y(affine(b, "Mul", r, ()), q).model())


def test_5_the_tensor_that_is_moved_may_be_a_graph_output() -> None:
    b = Build()
    out = affine(b, "Mul", b.op("Reshape", conv(b, b.x([1, 4, 3, 3]), 4, 4), b.ints(1, 36)), ())
    model = b.y(out).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Conv": 1, "Reshape": 1}
    assert model.graph.outputs[0].name == out


# --- merging ----------------------------------------------------------------------------------------------


def test_mul_mul_and_add_add() -> None:
    b = Build()
    x = b.op("Mul", b.op("Mul", b.x([1, 4, 3, 3]), b.rand(4, 1, 1)), b.w(3.0))
    model = b.y(b.op("Relu", x)).model()
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    assert ops(model) == {"Mul": 1, "Relu": 1}
    b = Build()
    x = b.op("Sub", b.op("Add", b.w(1.5), b.x([1, 4, 3, 3])), b.rand(4, 1, 1))
    model = b.y(b.op("Relu", x)).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Add": 1, "Relu": 1}
    assert not dead_constants(model)


def test_longer_chain_becomes_one_mul_and_one_add() -> None:
    b = Build()
    x = b.op("Mul", b.op("Add", b.op("Div", b.x([1, 4, 3, 3]), b.w(2.0)), b.rand(4, 1, 1)), b.rand(4, 1, 1))
    out = b.op("Sub", b.w(1.0), x, name="last")
    model = b.y(out).model()
    apply(fold_scale_shift, model, FOLD)
    assert ops(model) == {"Mul": 1, "Add": 1}
    assert model.graph.outputs[0].name == out
    assert source_name(next(iter(model.graph))).endswith("last")


def test_chain_that_comes_to_nothing_disappears() -> None:
    b = Build()
    x = b.op("Relu", b.x([1, 4, 3, 3]))
    model = b.y(b.op("Relu", b.op("Mul", b.op("Div", x, b.w(4.0)), b.w(4.0)))).model()
    apply(fold_scale_shift, model)
    assert ops(model) == {"Relu": 2}


def test_factors_that_cancel_but_stretch_the_tensor_are_left() -> None:
    b = Build()
    x = b.op("Mul", b.x([1, 1, 3, 3]), b.w(np.full((6, 1, 1), 2.0)))
    model = b.y(b.op("Mul", x, b.w(np.full((6, 1, 1), 0.5)))).model()
    assert not apply(fold_scale_shift, model)


def test_mul_add_alone_is_left() -> None:
    b = Build()
    model = b.y(b.op("Add", b.op("Mul", b.x([1, 4, 3, 3]), b.rand(4, 1, 1)), b.rand(4, 1, 1))).model()
    assert not apply(fold_scale_shift, model)


def test_constants_along_two_axes_are_not_merged() -> None:
    b = Build()
    model = b.y(b.op("Mul", b.op("Mul", b.x([1, 4, 3, 3]), b.rand(4, 1, 1)), b.rand(3))).model()
    assert not apply(fold_scale_shift, model)


def test_rounding_by_a_large_shift_is_left() -> None:
    b = Build()
    magic = b.w(2.0**23)
    model = b.y(b.op("Sub", b.op("Add", b.x([4]), magic), magic)).model()
    assert not fold_scale_shift(model)


def test_extreme_scales_are_left() -> None:
    b = Build()
    model = b.y(b.op("Mul", b.op("Mul", b.x([4]), b.w(1e-30)), b.w(1e30))).model()
    assert not fold_scale_shift(model)


def test_product_that_vanishes_in_float16_is_left() -> None:
    b = Build(dtype=np.float16)
    model = b.y(b.op("Mul", b.op("Mul", b.x([4]), b.w(1e-4)), b.w(1e-4))).model()
    assert not fold_scale_shift(model)


# --- left -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(5,), (1, 5), (5, 1), (1, 1, 1, 5), (1, 4, 5, 5), (4, 1, 5), (1, 1, 4, 1, 1)]
)
def test_constants_along_other_axes(shape: tuple[int, ...]) -> None:
    b = Build()
    model = b.y(affine(b, "Mul", conv(b, b.x([1, 4, 5, 5]), 4, 4), shape)).model()
    assert not apply(fold_scale_shift, model)


def test_width_that_equals_the_channels() -> None:
    b = Build()
    model = b.y(affine(b, "Mul", conv(b, b.x([1, 8, 8, 8]), 8, 8), (8,))).model()
    assert not apply(fold_scale_shift, model)


def test_constant_that_stretches_one_channel() -> None:
    b = Build()
    model = b.y(affine(b, "Mul", conv(b, b.x([1, 4, 5, 5]), 4, 1), (6, 1, 1))).model()
    assert not apply(fold_scale_shift, model)


def test_row_scale_of_gemm_and_matmul() -> None:
    b = Build()
    model = b.y(affine(b, "Mul", b.op("Gemm", b.x([5, 4]), b.rand(4, 5)), (5, 1))).model()
    assert not apply(fold_scale_shift, model)
    b = Build()
    model = b.y(affine(b, "Mul", b.op("MatMul", b.x([5, 4]), b.rand(4, 5)), (5, 1))).model()
    assert not apply(fold_scale_shift, model)


def test_tensor_that_is_read_elsewhere() -> None:
    b = Build()
    c = conv(b, b.x([1, 4, 5, 5]), 4, 4)
    model = b.y(b.op("Add", affine(b, "Mul", c, (4, 1, 1)), c)).model()
    assert not apply(fold_scale_shift, model)


def test_c33_tensor_that_is_a_graph_output() -> None:
    b = Build()
    c = conv(b, b.x([1, 4, 5, 5]), 4, 4)
    model = b.y(c, affine(b, "Mul", c, (4, 1, 1))).model()
    assert not apply(fold_scale_shift, model)
    b = Build()
    m = affine(b, "Mul", b.x([1, 4, 5, 5]), (4, 1, 1))
    model = b.y(m, conv(b, m, 4, 4)).model()
    assert not apply(fold_scale_shift, model)


def test_two_readers_of_the_scaled_tensor() -> None:
    b = Build()
    m = affine(b, "Mul", b.x([1, 4, 5, 5]), (4, 1, 1))
    model = b.y(conv(b, m, 4, 4), conv(b, m, 4, 4)).model()
    assert not apply(fold_scale_shift, model)


def test_conv_that_reads_the_scaled_tensor_as_weight() -> None:
    b = Build()
    weight = affine(b, "Mul", b.x([4, 4, 3, 3], "k"), (4, 1, 1))
    model = b.y(b.op("Conv", b.x([1, 4, 5, 5]), weight)).model()
    assert not apply(fold_scale_shift, model)


def test_computed_weight_or_bias() -> None:
    b = Build()
    c = b.op("Conv", b.x([1, 4, 5, 5]), b.x([4, 4, 3, 3], "k"))
    model = b.y(affine(b, "Mul", c, (4, 1, 1))).model()
    assert not apply(fold_scale_shift, model)
    b = Build()
    c = b.op("Conv", b.x([1, 4, 5, 5]), b.rand(4, 4, 3, 3), b.x([4], "bias"))
    model = b.y(affine(b, "Mul", c, (4, 1, 1))).model()
    assert not apply(fold_scale_shift, model)


def test_shared_weight_is_copied() -> None:
    b = Build()
    weight, x = b.rand(4, 4, 3, 3), b.x([1, 4, 8, 8])
    model = b.y(
        affine(b, "Mul", b.op("Conv", x, weight), (4, 1, 1)), b.op("Conv", x, weight, strides=[2, 2])
    ).model()
    old = np.array(constant(model.graph.initializers[weight]))
    assert apply(fold_scale_shift, model, FOLD).changed == 1
    np.testing.assert_array_equal(constant(model.graph.initializers[weight]), old)


def test_infinite_and_zero_constants() -> None:
    b = Build()
    model = b.y(b.op("Add", conv(b, b.x([1, 4, 5, 5]), 4, 4), b.w(-np.inf))).model()
    assert not fold_scale_shift(model)
    b = Build()
    model = b.y(b.op("Div", conv(b, b.x([1, 4, 5, 5]), 4, 4), b.w(0.0))).model()
    assert not fold_scale_shift(model)


def test_constant_divided_by_tensor() -> None:
    b = Build()
    model = b.y(b.op("Div", b.w(2.0), conv(b, b.x([1, 4, 5, 5]), 4, 4))).model()
    assert not apply(fold_scale_shift, model)


def test_integers() -> None:
    b = Build()
    x = b.x([4], element=TensorProto.INT32)
    two = b.w(2, dtype=np.int32)
    model = b.y(b.op("Div", b.op("Mul", x, two), two), element=TensorProto.INT32).model()
    assert not apply(fold_scale_shift, model)


def test_overflow_of_float16_weights() -> None:
    b = Build(dtype=np.float16)
    model = b.y(
        b.op("Mul", b.op("Conv", b.x([1, 2, 3, 3]), b.w(np.full((2, 2, 1, 1), 600.0))), b.w(600.0))
    ).model()
    assert not fold_scale_shift(model)


def test_quantized_weights_keep_their_integers() -> None:
    b = Build()
    q = b.w(b.rng.integers(-127, 127, (4, 4, 3, 3)), dtype=np.int8)
    d = b.op("DequantizeLinear", q, b.w(np.full(4, 0.01)), b.w(np.zeros(4), dtype=np.int8), axis=0)
    model = b.y(affine(b, "Mul", b.op("Conv", b.x([1, 4, 5, 5]), d), (4, 1, 1))).model()
    assert not apply(fold_scale_shift, model)


# --- random graphs ----------------------------------------------------------------------------------------

STEP = st.tuples(
    st.sampled_from(["Mul", "Add", "Sub", "Div"]),
    st.booleans(),
    st.sampled_from(["scalar", "channel", "channel4", "width", "full"]),
)


def chain(b: Build, value: str, channels: int, steps: list[tuple[str, bool, str]]) -> str:
    shapes = {
        "scalar": (),
        "channel": (channels, 1, 1),
        "channel4": (1, channels, 1, 1),
        "width": (5,),
        "full": (1, channels, 5, 5),
    }
    for kind, swapped, form in steps:
        value = affine(b, kind, value, shapes[form], swapped and kind != "Div")
    return value


@given(
    before=st.lists(STEP, max_size=3),
    after=st.lists(STEP, max_size=3),
    groups=st.sampled_from([1, 2]),
    pad=st.integers(0, 1),
    kind=st.sampled_from(["Conv", "ConvTranspose", "Relu"]),
    bias=st.booleans(),
    seed=st.integers(0, 999),
)
def test_random_chains(
    before: list[tuple[str, bool, str]],
    after: list[tuple[str, bool, str]],
    groups: int,
    pad: int,
    kind: str,
    bias: bool,
    seed: int,
) -> None:
    b = Build(seed=seed)
    value = chain(b, b.x([1, 4, 5, 5]), 4, before)
    if kind == "Relu":
        value = b.op("Relu", value)
    else:
        k = 2 * pad + 1
        weight = b.rand(4, 4 // groups, k, k)
        value = b.op(kind, value, weight, *([b.rand(4)] if bias else []), group=groups, pads=[pad] * 4)
    model = b.y(chain(b, value, 4, after)).model()
    steps = len(before) + len(after)
    apply(fold_scale_shift, model, FOLD)
    left = sum(ops(model)[k] for k in ("Mul", "Add", "Sub", "Div"))
    assert left <= steps
    if kind == "Conv" and all(form not in ("width", "full") for _, _, form in after):
        assert left <= len(before)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["Mul", "Add", "Sub", "Div"]), st.sampled_from(["s", "n", "rows"])),
        max_size=4,
    ),
    place=st.integers(0, 4),
    gemm=st.booleans(),
    seed=st.integers(0, 999),
)
def test_random_chains_around_matmul(steps: list[tuple[str, str]], place: int, gemm: bool, seed: int) -> None:
    b = Build(seed=seed)
    value = b.x([6, 4])
    for index, (kind, form) in enumerate([*steps, ("end", "")]):
        if index == min(place, len(steps)):
            value = (
                b.op("Gemm", value, b.rand(4, 4), b.rand(4)) if gemm else b.op("MatMul", value, b.rand(4, 4))
            )
        if kind != "end":
            value = affine(b, kind, value, {"s": (), "n": (4,), "rows": (6, 1)}[form])
    model = b.y(value).model()
    apply(fold_scale_shift, model, FOLD)
    if all(form != "rows" for _, form in steps):
        assert sum(ops(model).values()) <= (1 if gemm else 2)
