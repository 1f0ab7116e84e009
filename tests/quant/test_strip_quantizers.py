"""Quantizers out of a graph: what goes, what stays, and that saturation keeps its meaning."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model, clone_model
from edgefuse.graph.edit import GRID_KEY
from edgefuse.graph.reference import Reference
from edgefuse.quant.grids import Grid
from edgefuse.quant.strip_quantizers import Stripped, strip_quantizers
from tests.passes.graphs import Build
from tests.quant.trained_models import pair


def stripped_of(model: Model) -> tuple[Model, Stripped]:
    copy = clone_model(model)
    return copy, strip_quantizers(copy)


def operators(model: Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def run(model: Model, **feeds: Any) -> np.ndarray:
    given = {name: np.asarray(a, np.float32) for name, a in feeds.items()}
    return next(iter(Reference(model).run(given).values()))


def convolution(b: Build, read: str, weight: str) -> Model:
    return b.y(b.op("Conv", read, weight, name="conv")).model()


def test_a_pair_becomes_a_clip_and_its_grid_is_known() -> None:
    b = Build()
    y = b.op("Conv", pair(b, b.x([1, 2, 4, 4]), 0.02, 110, np.uint8), b.rand(3, 2, 1, 1))
    model, found = stripped_of(b.y(y).model())
    assert operators(model) == {"Clip": 1, "Conv": 1}
    assert found.grids["g0"] == Grid(float(np.float32(0.02)), 110, 0, 255)
    node = next(n for n in model.graph if n.op_type == "Conv")
    assert node.inputs[0].metadata_props[GRID_KEY] == "g0"  # type: ignore[union-attr]
    assert (found.pairs, found.clips, found.notes()) == (1, 1, [])


@pytest.mark.parametrize(
    ("kind", "zero"), [(np.uint8, 0), (np.uint8, 128), (np.int8, -128), (np.int8, 5), (np.int16, 7)]
)
def test_the_saturation_stays_and_the_rounding_goes(kind: Any, zero: int) -> None:
    """A ReLU that the exporter left to the integer range must still be one."""
    b = Build()
    model = b.y(b.op("Mul", pair(b, b.x([64]), 0.01, zero, kind), b.w(1.0))).model()
    plain, _ = stripped_of(model)
    limits = np.iinfo(kind)
    x = np.linspace(-4, 4, 64).astype(np.float32)
    expected = np.clip(x, (limits.min - zero) * np.float32(0.01), (limits.max - zero) * np.float32(0.01))
    np.testing.assert_allclose(run(plain, x=x), expected, atol=1e-6)
    assert np.abs(run(model, x=x) - expected).max() <= 0.005 + 1e-6


@pytest.mark.parametrize("low", [0.0, None])
def test_a_range_that_holds_all_values_needs_no_clip(low: float | None) -> None:
    b = Build()
    x = b.x([8])
    bounded = b.op("Clip", x, b.w(0.0), b.w(6.0)) if low is not None else b.op("Sigmoid", x)
    model, found = stripped_of(
        b.y(b.op("Neg", pair(b, b.op("Reshape", bounded, b.ints(2, 4)), 6.001 / 255, 0, np.uint8))).model()
    )
    assert found.clips == 0
    assert "QuantizeLinear" not in operators(model)


def test_a_relu_and_the_upper_end_become_one_clip() -> None:
    b = Build()
    model, _ = stripped_of(b.y(b.op("Neg", pair(b, b.op("Relu", b.x([8])), 0.01, 0, np.uint8))).model())
    x = np.array([-3, -0.5, 0, 0.5, 2, 2.55, 3, 9])
    np.testing.assert_allclose(run(model, x=x), -np.clip(x, 0, 2.55), atol=1e-6)
    clip = next(n for n in model.graph if n.op_type == "Clip")
    assert clip.inputs[0] is model.graph.inputs[0]


def test_a_relu_that_others_read_keeps_its_values() -> None:
    b = Build()
    r = b.op("Relu", b.x([4]))
    model, _ = stripped_of(b.y(b.op("Add", pair(b, r, 0.01, 0, np.uint8), r)).model())
    np.testing.assert_allclose(run(model, x=[-1, 1, 3, 5]), [0, 2, 5.55, 7.55], atol=1e-6)


def test_two_grids_of_one_tensor_stay_apart() -> None:
    b = Build()
    r = b.op("Sigmoid", b.x([4]))
    one, two = pair(b, r, 1 / 255, 0, np.uint8), pair(b, r, 1 / 128, 0, np.uint8)
    model, found = stripped_of(b.y(b.op("Sub", one, b.op("Exp", two))).model())
    labels = [
        v.metadata_props[GRID_KEY] for n in model.graph for v in n.outputs if GRID_KEY in v.metadata_props
    ]
    assert sorted(found.grids[label].scale for label in labels) == pytest.approx([1 / 255, 1 / 128])


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize(("kind", "zero"), [(np.int8, 0), (np.uint8, 128), (np.int8, 3), (np.uint8, 255)])
def test_weights_become_the_numbers_that_they_stand_for(axis: int | None, kind: Any, zero: int) -> None:
    b = Build()
    x = b.x([1, 3, 4, 4])
    limits = np.iinfo(kind)
    values = b.rng.integers(limits.min, limits.max + 1, (2, 3, 1, 1))
    count = 1 if axis is None else values.shape[axis]
    scale = b.rng.uniform(0.01, 0.1, count).astype(np.float32)
    parts = [scale.reshape(()), np.array(zero)] if axis is None else [scale, np.full(count, zero)]
    attributes = {} if axis is None else {"axis": axis}
    w = b.op(
        "DequantizeLinear", b.w(values, dtype=kind), b.w(parts[0]), b.w(parts[1], dtype=kind), **attributes
    )
    model = convolution(b, x, w)
    plain, found = stripped_of(model)
    sample = b.rng.normal(size=(1, 3, 4, 4))
    np.testing.assert_allclose(run(plain, x=sample), run(model, x=sample), rtol=1e-6, atol=1e-6)
    assert operators(plain) == {"Conv": 1}
    (weight,) = found.weights
    np.testing.assert_array_equal(weight.values, values - zero)
    assert weight.axis == axis


def test_fake_quantized_weights_become_integers() -> None:
    b = Build()
    x = b.x([1, 3, 4, 4])
    real = b.rng.uniform(-1, 1, (2, 3, 1, 1)).astype(np.float32)
    scale, zero = b.w(np.array([0.01, 0.005])), b.w(np.zeros(2), dtype=np.int8)
    q = b.op("QuantizeLinear", b.w(real), scale, zero, axis=0)
    model = convolution(b, x, b.op("DequantizeLinear", q, scale, zero, axis=0))
    plain, found = stripped_of(model)
    assert operators(plain) == {"Conv": 1}
    steps = np.clip(np.rint(real / np.array([0.01, 0.005], np.float32).reshape(2, 1, 1, 1)), -128, 127)
    np.testing.assert_array_equal(found.weights[0].values, steps)


def test_an_int32_bias_becomes_float_and_is_no_weight() -> None:
    b = Build()
    x, w = b.x([1, 3, 4, 4]), b.rand(2, 3, 1, 1)
    bias = b.op("DequantizeLinear", b.w([70000, -5], dtype=np.int32), b.w([1e-3, 2e-3]), axis=0)
    model, found = stripped_of(b.y(b.op("Conv", x, w, bias)).model())
    assert not found.weights
    np.testing.assert_allclose(
        next(iter(model.graph)).inputs[2].const_value.numpy(),  # type: ignore[union-attr]
        [70.0, -0.01],
        rtol=1e-6,
    )


def test_integers_that_are_only_moved_are_moved_in_float() -> None:
    b = Build()
    parts = [b.w(np.float32(0.02)), b.w(9, dtype=np.uint8)]
    q = b.op("QuantizeLinear", b.x([2, 3]), *parts)
    t = b.op("Reshape", b.op("Transpose", q, perm=[1, 0]), b.ints(6))
    model = b.y(b.op("Neg", b.op("DequantizeLinear", t, *parts)), b.op("DequantizeLinear", q, *parts)).model()
    plain, found = stripped_of(model)
    assert operators(plain) == {"Clip": 1, "Transpose": 1, "Reshape": 1, "Neg": 1}
    assert len(found.grids) == 3
    x = np.arange(6).reshape(2, 3) / 2
    wanted, got = Reference(model).run({"x": np.float32(x)}), Reference(plain).run({"x": np.float32(x)})
    assert list(wanted) == list(got)
    for name in wanted:
        assert np.abs(wanted[name] - got[name]).max() <= 0.01 + 1e-6


def test_what_cannot_go_stays_with_a_note() -> None:
    b = Build()
    x = b.x([2, 3])
    parts = [b.w(np.float32(0.02)), b.w(9, dtype=np.uint8)]
    read = b.op("QuantizeLinear", x, *parts, name="read")
    computed = b.op("Abs", b.op("ReduceMax", x, keepdims=0))
    dynamic = b.op("DequantizeLinear", b.op("QuantizeLinear", x, computed, name="dynamic"), computed)
    channels = [b.w([0.1, 0.2, 0.3]), b.w([1, 2, 3], dtype=np.uint8)]
    apart = b.op("DequantizeLinear", b.op("QuantizeLinear", x, *channels, name="apart"), *channels)
    b.y(b.op("Add", dynamic, apart))
    b.y(read, element=TensorProto.UINT8)
    model = b.model()
    plain, found = stripped_of(model)
    assert operators(plain) == operators(model)
    notes = " ".join(found.notes())
    for name, why in (
        ("read", "the integers themselves are read"),
        ("dynamic", "their scale is computed at run time"),
        ("apart", "one scale for each channel"),
    ):
        assert f"{name!r}" in notes
        assert why in notes


def test_a_quantized_graph_input_gives_its_grid() -> None:
    b = Build()
    x = b.x([2, 3], element=TensorProto.UINT8)
    y = b.op("DequantizeLinear", x, b.w(np.float32(0.5)), b.w(3, dtype=np.uint8))
    model, found = stripped_of(b.y(b.op("Neg", y)).model())
    assert operators(model)["DequantizeLinear"] == 1
    assert list(found.grids.values()) == [Grid(0.5, 3, 0, 255)]


@pytest.mark.parametrize("op_type", ["DequantizeLinear", "QuantizeLinear"])
def test_scales_by_block_are_refused_by_name(op_type: str) -> None:
    b = Build(opset=21)
    scale = b.w(np.full((2, 2), 0.1))
    if op_type == "DequantizeLinear":
        w = b.op(op_type, b.w(np.ones((2, 4)), dtype=np.int8), scale, axis=1, block_size=2, name="blocks")
        y = b.op("MatMul", b.x([1, 2]), w)
    else:
        q = b.op(op_type, b.x([2, 4]), scale, axis=1, block_size=2, name="blocks")
        y = b.op("Cast", q, to=TensorProto.FLOAT)
    with pytest.raises(UnsupportedError) as caught:
        strip_quantizers(b.y(y).model())
    assert "'blocks'" in str(caught.value)
    assert "block of 2" in str(caught.value)


def test_a_float_model_is_left_alone() -> None:
    b = Build()
    model = b.y(b.op("Relu", b.op("Conv", b.x([1, 2, 4, 4]), b.rand(2, 2, 1, 1)))).model()
    plain, found = stripped_of(model)
    assert not found
    assert not found.notes()
    assert operators(plain) == operators(model)


def test_a_float8_pair_stays() -> None:
    b = Build(opset=21)
    x = b.x([4])
    q = b.op("QuantizeLinear", x, b.w(np.float32(0.5)), output_dtype=TensorProto.FLOAT8E4M3FN)
    model, found = stripped_of(b.y(b.op("DequantizeLinear", q, b.w(np.float32(0.5)))).model())
    assert operators(model)["QuantizeLinear"] == 1
    assert "no integer type" in " ".join(found.notes())


@settings(max_examples=30)
@given(
    scale=st.floats(1e-4, 10),
    zero=st.integers(0, 255),
    values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20),
)
def test_a_stripped_pair_is_off_by_half_a_step_at_most(scale: float, zero: int, values: list[float]) -> None:
    b = Build()
    model = b.y(b.op("Identity", pair(b, b.x([len(values)]), scale, zero, np.uint8))).model()
    plain, _ = stripped_of(model)
    difference = np.abs(run(plain, x=values) - run(model, x=values))
    assert difference.max() <= np.float32(scale) * (0.5 + 1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_fused_integer_operators_are_opened(bias: bool) -> None:
    b = Build(seed=12)
    x_grid = [b.w(np.float32(0.02)), b.w(100, dtype=np.uint8)]
    y_grid = [b.w(np.float32(0.05)), b.w(128, dtype=np.uint8)]
    z_grid = [b.w(np.float32(0.5)), b.w(120, dtype=np.uint8)]
    w_scale = b.w(b.rng.uniform(0.001, 0.01, 4))
    values = b.rng.integers(-127, 128, (4, 3, 1, 1))
    weight = [b.w(values, dtype=np.int8), w_scale, b.w(np.zeros(4), dtype=np.int8)]
    extra = [b.w([100, -200, 3000, 4], dtype=np.int32)] if bias else []
    q = b.op("QuantizeLinear", b.x([1, 3, 4, 4]), *x_grid)
    c = b.op("QLinearConv", q, *x_grid, *weight, *y_grid, *extra, name="conv")
    matrix = [
        b.w(b.rng.integers(-127, 128, (4, 5)), dtype=np.int8),
        b.w(np.float32(0.01)),
        b.w(0, dtype=np.int8),
    ]
    m = b.op("QLinearMatMul", c, *y_grid, *matrix, *z_grid, name="product")
    model = b.y(b.op("DequantizeLinear", m, *z_grid)).model()
    plain, found = stripped_of(model)
    assert operators(plain) == {"Clip": 3, "Conv": 1, "MatMul": 1}
    assert [w.values.shape for w in found.weights] == [(4, 3, 1, 1), (4, 5)]
    assert (found.pairs, found.notes()) == (3, [])
    sample = b.rng.uniform(-2, 3, (1, 3, 4, 4))
    wanted, got = run(model, x=sample), run(plain, x=sample)
    # One step of the output, and what half a step of each inner tensor becomes behind the product.
    assert np.abs(wanted - got).max() <= 2 * 0.5
    assert np.abs(wanted).max() > 5


def test_an_integer_operator_with_a_computed_weight_stays() -> None:
    b = Build()
    grid = [b.w(np.float32(0.02)), b.w(100, dtype=np.uint8)]
    one, two = (b.op("QuantizeLinear", b.x([3, 3], n), *grid) for n in "ab")
    y = b.op("QLinearMatMul", one, *grid, two, *grid, *grid)
    model, found = stripped_of(b.y(b.op("DequantizeLinear", y, *grid)).model())
    assert operators(model)["QLinearMatMul"] == 1
    assert found.notes()
