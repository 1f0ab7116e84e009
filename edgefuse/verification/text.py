"""cer: character error rate of text that a CTC head reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgefuse.verification.metric import Array, Metric, Outputs, float_output

__all__ = ["Cer", "ctc_greedy", "edit_distance"]

# Stands for a step whose scores hold a NaN; equals no symbol of a model.
_BROKEN = -1


def ctc_greedy(scores: Array, blank: int = 0) -> list[int]:
    """Return the symbols of one text: the best symbol of each step, repeats merged, blanks left out.

    scores: float [steps, symbols], logits or probabilities. Best-path decoding (Graves et al. 2006, section
    3.2). A step with a NaN gives -1.
    """
    best = scores.argmax(axis=1)
    best[np.isnan(scores).any(axis=1)] = _BROKEN
    path = [blank, *best.tolist()]
    return [symbol for before, symbol in pairwise(path) if symbol not in (before, blank)]


def edit_distance(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the least number of insertions, deletions and substitutions that turn `left` into `right`."""
    row = list(range(len(right) + 1))
    for index, wanted in enumerate(left, start=1):
        diagonal, row[0] = row[0], index
        for place, found in enumerate(right, start=1):
            substituted = diagonal + (wanted != found)
            diagonal = row[place]
            row[place] = min(substituted, row[place] + 1, row[place - 1] + 1)
    return row[-1]


class Cer(Metric):
    """Edit distance to the true texts / their length in characters, pooled over samples. Lower is better.

    Truth: the label text, where given; else the text that the reference reads. It may exceed 1.
    alphabet: the text of each symbol; one entry fewer than symbols where the blank is left out. It is needed
    for labels. blank: index of the blank (0, as PyTorch and Paddle have it).
    The first float output [N, steps, symbols] is read.
    """

    name = "cer"
    higher_is_better = False

    def __init__(self, alphabet: Sequence[str] | None = None, blank: int = 0) -> None:
        super().__init__()
        self._alphabet = None if alphabet is None else list(alphabet)
        self._blank = blank
        self._errors = 0
        self._reference_errors = 0
        self._length = 0
        self._output = ""

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        name = float_output(reference_outputs, lambda array: array.ndim == 3 and array.shape[2] >= 2)
        if name is None or outputs[name].ndim != 3 or outputs[name].shape[2] < 2:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
            raise self.refuse("these outputs", "a float output [N, steps, symbols]", shapes)
        self._output = name
        reference = self._texts(reference_outputs[name])
        candidate = self._texts(outputs[name])
        truths = reference if label is None else self._labels(label, len(reference))
        for read, wanted, truth in zip(candidate, reference, truths, strict=True):
            self._errors += edit_distance(truth, read)
            self._reference_errors += edit_distance(truth, wanted)
            self._length += len(truth)

    def _texts(self, scores: Array) -> list[Sequence[object]]:
        texts: list[Sequence[object]] = []
        names = self._names(scores.shape[2])
        for row in scores:
            symbols = ctc_greedy(row, self._blank)
            # Without an alphabet the symbols' numbers are compared, which counts the same errors.
            texts.append(
                symbols if names is None else "".join(names.get(symbol, "\ufffd") for symbol in symbols)
            )
        return texts

    def _names(self, symbols: int) -> dict[int, str] | None:
        if self._alphabet is None:
            return None
        names = list(self._alphabet)
        if len(names) == symbols - 1:
            names.insert(self._blank, "")
        if len(names) != symbols:
            raise self.refuse(
                "the alphabet", f"{symbols} entries, or {symbols - 1} without the blank", len(names)
            )
        return dict(enumerate(names))

    def _labels(self, label: object, rows: int) -> list[Sequence[object]]:
        texts = [label] if isinstance(label, str) else list(np.asarray(label).reshape(-1))
        if len(texts) != rows or not all(isinstance(text, str) for text in texts):
            raise self.refuse("the label", f"{rows} text{'s' if rows > 1 else ''}", f"{label!r}"[:100])
        if self._alphabet is None:
            raise self.refuse(
                "text labels without an alphabet",
                "the text of each symbol",
                "none",
                "give the model's labels",
            )
        return [str(text) for text in texts]

    def _value(self) -> float:
        return self._errors / max(1, self._length)

    def _reference_value(self) -> float:
        return self._reference_errors / max(1, self._length)

    def detail(self) -> str:
        """Return which output was read."""
        return f"best path through output '{self._output}', {self._length} characters"
