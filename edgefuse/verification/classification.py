"""top1 and agreement: does the highest score name the right class, or the reference's class?"""

from __future__ import annotations

import numpy as np

from edgefuse.verification.metric import Array, Metric, Outputs, float_output, rows_of_labels

__all__ = ["Agreement", "Top1", "class_scores", "is_classifier_shape", "predicted_classes"]


def is_classifier_shape(shape: tuple[int | str, ...]) -> bool:
    """Return whether an output of this shape may be class scores: [N, C] or [N, C, 1, ...] with C >= 2."""
    if len(shape) < 2 or any(size != 1 for size in shape[2:]):
        return False
    return isinstance(shape[1], int) and shape[1] >= 2


def class_scores(metric: Metric, outputs: Outputs) -> str:
    """Return the name of the output that holds class scores: the first float one of such a shape."""
    name = float_output(outputs, lambda array: is_classifier_shape(array.shape))
    if name is None:
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in outputs.items())
        raise metric.refuse(
            "these outputs",
            "a float output [N, classes] of at least two classes",
            shapes,
            "name another metric: miou, map50, cer, cosine, snr or MODULE:FUNCTION",
        )
    return name


def predicted_classes(scores: Array) -> Array:
    """Return int64 [N], the index of the highest score of each row; -1 for a row with a NaN.

    scores: float [N, C, 1...]. Ties go to the lower index.
    """
    rows = scores.reshape(scores.shape[0], -1)
    classes: Array = rows.argmax(axis=1).astype(np.int64)
    classes[np.isnan(rows).any(axis=1)] = -1
    return classes


class Agreement(Metric):
    """Share of rows for which candidate and reference name the same class. The reference's own value is 1.

    No labels are needed. A row with a NaN on either side does not agree.
    """

    name = "agreement"

    def __init__(self) -> None:
        super().__init__()
        self._same = 0
        self._rows = 0
        self._output = ""

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        self._output = class_scores(self, reference_outputs)
        if not reference_outputs[self._output].size:
            raise self.refuse(
                "these outputs",
                "at least one row of scores",
                f"{self._output} {list(reference_outputs[self._output].shape)}",
                "give data on which the model finds something (--eval), or name another metric",
            )
        wanted = predicted_classes(reference_outputs[self._output])
        got = _same_shape(self, outputs, reference_outputs, self._output)
        self._same += int(((got == wanted) & (wanted >= 0)).sum())
        self._rows += wanted.size

    def _value(self) -> float:
        return self._same / self._rows

    def _reference_value(self) -> float:
        return 1.0

    def detail(self) -> str:
        """Return which output was read."""
        return f"highest score of output '{self._output}'"


class Top1(Metric):
    """Share of rows whose highest score is at the labelled class index; labels are needed."""

    name = "top1"

    def __init__(self) -> None:
        super().__init__()
        self._right = 0
        self._reference_right = 0
        self._rows = 0
        self._output = ""

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        self._output = class_scores(self, reference_outputs)
        reference = reference_outputs[self._output]
        if label is None:
            raise self.refuse(
                "data without labels", "class folders, or a .npz with `labels`", "none", "--metric agreement"
            )
        truth = rows_of_labels(self, label, reference.shape[0])
        if truth.min() < 0 or truth.max() >= reference.shape[1]:
            raise self.refuse(
                "the label", f"a class index from 0 to {reference.shape[1] - 1}", truth.tolist()
            )
        self._right += int((_same_shape(self, outputs, reference_outputs, self._output) == truth).sum())
        self._reference_right += int((predicted_classes(reference) == truth).sum())
        self._rows += truth.size

    def _value(self) -> float:
        return self._right / self._rows

    def _reference_value(self) -> float:
        return self._reference_right / self._rows

    def detail(self) -> str:
        """Return which output was read."""
        return f"highest score of output '{self._output}', against labels"


def _same_shape(metric: Metric, outputs: Outputs, reference_outputs: Outputs, name: str) -> Array:
    if outputs[name].shape != reference_outputs[name].shape:
        raise metric.refuse(
            f"the candidate's output '{name}'",
            f"shape {list(reference_outputs[name].shape)}",
            list(outputs[name].shape),
        )
    return predicted_classes(outputs[name])
