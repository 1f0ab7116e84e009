"""Observers against their definitions, computed by hand or by brute force."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edgefuse.errors import InputError, UsageError
from edgefuse.quant.clipping import grid_error, mse_range, percentile_range
from edgefuse.quant.histogram import Histogram
from edgefuse.quant.observers import (
    OBSERVERS,
    ChannelObserver,
    HistogramObserver,
    MinMax,
    MovingAverage,
    Range,
    make_observer,
    range_of,
)
from edgefuse.quant.scheme import Scheme

AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
SYMMETRIC = Scheme(-128, 127, symmetric=True, weight_bits=8, per_channel=True)
ORDER_FREE = [name for name in OBSERVERS if name != "average"]

values = arrays.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def _fed(name: str, *parts: Any, scheme: Scheme = AFFINE) -> Range:
    observer = make_observer(name, scheme)
    for part in parts:
        observer.update(np.asarray(part, np.float32))
    return observer.range()


def _histogram(array: np.ndarray, bins: int = 4096) -> Histogram:
    histogram = Histogram(bins)
    histogram.update(array)
    return histogram


# The histogram


@given(values)
def test_every_value_is_in_its_bin(array: np.ndarray) -> None:
    histogram = _histogram(array)
    edges, counts = histogram.counts()
    assert counts.sum() == histogram.total == array.size
    assert len(counts) <= histogram.bins
    assert histogram.zeros == int((array == 0).sum())
    wanted = np.floor(array.astype(np.float64) / histogram.width)
    found = {float(edge / histogram.width): int(n) for edge, n in zip(edges, counts, strict=True) if n}
    assert found == {float(i): int(n) for i, n in zip(*np.unique(wanted, return_counts=True), strict=True)}


@given(values, st.randoms(use_true_random=False))
def test_order_and_batches_do_not_matter(array: np.ndarray, random: object) -> None:
    whole = _histogram(array)
    shuffled = array.copy()
    np.random.default_rng(random.randrange(2**32)).shuffle(shuffled)  # type: ignore[attr-defined]
    parts = Histogram()
    for part in np.array_split(shuffled, 1 + random.randrange(array.size)):  # type: ignore[attr-defined]
        parts.update(part)
    for one, other in zip(whole.counts(), parts.counts(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (whole.low, whole.high, whole.zeros, whole.width) == (
        parts.low,
        parts.high,
        parts.zeros,
        parts.width,
    )


@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e30])
def test_spread_data_fills_at_least_half_of_the_bins(spread: float) -> None:
    array = (np.linspace(-1, 1, 100_000) * spread).astype(np.float32)
    edges, _ = _histogram(array).counts()
    assert 2048 <= len(edges) <= 4096


def test_bins_by_hand() -> None:
    histogram = _histogram(np.array([0.0, 0.0, 0.9, 1.0, 3.5], np.float32), bins=4)
    assert histogram.width == 1.0
    np.testing.assert_array_equal(histogram.counts()[0], [0, 1, 2, 3])
    np.testing.assert_array_equal(histogram.counts()[1], [3, 1, 0, 1])
    middles, counts = histogram.points()
    np.testing.assert_array_equal(middles, [0.5, 1.5, 3.5])
    np.testing.assert_array_equal(counts, [1, 1, 1])
    histogram.update(np.array([-0.5], np.float32))
    assert histogram.width == 2.0, "a bin more was needed, so neighbours merged"
    np.testing.assert_array_equal(histogram.counts()[0], [-2, 0, 2])
    np.testing.assert_array_equal(histogram.counts()[1], [1, 4, 1])
    assert histogram.zeros == 2


def test_zeros_first_do_not_make_the_bins_coarse() -> None:
    tiny = np.linspace(0, 1e-30, 1000).astype(np.float32)
    parts = Histogram()
    for part in (np.zeros(5, np.float32), tiny):
        parts.update(part)
    assert parts.width == _histogram(tiny).width
    assert len(parts.counts()[1]) > 2000
    assert parts.zeros == 6


def test_a_constant_and_nothing_at_all() -> None:
    histogram = _histogram(np.full(7, 3.25, np.float32))
    assert histogram.counts()[1].tolist() == [7]
    histogram.update(np.zeros((0, 4), np.float32))
    assert histogram.total == 7
    assert Histogram().total == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_element_types_give_the_same_bins(dtype: type) -> None:
    array = np.random.default_rng(0).standard_normal(500).astype(np.float16)
    for one, other in zip(_histogram(array.astype(dtype)).counts(), _histogram(array).counts(), strict=True):
        np.testing.assert_array_equal(one, other)


# What holds for all


@pytest.mark.parametrize("name", list(OBSERVERS))
@given(array=values)
@settings(max_examples=40)
def test_a_range_lies_within_the_extremes(name: str, array: np.ndarray) -> None:
    found = _fed(name, array)
    low, high = float(array.min()), float(array.max())
    assert min(low, 0.0) <= found.including_zero().low
    assert found.including_zero().high <= max(high, 0.0)
    assert found.low <= found.high


@pytest.mark.parametrize("name", ORDER_FREE)
@given(array=values)
@settings(max_examples=30)
def test_ranges_do_not_depend_on_order_or_batches(name: str, array: np.ndarray) -> None:
    assert _fed(name, array) == _fed(name, *np.array_split(array[::-1], 3))


@pytest.mark.parametrize("name", list(OBSERVERS))
def test_nothing_observed_is_an_error(name: str) -> None:
    observer = make_observer(name)
    observer.update(np.zeros((0, 3), np.float32))
    with pytest.raises(InputError, match="no value was observed"):
        observer.range()


@pytest.mark.parametrize("name", list(OBSERVERS))
@pytest.mark.parametrize("number", [0.0, 2.5, -2.5])
def test_a_constant_has_its_own_range(name: str, number: float) -> None:
    found = _fed(name, np.full(9, number), np.full(9, number))
    assert found.including_zero() == Range(number, number).including_zero()


@pytest.mark.parametrize("name", ["percentile", "entropy", "mse"])
def test_memory_does_not_grow_with_the_data(name: str) -> None:
    observer = make_observer(name)
    rng = np.random.default_rng(0)
    observer.update(rng.standard_normal(1 << 16).astype(np.float32))
    tracemalloc.start()
    for _ in range(30):
        observer.update(rng.standard_normal(1 << 16).astype(np.float32))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200_000, "thirty arrays of 256 kB went by"


@pytest.mark.parametrize(
    "name",
    [
        "kl",
        "percentil",
        "minmax@3",
        "entropy@2",
        "mse@0",
        "mse@two",
        "percentile@101",
        "percentile@50",
        "average@1",
    ],
)
def test_unknown_names_and_bad_parameters_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        make_observer(name)


# Min-max and moving average


def test_minmax_by_hand() -> None:
    assert _fed("minmax", [1.0, 2.0], [-3.0], [0.5]) == Range(-3.0, 2.0)
    observer = MinMax()
    observer.update(np.array([[4.0]]))
    assert observer.range() == Range(4.0, 4.0)


def test_the_moving_average_by_hand() -> None:
    found = _fed("average@0.75", [-1.0, 2.0], [-2.0, 6.0], [0.0, 0.0])
    assert found == Range(-0.9375, 2.25)  # -1, -1.25, -0.9375;  2, 3, 2.25
    assert _fed("average@0.75", [0.0, 0.0], [-2.0, 6.0], [-1.0, 2.0]) != found, "the order counts"
    assert MovingAverage().range is not None


# Percentile


@given(values)
def test_percentile_100_is_minmax(array: np.ndarray) -> None:
    assert _fed("percentile@100", array) == _fed("minmax", array)


def test_the_percentile_by_hand() -> None:
    array = np.arange(1000, dtype=np.float32)  # 1000 values; 1 % are 10 at either end
    low, high = percentile_range(_histogram(array, bins=1 << 20), 99.0)
    assert low == pytest.approx(10.0, abs=1e-3)
    assert high == pytest.approx(989.0, abs=1e-3)


@given(values, st.floats(50.5, 100))
def test_no_more_than_the_percentile_is_cut_at_either_end(array: np.ndarray, percentile: float) -> None:
    low, high = percentile_range(_histogram(array), percentile)
    allowed = (1 - percentile / 100) * array.size
    assert (array < low).sum() <= allowed
    assert (array > high).sum() <= allowed


def test_a_wild_value_in_a_million_is_cut() -> None:
    array = np.random.default_rng(1).uniform(0, 1, 100_000).astype(np.float32)
    array[7] = 1.5
    assert _fed("percentile@99.99", array).high < 1.01
    assert _fed("percentile@99.9999", array).high == 1.5


# Squared error


def _error(array: np.ndarray, found: Range, scheme: Scheme, power: float) -> float:
    wide = found.including_zero()
    scale, zero = (float(x) for x in scheme.grid(wide.low, wide.high))
    integers = np.clip(np.rint(array / scale) + zero, scheme.activation_low, scheme.activation_high)
    return float((np.abs((integers - zero) * scale - array) ** power).sum())


@pytest.mark.parametrize(
    "scheme", [AFFINE, SYMMETRIC, replace(AFFINE, activation_low=-128, activation_high=127)]
)
@pytest.mark.parametrize("power", [2.0, 2.4])
@given(array=values)
@settings(max_examples=30)
def test_mse_is_never_worse_than_minmax_in_its_own_measure(
    scheme: Scheme, power: float, array: np.ndarray
) -> None:
    histogram = _histogram(array)
    if histogram.zeros == histogram.total:
        return
    points, counts = histogram.points()
    ends = np.array([mse_range(histogram, scheme, power), (histogram.low, histogram.high)])
    lows, highs = np.minimum(ends[:, 0], 0), np.maximum(ends[:, 1], 0)
    chosen, whole = grid_error(points, counts, lows, highs, scheme, power)
    assert chosen <= whole


@pytest.mark.parametrize("name", ["mse", "mse@2.4"])
@pytest.mark.parametrize("scheme", [AFFINE, SYMMETRIC])
def test_mse_beats_minmax_on_the_values_themselves(name: str, scheme: Scheme) -> None:
    rng = np.random.default_rng(3)
    array = rng.laplace(0, 1, 200_000).astype(np.float32)
    power = 2.4 if "@" in name else 2.0
    chosen, whole = _fed(name, array, scheme=scheme), _fed("minmax", array)
    assert _error(array, chosen, scheme, power) < 0.9 * _error(array, whole, scheme, power)
    assert chosen.high < whole.high


def test_mse_finds_what_brute_force_finds() -> None:
    rng = np.random.default_rng(4)
    array = np.maximum(rng.standard_normal(50_000), 0).astype(np.float32) * 2
    best = min(
        np.linspace(0.3, 1, 400) * float(array.max()), key=lambda h: _error(array, Range(0, h), AFFINE, 2)
    )
    chosen = _fed("mse", array)
    assert chosen.low == 0.0
    assert _error(array, chosen, AFFINE, 2) <= 1.02 * _error(array, Range(0, best), AFFINE, 2)


def test_each_end_is_searched_for_itself() -> None:
    """A long tail below and none above: only the lower end moves."""
    rng = np.random.default_rng(5)
    array = np.concatenate([rng.uniform(0, 1, 1_000_000), -rng.exponential(0.05, 1_000), [-4.0]])
    chosen = _fed("mse", array.astype(np.float32))
    assert chosen.low > -2.0
    assert chosen.high > 0.98


def test_exact_zeros_do_not_change_the_mse_range() -> None:
    array = np.random.default_rng(6).exponential(1, 20_000).astype(np.float32)
    assert _fed("mse", array).high == _fed("mse", array, np.zeros(1_000_000)).high


# Entropy


def _divergence(array: np.ndarray, high: float, width: float) -> float:
    """KL of the clipped values (all positive) against 256 levels over [0, high], as the slides say it."""
    bins = np.floor(array / width).astype(int)
    counts = np.bincount(bins).astype(float)
    middles = np.minimum((np.arange(len(counts)) + 0.5) * width, array.max())
    level = np.rint(middles / (high / 255))
    inside = level <= 255
    reference = counts * inside
    q = np.zeros_like(counts)
    for number in np.unique(level[inside]):
        members = (level == number) & (counts > 0)
        if members.any():
            q[members] = counts[members].sum() / members.sum()
    reference[np.flatnonzero(inside & (counts > 0))[-1]] += counts[~inside].sum()
    held = reference > 0
    p, q = reference[held] / reference.sum(), q[held] / q.sum()
    return float((p * np.log(p / np.maximum(q, 1e-9))).sum())


def test_entropy_is_what_the_definition_says() -> None:
    rng = np.random.default_rng(7)
    array = np.concatenate([rng.exponential(1.0, 100_000), [60.0, 80.0]]).astype(np.float32)
    width = _histogram(array).width
    chosen, whole = _fed("entropy", array), float(array.max())
    found = _divergence(array, chosen.high, width)
    assert chosen.high < 0.5 * whole
    assert found < _divergence(array, whole, width)
    assert found <= min(_divergence(array, whole * share, width) for share in np.linspace(0.06, 1, 60)) + 1e-9


@pytest.mark.parametrize("scheme", [AFFINE, SYMMETRIC])
def test_entropy_of_two_sided_data_stays_around_it(scheme: Scheme) -> None:
    array = np.random.default_rng(8).standard_normal(100_000).astype(np.float32)
    found = _fed("entropy", array, scheme=scheme)
    assert -6 < found.low < -2
    assert 2 < found.high < 6


def test_uniform_data_is_not_clipped_by_entropy_or_mse() -> None:
    array = np.random.default_rng(9).uniform(-1, 1, 200_000).astype(np.float32)
    for name in ("entropy", "mse"):
        found = _fed(name, array)
        assert found.low < -0.97
        assert found.high > 0.97


# One histogram, many rules; 16 bits; channels


def test_one_pass_serves_every_rule() -> None:
    array = np.random.default_rng(10).laplace(0, 1, 30_000).astype(np.float32)
    histogram = _histogram(array)
    for name in ORDER_FREE:
        assert range_of(histogram, name, AFFINE) == _fed(name, array)
    with pytest.raises(UsageError, match="order"):
        range_of(histogram, "average", AFFINE)
    with pytest.raises(UsageError):
        HistogramObserver("nothing")


def test_16_bits_keep_the_extremes() -> None:
    wide = replace(SYMMETRIC, activation_low=-32768, activation_high=32767)
    array = np.random.default_rng(11).laplace(0, 1, 3_000).astype(np.float32)
    for name in ("entropy", "mse"):
        assert _fed(name, array, scheme=wide) == _fed("minmax", array)


@pytest.mark.parametrize("name", [*OBSERVERS, "mse@2.4", "percentile@99"])
@pytest.mark.parametrize("axis", [1, -2])
def test_channels_are_observed_as_if_alone(name: str, axis: int) -> None:
    rng = np.random.default_rng(12)
    samples = [(rng.laplace(0, 1, (2, 3, 50)) * [[[1], [10], [0]]]).astype(np.float32) for _ in range(4)]
    observer = ChannelObserver(name, axis)
    for sample in samples:
        observer.update(sample)
    found = observer.channel_range()
    for channel in range(3):
        alone = make_observer(name, bins=2048)
        for sample in samples:
            alone.update(sample[:, channel])
        expected = alone.range()
        assert (found.low[channel], found.high[channel]) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("name", ["minmax", "mse"])
def test_channels_must_stay_the_same_in_number(name: str) -> None:
    observer = ChannelObserver(name, 1)
    with pytest.raises(InputError, match="no value was observed"):
        observer.channel_range()
    observer.update(np.ones((1, 3, 2), np.float32))
    observer.update(np.ones((0, 3, 2), np.float32))
    with pytest.raises(InputError, match="number of channels"):
        observer.update(np.ones((1, 4, 2), np.float32))
