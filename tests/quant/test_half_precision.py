"""float16 plans in the reference: rounding, overflow, sums that stop growing; values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.graph import Model
from edgefuse.graph.reference import Reference
from edgefuse.plans import Plan
from edgefuse.quant.half_precision import rounded_to_half
from edgefuse.quant.integer_reference import IntegerReference
from edgefuse.quantized import Quantized
from tests.passes.graphs import Build
from tests.quant.small_plans import plan_of


def half_plan(model: Model) -> Plan:
    plan = plan_of(model, [])
    groups = tuple(
        type(g)(**{f: getattr(g, f) for f in g.__struct_fields__} | {"precision": "fp16"})
        for g in plan.groups
    )
    return Plan(model="", target="", requested="fp16", groups=groups)


def run_half(model: Model, feeds: dict[str, np.ndarray], chunk: int | None = None) -> list[np.ndarray]:
    return list(
        IntegerReference(model, half_plan(model), Quantized(), None, half_chunk=chunk).run(feeds).values()
    )


def summing(operator: str) -> tuple[Model, dict[str, np.ndarray]]:
    """Return 4,096 ones, summed."""
    b = Build()
    ones = {"x": np.ones((1, 4096), np.float32)}
    if operator == "Conv":
        x = b.x([1, 4096, 1, 1])
        b.y(b.op("Conv", x, b.w(np.ones((1, 4096, 1, 1)))))
        return b.model(), {"x": ones["x"].reshape(1, 4096, 1, 1)}
    x = b.x([1, 4096])
    if operator == "ReduceSum":
        b.y(b.op("ReduceSum", x, b.ints(1)))
    elif operator in ("ReduceL1", "ReduceSumSquare"):
        b.y(b.op(operator, x, b.ints(-1), keepdims=0))
    else:
        b.y(b.op(operator, x, b.w(np.ones((4096, 1)))))
    return b.model(), ones


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceL1", "ReduceSumSquare", "MatMul", "Gemm", "Conv"])
def test_float16_sums_stop_growing_at_2048_one_by_one(operator: str) -> None:
    """float16 is spaced by 2 above 2048: 2048 + 1 rounds back to 2048."""
    model, feeds = summing(operator)
    assert run_half(model, feeds)[0].item() == 4096
    assert run_half(model, feeds, chunk=1)[0].item() == 2048
    assert run_half(model, feeds, chunk=64)[0].item() == 4096


def test_float16_tensors_are_rounded_and_overflow() -> None:
    b = Build()
    x = b.x([3])
    b.y(b.op("Mul", x, x), b.op("Identity", x))
    feeds = {"x": np.array([255.0, 256.0, 2049.0], np.float32)}
    squared, same = run_half(b.model(), feeds)
    assert squared.dtype == np.float32
    assert squared.tolist() == [65024.0, np.inf, np.inf]
    assert same.tolist() == [255.0, 256.0, 2048.0]


@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_a_norm_overflows_in_float16_and_not_with_float32_inside(operator: str) -> None:
    """Squares of values beyond 255.9 leave float16; hardware that adds up in float32 has the right result."""
    rng = np.random.default_rng(0)
    b = Build()
    x = b.x([2, 64])
    b.y(b.op(operator, x, b.w(np.ones(64)), axis=-1))
    model = b.model()
    feeds = {"x": (rng.standard_normal((2, 64)) * 800).astype(np.float32)}
    (right,) = Reference(model).run(feeds).values()
    np.testing.assert_allclose(run_half(model, feeds)[0], right, atol=1e-2)
    assert np.abs(run_half(model, feeds, chunk=8)[0] - right).max() > 0.5
    small = {"x": feeds["x"] / 100}
    np.testing.assert_allclose(run_half(model, small, chunk=8)[0], right, atol=1e-2)


def test_the_mean_of_a_plane_overflows_by_its_sum() -> None:
    b = Build()
    x = b.x([1, 2, 64, 64])
    b.y(b.op("GlobalAveragePool", x))
    model = b.model()
    feeds = {"x": np.full((1, 2, 64, 64), 20.0, np.float32)}
    assert run_half(model, feeds)[0].reshape(-1).tolist() == [20.0, 20.0]
    assert np.isinf(run_half(model, feeds, chunk=16)[0]).all()


def test_rounding_to_half_is_numpys_for_every_kind_of_number() -> None:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        between = (halves[:-1] + halves[1:]) / 2  # ties, where both neighbours are finite
        numbers = np.concatenate(
            [patterns, halves, between, np.array([65519.996, 65520, -65520, np.nan], np.float32)]
        )
        small = (rng.standard_normal(50_000) * 10.0 ** rng.uniform(-9, -3, 50_000)).astype(np.float32)
        for array in (numbers, small):
            np.testing.assert_array_equal(rounded_to_half(array), array.astype(np.float16).astype(np.float32))
    assert rounded_to_half(np.zeros((0, 3), np.float32)).shape == (0, 3)
