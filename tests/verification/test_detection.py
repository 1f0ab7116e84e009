from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.datasets import Boxes
from edgefuse.errors import InputError
from edgefuse.verification.detection import Map50, average_precision, box_overlap, detections

Array = np.ndarray[Any, Any]

# Three boxes far from each other.
A, B, C = [0, 0, 10, 10], [50, 0, 60, 10], [0, 50, 10, 60]


def truth(*rows: tuple[list[int], int], crowd: tuple[int, ...] = ()) -> Boxes:
    corners = np.array([row[0] for row in rows], dtype=np.float64).reshape(-1, 4)
    classes = np.array([row[1] for row in rows], dtype=np.int64)
    return Boxes(corners, classes, np.isin(np.arange(len(rows)), crowd))


def found(*rows: tuple[list[int], float, int]) -> dict[str, Array]:
    return {"d": np.array([[*box, score, kind] for box, score, kind in rows], np.float32).reshape(1, -1, 6)}


def value(outputs: dict[str, Array], label: Boxes) -> float:
    metric = Map50()
    metric.update(outputs, outputs, label)
    assert metric.drop() == 0.0
    return metric.value()


def test_average_precision_of_a_known_curve() -> None:
    # Two truths; hit, miss, hit: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1.
    # The best precision from recall 0 to 0.5 (51 steps) is 1, and beyond (50 steps) 2/3.
    expected = (51 * 1 + 50 * 2 / 3) / 101
    got = average_precision(np.array([0.7, 0.9, 0.8]), np.array([True, True, False]), 2)
    assert got == pytest.approx(expected, abs=1e-12)
    outputs = found((A, 0.9, 0), (C, 0.8, 0), (B, 0.7, 0))
    assert value(outputs, truth((A, 0), (B, 0))) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("right", "truths", "expected"),
    [
        ([True], 1, 1.0),
        ([False], 1, 0.0),
        ([], 3, 0.0),
        ([False, True], 1, 0.5),
        ([True], 4, 26 / 101),  # recall reaches 0.25: the steps 0.00 to 0.25
        ([True, False, False, False, True], 2, (51 + 50 * 0.4) / 101),
    ],
)
def test_average_precision_by_hand(right: list[bool], truths: int, expected: float) -> None:
    scores = np.linspace(0.9, 0.1, len(right))
    assert average_precision(scores, np.array(right, bool), truths) == pytest.approx(expected, abs=1e-12)


def test_the_mean_is_over_classes_that_have_truths() -> None:
    label = truth((A, 0), (B, 1))
    assert value(found((A, 0.9, 0)), label) == 0.5
    assert value(found((A, 0.9, 0), (B, 0.9, 1), (C, 0.9, 7)), label) == 1.0
    assert value(found((A, 0.9, 1), (B, 0.9, 0)), label) == 0.0


def test_a_second_box_on_one_truth_is_wrong() -> None:
    assert value(found((A, 0.9, 0), (A, 0.8, 0), (B, 0.7, 0)), truth((A, 0), (B, 0))) == pytest.approx(
        (51 + 50 * 2 / 3) / 101
    )


def test_the_overlap_of_one_half_is_enough() -> None:
    half, less = [0, 0, 10, 5], [0, 0, 10, 4]
    assert value(found((half, 0.9, 0)), truth((A, 0))) == 1.0
    assert value(found((less, 0.9, 0)), truth((A, 0))) == 0.0
    got = box_overlap(np.array([half, B], float), np.array([A], float), np.array([False]))
    assert got.tolist() == [[0.5], [0.0]]


def test_a_hundred_boxes_of_a_class_and_image_count() -> None:
    wrong = [(B, 0.9, 0)] * 99
    assert value(found(*wrong, (A, 0.5, 0)), truth((A, 0))) == pytest.approx(1 / 100)
    assert value(found(*wrong, (B, 0.9, 0), (A, 0.5, 0)), truth((A, 0))) == 0.0
    assert value(found(*wrong, (B, 0.9, 0), (A, 0.5, 1)), truth((A, 1))) == 1.0


def test_a_box_in_a_crowd_is_neither_right_nor_wrong() -> None:
    label = truth((A, 0), ([40, 0, 80, 40], 0), crowd=(1,))
    assert value(found((B, 0.95, 0), (B, 0.94, 0), (A, 0.9, 0)), label) == 1.0
    assert value(found((B, 0.95, 0), (A, 0.9, 0)), truth((A, 0))) == 0.5


def test_precision_is_pooled_over_images() -> None:
    metric = Map50()
    first, second = found((A, 0.6, 0)), found((B, 0.9, 0))
    metric.update(first, first, truth((A, 0)))
    metric.update(second, second, truth())  # no truth in this image: a wrong box with a higher score
    assert metric.value() == 0.5


def test_the_drop_is_that_of_the_reference() -> None:
    metric = Map50()
    metric.update(found((A, 0.9, 0)), found((A, 0.9, 0), (B, 0.8, 0)), truth((A, 0), (B, 0)))
    assert metric.reference_value() == 1.0
    assert metric.value() == pytest.approx(51 / 101)
    assert metric.drop() == pytest.approx(50 / 101)
    assert metric.detail() == "against labels"


def test_without_labels_the_references_sure_boxes_are_the_truth() -> None:
    metric = Map50()
    metric.update(found((A, 0.9, 0)), found((A, 0.9, 0), (B, 0.25, 0), (C, 0.2, 0)), None)
    assert metric.reference_value() == 1.0
    assert metric.value() == pytest.approx(51 / 101)
    assert "score 0.25 and more" in metric.detail()


def test_three_outputs_read_as_one_table_and_padding_is_left_out() -> None:
    apart: dict[str, Array] = {
        "boxes": np.array([[A, B, C, A]], np.float32),
        "scores": np.array([[0.5, 0.9, 0.0, np.nan]], np.float32),
        "classes": np.array([[1, 2, 0, 0]], np.int64),
    }
    got = detections(apart)
    assert got is not None
    assert got.classes.tolist() == [2, 1]
    assert got.corners.tolist() == [B, A]
    np.testing.assert_allclose(got.scores, [0.9, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    "outputs",
    [
        {"y": np.zeros((1, 84, 8400), np.float32)},
        {"y": np.zeros((2, 10, 6), np.float32)},
        {"y": np.zeros((10, 6), np.float32), "z": np.zeros((10, 6), np.float32)},
        {"boxes": np.zeros((3, 4)), "scores": np.zeros(2), "classes": np.zeros(3)},
        {"boxes": np.zeros((4, 3)), "scores": np.zeros(3), "classes": np.zeros(3)},
    ],
)
def test_raw_heads_are_refused(outputs: dict[str, Array]) -> None:
    with pytest.raises(InputError, match="map50 cannot use these outputs") as caught:
        Map50().update(outputs, outputs, None)
    assert "MODULE:FUNCTION" in str(caught.value.hint)


def test_labels_must_be_boxes_and_some_must_be_there() -> None:
    with pytest.raises(InputError, match="map50 cannot use the label"):
        Map50().update(found(), found(), 3)
    metric = Map50()
    metric.update(found(), found(), None)
    with pytest.raises(InputError, match="map50 cannot use this data"):
        metric.value()


@given(st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), max_size=20), st.integers(20, 30))
def test_average_precision_sees_only_the_order_of_scores(rows: list[tuple[float, bool]], truths: int) -> None:
    scores = np.array([row[0] for row in rows])
    right = np.array([row[1] for row in rows], dtype=bool)
    got = average_precision(scores, right, truths)
    assert 0 <= got <= 1
    assert got == average_precision(scores * 0.5, right, truths)
    # One more hit after all others cannot make it worse.
    more = average_precision(np.append(scores, 0.001), np.append(right, True), truths)
    assert more >= got
