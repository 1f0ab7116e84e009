from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from edgefuse.datasets import Dataset, Sample, dataset_from_samples
from edgefuse.errors import InputError, InternalError, UsageError
from edgefuse.verification import compare, compare_all, judge, make_metric, verify_end_to_end

Array = np.ndarray[Any, Any]


def dataset(count: int = 10) -> Dataset:
    random = np.random.default_rng(5)
    return dataset_from_samples(
        [
            Sample({"x": random.standard_normal((1, 4)).astype(np.float32)}, index % 4, f"s{index}")
            for index in range(count)
        ]
    )


def model(feeds: dict[str, Array]) -> dict[str, Array]:
    return {"y": feeds["x"] * 2}


class Wrong:
    """The model, wrong on the samples whose numbers are given."""

    def __init__(self, *wrong: int) -> None:
        self.wrong = wrong
        self.calls = 0

    def __call__(self, feeds: dict[str, Array]) -> dict[str, Array]:
        sign = -2 if self.calls in self.wrong else 2
        self.calls += 1
        return {"y": feeds["x"] * sign}


def test_compare_gives_the_metric_and_the_errors() -> None:
    seen: list[tuple[int, int]] = []
    result = compare(
        Wrong(0, 3), model, dataset(), "agreement", lambda done, total: seen.append((done, total))
    )
    assert result.metric == "agreement"
    assert result.value == 0.8
    assert result.reference_value == 1.0
    assert result.drop == pytest.approx(0.2)
    assert result.samples == 10
    assert seen == [(done, 10) for done in range(1, 11)]
    assert result.outputs[0].name == "y"
    # Two of ten samples are off by twice their signal.
    assert 0.3 < result.outputs[0].relative_error < 2
    assert result.worst_group == "y"
    assert result.max_relative_error > 0.5
    json.dumps(result.as_json(), allow_nan=False)


def test_equal_models_compare_equal() -> None:
    result = compare(model, model, dataset(), "snr")
    assert (result.value, result.drop, result.max_relative_error) == (math.inf, 0.0, 0.0)
    assert result.as_json()["value"] is None
    assert result.as_json()["outputs"][0]["exact"] is True


def test_compare_all_runs_the_reference_once() -> None:
    reference = Wrong()
    results = compare_all(
        {"int8": Wrong(1), "fp32": Wrong()}, reference, dataset(), lambda: make_metric("agreement")
    )
    assert reference.calls == 10
    assert {name: result.value for name, result in results.items()} == {"int8": 0.9, "fp32": 1.0}


def test_a_model_cannot_change_what_the_other_is_fed() -> None:
    def greedy(feeds: dict[str, Array]) -> dict[str, Array]:
        return {"y": feeds.pop("x") * 2}

    results = compare_all({"a": greedy, "b": greedy}, greedy, dataset(), lambda: make_metric("agreement"))
    assert [result.value for result in results.values()] == [1.0, 1.0]


def test_what_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="nothing to compare on"):
        compare(model, model, dataset(0), "agreement")
    with pytest.raises(UsageError, match="no metric"):
        compare(model, model, dataset(), "best")
    with pytest.raises(InternalError, match="candidate gives no output 'y' for s0"):
        compare(lambda feeds: {}, model, dataset(), "agreement")
    with pytest.raises(InputError, match="s0: metric miou cannot use these outputs"):
        compare(model, model, dataset(), "miou")
    used = make_metric("agreement")
    compare(model, model, dataset(), used)
    with pytest.raises(InternalError, match="was used before"):
        compare(model, model, dataset(), used)


@pytest.mark.parametrize(("wrong", "ok"), [((), True), ((1,), True), ((1, 2), False)])
def test_the_budget_is_kept_or_not(wrong: tuple[int, ...], ok: bool) -> None:
    # 1 - 0.9 is 0.09999999999999998, and 1 - 0.99 a little over 0.01: neither may tip the balance.
    report = verify_end_to_end(Wrong(*wrong), model, dataset(), "agreement", 0.1)
    assert report.ok is ok
    assert report.lines[0].startswith("ok: agreement" if ok else "FAILED: agreement")
    assert "one sample weighs 0.1" in report.lines[1]
    document = report.as_json()
    assert (document["ok"], document["level"], document["max_drop"]) == (ok, 2, 0.1)
    json.dumps(document, allow_nan=False)


def test_one_of_a_hundred_is_within_one_point() -> None:
    result = compare(Wrong(7), model, dataset(100), "agreement")
    assert result.drop > 0.01
    assert judge(result, 0.01).ok
    assert not judge(result, 0.0099).ok


def test_a_better_candidate_passes_a_budget_of_nothing() -> None:
    def truth(feeds: dict[str, Array]) -> dict[str, Array]:
        return {"y": np.eye(4)[[int(feeds["x"][0, 0])]]}

    samples = [Sample({"x": np.array([[float(index)]])}, index, f"s{index}") for index in range(4)]
    report = verify_end_to_end(
        truth, lambda feeds: {"y": np.eye(4)[[0]]}, dataset_from_samples(samples), "top1", 0.0
    )
    assert report.ok
    assert report.comparison.drop == -0.75


def test_nan_never_passes() -> None:
    def broken(feeds: dict[str, Array]) -> dict[str, Array]:
        return {"y": feeds["x"] * np.nan}

    for metric in ("agreement", "cosine", "snr", "worst-group"):
        report = verify_end_to_end(broken, model, dataset(), metric, 0.5)
        assert not report.ok, metric
        assert any("NaN or infinity" in line for line in report.lines)
        json.dumps(report.as_json(), allow_nan=False)


def test_the_lines_name_the_worst_group() -> None:
    def head(scale: float) -> Any:
        return lambda feeds: {"y": np.array([[[100.0], [0.4 * scale], [0.0]]])}

    report = verify_end_to_end(head(0.5), head(1.0), dataset(2), "worst-group", 0.01)
    assert not report.ok
    assert "worst group y[:, 1] at 6.0 dB" in report.lines[-1]
    assert report.comparison.worst_group == "y[:, 1]"
    assert (
        verify_end_to_end(head(1.0), head(1.0), dataset(2), "worst-group", 0.0).lines[-1]
        == "output 'y': equal"
    )


@pytest.mark.parametrize("budget", [-0.1, math.nan, math.inf])
def test_a_budget_that_is_none_is_a_usage_error(budget: float) -> None:
    with pytest.raises(UsageError, match="--max-drop"):
        verify_end_to_end(model, model, dataset(), "agreement", budget)
