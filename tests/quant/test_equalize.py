"""Equalization keeps the float meaning and evens out channels that share a scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.graph import Model, clone_model, constant, model_to_bytes
from edgefuse.graph.reference import Reference, max_relative_error
from edgefuse.quant.channel_scaling import scale_stream
from edgefuse.quant.equalize import equalize
from edgefuse.quant.streams import find_streams
from tests.passes.graphs import Build, conv, feeds, ops
from tests.quant.small_plans import SEVEN, decibels, plan_of, quantized_of

EVERY = frozenset(f"c{i}" for i in range(20))


def samples_of(model: Model, count: int = 6) -> list[dict[str, np.ndarray]]:
    return [feeds(model, seed=i, scale=1.0) for i in range(count)]


def same(before: Model, after: Model, tolerance: float, scale: float = 2.0) -> None:
    for seed in (100, 101):
        data = feeds(before, seed=seed, scale=scale)
        expected, got = Reference(before).run(data), Reference(after).run(data)
        assert list(got) == list(expected)
        for name in expected:
            assert max_relative_error(got[name], expected[name]) <= tolerance, name


def depthwise(seed: int = 0, decades: float = 3.0) -> Model:
    """Return a depthwise layer whose channels differ by decades, and a product that evens them out."""
    b = Build(seed=seed)
    spread = np.logspace(0, decades, 16)
    a = b.op(
        "Conv", b.x([1, 16, 8, 8]), b.w(b.rng.standard_normal((16, 1, 3, 3)) * spread[:, None, None, None]),
        b.w(b.rng.standard_normal(16) * spread), name="c0", group=16, pads=[1] * 4,
    )  # fmt: skip
    wide = b.w(b.rng.standard_normal((8, 16, 1, 1)) / spread[:, None, None])
    return b.y(b.op("Conv", b.op("Relu", a), wide, name="c1")).model()


def test_a_depthwise_layer_over_three_decades_is_saved() -> None:
    model = depthwise()
    held = [feeds(model, seed=50 + i, scale=1.0) for i in range(8)]
    samples, plan = samples_of(model, 16), plan_of(model)
    assert decibels(model, plan, quantized_of(model, plan, samples), held) < 10
    after = clone_model(model)
    assert equalize(after, samples, SEVEN, EVERY)
    same(model, after, 1e-6)
    plan = plan_of(after)
    assert decibels(after, plan, quantized_of(after, plan, samples), held) > 30


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 9999),
    layers=st.lists(
        st.sampled_from(["conv", "depthwise", "grouped", "relu", "pool", "residual", "up"]), max_size=5
    ),
)
def test_powers_of_two_change_nothing_at_all(seed: int, layers: list[str]) -> None:
    model = _random_net(seed, layers)
    after = clone_model(model)
    rng = np.random.default_rng(seed)
    done = 0
    for stream in find_streams(after):
        if not stream.refused:
            done += scale_stream(after, stream, np.exp2(rng.integers(-6, 7, stream.channels)))
    same(model, after, 1e-9)
    assert done == sum(not s.refused for s in find_streams(model))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 9999),
    layers=st.lists(
        st.sampled_from(["conv", "depthwise", "grouped", "relu", "pool", "residual", "up"]), max_size=5
    ),
)
def test_equalizing_random_nets_keeps_their_meaning_to_float32(seed: int, layers: list[str]) -> None:
    model = _random_net(seed, layers)
    before = model_to_bytes(model)
    after = clone_model(model)
    equalize(after, samples_of(model, 3), SEVEN, EVERY)
    same(model, after, 1e-6)
    assert model_to_bytes(model) == before


def _random_net(seed: int, layers: list[str]) -> Model:
    b = Build(seed=seed)
    value = conv(b, b.x([1, 3, 8, 8]), 3, 4, name="c0", bias=bool(seed % 2))
    for i, kind in enumerate(layers, start=1):
        spread = b.w(b.rng.standard_normal((4, 4, 1, 1)) * 10.0 ** b.rng.uniform(-2, 2, (1, 4, 1, 1)))
        if kind == "conv":
            value = b.op("Conv", value, spread, b.rand(4), name=f"c{i}")
        elif kind == "depthwise":
            value = conv(b, value, 4, 4, groups=4, name=f"c{i}")
        elif kind == "grouped":
            value = conv(b, value, 4, 4, groups=2, name=f"c{i}")
        elif kind == "relu":
            value = b.op("Relu", value)
        elif kind == "pool":
            value = b.op("AveragePool", value, kernel_shape=[3, 3], pads=[1] * 4)
        elif kind == "up":
            value = b.op("ConvTranspose", value, b.rand(4, 2, 1, 1), b.rand(4), group=2, name=f"c{i}")
        else:
            value = b.op("Add", value, b.op("Conv", value, spread, name=f"c{i}"))
    return b.y(conv(b, value, 4, 2, name="c19")).model()


def test_products_with_an_addend_between_scale_the_addend_too() -> None:
    b = Build(seed=3)
    a = b.op("Add", b.op("MatMul", b.x([4, 6]), b.rand(6, 5), name="c0"), b.rand(5))
    g = b.op("Gemm", b.op("Relu", a), b.rand(7, 5), b.rand(7), name="c1", transB=1, alpha=0.5, beta=2.0)
    model = b.y(b.op("Gemm", b.op("Relu", g), b.rand(7, 2), name="c2")).model()
    after = clone_model(model)
    for stream in find_streams(after):
        if not stream.refused:
            assert scale_stream(after, stream, np.exp2(np.arange(stream.channels) - 3.0))
    same(model, after, 1e-9)
    assert len([s for s in find_streams(model) if not s.refused]) == 2


def test_one_number_that_is_added_becomes_one_for_each_channel() -> None:
    b = Build(seed=3)
    a = b.op("Add", conv(b, b.x([1, 3, 4, 4]), 3, 4, name="c0"), b.w(0.5))
    model = b.y(conv(b, a, 4, 2, name="c1")).model()
    after = clone_model(model)
    assert scale_stream(after, find_streams(after)[0], np.array([1.0, 2.0, 4.0, 0.5]))
    same(model, after, 1e-9)


def test_shared_weights_are_copied_for_the_reader_that_changes() -> None:
    b = Build(seed=4)
    w, bias = b.rand(4, 4, 1, 1), b.rand(4)
    x = b.x([1, 4, 5, 5])
    a = b.op("Relu", b.op("Conv", x, w, bias, name="c0"))
    model = b.y(b.op("Conv", a, w, bias, name="c1")).model()
    after = clone_model(model)
    assert scale_stream(after, find_streams(after)[0], np.array([1.0, 2.0, 4.0, 0.5]))
    same(model, after, 1e-9)
    one, two = (constant(n.inputs[1]) for n in after.graph if n.op_type == "Conv")
    assert one is not None
    assert two is not None
    assert not np.array_equal(one, two)


def test_relu6_is_refused_unless_its_bound_is_split_exactly() -> None:
    b = Build(seed=5)
    spread = np.logspace(-2, 1, 8)
    a = b.op(
        "Conv",
        b.x([1, 4, 6, 6]),
        b.w(b.rng.standard_normal((8, 4, 1, 1)) * spread[:, None, None, None]),
        name="c0",
    )
    a = b.op("Clip", a, b.w(0.0), b.w(6.0))
    model = b.y(
        b.op("Conv", a, b.w(b.rng.standard_normal((4, 8, 1, 1)) / spread[:, None, None]), name="c1")
    ).model()
    before = model_to_bytes(model)
    samples = samples_of(model)
    untouched = clone_model(model)
    assert equalize(untouched, samples, SEVEN, EVERY) == []
    assert model_to_bytes(untouched) == before
    split = clone_model(model)
    assert equalize(split, samples, SEVEN, EVERY, clips="split")
    assert ops(split)["Clip"] == 0
    assert ops(split)["Min"] == ops(split)["Relu"] == 1
    for scale in (1.0, 50.0):  # far beyond what calibration saw: the bound still holds
        data = feeds(model, seed=9, scale=scale)
        for name, array in Reference(model).run(data).items():
            assert max_relative_error(Reference(split).run(data)[name], array) < 1e-6


@pytest.mark.parametrize("trap", ["graph output", "float reader only", "too large"])
def test_what_must_stay_stays(trap: str) -> None:
    b = Build(seed=6, dtype=np.float16 if trap == "too large" else np.float32)
    spread = np.logspace(0, 2, 8)
    value = b.x([1, 4, 6, 6])
    a = b.op("Conv", value, b.w(b.rng.standard_normal((8, 4, 1, 1)) * spread[:, None, None, None]), name="c0")
    r = b.op("Relu", a)
    if trap == "graph output":
        b.y(r)
    model = b.y(
        b.op("Conv", r, b.w(b.rng.standard_normal((4, 8, 1, 1)) / spread[:, None, None]), name="c1")
    ).model()
    before = model_to_bytes(model)
    if trap == "too large":
        assert not scale_stream(model, find_streams(model)[0], np.full(8, 1e-6))
    else:
        named = EVERY if trap == "graph output" else frozenset({"c0"})
        assert equalize(model, samples_of(model), SEVEN, named) == []
    assert model_to_bytes(model) == before


def test_scales_that_are_not_positive_are_refused() -> None:
    model = depthwise()
    stream = find_streams(model)[0]
    before = model_to_bytes(model)
    for bad in (0.0, -1.0, np.inf, np.nan):
        assert not scale_stream(model, stream, np.array([bad, *np.ones(15)]))
    assert model_to_bytes(model) == before
