"""Factored layers: right where the rank is full, best where it is not, and only where they save time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.analysis import summarize
from edgefuse.errors import UsageError
from edgefuse.graph import Model, attribute, model_to_bytes
from edgefuse.graph.reference import Reference
from edgefuse.quant.low_rank import factorize, low_rank, rank_of
from tests.passes.graphs import Build, conv


def _thin(b: Build, outputs: int, inputs: int, rank: int) -> np.ndarray:
    return b.rng.standard_normal((outputs, rank)) @ b.rng.standard_normal((rank, inputs)) / inputs


def _assert_equal(model: Model, other: Model, feeds: dict[str, np.ndarray], tolerance: float) -> None:
    wanted, found = Reference(model).run(feeds), Reference(other).run(feeds)
    assert list(wanted) == list(found)
    for name, array in wanted.items():
        assert np.abs(found[name] - array).max() <= tolerance * np.abs(array).max()


def test_layers_of_low_rank_are_replaced_without_loss() -> None:
    b = Build(seed=4)
    value = b.op(
        "Conv",
        b.x([1, 16, 8, 8]),
        b.w(_thin(b, 32, 16, 4).reshape(32, 16, 1, 1)),
        b.rand(32),
        name="c",
        strides=[2, 2],
    )
    value = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", value)))
    value = b.op("Gemm", value, b.w(_thin(b, 64, 32, 8)), b.rand(64), transB=1, alpha=0.5, beta=2.0, name="g")
    value = b.op("Gemm", value, b.w(_thin(b, 32, 64, 8).T), name="plain")
    model = b.y(b.op("MatMul", value, b.w(_thin(b, 48, 32, 8).T), name="m", out="answer")).model()
    before = model_to_bytes(model)
    feeds = {"x": b.rng.standard_normal((1, 16, 8, 8)).astype(np.float32)}
    samples = [{"x": b.rng.standard_normal((1, 16, 8, 8)).astype(np.float32)} for _ in range(3)]
    for given_samples in (None, samples):
        found = low_rank(model, 0.25, samples=given_samples, multiple=1)
        assert set(found.ranks) == {"c", "g", "plain", "m"}
        assert found.ranks["c"] == (4, 16)
        _assert_equal(model, found.model, feeds, 2e-6)
        assert summarize(found.model).total.macs < summarize(model).total.macs
        assert [v.name for v in found.model.graph.outputs] == ["answer"]
    assert model_to_bytes(model) == before
    nodes = {n.name: n for n in low_rank(model, 0.25, multiple=1).model.graph}
    assert attribute(nodes["c_v"], "strides") == (
        2,
        2,
    )  # the first factor skips positions: the second sees fewer


def test_what_saves_nothing_stays_whole_and_says_why() -> None:
    b = Build(seed=4)
    value = conv(b, b.x([1, 16, 8, 8]), 16, 16, k=3, name="three")
    value = conv(b, value, 16, 16, k=1, groups=2, name="grouped")
    model = b.y(conv(b, value, 16, 16, k=1, name="square")).model()
    found = low_rank(model, 0.5)
    assert not found.ranks
    assert (
        found.refused["three"] == found.refused["grouped"] == "it is no matrix product with constant weights"
    )
    assert "of its FLOPs" in found.refused["square"]
    assert model_to_bytes(found.model) == model_to_bytes(model)


def test_the_price_may_say_no_where_the_flops_say_yes() -> None:
    b = Build(seed=4)
    model = b.y(b.op("MatMul", b.x([8, 64]), b.rand(64, 64), name="m")).model()
    assert low_rank(model, 0.25).ranks == {"m": (16, 64)}
    calls = []

    def price(nodes: object) -> float:
        calls.append(len(nodes))  # type: ignore[arg-type]
        return float(calls[-1])

    found = low_rank(model, 0.25, price=price)
    assert not found.ranks
    assert "2.00 of its time, at 0.50 of its FLOPs" in found.refused["m"]
    assert calls == [1, 2]


def test_open_sizes_are_judged_on_the_sized_model() -> None:
    def build(batch: int | str) -> Model:
        b = Build(seed=4)
        return b.y(b.op("MatMul", b.x([batch, 64]), b.rand(64, 64), name="m")).model()

    assert "not known" in low_rank(build("n"), 0.25).refused["m"]
    assert low_rank(build("n"), 0.25, sized=build(8)).ranks == {"m": (16, 64)}


@settings(max_examples=30)
@given(st.integers(0, 999), st.integers(1, 6))
def test_factors_with_moments_change_the_outputs_least(seed: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((7, 9))
    x = rng.standard_normal((200, 9)) * np.geomspace(1, 30, 9) + 2.0
    mean, covariance = x.mean(0), np.cov(x.T, bias=True)
    u, v, shift = factorize(w, rank, (mean, covariance))
    plain = factorize(w, rank)

    def error(u: np.ndarray, v: np.ndarray, shift: np.ndarray) -> float:
        return float(np.square(x @ w.T - (x @ v.T @ u.T + shift)).sum())

    best = np.linalg.svd((x - mean) @ w.T, compute_uv=False)[rank:]
    assert error(u, v, shift) == pytest.approx(float(np.square(best).sum()), rel=1e-6, abs=1e-6)
    assert error(u, v, shift) <= error(*plain) * (1 + 1e-9)


def test_without_moments_it_is_the_nearest_matrix() -> None:
    w = np.random.default_rng(0).standard_normal((6, 5))
    u, v, shift = factorize(w, 2)
    values = np.linalg.svd(w, compute_uv=False)
    assert np.linalg.norm(w - u @ v) == pytest.approx(np.linalg.norm(values[2:]))
    assert not shift.any()


def test_ranks_are_rounded_up_and_never_above_full() -> None:
    assert [rank_of((20, 30), s, 8) for s in (0.1, 0.5, 0.95)] == [8, 16, 20]
    assert rank_of((20, 30), 0.01, 1) == 1


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0])
def test_a_wrong_share_is_refused(share: float) -> None:
    b = Build(seed=4)
    model = b.y(b.op("MatMul", b.x([2, 4]), b.rand(4, 4))).model()
    with pytest.raises(UsageError, match="share between 0 and 1"):
        low_rank(model, share)
