"""Long sums step by step: what one accumulator loses, and what other orders keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefuse.verification.accumulation import (
    ORDERS,
    layer_norm,
    measure_layer_norm,
    measure_sum,
    sum_in_order,
)

BETTER = [order for order in ORDERS if order != "plain"]


def test_a_plain_float16_sum_stops_growing_at_2048_ones() -> None:
    ones = np.ones((1, 4096))
    assert sum_in_order(ones, "plain", np.float16).tolist() == [2048.0]
    for order in BETTER:
        assert sum_in_order(ones, order, np.float16).tolist() == [4096.0], order


@pytest.mark.parametrize("order", BETTER)
def test_a_64k_reduction_in_float16_gains_ten_times(order: str) -> None:
    found = measure_sum(np.random.default_rng(0).random((2, 65536)) * 0.9, np.float16)
    assert found.before > 0.9
    assert found.gain(order) >= 10.0


@pytest.mark.parametrize("order", BETTER)
def test_a_16k_layer_norm_in_float16_gains_ten_times(order: str) -> None:
    found = measure_layer_norm(np.random.default_rng(0).standard_normal((2, 16384)), np.float16)
    assert found.before > 0.1
    assert found.errors[order] < 0.005
    assert found.gain(order) >= 10.0


def test_in_float32_compensation_is_exact_to_the_last_bit_but_one() -> None:
    found = measure_sum(np.random.default_rng(1).random((2, 65536)), np.float32)
    assert found.before > 1e-6
    assert found.errors["kahan"] < 2.0**-23
    assert found.gain("kahan") >= 10.0
    assert found.gain("two stages") >= 5.0


def test_a_sum_past_the_end_is_infinite_and_json_has_no_infinity() -> None:
    found = measure_sum(np.full((1, 70000), 1.0), np.float16, orders=("pairwise",))
    assert np.isinf(found.errors["pairwise"])
    assert found.as_json()["errors"] == {"pairwise": None}


def test_a_mean_is_divided_after_the_sum() -> None:
    found = measure_sum(np.full((1, 1000), 2.0), np.float32, mean=True)
    assert found.what == "mean"
    assert found.before == 0.0
    assert found.gain("kahan") == float("inf")


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 40)), elements=st.floats(-8, 8)),
    st.sampled_from(list(ORDERS)),
)
def test_every_order_sums_in_float64(array: np.ndarray[Any, Any], order: str) -> None:
    np.testing.assert_allclose(
        sum_in_order(array, order, np.float64), array.sum(axis=-1), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("order", list(ORDERS))
def test_layer_norm_is_what_the_standard_says(order: str) -> None:
    x = np.random.default_rng(2).standard_normal((3, 50)) * 4 + 7
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(layer_norm(x, order, np.float64), wanted, rtol=1e-12, atol=1e-12)


def test_an_unknown_order_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        sum_in_order(np.ones((1, 2)), "backwards", np.float32)
