"""Parts of a Concat that differ by decades keep scales of their own, or stay float."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.graph import Model, clone_model, model_to_bytes
from edgefuse.quant import Range
from edgefuse.quant.split_scales import split_scales, uneven_joins
from tests.passes.graphs import Build, ops
from tests.quant.small_plans import SEVEN, decibels, plan_of, quantized_of
from tests.quant.test_equalize import EVERY, same, samples_of


def joined(kind: str = "Conv", factor: float = 640.0, trap: str = "") -> Model:
    b = Build(seed=1)
    image = kind == "Conv"
    shape = [1, 4, 6, 6] if image else [3, 4]
    x = b.x(shape)
    large = b.op("Mul", b.op("Sigmoid", x), b.w(factor))
    small = b.op("Sigmoid", b.op("Neg", x))
    parts = [large, b.rand(*shape)] if trap == "constant part" else [large, small]
    both = b.op("Concat", *parts, axis=(0 if trap == "another axis" else 1))
    columns = 4 if trap == "another axis" else 8
    # The reader evens the parts out, as a trained one does: then the small part matters.
    spread = np.ones(columns)
    spread[:4] /= factor
    if image:
        wide = b.rng.standard_normal((5, columns, 3, 3)) * spread[:, None, None]
        if trap == "grouped":
            y = b.op("Conv", both, b.rand(4, 4, 1, 1), name="c0", group=2)
        else:
            y = b.op("Conv", both, b.w(wide), b.rand(5), name="c0", pads=[1] * 4)
    elif kind == "Gemm":
        weight = (b.rng.standard_normal((columns, 5)) * spread[:, None]).T
        y = b.op("Gemm", both, b.w(weight), b.rand(5), name="c0", transB=1, alpha=0.5)
    else:
        y = b.op("MatMul", both, b.w(b.rng.standard_normal((columns, 5)) * spread[:, None]), name="c0")
    if trap == "output":
        b.y(both)
    if trap == "read twice":
        b.y(b.op("Neg", both))
    return b.y(y).model()


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
def test_each_part_gets_a_scale_and_the_small_one_survives(kind: str) -> None:
    model = joined(kind)
    samples = samples_of(model, 6)
    after = clone_model(model)
    assert len(split_scales(after, samples, EVERY)) == 1
    assert ops(after)["Concat"] == 0
    assert ops(after)[kind] == 2
    assert any(n.name == "c0" for n in after.graph)
    same(model, after, 1e-6)
    before_db, after_db = (
        decibels(m, plan_of(m), quantized_of(m, plan_of(m), samples, SEVEN), samples) for m in (model, after)
    )
    assert after_db > before_db + 6


@pytest.mark.parametrize(
    "trap", ["even", "output", "read twice", "grouped", "constant part", "another axis", "float"]
)
def test_what_cannot_or_need_not_be_split_stays(trap: str) -> None:
    model = joined("MatMul" if trap == "another axis" else "Conv", 2.0 if trap == "even" else 640.0, trap)
    before = model_to_bytes(model)
    assert split_scales(model, samples_of(model), frozenset() if trap == "float" else EVERY) == []
    assert model_to_bytes(model) == before


def test_an_uneven_concat_is_named_with_what_one_scale_would_leave() -> None:
    b = Build()
    x = b.x([1, 4, 4, 4])
    boxes, scores = b.op("Relu", x, out="boxes"), b.op("Sigmoid", x, out="scores")
    model = b.y(b.op("Concat", boxes, scores, axis=1, name="head")).model()
    ranges = {"boxes": Range(0.0, 640.0), "scores": Range(0.0, 1.0)}
    found = uneven_joins(model, ranges)
    assert list(found) == ["head"]
    assert "'boxes' to 640" in found["head"]
    assert "0.0 bits" in found["head"]
    assert uneven_joins(model, {**ranges, "scores": Range(-200.0, 0.0)}) == {}
    assert uneven_joins(model, {"boxes": Range(0.0, 640.0)}) == {}
    assert uneven_joins(model, {**ranges, "scores": Range(0.0, 0.0)}) == {}
