"""Candidates beside their float reference, over one data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.datasets import Dataset
from edgefuse.errors import InputError, InternalError
from edgefuse.verification.fidelity import OutputError, OutputErrors
from edgefuse.verification.metric import Call, Metric, Outputs
from edgefuse.verification.metrics import make_metric

__all__ = ["Comparison", "Progress", "compare", "compare_all"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of comparing one candidate with the reference.

    value, reference_value: in `unit`.  drop: in absolute points of the metric, larger is worse.
    samples: how many were run.  detail: what the metric read.  outputs: one row for each output of numbers.
    """

    metric: str
    unit: str
    value: float
    reference_value: float
    drop: float
    samples: int
    detail: str
    outputs: tuple[OutputError, ...]

    @property
    def worst_output(self) -> OutputError | None:
        """Return the output with the worst channel group, or None where no output holds numbers."""
        return max(self.outputs, key=lambda row: row.worst_group_relative_error, default=None)

    @property
    def worst_group(self) -> str:
        """Return the label of the worst output channel group, or ""."""
        return "" if self.worst_output is None else self.worst_output.worst_group

    @property
    def max_relative_error(self) -> float:
        """Return the largest max|difference| / max|reference| of any output."""
        return max((row.max_relative_error for row in self.outputs), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the whole as JSON values; a figure that is not finite (equal outputs in dB) becomes None."""
        figures = {"value": self.value, "reference_value": self.reference_value, "drop": self.drop}
        return {
            "metric": self.metric,
            "unit": self.unit,
            **{key: value if math.isfinite(value) else None for key, value in figures.items()},
            "samples": self.samples,
            "detail": self.detail,
            "worst_group": self.worst_group,
            "outputs": [row.as_json() for row in self.outputs],
        }


def compare(
    candidate: Call, reference: Call, dataset: Dataset, metric: str | Metric, progress: Progress | None = None
) -> Comparison:
    """Return how `candidate` does beside `reference` on every sample of `dataset`.

    candidate, reference: called with the feeds, both give the same output names.  metric: a name, or a metric
    that has seen nothing.  progress: called with (samples done, samples) after each.
    Raises InputError for an empty data set, data or outputs that the metric cannot use.
    """
    return compare_all({"candidate": candidate}, reference, dataset, lambda: _fresh(metric), progress)[
        "candidate"
    ]


def compare_all(
    candidates: Mapping[str, Call],
    reference: Call,
    dataset: Dataset,
    metric: Callable[[], Metric],
    progress: Progress | None = None,
) -> dict[str, Comparison]:
    """Return a comparison for each candidate; the reference and the data are run once for all of them.

    metric: makes a fresh metric for each candidate. Else as `compare`.
    """
    if not len(dataset):
        raise InputError(
            "there is nothing to compare on", expected="at least one sample", got="an empty data set"
        )
    metrics = {name: metric() for name in candidates}
    errors = {name: OutputErrors() for name in candidates}
    for done, sample in enumerate(dataset, start=1):
        expected = _arrays(reference(dict(sample.feeds)))
        for name, call in candidates.items():
            outputs = _arrays(call(dict(sample.feeds)))
            missing = [output for output in expected if output not in outputs]
            if missing:
                raise InternalError(f"{name} gives no output '{missing[0]}' for {sample.source}")
            try:
                metrics[name].update(outputs, expected, sample.label)
            except InputError as error:
                raise InputError(
                    f"{sample.source}: {error.message}", error.expected, error.got, error.hint
                ) from error
            errors[name].update(outputs, expected)
        if progress is not None:
            progress(done, len(dataset))
    return {name: _comparison(metrics[name], errors[name]) for name in candidates}


def _comparison(metric: Metric, errors: OutputErrors) -> Comparison:
    return Comparison(
        metric.name,
        metric.unit,
        metric.value(),
        metric.reference_value(),
        metric.drop(),
        metric.samples,
        metric.detail(),
        errors.results(),
    )


def _fresh(metric: str | Metric) -> Metric:
    made = make_metric(metric) if isinstance(metric, str) else metric
    if made.samples:
        raise InternalError(f"metric {made.name} was used before: each comparison needs its own")
    return made


def _arrays(outputs: Outputs) -> Outputs:
    return {name: np.asarray(array) for name, array in outputs.items()}
