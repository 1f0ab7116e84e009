"""fold_batchnorm: numbered cases taken and left, traps c21 c22 c23, random graphs.

Weights stay float32, so a fold is equal to 1e-6 relative in the float64 executor (half an ulp a weight); what
only writes Mul and Add rounds two constants, also 1e-6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.errors import InputError
from edgefuse.graph import Model, constant, source_name
from edgefuse.passes.fold_batchnorm import fold_batchnorm
from tests.passes.graphs import Build, apply, conv, dead_constants, ops

FOLD = 1e-6


def only(model: Model, kind: str) -> Any:
    found = [n for n in model.graph if n.op_type == kind]
    assert len(found) == 1
    return found[0]


# --- after a producer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_after_conv(groups: int, bias: bool) -> None:
    b = Build()
    model = b.y(b.op("Relu", b.bn(conv(b, b.x([2, 8, 6, 6]), 8, 8, groups=groups, bias=bias), 8))).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 1
    assert ops(model) == {"Conv": 1, "Relu": 1}
    assert len(only(model, "Conv").inputs) == 3
    assert not dead_constants(model)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_after_conv_transpose(groups: int, bias: bool) -> None:
    b = Build()
    parts = [b.rand(8, 12 // groups, 3, 3)] + ([b.rand(12)] if bias else [])
    t = b.op("ConvTranspose", b.x([1, 8, 5, 5]), *parts, group=groups, strides=[2, 2], output_padding=[1, 1])
    model = b.y(b.bn(t, 12)).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 1
    assert ops(model) == {"ConvTranspose": 1}


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (5,), (1, 5), (3, 1), (3, 5)])
def test_after_gemm(trans_b: int, bias: tuple[int, ...] | None) -> None:
    b = Build()
    weight = b.rand(5, 4) if trans_b else b.rand(4, 5)
    extra = [] if bias is None else [b.rand(*bias)]
    g = b.op("Gemm", b.x([3, 4]), weight, *extra, transB=trans_b, alpha=0.7, beta=1.5)
    model = b.y(b.bn(g, 5)).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 1
    assert ops(model) == {"Gemm": 1}


def test_after_gemm_with_transposed_input() -> None:
    b = Build()
    model = b.y(b.bn(b.op("Gemm", b.x([4, 3]), b.rand(4, 5), transA=1), 5)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Gemm": 1}


def test_after_matmul_gets_an_add() -> None:
    b = Build()
    model = b.y(b.bn(b.op("MatMul", b.x([3, 4]), b.rand(4, 5)), 5)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"MatMul": 1, "Add": 1}


def test_after_matmul_add() -> None:
    b = Build()
    mm = b.op("Add", b.rand(5), b.op("MatMul", b.x([3, 4]), b.rand(4, 5)))
    model = b.y(b.bn(mm, 5)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"MatMul": 1, "Add": 1}


def test_conv_1d_and_3d() -> None:
    for spatial in (1, 3):
        b = Build()
        c = b.op("Conv", b.x([1, 4, *[5] * spatial]), b.rand(6, 4, *[3] * spatial))
        model = b.y(b.bn(c, 6)).model()
        apply(fold_batchnorm, model, FOLD)
        assert ops(model) == {"Conv": 1}


def test_two_in_a_row_and_a_chain() -> None:
    b = Build()
    first = b.bn(b.bn(conv(b, b.x([1, 3, 6, 6]), 3, 4), 4), 4)
    model = b.y(b.bn(conv(b, b.op("Relu", first), 4, 4), 4)).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 3
    assert ops(model) == {"Conv": 2, "Relu": 1}


def test_dynamic_dimensions() -> None:
    b = Build()
    model = b.y(b.bn(conv(b, b.x(["N", 3, "H", "W"]), 3, 4), 4)).model()
    apply(fold_batchnorm, model, FOLD, H=9, W=7)
    assert ops(model) == {"Conv": 1}


def test_result_that_is_a_graph_output_keeps_its_name() -> None:
    b = Build()
    out = b.bn(conv(b, b.x([1, 3, 6, 6]), 3, 4), 4)
    model = b.y(out).model()
    apply(fold_batchnorm, model, FOLD)
    assert model.graph.outputs[0].name == out
    assert only(model, "Conv").outputs[0] is model.graph.outputs[0]


def test_names_of_both_are_kept_for_reports() -> None:
    b = Build()
    c = b.op("Conv", b.x([1, 3, 6, 6]), b.rand(4, 3, 1, 1), name="stem")
    model = b.y(b.bn(c, 4, name="stem_bn")).model()
    apply(fold_batchnorm, model, FOLD)
    assert source_name(only(model, "Conv")) == "stem + stem_bn"


def test_float16_weights_keep_their_dtype() -> None:
    b = Build(dtype=np.float16)
    model = b.y(b.bn(conv(b, b.x([1, 3, 6, 6]), 3, 4), 4)).model()
    apply(fold_batchnorm, model, 2e-3)
    weight, bias = (constant(v) for v in only(model, "Conv").inputs[1:])
    assert weight is not None
    assert bias is not None
    assert weight.dtype == bias.dtype == np.float16


def test_is_exact_but_for_one_rounding() -> None:
    b = Build()
    model = b.y(b.bn(b.op("Conv", b.x([1, 2, 3, 3]), b.w(np.ones((2, 2, 1, 1)))), 2)).model()
    bn = only(model, "BatchNormalization")
    scale, bias, mean, var = (np.asarray(constant(v), np.float64) for v in bn.inputs[1:])
    fold_batchnorm(model)
    s = scale / np.sqrt(var + np.float64(np.float32(1e-5)))
    weight, shift = (constant(v) for v in only(model, "Conv").inputs[1:])
    np.testing.assert_array_equal(
        weight, np.broadcast_to(s[:, None], (2, 2)).astype(np.float32)[..., None, None]
    )
    np.testing.assert_array_equal(shift, (bias - mean * s).astype(np.float32))


# --- before a consumer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_before_conv_without_padding(groups: int) -> None:
    b = Build()
    model = b.y(conv(b, b.bn(b.x([2, 8, 6, 6]), 8), 8, 16, groups=groups, pads=[0] * 4)).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 1
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize(
    ("auto_pad", "k", "taken"), [("VALID", 3, 1), ("SAME_UPPER", 3, 0), ("SAME_LOWER", 1, 1)]
)
def test_before_conv_with_auto_pad(auto_pad: str, k: int, taken: int) -> None:
    b = Build()
    c = b.op("Conv", b.bn(b.x([1, 4, 6, 6]), 4), b.rand(4, 4, k, k), auto_pad=auto_pad)
    model = b.y(c).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model)["Mul"] == 1 - taken


def test_c22_shift_never_passes_zero_padding() -> None:
    b = Build()
    model = b.y(conv(b, b.bn(b.x([1, 8, 16, 16]), 8), 8, 8)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Mul": 1, "Add": 1, "Conv": 1}


def test_pure_scale_passes_zero_padding() -> None:
    b = Build()
    zero = b.w(np.zeros(4))
    bn = b.op(
        "BatchNormalization",
        b.x([1, 4, 6, 6]),
        b.rand(4, low=1, high=2),
        zero,
        zero,
        b.rand(4, low=1, high=2),
    )
    model = b.y(conv(b, bn, 4, 4)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize("trans_b", [0, 1])
def test_before_gemm(trans_b: int) -> None:
    b = Build()
    weight = b.rand(5, 4) if trans_b else b.rand(4, 5)
    model = b.y(
        b.op("Gemm", b.bn(b.x([3, 4]), 4), weight, b.rand(5), transB=trans_b, alpha=0.5, beta=2.0)
    ).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Gemm": 1}


def test_before_gemm_without_bias_and_with_transposed_input() -> None:
    b = Build()
    model = b.y(b.op("Gemm", b.bn(b.x([3, 4]), 4), b.rand(4, 5), alpha=0.5)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Gemm": 1}
    b = Build()
    model = b.y(b.op("Gemm", b.bn(b.x([4, 4]), 4), b.rand(4, 5), transA=1)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Mul": 1, "Add": 1, "Gemm": 1}


def test_before_matmul() -> None:
    b = Build()
    model = b.y(b.op("MatMul", b.bn(b.x([3, 4]), 4), b.rand(4, 5))).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"MatMul": 1, "Add": 1}


def test_shift_never_passes_conv_transpose() -> None:
    b = Build()
    t = b.op("ConvTranspose", b.bn(b.x([1, 4, 5, 5]), 4), b.rand(4, 6, 3, 3))
    model = b.y(t).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Mul": 1, "Add": 1, "ConvTranspose": 1}


# --- written out or left ----------------------------------------------------------------------------------


def test_c21_relu_between() -> None:
    b = Build()
    bn = b.bn(b.op("Relu", conv(b, b.x([1, 8, 9, 9]), 8, 8)), 8)
    model = b.y(conv(b, bn, 8, 8)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 2, "Relu": 1, "Mul": 1, "Add": 1}


def test_c23_concat_then_batchnorm() -> None:
    b = Build()
    x = b.x([1, 8, 9, 9])
    joined = b.op("Concat", x, conv(b, x, 8, 8), axis=1)
    model = b.y(conv(b, b.op("Relu", b.bn(joined, 16)), 16, 8)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 2, "Concat": 1, "Relu": 1, "Mul": 1, "Add": 1}


def test_conv_that_is_read_elsewhere() -> None:
    b = Build()
    c = conv(b, b.x([1, 4, 6, 6]), 4, 4)
    model = b.y(b.op("Add", b.bn(c, 4), c)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 1, "Mul": 1, "Add": 2}


def test_c33_conv_that_is_a_graph_output() -> None:
    b = Build()
    c = conv(b, b.x([1, 4, 6, 6]), 4, 4)
    model = b.y(c, b.bn(c, 4)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 1, "Mul": 1, "Add": 1}
    assert model.graph.outputs[0].name == c


def test_result_that_is_read_twice_is_not_folded_forward() -> None:
    b = Build()
    bn = b.bn(b.x([1, 4, 6, 6]), 4)
    model = b.y(conv(b, bn, 4, 4, k=1), conv(b, bn, 4, 4, k=1)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 2, "Mul": 1, "Add": 1}


def test_result_that_is_a_graph_output_is_not_folded_forward() -> None:
    b = Build()
    bn = b.bn(b.x([1, 4, 6, 6]), 4)
    model = b.y(bn, conv(b, bn, 4, 4, k=1)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 1, "Mul": 1, "Add": 1}
    assert model.graph.outputs[0].name == bn


def test_shared_weight_and_bias_are_copied() -> None:
    b = Build()
    x, weight, bias = b.x([1, 4, 6, 6]), b.rand(4, 4, 3, 3), b.rand(4)
    first = b.bn(b.op("Conv", x, weight, bias, pads=[1] * 4), 4)
    model = b.y(b.op("Conv", b.op("Relu", first), weight, bias)).model()
    old = np.array(constant(model.graph.initializers[weight]))
    assert apply(fold_batchnorm, model, FOLD).changed == 1
    np.testing.assert_array_equal(constant(model.graph.initializers[weight]), old)


def test_shared_statistics_are_kept_for_the_other() -> None:
    b = Build()
    shared = [b.rand(4, low=0.5, high=2.0) for _ in range(4)]
    first = b.op("BatchNormalization", conv(b, b.x([1, 4, 6, 6]), 4, 4), *shared)
    second = b.op("BatchNormalization", conv(b, first, 4, 4), *shared)
    model = b.y(second).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 2
    assert ops(model) == {"Conv": 2}


def test_computed_weight() -> None:
    b = Build()
    c = b.op("Conv", b.x([1, 4, 6, 6]), b.x([4, 4, 3, 3], "k"))
    model = b.y(b.bn(c, 4)).model()
    apply(fold_batchnorm, model, FOLD)
    assert ops(model) == {"Conv": 1, "Mul": 1, "Add": 1}


def test_computed_statistics_are_left() -> None:
    b = Build()
    x = b.x([1, 4, 6, 6])
    bn = b.op("BatchNormalization", x, b.x([4], "g"), b.rand(4), b.rand(4), b.rand(4, low=1, high=2))
    model = b.y(bn).model()
    result = apply(fold_batchnorm, model)
    assert not result
    assert "computed" in result.notes[0]


def test_training_mode_is_left() -> None:
    b = Build()
    model = b.y(b.bn(b.x([2, 4, 6, 6]), 4, training_mode=1)).model()
    result = fold_batchnorm(model)
    assert not result
    assert "training" in result.notes[0]
    assert ops(model) == {"BatchNormalization": 1}


def test_unknown_rank_is_left_but_folds_into_a_conv() -> None:
    b = Build()
    model = b.y(b.bn(b.x(None), 4)).model()
    assert not fold_batchnorm(model)
    b = Build()
    model = b.y(b.bn(conv(b, b.x(None), 4, 4), 4)).model()
    assert fold_batchnorm(model).changed == 1
    assert ops(model) == {"Conv": 1}


def test_overflow_of_float16_is_left() -> None:
    b = Build(dtype=np.float16)
    one = b.w(np.ones(2))
    bn = b.op("BatchNormalization", b.x([1, 2, 3, 3]), b.w([60000.0] * 2), one, one, b.w([1e-3] * 2))
    model = b.y(bn).model()
    assert not apply(fold_batchnorm, model)
    assert ops(model) == {"BatchNormalization": 1}


def test_broken_variance_names_the_node() -> None:
    b = Build()
    one = b.w(np.ones(3))
    bn = b.op("BatchNormalization", b.x([1, 3, 4, 4]), one, one, one, b.w([1.0, -1.0, 1.0]), name="stem/bn")
    with pytest.raises(InputError, match="stem/bn") as caught:
        fold_batchnorm(b.y(bn).model())
    assert "channel 1" in caught.value.message
    assert caught.value.hint is not None


def test_zero_variance_with_epsilon_is_fine() -> None:
    b = Build()
    one = b.w(np.ones(3))
    bn = b.op("BatchNormalization", conv(b, b.x([1, 3, 4, 4]), 3, 3), one, one, one, b.w(np.zeros(3)))
    model = b.y(bn).model()
    assert apply(fold_batchnorm, model, FOLD).changed == 1


def test_identity_batchnorm_disappears() -> None:
    b = Build()
    one, zero = b.w(np.ones(3)), b.w(np.zeros(3))
    bn = b.op("BatchNormalization", b.op("Relu", b.x([1, 3, 4, 4])), one, zero, zero, one, epsilon=0.0)
    model = b.y(bn).model()
    assert apply(fold_batchnorm, model).changed == 1
    assert ops(model) == {"Relu": 1}


def test_old_operator_sets() -> None:
    for version in (7, 9, 14):
        b = Build(opset=version)
        model = b.y(b.bn(conv(b, b.x([1, 3, 4, 4]), 3, 3), 3)).model()
        assert apply(fold_batchnorm, model, FOLD).changed == 1


def test_model_without_batchnorm_is_untouched() -> None:
    b = Build()
    model = b.y(conv(b, b.x([1, 3, 4, 4]), 3, 3)).model()
    assert not apply(fold_batchnorm, model)


# --- random graphs ----------------------------------------------------------------------------------------


@given(
    groups=st.sampled_from([1, 2, 3]),
    multiple=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.integers(1, 3),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    strides=st.integers(1, 2),
    bias=st.booleans(),
    transposed=st.booleans(),
    place=st.sampled_from(["after", "before", "both", "relu"]),
    seed=st.integers(0, 999),
)
def test_random_convolutions(
    groups: int,
    multiple: tuple[int, int],
    kernel: int,
    pads: list[int],
    strides: int,
    bias: bool,
    transposed: bool,
    place: str,
    seed: int,
) -> None:
    b = Build(seed=seed)
    c_in, c_out = groups * multiple[0], groups * multiple[1]
    value = b.x([2, c_in, 6, 7])
    if place in ("before", "both"):
        value = b.bn(value, c_in)
    if transposed:
        pads = [min(p, kernel - 1) for p in pads]
        weight = b.rand(c_in, c_out // groups, kernel, kernel)
    else:
        weight = b.rand(c_out, c_in // groups, kernel, kernel)
    parts = [weight] + ([b.rand(c_out)] if bias else [])
    kind = "ConvTranspose" if transposed else "Conv"
    value = b.op(kind, value, *parts, group=groups, pads=pads, strides=[strides] * 2)
    if place == "relu":
        value = b.op("Relu", value)
    if place != "before":
        value = b.bn(value, c_out)
    model = b.y(value).model()
    result = apply(fold_batchnorm, model, FOLD)
    assert result.changed == (2 if place == "both" else 1)
    assert ops(model)["BatchNormalization"] == 0
    if place == "after":
        assert ops(model) == {kind: 1}
