from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefuse.errors import InputError
from edgefuse.verification.segmentation import Miou, class_map

Array = np.ndarray[Any, Any]


def maps(values: list[list[int]]) -> dict[str, Array]:
    return {"y": np.array([values])}


def score(candidate: dict[str, Array], reference: dict[str, Array], label: object = None) -> Miou:
    metric = Miou()
    metric.update(candidate, reference, label)
    return metric


def test_miou_by_hand() -> None:
    # Truth 0 0 1 1 / 2 2 2 2, candidate 0 1 1 1 / 2 2 0 2: 1/3, 2/3, 3/4.
    metric = score(maps([[0, 1, 1, 1], [2, 2, 0, 2]]), maps([[0, 0, 1, 1], [2, 2, 2, 2]]))
    assert metric.value() == pytest.approx((1 / 3 + 2 / 3 + 3 / 4) / 3)
    assert metric.reference_value() == 1.0
    assert metric.detail() == "output 'y', against the reference's map"


def test_labels_judge_both_and_ignored_pixels_do_not_count() -> None:
    label = np.array([[0, 0, 1, 255], [1, 1, -1, 0]])
    # Candidate: class 0 has 2 of 3, class 1 has 3 of 4. Reference: all right.
    metric = score(maps([[0, 1, 1, 0], [1, 1, 0, 0]]), maps([[0, 0, 1, 1], [1, 1, 1, 0]]), label)
    assert metric.value() == pytest.approx((2 / 3 + 3 / 4) / 2)
    assert metric.reference_value() == 1.0
    assert metric.drop() == pytest.approx(1 - (2 / 3 + 3 / 4) / 2)
    assert metric.detail().endswith("against labels")


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    assert score(maps([[0, 3]]), maps([[0, 0]])).value() == pytest.approx((1 / 2 + 0) / 2)


def test_what_a_map_is() -> None:
    logits = np.zeros((1, 3, 1, 2), np.float32)
    logits[0, :, 0, 0] = [1, 5, 2]
    logits[0, :, 0, 1] = [np.nan, 0, 9]
    found = class_map(logits)
    assert found is not None
    assert found.tolist() == [[[1, -1]]]
    probability = class_map(np.array([[[[0.5, 0.51, np.nan]]]], np.float32))
    assert probability is not None
    assert probability.tolist() == [[[0, 1, -1]]]
    assert class_map(np.zeros((1, 1, 2, 2), np.int32)) is not None
    for other in (
        np.zeros((1, 5), np.float32),
        np.zeros((1, 2, 3), np.float32),
        np.zeros((1, 2, 3, 4), np.int64),
    ):
        assert class_map(other) is None


def test_pooled_over_samples_in_any_order() -> None:
    random = np.random.default_rng(0)
    pairs = random.integers(0, 5, (6, 2, 1, 8, 8))
    forward, backward, batch = Miou(), Miou(), Miou()
    for left, right in pairs:
        forward.update({"y": left}, {"y": right}, None)
    for left, right in pairs[::-1]:
        backward.update({"y": left}, {"y": right}, None)
    batch.update({"y": pairs[:, 0, 0]}, {"y": pairs[:, 1, 0]}, None)
    assert forward.value() == backward.value() == batch.value()


grids = hnp.arrays(np.int64, (1, 4, 4), elements=st.integers(0, 3))


@given(grids, grids)
def test_miou_is_symmetric_and_one_only_for_equal_maps(left: Array, right: Array) -> None:
    value = score({"y": left}, {"y": right}).value()
    assert value == score({"y": right}, {"y": left}).value()
    assert (value == 1.0) == np.array_equal(left, right)


@pytest.mark.parametrize(
    "label", [np.zeros((2, 3), int), np.zeros((1, 2), np.float32), 1, "road", np.zeros((3, 2), int)]
)
def test_labels_of_another_kind_are_refused(label: object) -> None:
    with pytest.raises(InputError, match="miou cannot use the label"):
        score(maps([[0, 1, 1], [2, 2, 0], [1, 1, 1]]), maps([[0, 1, 1], [2, 2, 0], [1, 1, 1]]), label)


def test_outputs_of_another_kind_are_refused() -> None:
    flat = {"y": np.zeros((1, 5), np.float32)}
    with pytest.raises(InputError, match="miou cannot use these outputs"):
        score(flat, flat)
    with pytest.raises(InputError, match="candidate's output 'y'"):
        score(maps([[1, 2]]), maps([[1, 2, 3]]))
