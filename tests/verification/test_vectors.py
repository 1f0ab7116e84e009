from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.datasets import Sample, dataset_from_samples
from edgefuse.errors import UnsupportedError, UsageError
from edgefuse.runtime import TensorInfo
from edgefuse.runtime.selftest import largest_difference
from edgefuse.verification import make_self_test

Array = np.ndarray[Any, Any]

INPUTS = [TensorInfo("x", "float32", ("N", 8))]


def model(feeds: dict[str, Array]) -> dict[str, Array]:
    return {"y": feeds["x"] * 3, "best": feeds["x"].argmax(axis=1), "text": np.array(["a"])}


def rounded(feeds: dict[str, Array]) -> dict[str, Array]:
    outputs = model(feeds)
    outputs["y"] = np.round(outputs["y"] * 4) / 4
    return outputs


def test_tolerances_are_twice_what_was_measured() -> None:
    for vector in make_self_test(model, INPUTS, 3, seed=1, deployed=rounded):
        measured = largest_difference(rounded(vector.feeds)["y"], vector.outputs["y"])
        assert 0.001 < measured < 0.2
        assert vector.deviations["y"] == measured
        assert vector.tolerances == {"y": 2 * measured, "best": 1e-4}
        assert not vector.weak
        np.testing.assert_array_equal(vector.outputs["y"], model(vector.feeds)["y"])
        assert set(vector.outputs) == {"y", "best"}


def test_without_data_the_feeds_are_seeded() -> None:
    first, again, other = (make_self_test(model, INPUTS, 2, seed=seed) for seed in (4, 4, 5))
    assert len(first) == 2
    np.testing.assert_array_equal(first[1].feeds["x"], again[1].feeds["x"])
    assert not np.array_equal(first[0].feeds["x"], other[0].feeds["x"])
    assert not np.array_equal(first[0].feeds["x"], first[1].feeds["x"])
    assert first[0].tolerances["y"] == 1e-4
    assert make_self_test(model, INPUTS, 1, floor=0.02)[0].tolerances["y"] == 0.02


def test_calibration_samples_are_taken_evenly() -> None:
    samples = [Sample({"x": np.full((1, 8), index, np.float32)}, None, f"s{index}") for index in range(10)]
    vectors = make_self_test(model, dataset_from_samples(samples), 2)
    assert [vector.source for vector in vectors] == ["s2", "s7"]
    assert len(make_self_test(model, dataset_from_samples(samples[:1]), 2)) == 1


def test_a_vector_that_would_pass_zeros_is_called_weak() -> None:
    vector = make_self_test(model, INPUTS, 1, deployed=lambda feeds: {**model(feeds), "y": feeds["x"]})[0]
    assert vector.deviations["y"] == pytest.approx(2 / 3)
    assert vector.weak


@pytest.mark.parametrize(
    "wrong",
    [
        lambda feeds: {**model(feeds), "y": feeds["x"] * np.nan},
        lambda feeds: {**model(feeds), "y": feeds["x"] * np.inf},
        lambda feeds: {**model(feeds), "y": feeds["x"][:, :3]},
        lambda feeds: {"best": model(feeds)["best"]},
    ],
)
def test_a_runtime_without_a_usable_result_makes_no_vector(wrong: Any) -> None:
    with pytest.raises(UnsupportedError, match="no usable output 'y'"):
        make_self_test(model, INPUTS, 1, deployed=wrong)


@pytest.mark.parametrize(("count", "floor"), [(0, 1e-4), (1, -1.0), (1, float("nan"))])
def test_arguments_are_checked(count: int, floor: float) -> None:
    with pytest.raises(UsageError, match="cannot be made so"):
        make_self_test(model, INPUTS, count, floor=floor)
