"""Real kernels with every pair of weights at its limit: what scheme.toml says of `saturating_weights`.

Activations are at 255 nearly everywhere, so that a pair of products that is not the one expected leaves
int16 and the result is off by tens of percent; exact results are within 1e-4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.compose.payloads import lower_payload, open_built, runs_here
from edgefuse.compose.planning import Int8Tables, int8_plan
from edgefuse.compose.prepare import find_target, prepare
from edgefuse.graph import model_from_proto
from edgefuse.quant import Range, scheme_of
from edgefuse.quant.integer_reference import IntegerReference
from tests.passes.graphs import Build

pytestmark = pytest.mark.slow  # engines are compiled

CONVOLUTIONS: list[dict[str, Any]] = [
    {"read": 3, "write": 32, "kernel": 3, "stride": 2},
    {"read": 5, "write": 24, "kernel": 3},
    {"read": 33, "write": 40, "kernel": 1},
    {"read": 64, "write": 48, "kernel": 1},
    {"read": 16, "write": 32, "kernel": 3, "groups": 8},
    {"read": 12, "write": 12, "kernel": 3, "groups": 2},
    {"read": 24, "write": 24, "kernel": 1, "groups": 8},
    {"read": 16, "write": 16, "kernel": 3, "groups": 16},
    {"read": 16, "write": 32, "kernel": 3, "groups": 16},
    {"read": 12, "write": 12, "kernel": 3, "groups": 4},
    {"read": 66, "write": 66, "kernel": 3, "groups": 2},
]
PRODUCTS = [(8, 64, 32), (1, 65, 33), (5, 7, 3)]


def at_the_limit(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights whose neighbours (2k, 2k + 1) along axis 1 sum to 127 steps, mostly of one sign."""
    rows, channels, *kernel = shape
    half = rng.integers(0, 128, (rows, (channels + 1) // 2, *kernel))
    sign = np.where(rng.random((rows, 1, *[1] * len(kernel))) < 0.5, -1, 1)
    both = np.stack([half, 127 - half], axis=2).reshape(rows, -1, *kernel)[:, :channels]
    return both * sign / 127


def convolution(rng: np.random.Generator, case: dict[str, Any]) -> tuple[Build, tuple[int, ...]]:
    b = Build()
    groups, kernel = case.get("groups", 1), case["kernel"]
    shape = (1, case["read"], 11, 11)
    weight = at_the_limit(rng, (case["write"], case["read"] // groups, kernel, kernel))
    steps = [case.get("stride", 1)] * 2
    y = b.op("Conv", b.x(shape), b.w(weight), group=groups, pads=[kernel // 2] * 4, strides=steps)
    return b.y(y), shape


def product(rng: np.random.Generator, rows: int, width: int, columns: int) -> tuple[Build, tuple[int, ...]]:
    b = Build()
    weight = at_the_limit(rng, (columns, width)).T
    return b.y(b.op("MatMul", b.x((1, rows, width)), b.w(weight))), (1, rows, width)


def off_by(b: Build, shape: tuple[int, ...], low: float, weight: str | None = None) -> float:
    """Return the largest error of the real kernel relative to the largest exact output."""
    target = find_target("x86-avx2")
    prepared = prepare(model_from_proto(b.proto()), target)
    if not runs_here(prepared):
        pytest.skip("this machine is no x86 CPU with AVX2 and without VNNI, or OpenVINO is not installed")
    scheme = scheme_of(target, weight)
    (node,) = [n for n in prepared.model.graph if n.op_type in ("Conv", "MatMul")]
    read = node.inputs[0]
    assert read is not None
    tables = Int8Tables(scheme, {read.name or "": Range(low, 1.0)}, {node.name or "": 1e-6})
    plan, quantized = int8_plan(prepared, tables, "int8", 1, None)
    assert quantized
    rng = np.random.default_rng(1)
    x = np.where(rng.random(shape) < 0.8, 1.0, rng.uniform(low, 1.0, shape)).astype(np.float32)
    engine = open_built(lower_payload("int8", prepared, plan, quantized), prepared, threads=1)
    try:
        (got,) = engine.run({"x": x}).values()
    finally:
        engine.close()
    exact = IntegerReference(prepared.model, plan, quantized, scheme, pair_saturation=False)
    (wanted,) = exact.run({"x": x}).values()
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: "-".join(f"{k}{v}" for k, v in c.items()))
def test_convolutions_do_not_saturate(case: dict[str, Any], low: float) -> None:
    b, shape = convolution(np.random.default_rng(0), case)
    assert off_by(b, shape, low) <= 1e-4


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_matrix_products_do_not_saturate(size: tuple[int, int, int]) -> None:
    b, shape = product(np.random.default_rng(0), *size)
    assert off_by(b, shape, 0.0) <= 1e-4


def test_the_kernels_do_saturate_where_a_pair_is_not_the_one_expected() -> None:
    """Eight bits without a rule: this machine's kernels are those that the rule is for."""
    b, shape = convolution(np.random.default_rng(0), CONVOLUTIONS[-2])
    assert off_by(b, shape, 0.0, weight="8") > 0.01
