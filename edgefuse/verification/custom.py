"""MODULE:FUNCTION: a metric out of the user's own code."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.verification.metric import Metric, Outputs

__all__ = ["CustomMetric", "custom_metric"]


class CustomMetric(Metric):
    """The user's score: a function called for each sample (the mean counts), or a class fed sample by sample.

    Function: f(outputs, reference_outputs, label) -> number.  Class: made twice without arguments, for the
    candidate and for the reference; update(outputs, reference_outputs, label), then value() -> number.
    To score the reference, its outputs are passed as `outputs` too. An attribute `higher_is_better = False`
    on either turns the direction round; the drop is the difference of the two scores.
    """

    unit = "points"

    def __init__(self, name: str, scorer: Any) -> None:
        super().__init__()
        self.name = name
        self.higher_is_better = bool(getattr(scorer, "higher_is_better", True))
        self._candidate: Any = scorer() if isinstance(scorer, type) else _Mean(scorer)
        self._reference: Any = scorer() if isinstance(scorer, type) else _Mean(scorer)

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        with self._explained(f"failed on sample {self.samples}"):
            self._candidate.update(outputs, reference_outputs, label)
            self._reference.update(reference_outputs, reference_outputs, label)

    def _value(self) -> float:
        return self._number(self._candidate)

    def _reference_value(self) -> float:
        return self._number(self._reference)

    def _number(self, scorer: Any) -> float:
        with self._explained("failed in value()"):
            return _checked(scorer.value())

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise InputError(
                f"metric {self.name} {what}: {type(error).__name__}: {error}",
                hint="it is called as f(outputs, reference_outputs, label), see docs/metrics.md",
            ) from error


class _Mean:
    def __init__(self, function: Any) -> None:
        self._function = function
        self._total = 0.0
        self._count = 0

    def update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        self._total += _checked(self._function(outputs, reference_outputs, label))
        self._count += 1

    def value(self) -> float:
        return self._total / self._count


def _checked(score: Any) -> float:
    number = float(score)
    if not math.isfinite(number):
        raise ValueError(f"the score is {number}, not a finite number")
    return number


def custom_metric(name: str) -> CustomMetric:
    """Return the metric MODULE:FUNCTION; MODULE is looked for in the working folder too.

    This runs the user's code: give it names that the user wrote, never one that came with an artifact.
    Raises UsageError for a name of another form, InputError where the module or function is not there.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UsageError(f"'{name}' names no metric", expected="MODULE:FUNCTION, such as my_metrics:iou")
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InputError(
            f"metric {name}: module '{module_name}' cannot be imported: {type(error).__name__}: {error}",
            hint=f"it is looked for among installed packages and in {folder}",
        ) from error
    finally:
        sys.path.remove(folder)
    scorer = getattr(module, attribute, None)
    if not callable(scorer):
        near = did_you_mean(attribute, [key for key in vars(module) if callable(getattr(module, key))])
        raise InputError(f"metric {name}: module '{module_name}' has no function '{attribute}'{near}")
    if isinstance(scorer, type) and not all(
        callable(getattr(scorer, key, None)) for key in ("update", "value")
    ):
        raise InputError(f"metric {name}: the class needs methods", expected="update(...) and value()")
    return CustomMetric(name, scorer)
