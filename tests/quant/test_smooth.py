"""Outlier channels move into weights; the float meaning stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.graph import Model, clone_model, model_to_bytes
from edgefuse.quant import Scheme
from edgefuse.quant.smooth import smooth
from tests.passes.graphs import Build, ops
from tests.quant.small_plans import EIGHT, SEVEN, SYMMETRIC, decibels, plan_of, quantized_of
from tests.quant.test_equalize import same

Samples = list[dict[str, np.ndarray]]


def outliers(count: int, seed: int = 0, channels: int = 32, factor: float = 100.0) -> Samples:
    rng = np.random.default_rng(seed)
    made = [{"x": rng.standard_normal((1, 8, channels)).astype(np.float32)} for _ in range(count)]
    for feeds in made:
        feeds["x"][..., 3] *= factor
    return made


def normed(spread: float = 100.0, op: str = "LayerNormalization", seed: int = 0) -> Model:
    """Return a normalization whose scale makes one channel large, read by two products."""
    b = Build(seed=seed)
    scale = np.ones(32)
    scale[3] = spread
    parts = [b.w(scale)] + ([b.rand(32)] if op == "LayerNormalization" else [])
    a = b.op(op, b.x([1, 8, 32]), *parts, axis=-1, name="norm")
    q = b.op("MatMul", a, b.rand(32, 16), name="q")
    k = b.op("MatMul", a, b.rand(32, 16), name="k")
    return b.y(b.op("Mul", q, k)).model()


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
@pytest.mark.parametrize("scheme", [EIGHT, SYMMETRIC])
def test_a_normalization_takes_the_outlier_in_for_free(op: str, scheme: Scheme) -> None:
    model, samples, held = normed(op=op), outliers(8, factor=1.0), outliers(8, 9, factor=1.0)
    after = clone_model(model)
    assert len(smooth(after, samples, scheme, frozenset({"q", "k"}))) == 1
    assert ops(after) == ops(model)
    same(model, after, 1e-6)
    before_db, after_db = (
        decibels(m, plan_of(m), quantized_of(m, plan_of(m), samples, scheme), held) for m in (model, after)
    )
    assert after_db > before_db + 2


def test_an_input_takes_a_mul_only_where_one_may_be_inserted() -> None:
    b = Build(seed=2)
    x = b.x([1, 8, 32])
    model = b.y(
        b.op("MatMul", x, b.rand(32, 16), name="a"), b.op("MatMul", x, b.rand(32, 16), name="b")
    ).model()
    samples, named = outliers(8), frozenset({"a", "b"})
    before = model_to_bytes(model)
    assert smooth(model, samples, SEVEN, named) == []
    assert model_to_bytes(model) == before
    after = clone_model(model)
    assert len(smooth(after, samples, SEVEN, named, insert=True)) == 1
    assert ops(after)["Mul"] == 1, "both readers share it"
    same(model, after, 1e-9)
    plan = plan_of(after, [("a",), ("b",)])
    gained = decibels(after, plan, quantized_of(after, plan, samples), outliers(8, 9)) - decibels(
        model, plan, quantized_of(model, plan, samples), outliers(8, 9)
    )
    assert gained > 3


def test_a_float_reader_keeps_the_undivided_tensor() -> None:
    b = Build(seed=2)
    x = b.x([1, 8, 32])
    model = b.y(
        b.op("MatMul", x, b.rand(32, 32), name="a"), b.op("MatMul", x, b.rand(32, 16), name="float")
    ).model()
    after = clone_model(model)
    assert smooth(after, outliers(8), SEVEN, frozenset({"a"}), insert=True)
    reads = {n.name: n.inputs[0].name for n in after.graph if n.op_type == "MatMul"}  # type: ignore[union-attr]
    assert reads["float"] == "x"
    assert reads["a"] != "x"
    same(model, after, 1e-9)


@pytest.mark.parametrize("trap", ["even channels", "residual", "output", "both operands"])
def test_nothing_is_moved_where_it_gains_nothing_or_is_seen(trap: str) -> None:
    b = Build(seed=3)
    x = b.x([1, 8, 32])
    scale = np.ones(32)
    scale[3] = 1.0 if trap == "even channels" else 100.0
    a = b.op("LayerNormalization", x, b.w(scale), b.rand(32), axis=-1, name="norm")
    if trap == "even channels":
        even = b.w(b.rng.choice([-1.0, 1.0], (32, 32)))
        made = b.op("MatMul", b.op("RMSNormalization", x, b.w(scale), axis=-1), even, name="q")
    elif trap == "both operands":
        made = b.op("MatMul", a, b.op("Transpose", a, perm=[0, 2, 1]), name="q")
    else:
        made = b.op("MatMul", a, b.rand(32, 32), name="q")
    b.y(made)
    if trap == "residual":
        b.y(b.op("Sigmoid", a))
    if trap == "output":
        b.y(a)
    model = b.model()
    before = model_to_bytes(model)
    assert smooth(model, outliers(6, factor=1.0), EIGHT, frozenset({"q"})) == []
    assert model_to_bytes(model) == before


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9999), insert=st.booleans(), spread=st.floats(1, 1000))
def test_the_float_meaning_is_kept(seed: int, insert: bool, spread: float) -> None:
    model = normed(spread, seed=seed)
    after = clone_model(model)
    smooth(after, outliers(3, seed, factor=1.0), SEVEN, frozenset({"q", "k"}), insert=insert)
    same(model, after, 1e-6)
