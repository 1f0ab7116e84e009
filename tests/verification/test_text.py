from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.errors import InputError
from edgefuse.verification.text import Cer, ctc_greedy, edit_distance

Array = np.ndarray[Any, Any]


def path(*symbols: int, size: int = 4) -> Array:
    return np.eye(size, dtype=np.float32)[list(symbols)][None]


def score(read: Array, wanted: Array, label: object = None, alphabet: list[str] | None = None) -> Cer:
    metric = Cer(alphabet)
    metric.update({"y": read}, {"y": wanted}, label)
    return metric


@pytest.mark.parametrize(
    ("symbols", "blank", "expected"),
    [
        ((0, 1, 1, 0, 1, 2, 2, 0), 0, [1, 1, 2]),
        ((0, 0), 0, []),
        ((), 0, []),
        ((1, 1, 1), 0, [1]),
        ((3, 0, 3, 0, 0), 3, [0, 0]),
    ],
)
def test_best_path(symbols: tuple[int, ...], blank: int, expected: list[int]) -> None:
    assert ctc_greedy(path(*symbols)[0], blank) == expected


def test_a_nan_step_is_an_error() -> None:
    scores = path(1, 0, 2)
    scores[0, 0, 3] = np.nan
    assert ctc_greedy(scores[0]) == [-1, 2]
    assert score(scores, path(1, 0, 2)).value() == 0.5


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("kitten", "sitting", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("", "", 0),
        ("flaw", "lawn", 2),
        ("ab", "ba", 2),
    ],
)
def test_edit_distance_by_hand(left: str, right: str, expected: int) -> None:
    assert edit_distance(left, right) == expected


words = st.text("abc", max_size=8)


@given(words, words, words)
def test_edit_distance_is_a_distance(one: str, two: str, three: str) -> None:
    assert edit_distance(one, two) == edit_distance(two, one)
    assert (edit_distance(one, two) == 0) == (one == two)
    assert edit_distance(one, three) <= edit_distance(one, two) + edit_distance(two, three)


@pytest.mark.parametrize("alphabet", [["", "a", "b", "c"], ["a", "b", "c"]])
def test_cer_against_labels(alphabet: list[str]) -> None:
    # The candidate reads "ab", the reference "abc"; the label is "abcc".
    metric = score(path(1, 0, 2), path(1, 2, 3), "abcc", alphabet)
    assert metric.value() == 0.5
    assert metric.reference_value() == 0.25
    assert metric.drop() == 0.25
    assert not metric.higher_is_better


def test_cer_against_the_reference_needs_no_alphabet() -> None:
    metric = score(path(1, 2, 2), path(1, 2, 3))
    assert metric.value() == pytest.approx(1 / 3)
    assert metric.reference_value() == 0.0
    assert metric.value() == score(path(1, 2, 2), path(1, 2, 3), None, ["a", "b", "c"]).value()


def test_cer_is_pooled_by_length() -> None:
    metric = Cer()
    metric.update({"y": path(1)}, {"y": path(2)}, None)  # 1 error in 1
    metric.update({"y": path(1, 2, 3)}, {"y": path(1, 2, 3)}, None)  # 0 in 3
    assert metric.value() == 0.25
    batch = Cer()
    batch.update(
        {"y": np.concatenate([path(1, 1), path(1, 2)])}, {"y": np.concatenate([path(2, 2), path(1, 2)])}, None
    )
    assert batch.value() == pytest.approx(1 / 3)


def test_cer_of_no_text() -> None:
    assert score(path(0), path(0)).value() == 0.0
    assert score(path(1, 2), path(0)).value() == 2.0


@pytest.mark.parametrize(
    ("alphabet", "label", "message"),
    [
        (None, "abc", "text labels without an alphabet"),
        (["a"], "abc", "the alphabet"),
        (["a", "b", "c"], 3, "the label"),
        (["a", "b", "c"], ["a", "b"], "the label"),
    ],
)
def test_wrong_labels_and_alphabets(alphabet: list[str] | None, label: object, message: str) -> None:
    with pytest.raises(InputError, match=f"cer cannot use {message}"):
        score(path(1), path(1), label, alphabet)


def test_outputs_of_another_kind_are_refused() -> None:
    for array in (
        np.zeros((1, 5), np.float32),
        np.zeros((1, 3, 4), np.int64),
        np.zeros((1, 3, 1), np.float32),
    ):
        with pytest.raises(InputError, match="cer cannot use these outputs"):
            score(array, array)
