from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefuse.errors import InputError
from edgefuse.verification import make_metric
from edgefuse.verification.classification import Agreement, Top1

Array = np.ndarray[Any, Any]


def scores(*rows: list[float]) -> dict[str, Array]:
    return {"y": np.array(rows, dtype=np.float32)}


def test_agreement_counts_equal_classes() -> None:
    metric = Agreement()
    metric.update(scores([1, 2, 3]), scores([0, 0, 9]), None)
    metric.update(scores([1, 2, 3]), scores([0, 9, 0]), 2)
    metric.update(scores([5, 5, 1]), scores([6, 5, 5]), None)  # a tie goes to the lower index
    metric.update(scores([np.nan, 0, 1]), scores([9, 0, 1]), None)
    assert metric.value() == 0.5
    assert metric.reference_value() == 1.0
    assert metric.drop() == 0.5
    assert metric.samples == 4
    assert metric.detail() == "highest score of output 'y'"


def test_a_nan_never_agrees_even_with_itself() -> None:
    metric = Agreement()
    metric.update(scores([np.nan, 1]), scores([np.nan, 1]), None)
    assert metric.value() == 0.0


def test_top1_is_a_difference_of_two_accuracies() -> None:
    metric = Top1()
    for reference, label in (
        ([1.0, 0.0], 0),
        ([0.0, 1.0], 0),  # the candidate is right, the reference is not
        ([0.0, 1.0], 1),
        ([0.0, 1.0], np.int64(1)),
    ):
        metric.update(scores([1, 0]), scores(reference), label)
    assert metric.value() == 0.5
    assert metric.reference_value() == 0.75
    assert metric.drop() == 0.25


@pytest.mark.parametrize("name", ["agreement", "top1"])
def test_one_batch_is_as_its_rows(name: str) -> None:
    random = np.random.default_rng(3)
    left, right = random.standard_normal((2, 40, 7)).astype(np.float32)
    labels = random.integers(0, 7, 40)
    whole, parts = make_metric(name), make_metric(name)
    whole.update({"y": left}, {"y": right}, labels)
    for row in range(40):
        parts.update({"y": left[row : row + 1]}, {"y": right[row : row + 1]}, int(labels[row]))
    assert parts.value() == whole.value()
    assert parts.reference_value() == whole.reference_value()


logits = hnp.arrays(np.float32, (5, 4), elements=st.floats(-8, 8, width=32))


@given(logits, logits)
def test_agreement_is_symmetric_and_does_not_see_a_scale(left: Array, right: Array) -> None:
    values = []
    for one, other in ((left, right), (right, left), (left * 4, right)):
        metric = Agreement()
        metric.update({"y": one}, {"y": other}, None)
        values.append(metric.value())
    assert values[0] == values[1] == values[2]
    assert 0 <= values[0] <= 1


@given(logits)
def test_everything_agrees_with_itself(values: Array) -> None:
    metric = Agreement()
    metric.update({"y": values}, {"y": values.copy()}, None)
    assert metric.drop() == 0.0


def test_the_first_output_with_class_scores_is_read() -> None:
    outputs = {
        "count": np.array([[3, 4]]),
        "map": np.zeros((1, 2, 4, 4), np.float32),
        "pooled": np.array([[[[1.0]], [[2.0]]]], np.float32),
    }
    metric = Agreement()
    metric.update(outputs, outputs, None)
    assert "'pooled'" in metric.detail()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((1, 1), np.float32),
        np.zeros(4, np.float32),
        np.zeros((1, 4), np.int64),
        np.zeros((1, 2, 3, 3)),
    ],
)
def test_outputs_without_class_scores_are_refused(array: Array) -> None:
    with pytest.raises(InputError, match="agreement cannot use these outputs") as caught:
        Agreement().update({"y": array}, {"y": array}, None)
    assert str(list(array.shape)) in str(caught.value.got)


@pytest.mark.parametrize("label", [None, 2, -1, "cat", 0.0, [0, 1], True])
def test_top1_refuses_labels_that_are_no_class(label: object) -> None:
    with pytest.raises(InputError, match="metric top1 cannot use"):
        Top1().update(scores([1, 0]), scores([1, 0]), label)


def test_other_shapes_and_missing_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="candidate's output 'y'") as caught:
        Agreement().update(scores([1, 0, 0]), scores([1, 0]), None)
    assert (caught.value.expected, caught.value.got) == ("shape [1, 2]", "[1, 3]")
    with pytest.raises(InputError, match="the candidate has no output 'y'"):
        Agreement().update({"z": np.zeros((1, 2))}, scores([1, 0]), None)


@pytest.mark.parametrize(
    "name", ["agreement", "cer", "cosine", "map50", "miou", "snr", "top1", "worst-group"]
)
def test_no_samples_is_an_error(name: str) -> None:
    metric = make_metric(name)
    for ask in (metric.value, metric.reference_value, metric.drop):
        with pytest.raises(InputError, match="has seen no samples"):
            ask()
