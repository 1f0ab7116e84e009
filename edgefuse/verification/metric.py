"""The contract of a metric: fed one sample at a time, asked once at the end. docs/metrics.md is its text."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgefuse.errors import InputError

__all__ = ["Array", "Call", "Metric", "Outputs", "float_output", "is_number", "rows_of_labels"]

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
# A model as verification sees it: feeds by input name in, outputs by output name out.
Call = Callable[[dict[str, Array]], Outputs]


class Metric(abc.ABC):
    """One number about a candidate beside its float reference, over samples that pass by once.

    name: as the user writes it.  unit: of value and reference_value.  higher_is_better: of value.
    A metric is used for one comparison; its order of samples does not matter (but for ties of scores).
    """

    name: str = ""
    unit: str = "share"
    higher_is_better: bool = True

    def __init__(self) -> None:
        self.samples = 0

    def update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        """Take one sample: the candidate's outputs, the reference's, and what is known to be right or None.

        Raises InputError where outputs or label are not what the metric is made for.
        """
        for name in reference_outputs:
            if name not in outputs:
                raise InputError(
                    f"metric {self.name}: the candidate has no output '{name}'",
                    got="outputs " + ", ".join(outputs),
                )
        self._update(outputs, reference_outputs, label)
        self.samples += 1

    def value(self) -> float:
        """Return the candidate's value; raises InputError where no sample has passed."""
        self._check_any()
        return self._value()

    def reference_value(self) -> float:
        """Return the reference's value on the same samples."""
        self._check_any()
        return self._reference_value()

    def drop(self) -> float:
        """Return how much worse the candidate is, in absolute points of the metric; below 0: better."""
        difference = self.reference_value() - self.value()
        return difference if self.higher_is_better else -difference

    def detail(self) -> str:
        """Return what the number is about (which output, which truth), in one line; "" for nothing to say."""
        return ""

    @abc.abstractmethod
    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None: ...

    @abc.abstractmethod
    def _value(self) -> float: ...

    @abc.abstractmethod
    def _reference_value(self) -> float: ...

    def _check_any(self) -> None:
        if not self.samples:
            raise InputError(f"metric {self.name} has seen no samples", expected="at least one")

    def refuse(self, what: str, expected: str, got: object, hint: str | None = None) -> InputError:
        """Return the error for a sample that this metric cannot take."""
        return InputError(f"metric {self.name} cannot use {what}", expected=expected, got=str(got), hint=hint)


def is_number(array: Array) -> bool:
    """Return whether an array holds numbers or truth values (not text, not objects)."""
    return array.dtype.kind in "fiub"


def float_output(outputs: Outputs, fits: Callable[[Array], bool]) -> str | None:
    """Return the name of the first float output for which `fits` is true, or None."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and fits(array):
            return name
    return None


def rows_of_labels(metric: Metric, label: object, rows: int) -> Array:
    """Return whole-number labels as int64 [rows]; raises InputError for anything else."""
    array = np.asarray(label)
    if array.dtype.kind not in "iu" or array.size != rows:
        raise metric.refuse(
            "the label",
            f"{rows} class {'index' if rows == 1 else 'indices'} (whole numbers)",
            f"{type(label).__name__} {label!r}"[:100],
        )
    return array.reshape(rows).astype(np.int64)
