"""How close outputs are as numbers: per output, per output channel group, and the metrics made of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.verification.metric import Array, Metric, Outputs, is_number

__all__ = [
    "MAX_GROUPS",
    "Cosine",
    "OutputError",
    "OutputErrors",
    "Snr",
    "WorstGroup",
    "channel_groups",
    "decibels",
]

MAX_GROUPS = 256


def channel_groups(name: str, shape: Sequence[int]) -> dict[str, tuple[slice, ...]]:
    """Return the output channel groups of output `name`: label -> index of the group's values.

    Each index of axis 1 is a group where the output has three axes or more and 2 to 256 channels; any other
    output is one group under its own name. A whole output hides a dead part of it: a detector's boxes
    (0..640) leave a high SQNR over scores (0..1) that are all lost.

    >>> list(channel_groups("y", (1, 3, 80)))
    ['y[:, 0]', 'y[:, 1]', 'y[:, 2]']
    >>> list(channel_groups("y", (1, 1000)))
    ['y']
    """
    if len(shape) < 3 or not 2 <= shape[1] <= MAX_GROUPS:
        return {name: (slice(None),) * len(shape)}
    rest = (slice(None),) * (len(shape) - 2)
    return {f"{name}[:, {index}]": (slice(None), slice(index, index + 1), *rest) for index in range(shape[1])}


def decibels(relative_error: float) -> float:
    """Return the signal to noise ratio in dB of a relative error (ratio of amplitudes); infinity for 0."""
    if relative_error == 0.0:
        return math.inf
    return -20.0 * math.log10(relative_error) if math.isfinite(relative_error) else -math.inf


@dataclass(frozen=True, slots=True)
class OutputError:
    """How far one output is from the reference's, over all samples.

    relative_error: rms of the difference / rms of the reference (of whole numbers: share that differ);
    infinity where shapes differ or a NaN stands in one of them only.  sqnr_db: the same in dB.
    max_relative_error: largest |difference| / largest |reference|.
    worst_group: label of the worst channel group (see `channel_groups`), with its relative error and dB.
    note: why the figures say nothing, or "".  group_errors: relative error of each channel group, in the
    order of `channel_groups`; empty where there is one group.
    """

    name: str
    relative_error: float
    max_relative_error: float
    worst_group: str
    worst_group_relative_error: float
    groups: int
    note: str = ""
    group_errors: tuple[float, ...] = ()

    @property
    def sqnr_db(self) -> float:
        """Return the output's signal to quantization noise ratio in dB."""
        return decibels(self.relative_error)

    @property
    def worst_group_sqnr_db(self) -> float:
        """Return the worst group's signal to quantization noise ratio in dB."""
        return decibels(self.worst_group_relative_error)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; a figure that is not finite becomes None."""
        return {
            "name": self.name,
            "relative_error": _json(self.relative_error),
            "max_relative_error": _json(self.max_relative_error),
            "sqnr_db": _json(self.sqnr_db),
            "worst_group": self.worst_group,
            "worst_group_relative_error": _json(self.worst_group_relative_error),
            "worst_group_sqnr_db": _json(self.worst_group_sqnr_db),
            "groups": self.groups,
            "groups_sqnr_db": [_json(decibels(error)) for error in self.group_errors],
            "exact": self.max_relative_error == 0.0,
            "note": self.note,
        }


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Sums:
    """Energies of one output, summed over samples, for each channel group."""

    def __init__(self) -> None:
        self.table = np.zeros((3, 0))  # rows: energy of reference, of difference, number of values
        self.labels: tuple[str, ...] = ()
        self.whole = False
        self.largest = 0.0
        self.largest_difference = 0.0
        self.note = ""

    def add(self, name: str, got: Array, wanted: Array) -> None:
        if got.shape != wanted.shape:
            self.note = f"shape {list(got.shape)} for the reference's {list(wanted.shape)}"
            return
        if wanted.size == 0:
            return
        want, difference = _difference(got, wanted)
        if want is None or difference is None:
            self.note = "NaN or infinity where the reference has none, or the reverse"
            return
        self.largest = max(self.largest, float(np.abs(want).max()))
        self.largest_difference = max(self.largest_difference, float(np.abs(difference).max()))
        self._sum(name, want, difference)

    def _sum(self, name: str, want: Array, difference: Array) -> None:
        labels = tuple(channel_groups(name, want.shape))
        if len(labels) == 1 and self.table.shape[1] > 1:
            # A size that changes from sample to sample is no channel axis: judge the output as a whole.
            self.table = self.table.sum(axis=1, keepdims=True)
        self.whole = self.whole or len(labels) == 1
        groups = 1 if self.whole else len(labels)
        rows = want.reshape(want.shape[0], groups, -1) if groups > 1 else want.reshape(1, 1, -1)
        errors = difference.reshape(rows.shape)
        sums = np.stack(
            [
                np.einsum("nck,nck->c", rows, rows),
                np.einsum("nck,nck->c", errors, errors),
                np.full(groups, rows.shape[0] * rows.shape[2], dtype=np.float64),
            ]
        )
        width = max(groups, self.table.shape[1])
        self.table = np.pad(self.table, ((0, 0), (0, width - self.table.shape[1])))
        self.table[:, :groups] += sums
        if len(labels) > len(self.labels) or self.whole:
            self.labels = (name,) if self.whole else labels

    def result(self, name: str) -> OutputError:
        if self.note:
            return OutputError(name, math.inf, math.inf, name, math.inf, 1, self.note)
        if not self.table.size:
            return OutputError(name, 0.0, 0.0, name, 0.0, 1, "no values")
        total = self.table.sum(axis=1)
        overall = total[0] / total[2]
        errors = [_relative(column, overall) for column in self.table.T.tolist()]
        worst = int(np.argmax(errors))
        scale = self.largest or 1.0
        return OutputError(
            name,
            _relative(total.tolist(), overall),
            self.largest_difference / scale,
            self.labels[worst],
            errors[worst],
            len(errors),
            group_errors=tuple(errors) if len(errors) > 1 else (),
        )


def _relative(sums: Sequence[float], overall: float) -> float:
    """Return rms noise / rms signal. A group whose signal is all zero is held against the whole output's."""
    signal, noise, count = sums
    if noise == 0.0:
        return 0.0
    power = signal / count if signal > 0.0 else overall
    return math.sqrt(noise / count / power) if power > 0.0 else math.inf


def _difference(got: Array, wanted: Array) -> tuple[Array | None, Array | None]:
    """Return reference and difference as float64, both 0 where the two hold the same NaN or infinity.

    None, None where one is not finite and the other differs.  Whole numbers: 1 for the reference, and 1
    where they differ.
    """
    if wanted.dtype.kind != "f":
        return np.ones(wanted.shape), (got != wanted).astype(np.float64)
    left = got.astype(np.float64)
    right = wanted.astype(np.float64)
    strange = ~(np.isfinite(left) & np.isfinite(right))
    if strange.any():
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        if not same[strange].all():
            return None, None
        left[strange] = right[strange] = 0.0
    return right, left - right


class OutputErrors:
    """The errors of every output, summed sample by sample."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}

    def update(self, outputs: Outputs, reference_outputs: Outputs) -> None:
        """Take one sample; outputs of text are passed over."""
        for name, wanted in reference_outputs.items():
            if is_number(wanted):
                self._sums.setdefault(name, _Sums()).add(name, np.asarray(outputs[name]), wanted)

    def results(self) -> tuple[OutputError, ...]:
        """Return one row for each output, in the reference's order."""
        return tuple(sums.result(name) for name, sums in self._sums.items())


class _Fidelity(Metric):
    """A metric made of the output errors."""

    def __init__(self) -> None:
        super().__init__()
        self._errors = OutputErrors()

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        self._errors.update(outputs, reference_outputs)

    def _rows(self) -> tuple[OutputError, ...]:
        rows = self._errors.results()
        if not rows:
            raise InputError(f"metric {self.name} needs an output of numbers", got="none")
        return rows


class WorstGroup(_Fidelity):
    """Largest relative error of any output channel group: rms of the difference / rms of the reference.

    Lower is better; the reference's own is 0, so that the drop is the value. Labels are not used.
    """

    name = "worst-group"
    unit = "relative error"
    higher_is_better = False

    def _worst(self) -> OutputError:
        return max(self._rows(), key=lambda row: row.worst_group_relative_error)

    def _value(self) -> float:
        return self._worst().worst_group_relative_error

    def _reference_value(self) -> float:
        return 0.0

    def detail(self) -> str:
        """Return which group is the worst."""
        worst = self._worst()
        return f"worst group {worst.worst_group}" + (f" ({worst.note})" if worst.note else "")


class Snr(_Fidelity):
    """Signal to noise ratio in dB of the worst output, pooled over samples; infinity where equal.

    The reference's own is infinite, so a drop in dB would be too: the drop is the noise as a share of the
    signal, 10^(-dB/20) (rms). 0.01 is 40 dB, 0.1 is 20 dB. Labels are not used.
    """

    name = "snr"
    unit = "dB"

    def _worst(self) -> OutputError:
        return max(self._rows(), key=lambda row: row.relative_error)

    def _value(self) -> float:
        return self._worst().sqnr_db

    def _reference_value(self) -> float:
        return math.inf

    def drop(self) -> float:
        """Return rms noise / rms signal of the worst output."""
        self._check_any()
        return self._worst().relative_error

    def detail(self) -> str:
        """Return which output is the worst."""
        worst = self._worst()
        return f"output '{worst.name}'; the drop is noise / signal" + (
            f" ({worst.note})" if worst.note else ""
        )


class Cosine(Metric):
    """Cosine between an output's values and the reference's, mean over samples, of the worst float output.

    Two zero vectors have 1, one zero vector 0, a NaN or another shape -1. Labels are not used.
    """

    name = "cosine"
    unit = "cosine"

    def __init__(self) -> None:
        super().__init__()
        self._totals: dict[str, float] = {}

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        found = False
        for name, wanted in reference_outputs.items():
            if wanted.dtype.kind == "f":
                found = True
                self._totals[name] = self._totals.get(name, 0.0) + _cosine(outputs[name], wanted)
        if not found:
            raise self.refuse("these outputs", "a float output", ", ".join(reference_outputs))

    def _worst(self) -> str:
        return min(self._totals, key=lambda name: self._totals[name])

    def _value(self) -> float:
        return self._totals[self._worst()] / self.samples

    def _reference_value(self) -> float:
        return 1.0

    def detail(self) -> str:
        """Return which output is the worst."""
        return f"output '{self._worst()}'"


def _cosine(got: Array, wanted: Array) -> float:
    if got.shape != wanted.shape:
        return -1.0
    left = got.astype(np.float64).ravel()
    right = wanted.astype(np.float64).ravel()
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return -1.0
    # Scaled first: the square of a subnormal is 0.
    left_size, right_size = (float(np.abs(side).max(initial=0.0)) for side in (left, right))
    if left_size == 0.0 or right_size == 0.0:
        return 1.0 if left_size == right_size else 0.0
    left, right = left / left_size, right / right_size
    value = float(left @ right) / math.sqrt(float(left @ left) * float(right @ right))
    return min(1.0, max(-1.0, value))
