"""Masks of minus infinity get a number that masks as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.graph import Model, clone_model, constant, model_to_bytes
from edgefuse.graph.reference import Reference
from edgefuse.quant.clip_masks import clip_masks
from tests.passes.graphs import Build
from tests.quant.test_equalize import samples_of

TRIANGLE = np.triu(np.ones((8, 8)), 1)


def attention(mask: Any, form: str = "add", softmax: Any = -1, extra: str = "") -> Model:
    b = Build(seed=1)
    x = b.x([1, 8, 32])
    q, k, v = (b.op("MatMul", x, b.rand(32, 32)) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]), out="scores")
    if form == "add":
        total = b.op("Add", *((b.w(mask), scores) if extra == "left" else (scores, b.w(mask))))
    elif form == "mul":
        total = b.op("Add", scores, b.op("Mul", b.x([1, 1, 8], "hidden"), b.w(mask)))
    else:
        condition = b.w(TRIANGLE.astype(bool), dtype=bool)
        total = b.op(
            "Where", *((condition, b.w(mask), scores) if extra == "left" else (condition, scores, b.w(mask)))
        )
    made = b.op("Softmax", total, axis=softmax)
    if extra == "output":
        b.y(total)
    return b.y(b.op("MatMul", made, v)).model()


def feeds_of(model: Model, count: int = 4) -> list[dict[str, np.ndarray]]:
    made = samples_of(model, count)
    for feeds in made:
        if "hidden" in feeds:
            feeds["hidden"] = (np.arange(8) > 5).astype(np.float32).reshape(1, 1, 8)
    return made


@pytest.mark.parametrize(
    ("mask", "form", "extra"),
    [
        (TRIANGLE * -3.4e38, "add", ""),
        (np.where(TRIANGLE > 0, -np.inf, 0.0), "add", "left"),
        (TRIANGLE[None] * -1e4, "add", ""),
        (-3.4e38, "mul", ""),
        (-3.4e38, "where", "left"),
        (-np.inf, "where", "left"),
    ],
)
def test_the_softmax_stays_exact_and_the_range_becomes_small(mask: Any, form: str, extra: str) -> None:
    model = attention(mask, form, extra=extra)
    after = clone_model(model)
    assert len(clip_masks(after, feeds_of(model))) == 1
    smallest = min(
        float(a.min())
        for n in after.graph
        for v in n.inputs
        if (a := constant(v)) is not None and a.dtype == np.float32
    )
    assert -1000 < smallest < -20
    for data in feeds_of(model, 8):
        expected, got = Reference(model).run(data), Reference(after).run(data)
        for name, array in expected.items():
            assert np.abs(got[name] - array).max() <= 1e-7 * np.abs(array).max()


@pytest.mark.parametrize(
    "trap", ["no mask", "a row all masked", "one number", "read elsewhere", "not a softmax", "small"]
)
def test_what_is_no_mask_is_left_alone(trap: str) -> None:
    if trap == "no mask":
        model = attention(np.zeros((8, 8)))
    elif trap == "a row all masked":
        mask = TRIANGLE * -3.4e38
        mask[2] = -3.4e38
        model = attention(mask)
    elif trap == "one number":
        model = attention(np.full((1, 1), -1e9))
    elif trap == "read elsewhere":
        model = attention(TRIANGLE * -3.4e38, extra="output")
    elif trap == "small":
        model = attention(TRIANGLE * -30.0)
    else:
        b = Build()
        model = b.y(b.op("Sigmoid", b.op("Add", b.x([1, 8, 8]), b.w(TRIANGLE * -3.4e38)))).model()
    before = model_to_bytes(model)
    assert clip_masks(model, feeds_of(model)) == []
    assert model_to_bytes(model) == before


def test_a_mask_along_the_softmax_of_another_axis_is_judged_along_it() -> None:
    column = np.zeros((8, 8))
    column[:, 3] = -3.4e38
    model = attention(column, softmax=1)  # along axis 1 the whole of column 3 is masked
    assert clip_masks(model, feeds_of(model)) == []
    assert clip_masks(attention(column, softmax=-1), feeds_of(model))


def test_layers_that_share_a_mask_share_the_new_one() -> None:
    b = Build(seed=1)
    mask = b.w(TRIANGLE * -3.4e38)
    value = b.x([1, 8, 8])
    for _ in range(2):
        value = b.op(
            "MatMul", b.op("Softmax", b.op("Add", b.op("MatMul", value, b.rand(8, 8)), mask)), b.rand(8, 8)
        )
    model = b.y(value).model()
    assert len(clip_masks(model, samples_of(model))) == 1
    held = {id(v) for n in model.graph if n.op_type == "Add" for v in n.inputs if constant(v) is not None}
    assert len(held) == 1
