from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefuse.errors import InputError
from edgefuse.verification import Metric, channel_groups, make_metric
from edgefuse.verification.fidelity import OutputErrors, decibels

Array = np.ndarray[Any, Any]


def score(name: str, *pairs: tuple[Any, Any]) -> Metric:
    metric = make_metric(name)
    for got, wanted in pairs:
        metric.update({"y": np.asarray(got)}, {"y": np.asarray(wanted)}, None)
    return metric


def errors(*pairs: tuple[Any, Any]) -> OutputErrors:
    sums = OutputErrors()
    for got, wanted in pairs:
        sums.update({"y": np.asarray(got)}, {"y": np.asarray(wanted)})
    return sums


def test_snr_by_hand() -> None:
    # Signal energy 100, noise energy 1: 20 dB, noise / signal 0.1.
    metric = score("snr", ([[6.0, 9.0]], [[6.0, 8.0]]))
    assert metric.value() == pytest.approx(20.0)
    assert metric.drop() == pytest.approx(0.1)
    assert metric.reference_value() == math.inf
    assert metric.unit == "dB"


def test_snr_pools_energies_not_decibels() -> None:
    # 16 + 9 signal, 0 + 0.25 noise: 20 dB.
    metric = score("snr", ([[4.0]], [[4.0]]), ([[3.5]], [[3.0]]))
    assert metric.value() == pytest.approx(20.0)


def test_equal_outputs_have_no_noise() -> None:
    metric = score("snr", ([[1.0, 2.0]], [[1.0, 2.0]]))
    assert metric.value() == math.inf
    assert metric.drop() == 0.0
    assert score("worst-group", ([[0.0]], [[0.0]])).drop() == 0.0


values = hnp.arrays(np.float64, (1, 3, 4), elements=st.floats(-50, 50).map(lambda x: round(x, 3)))


@given(values, values, st.sampled_from([0.25, 2.0, -8.0]))
def test_figures_do_not_see_a_common_scale(got: Array, wanted: Array, scale: float) -> None:
    for name in ("snr", "worst-group", "cosine"):
        plain = score(name, (got, wanted)).drop()
        scaled = score(name, (got * scale, wanted * scale)).drop()
        assert scaled == pytest.approx(plain, rel=1e-9, abs=1e-12)


@given(values, values)
def test_cosine_is_symmetric_and_sees_no_length(left: Array, right: Array) -> None:
    value = score("cosine", (left, right)).value()
    assert -1 <= value <= 1
    assert value == pytest.approx(score("cosine", (right, left)).value())
    assert value == pytest.approx(score("cosine", (left * 4, right)).value())


@given(hnp.arrays(np.float32, (4, 3, 5), elements=st.floats(-9, 9, width=32)))
def test_streaming_is_as_one_batch(wanted: Array) -> None:
    got = wanted + np.float32(0.125)
    whole = score("worst-group", (got, wanted))
    parts = score("worst-group", *((got[row : row + 1], wanted[row : row + 1]) for row in range(4)))
    assert parts.value() == pytest.approx(whole.value(), rel=1e-9)
    assert parts.detail() == whole.detail()


def test_cosine_by_hand() -> None:
    assert score("cosine", ([[1.0, 0.0]], [[1.0, 1.0]])).value() == pytest.approx(math.sqrt(0.5))
    metric = score("cosine", ([[1.0, 0.0]], [[2.0, 0.0]]), ([[1.0, 0.0]], [[0.0, 5.0]]))
    assert metric.value() == 0.5
    assert metric.drop() == 0.5
    assert score("cosine", ([[1e-320, 0.0]], [[1e-300, 0.0]])).value() == 1.0


@pytest.mark.parametrize(
    ("got", "wanted", "expected"),
    [([0.0], [0.0], 1.0), ([0.0], [2.0], 0.0), ([np.nan], [2.0], -1.0), ([1.0, 2.0], [1.0], -1.0)],
)
def test_cosine_of_what_has_no_direction(got: list[float], wanted: list[float], expected: float) -> None:
    assert score("cosine", (got, wanted)).value() == expected


def test_cosine_names_the_worst_output() -> None:
    metric = make_metric("cosine")
    metric.update(
        {"a": np.array([1.0, 0.0]), "b": np.array([1.0, 0.0]), "n": np.array([1])},
        {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0]), "n": np.array([1])},
        None,
    )
    assert metric.value() == 0.0
    assert metric.detail() == "output 'b'"
    with pytest.raises(InputError, match="cosine cannot use these outputs"):
        score("cosine", ([1], [1]))


def test_a_dead_channel_is_found_where_the_whole_looks_fine() -> None:
    random = np.random.default_rng(0)
    wanted = np.concatenate([random.uniform(0, 640, (1, 4, 99)), random.uniform(0, 1, (1, 2, 99))], axis=1)
    got = np.round(wanted / 2.5) * 2.5  # one int8 scale for boxes and scores
    row = errors((got, wanted)).results()[0]
    assert row.sqnr_db > 44
    assert row.worst_group in ("y[:, 4]", "y[:, 5]")
    assert row.worst_group_sqnr_db == 0.0
    assert row.groups == 6
    metric = score("worst-group", (got, wanted))
    assert metric.value() == 1.0
    assert metric.drop() == 1.0
    assert metric.detail() == f"worst group {row.worst_group}"


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((1, 1000), 1),
        ((5,), 1),
        ((), 1),
        ((1, 84, 10), 84),
        ((2, 3, 4, 4), 3),
        ((1, 1, 8), 1),
        ((1, 257, 2), 1),
    ],
)
def test_channel_groups_cover_each_value_once(shape: tuple[int, ...], groups: int) -> None:
    found = channel_groups("y", shape)
    assert len(found) == groups
    count = np.zeros(shape)
    for index in found.values():
        count[index] += 1
    assert (count == 1).all()
    if groups == 1:
        assert list(found) == ["y"]


def test_figures_are_those_of_the_named_groups() -> None:
    random = np.random.default_rng(1)
    wanted = random.standard_normal((2, 3, 5))
    got = wanted + random.standard_normal(wanted.shape) * np.array([0.1, 0.3, 0.2])[:, None]
    row = errors((got, wanted)).results()[0]
    by_hand = {
        label: float(np.sqrt(((got - wanted)[index] ** 2).sum() / (wanted[index] ** 2).sum()))
        for label, index in channel_groups("y", wanted.shape).items()
    }
    assert row.worst_group == max(by_hand, key=lambda label: by_hand[label])
    assert row.worst_group_relative_error == pytest.approx(by_hand[row.worst_group])
    assert row.max_relative_error == pytest.approx(np.abs(got - wanted).max() / np.abs(wanted).max())


def test_a_silent_group_is_held_against_the_whole_output() -> None:
    wanted = np.array([[[2.0, 2.0], [0.0, 0.0]]])
    got = np.array([[[2.0, 2.0], [0.1, -0.1]]])
    row = errors((got, wanted)).results()[0]
    assert row.worst_group == "y[:, 1]"
    assert row.worst_group_relative_error == pytest.approx(0.1 / math.sqrt(2))


def test_noise_over_nothing_is_infinite() -> None:
    row = errors(([[0.5]], [[0.0]])).results()[0]
    assert row.relative_error == math.inf
    assert row.sqnr_db == -math.inf
    assert row.max_relative_error == 0.5
    assert row.as_json()["sqnr_db"] is None


def test_an_axis_that_changes_its_size_stays_in_one_account() -> None:
    def ones(size: int) -> tuple[Array, Array]:
        return np.full((1, size, 2), 1.1), np.ones((1, size, 2))

    for sizes in ((3, 5), (5, 3), (300, 4), (4, 300), (1, 3)):
        row = errors(*(ones(size) for size in sizes)).results()[0]
        assert row.relative_error == pytest.approx(0.1), sizes
        assert row.worst_group_relative_error == pytest.approx(0.1), sizes
    for first, second in ((4, 300), (300, 4)):
        bad = np.ones((1, first, 2))
        bad[:, 0] += 1.0
        row = errors((bad, np.ones((1, first, 2))), ones(second)).results()[0]
        assert (row.worst_group, row.groups) == ("y", 1)
        noise = 2 * 1.0 + second * 2 * 0.01
        assert row.worst_group_relative_error == pytest.approx(math.sqrt(noise / (2 * (first + second))))


def test_not_finite_numbers_and_other_shapes_are_infinite_errors_with_a_reason() -> None:
    for got, wanted, note in (
        ([np.nan, 1.0], [0.0, 1.0], "NaN or infinity"),
        ([0.0, 1.0], [np.inf, 1.0], "NaN or infinity"),
        ([-np.inf], [np.inf], "NaN or infinity"),
        ([1.0, 2.0], [1.0], "shape [2]"),
    ):
        row = errors((got, wanted), ([1.0], [1.0])).results()[0]
        assert row.relative_error == math.inf
        assert row.note.startswith(note)
        assert score("worst-group", (got, wanted)).drop() == math.inf
    same = errors(([np.nan, np.inf, 2.2], [np.nan, np.inf, 2.0])).results()[0]
    assert same.relative_error == pytest.approx(0.1)


def test_whole_numbers_count_as_equal_or_not() -> None:
    row = errors((np.array([1, 2, 3, 99]), np.array([1, 2, 3, 4]))).results()[0]
    assert row.relative_error == 0.5  # rms: the root of a quarter
    assert errors(([True], [True])).results()[0].relative_error == 0.0


def test_text_and_empty_outputs_are_passed_over() -> None:
    assert errors((["a"], ["b"])).results() == ()
    with pytest.raises(InputError, match="needs an output of numbers"):
        score("snr", (["a"], ["b"])).value()
    row = errors((np.zeros((0, 4)), np.zeros((0, 4)))).results()[0]
    assert (row.relative_error, row.note) == (0.0, "no values")


def test_decibels() -> None:
    assert decibels(0.01) == pytest.approx(40.0)
    assert decibels(1.0) == 0.0
    assert decibels(0.0) == math.inf
    assert decibels(math.inf) == -math.inf


def test_every_channel_group_is_told_by_its_own_ratio() -> None:
    wanted = np.ones((1, 3, 10))
    got = wanted.copy()
    got[:, 1] *= 1.1
    got[:, 2] *= 1.01
    (row,) = errors((got, wanted)).results()
    told = row.as_json()["groups_sqnr_db"]
    assert told[0] is None, "equal: no finite ratio"
    assert told[1:] == pytest.approx([20.0, 40.0])
    assert row.worst_group == "y[:, 1]"


def test_one_group_has_no_list() -> None:
    (row,) = errors((np.ones((1, 5)), np.zeros((1, 5)))).results()
    assert row.group_errors == ()
    assert row.as_json()["groups_sqnr_db"] == []
