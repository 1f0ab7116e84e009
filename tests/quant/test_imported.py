"""Models that bring their own quantization: kept to the last integer where possible, stated where not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.device import resolve_target
from edgefuse.errors import InputError
from edgefuse.graph import Model, Node, clone_model
from edgefuse.graph.reference import Reference
from edgefuse.passes import canonicalize
from edgefuse.plans import Plan
from edgefuse.quant import Scheme, quantize_plan, scheme_of
from edgefuse.quant.grids import Grid, ImportedWeight
from edgefuse.quant.imported import (
    ImportedQuantization,
    Kept,
    find_imported,
    grid_on_target,
    imported_ranges,
    keep_imported,
    unranged_nodes,
    weight_on_target,
)
from edgefuse.quant.integer_reference import IntegerReference
from edgefuse.quant.keep_rounding import keep_rounding
from edgefuse.quant.quantize import activation_parameters
from edgefuse.quant.strip_quantizers import strip_quantizers
from tests.passes.graphs import Build
from tests.quant.small_plans import EIGHT, SEVEN, SYMMETRIC, plan_of
from tests.quant.trained_models import pair, random_samples, trained

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

PAIRS = replace(SEVEN, weight_bits=8, pair_aware=True)
ANCHORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass
class Case:
    """A model with Q/DQ made ready for a scheme, its plan and its integers."""

    original: Model
    model: Model
    imported: ImportedQuantization
    plan: Plan
    scheme: Scheme
    kept: Kept


def import_model(original: Model, scheme: Scheme, rounding: bool = True) -> Case:
    model = clone_model(original)
    stripped = strip_quantizers(model)
    canonicalize(model)
    imported = find_imported(model, stripped)
    if rounding:
        anchors = [n.name or "" for n in model.graph if n.op_type in ANCHORS]
        model, _ = keep_rounding(model, imported, anchors, scheme)
    plan = plan_of(model)
    quantized = quantize_plan(model, plan, imported_ranges(imported, scheme), scheme)
    kept = keep_imported(model, plan, quantized, imported, scheme)
    return Case(original, model, imported, plan, scheme, kept)


def steps_off(case: Case, step: float) -> float:
    """Return how far the output is from what the Q/DQ model means, in steps of its last pair, at worst."""
    mine = IntegerReference(case.model, case.plan, case.kept.quantized, case.scheme)
    theirs = Reference(case.original)
    worst = 0.0
    for feeds in random_samples(count=8, seed=11):
        (a,), (b,) = theirs.run(feeds).values(), mine.run(feeds).values()
        worst = max(worst, float(np.abs(a - b).max()) / step)
    return worst


# One model of each family, trained as that family computes: (device, how it was trained).
TRAINED_FOR: list[tuple[str, dict[str, Any]]] = [
    ("x86-avx512-vnni", {"kind": np.uint8}),
    ("x86-avx512-vnni", {"kind": np.int8}),
    ("x86-avx2", {"kind": np.uint8, "limit": 63}),
    ("raspberry-pi-5", {"kind": np.int8}),
    ("jetson-orin-nano", {"kind": np.int8, "symmetric": True}),
    ("kunlun-r200", {"kind": np.int8, "symmetric": True, "per_tensor": True}),
    ("example-cpu", {"kind": np.uint8, "limit": 63}),
]


@pytest.mark.parametrize(
    ("device", "how"), TRAINED_FOR, ids=[f"{d}-{i}" for i, (d, _) in enumerate(TRAINED_FOR)]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_trained_model_keeps_its_meaning_to_one_step(device: str, how: dict[str, Any], seed: int) -> None:
    """The goal of all of this: every scheme, its own ranges, at most one step of the output."""
    model, grids, last = trained(random_samples(), seed=seed, **how)
    case = import_model(model, scheme_of(resolve_target(device)))
    assert (case.kept.coarser_db, case.kept.weights_db) == ({}, {})
    assert case.kept.activations == case.kept.weights == 4
    assert steps_off(case, grids[last][0]) <= 1.0
    for name, made in case.kept.quantized.activations.items():
        grid = case.imported.ranges[name]
        assert made.scale == grid.scale
        assert made.zero_point - made.low == grid.zero_point - grid.low or case.scheme.symmetric


@pytest.mark.parametrize("seed", range(3))
def test_without_the_pairs_between_float_and_int8_the_meaning_is_off_by_more(seed: int) -> None:
    model, grids, last = trained(random_samples(), seed=seed)
    with_pairs = steps_off(import_model(model, EIGHT), grids[last][0])
    without = steps_off(import_model(model, EIGHT, rounding=False), grids[last][0])
    assert with_pairs < without <= 3.0


@pytest.mark.parametrize(
    ("device", "how", "activations", "weights"),
    [
        ("jetson-orin-nano", {"kind": np.int8}, 4, 0),
        ("kunlun-r200", {"kind": np.int8}, 4, 3),
        ("x86-avx2", {"kind": np.uint8}, 0, 3),
    ],
)
def test_what_the_target_cannot_hold_is_re_expressed_and_stated(
    device: str, how: dict[str, Any], activations: int, weights: int
) -> None:
    model, grids, last = trained(random_samples(), seed=1, **how)
    case = import_model(model, scheme_of(resolve_target(device)))
    assert len(case.kept.coarser_db) == activations
    assert len(case.kept.weights_db) == weights
    # Half the levels are 6.02 dB; a bit more, since 127 steps take the place of 255.
    assert all(0 < db < 6.2 for db in case.kept.coarser_db.values())
    assert all(35 < db < 60 for db in case.kept.weights_db.values())
    assert steps_off(case, grids[last][0]) <= 5.0
    text = "\n".join(case.kept.notes())
    assert text.startswith("ranges: the model's own (QAT)")
    assert text.count("re-expressed in the target's integers") == bool(activations) + bool(weights)


@pytest.mark.parametrize(
    ("grid", "scheme", "zero_point"),
    [
        (Grid(0.1, 7, 0, 255), EIGHT, 7),
        (Grid(0.1, -6, -128, 127), EIGHT, 122),
        (Grid(0.1, 7, 0, 255), replace(EIGHT, activation_low=-128, activation_high=127), -121),
        (Grid(0.1, 0, -128, 127), SYMMETRIC, 0),
        (Grid(0.1, 128, 0, 255), SYMMETRIC, 0),
        (Grid(0.1, 3, -8, 7), EIGHT, 11),
        (Grid(0.1, -8, -8, 7), SYMMETRIC, 0),
    ],
)
def test_a_grid_is_kept_exactly(grid: Grid, scheme: Scheme, zero_point: int) -> None:
    made, loss = grid_on_target(grid, scheme)
    assert (made.scale, made.zero_point, loss) == (0.1, zero_point, 0.0)
    assert (made.low, made.high) == (scheme.activation_low, scheme.activation_high)


@pytest.mark.parametrize(
    ("grid", "scheme", "scale"),
    [
        (Grid(0.1, 0, 0, 255), SYMMETRIC, 25.5 / 127),
        (Grid(0.1, -128, -128, 127), SYMMETRIC, 25.5 / 127),
        (Grid(0.1, -1, -128, 127), SYMMETRIC, 12.8 / 127),
        (Grid(0.1, 255, 0, 255), SYMMETRIC, 25.5 / 127),
        (Grid(0.001, 0, -32768, 32767), EIGHT, 65.535 / 255),
    ],
)
def test_another_grid_is_widened_and_its_loss_stated(grid: Grid, scheme: Scheme, scale: float) -> None:
    made, loss = grid_on_target(grid, scheme)
    assert made.scale == pytest.approx(scale)
    assert loss == pytest.approx(20 * math.log10(scale / grid.scale))
    assert made.minimum == grid.minimum
    if scheme.symmetric:
        assert made.zero_point == 0


@given(st.floats(1e-6, 1e4), st.integers(-128, 127), st.sampled_from([EIGHT, SYMMETRIC]))
def test_ranges_give_the_grids_back(scale: float, zero: int, scheme: Scheme) -> None:
    grid = Grid(float(np.float32(scale)), zero, -128, 127)
    imported = ImportedQuantization({"x": grid})
    made = activation_parameters(imported_ranges(imported, scheme)["x"], scheme)
    wanted, _ = grid_on_target(grid, scheme)
    assert made.scale == pytest.approx(wanted.scale, rel=1e-12)
    assert made.zero_point == wanted.zero_point


def conv_node(weight: np.ndarray, **attributes: Any) -> Node:
    b = Build()
    x = b.x([1, weight.shape[1] * attributes.get("group", 1), 4, 4])
    model = b.y(b.op("Conv", x, b.w(weight), name="conv", **attributes)).model()
    return next(iter(model.graph))


def a_weight(values: Any, scale: Any = 0.5, axis: int | None = None) -> ImportedWeight:
    array = np.asarray(values, np.int32)
    scales = np.asarray(scale, np.float32).reshape(-1)
    return ImportedWeight(array.reshape(*array.shape, *[1] * (4 - array.ndim)), scales, axis, "w")


@pytest.mark.parametrize(
    ("values", "scheme", "exact"),
    [
        ([[127, -127], [3, 4]], EIGHT, True),
        ([[128, 1], [3, 4]], EIGHT, False),
        ([[-128, 1], [3, 4]], EIGHT, False),
        ([[64, 64], [-64, -64]], SEVEN, True),
        ([[64, 65], [3, 4]], SEVEN, False),
        ([[127, 1], [1, -127]], SEVEN, True),
        ([[127, -127], [1, 1]], SEVEN, True),
        ([[100, 29], [3, 4]], PAIRS, False),
    ],
)
def test_integers_are_kept_where_no_pair_can_overflow(values: Any, scheme: Scheme, exact: bool) -> None:
    weight = a_weight(values, [0.5, 0.25], 0)
    made, loss = weight_on_target(conv_node(weight.dequantized()), weight, scheme)
    assert (loss is None) == exact
    if exact:
        np.testing.assert_array_equal(made.values, weight.values)
        np.testing.assert_array_equal(made.scale, weight.scale)
    else:
        assert loss is not None
        assert loss > 30
        # Only the channel that does not fit changes.
        np.testing.assert_array_equal(made.values[1], weight.values[1])
        assert made.scale[1] == weight.scale[1]
        assert made.scale[0] > weight.scale[0]


def test_one_scale_a_tensor_where_the_target_has_no_other() -> None:
    per_tensor = replace(EIGHT, per_tensor_weights=("Conv",))
    weight = a_weight([[100, 5], [7, 100]], [0.5, 0.25], 0)
    node = conv_node(weight.dequantized())
    made, loss = weight_on_target(node, weight, per_tensor)
    assert made.axis is None
    assert loss is not None
    same = replace(weight, scale=np.full(2, 0.5, np.float32))
    made, loss = weight_on_target(node, same, per_tensor)
    assert (made.axis, loss) == (None, None)
    np.testing.assert_array_equal(made.values, weight.values)


def test_scales_of_input_channels_are_re_expressed() -> None:
    weight = a_weight([[100, 5], [7, 100]], [0.5, 0.25], 1)
    made, loss = weight_on_target(conv_node(weight.dequantized()), weight, EIGHT)
    assert made.axis == 0
    assert loss is not None
    np.testing.assert_allclose(made.dequantized(), weight.dequantized(), atol=50 / 127)


def test_a_scale_too_small_for_the_bias_is_raised() -> None:
    weight = a_weight([[100, 5], [7, 100]], [1e-9, 0.25], 0)
    made, loss = weight_on_target(
        conv_node(weight.dequantized()), weight, EIGHT, least=np.array([1e-7, 1e-7])
    )
    assert loss is not None
    assert made.scale[0] >= np.float32(1e-7)
    assert made.scale[1] == weight.scale[1]


def dequantized(b: Build, values: np.ndarray, scale: Any, axis: int) -> str:
    zero = b.w(np.zeros(np.shape(scale)), dtype=np.int8)
    return b.op("DequantizeLinear", b.w(values, dtype=np.int8), b.w(scale), zero, axis=axis)


def test_a_batchnorm_folded_into_a_weight_changes_scales_and_not_integers() -> None:
    b = Build(seed=4)
    x = pair(b, b.x([1, 4, 5, 5]), 0.02, 100, np.uint8)
    values = b.rng.integers(-127, 128, (6, 4, 3, 3))
    weight = dequantized(b, values, b.rng.uniform(0.001, 0.02, 6).astype(np.float32), 0)
    y = b.bn(b.op("Conv", x, weight, name="conv", pads=[1] * 4), 6)
    case = import_model(b.y(y).model(), EIGHT)
    assert [n.op_type for n in case.model.graph] == ["Clip", "Conv"]
    ((_, found),) = case.kept.quantized.weights.items()
    np.testing.assert_array_equal(found.values, values)
    assert case.kept.weights == 1
    feeds = {"x": b.rng.uniform(-2, 3, (1, 4, 5, 5)).astype(np.float32)}
    mine = IntegerReference(case.model, case.plan, case.kept.quantized, EIGHT).run(feeds)
    (wanted,), (got,) = Reference(case.original).run(feeds).values(), mine.values()
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_transposed_weight_is_found() -> None:
    b = Build(seed=5)
    values = b.rng.integers(-127, 128, (3, 4))
    scale = b.rng.uniform(0.001, 0.02, 3).astype(np.float32)
    turned = b.op("Transpose", dequantized(b, values, scale, 0), perm=[1, 0])
    y = b.op("MatMul", pair(b, b.x([2, 4]), 0.02, 100, np.uint8), turned)
    case = import_model(b.y(y).model(), EIGHT)
    ((_, found),) = case.kept.quantized.weights.items()
    np.testing.assert_array_equal(found.values, values.T)
    np.testing.assert_array_equal(found.scale, scale)
    assert found.axis == 1


def test_a_grid_reaches_through_what_only_moves_values() -> None:
    b = Build(seed=6)
    x = b.op("MaxPool", pair(b, b.x([1, 4, 6, 6]), 0.02, 100, np.uint8), kernel_shape=[2, 2], strides=[2, 2])
    y = b.op("Conv", x, dequantized(b, b.rng.integers(-127, 128, (2, 4, 1, 1)), np.float32(0.01), 0))
    case = import_model(b.y(y).model(), EIGHT)
    assert case.kept.activations == 1
    ((_, made),) = case.kept.quantized.activations.items()
    assert (made.scale, made.zero_point) == (float(np.float32(0.02)), 100)


def test_a_grid_does_not_reach_through_arithmetic() -> None:
    b = Build(seed=6)
    x = b.op("Sqrt", pair(b, b.x([1, 4, 6, 6]), 0.02, 0, np.uint8))
    y = b.op("Conv", x, dequantized(b, b.rng.integers(-127, 128, (2, 4, 1, 1)), np.float32(0.01), 0))
    model = b.y(y).model()
    with pytest.raises(InputError, match="has no range"):
        import_model(model, EIGHT)
    stripped = strip_quantizers(model)
    imported = find_imported(model, stripped)
    missing = unranged_nodes(model, plan_of(model), imported_ranges(imported, EIGHT))
    assert len(missing) == 1
    assert "no range, and there is no calibration data" in next(iter(missing.values()))


def test_tensors_that_share_a_scale_have_one_grid() -> None:
    b = Build(seed=7)
    one, two = (pair(b, b.x([1, 2, 4, 4], n), s, 0, np.uint8) for n, s in (("a", 0.01), ("b", 0.02)))
    c = pair(b, b.op("Concat", one, two, axis=1, name="concat"), 0.02, 0, np.uint8)
    y = b.op(
        "Conv", c, dequantized(b, b.rng.integers(-127, 128, (2, 4, 1, 1)), np.float32(0.01), 0), name="conv"
    )
    model = b.y(y).model()
    stripped = strip_quantizers(model)
    imported = find_imported(model, stripped)
    scheme = replace(EIGHT, same_scale=("Concat",))
    plan = plan_of(model, [("concat",), ("conv",)])
    quantized = quantize_plan(model, plan, imported_ranges(imported, scheme), scheme)
    kept = keep_imported(model, plan, quantized, imported, scheme)
    assert len({(a.scale, a.zero_point) for a in kept.quantized.activations.values()}) == 1
    assert len(kept.coarser_db) == 1
    assert next(iter(kept.coarser_db.values())) == pytest.approx(20 * math.log10(2), rel=1e-3)


def test_a_weight_that_was_changed_after_the_import_is_quantized_anew() -> None:
    model, _, _ = trained(random_samples(), seed=0)
    case = import_model(model, EIGHT)
    key, weight = next(iter(case.imported.weights.items()))
    pruned = replace(weight, values=weight.values * (np.abs(weight.values) > 60))
    other = replace(case.imported, weights={**case.imported.weights, key: pruned})
    kept = keep_imported(case.model, case.plan, case.kept.quantized, other, EIGHT)
    assert kept.weights == case.kept.weights - 1
    assert kept.quantized.weights[key] is case.kept.quantized.weights[key]


def test_keeping_twice_changes_nothing() -> None:
    model, _, _ = trained(random_samples(), seed=0)
    case = import_model(model, scheme_of(resolve_target("jetson-orin-nano")))
    again = keep_imported(case.model, case.plan, case.kept.quantized, case.imported, case.scheme)
    assert again.notes() == case.kept.notes()
    assert again.quantized.activations == case.kept.quantized.activations


def test_pairs_come_back_only_next_to_int8() -> None:
    b = Build(seed=8)
    e = pair(b, b.op("Exp", pair(b, b.x([1, 4, 4, 4]), 0.02, 100, np.uint8)), 0.05, 0, np.uint8)
    s = pair(b, b.op("Sqrt", e), 0.05, 0, np.uint8)
    w = dequantized(b, b.rng.integers(-127, 128, (4, 4, 1, 1)), np.float32(0.01), 0)
    c = pair(b, b.op("Conv", s, w, name="conv"), 0.02, 128, np.uint8)
    y = b.op("Sub", c, s)
    case = import_model(b.y(y).model(), EIGHT, rounding=False)
    model, count = keep_rounding(case.model, case.imported, ["conv"], EIGHT)
    # The Conv's result for the Sub, and what it reads itself for the Sub; nothing around Exp and Sqrt.
    assert count == 2
    float_only, none = keep_rounding(case.model, case.imported, [], EIGHT)
    assert none == 0
    assert [n.op_type for n in float_only.graph] == [n.op_type for n in case.model.graph]
    assert [v.name for v in model.graph.outputs] == [v.name for v in case.original.graph.outputs]


def test_an_output_with_a_pair_keeps_its_name_and_its_steps() -> None:
    b = Build(seed=9)
    w = dequantized(b, b.rng.integers(-127, 128, (4, 4, 1, 1)), np.float32(0.01), 0)
    y = b.op("Conv", pair(b, b.x([1, 4, 4, 4]), 0.02, 100, np.uint8), w, name="conv")
    original = b.y(pair(b, y, 0.1, 128, np.uint8)).model()
    case = import_model(original, EIGHT)
    assert [v.name for v in case.model.graph.outputs] == [v.name for v in original.graph.outputs]
    feeds = {"x": b.rng.uniform(-2, 3, (1, 4, 4, 4)).astype(np.float32)}
    mine = IntegerReference(case.model, case.plan, case.kept.quantized, EIGHT).run(feeds)
    (wanted,), (got,) = Reference(original).run(feeds).values(), mine.values()
    np.testing.assert_allclose(got / np.float32(0.1), np.rint(got / 0.1), atol=1e-4)
    assert np.abs(got - wanted).max() <= 0.1001


def test_a_grid_stays_on_the_tensor_that_a_pass_puts_in_its_place() -> None:
    """A BatchNorm's result has the grid; once it is folded, the convolution's result is that tensor."""
    b = Build(seed=10)
    x = pair(b, b.x([1, 4, 5, 5]), 0.02, 100, np.uint8)
    one = dequantized(b, b.rng.integers(-127, 128, (4, 4, 1, 1)), np.float32(0.01), 0)
    two = dequantized(b, b.rng.integers(-127, 128, (2, 4, 1, 1)), np.float32(0.02), 0)
    inner = b.op("Relu", b.bn(b.op("Conv", x, one, name="one"), 4))
    y = b.op("Conv", pair(b, inner, 0.03, 0, np.uint8), two, name="two")
    case = import_model(b.y(y).model(), EIGHT)
    assert [n.op_type for n in case.model.graph] == ["Clip", "Conv", "Clip", "Conv"]
    scales = [a.scale for a in case.kept.quantized.activations.values()]
    assert scales == [float(np.float32(0.02)), float(np.float32(0.03))]
