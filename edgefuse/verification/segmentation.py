"""miou: mean intersection over union of class maps."""

from __future__ import annotations

import numpy as np

from edgefuse.verification.metric import Array, Metric, Outputs

__all__ = ["IGNORED", "Miou", "class_map"]

# The value of pixels that no class is known for, in the label maps of the usual data sets.
IGNORED = 255


def class_map(array: Array) -> Array | None:
    """Return int64 [N, H, W] class indices out of an output, or None where it is no map.

    float [N, C, H, W] with C >= 2: the highest score (ties to the lower index).  float [N, 1, H, W]: 1 where
    the value is over 0.5, else 0 (a probability map).  Whole numbers [N, H, W] or [N, 1, H, W]: themselves.
    A pixel with a NaN becomes -1, which is right for no class.
    """
    if array.dtype.kind in "iub" and (array.ndim == 3 or (array.ndim == 4 and array.shape[1] == 1)):
        return array.reshape(array.shape[0], *array.shape[-2:]).astype(np.int64)
    if array.dtype.kind != "f" or array.ndim != 4 or array.shape[1] == 0:
        return None
    if array.shape[1] == 1:
        classes: Array = (array[:, 0] > 0.5).astype(np.int64)
    else:
        classes = array.argmax(axis=1).astype(np.int64)
    classes[np.isnan(array).any(axis=1)] = -1
    return classes


class _Overlap:
    """Pixels of each class: in both, in the truth, in the prediction."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, 0), dtype=np.int64)

    def add(self, predicted: Array, truth: Array) -> None:
        for row, classes in enumerate((truth[truth == predicted], truth, predicted)):
            found = np.bincount(classes[classes >= 0])
            if found.size > self._counts.shape[1]:
                self._counts = np.pad(self._counts, ((0, 0), (0, found.size - self._counts.shape[1])))
            self._counts[row, : found.size] += found

    def mean(self) -> float:
        both, truth, predicted = self._counts
        union = truth + predicted - both
        # With no pixel to judge nothing is wrong.
        return float(np.mean(both[union > 0] / union[union > 0])) if union.any() else 1.0


class Miou(Metric):
    """Mean over the classes in truth or prediction of intersection over union, pooled over samples.

    Truth: the label, whole numbers of the map's size, where 255 and negative numbers are not judged; without
    a label the reference's map (then the reference's value is 1). The first output that is a map is read.
    """

    name = "miou"

    def __init__(self) -> None:
        super().__init__()
        self._candidate = _Overlap()
        self._reference = _Overlap()
        self._output = ""
        self._labelled = False

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        maps = {
            name: found
            for name, array in reference_outputs.items()
            if (found := class_map(array)) is not None
        }
        if not maps:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in reference_outputs.items())
            raise self.refuse("these outputs", "scores [N, C, H, W] or class indices [N, H, W]", shapes)
        self._output, reference = next(iter(maps.items()))
        predicted = class_map(outputs[self._output])
        if predicted is None or predicted.shape != reference.shape:
            raise self.refuse(
                f"the candidate's output '{self._output}'",
                f"shape {list(reference_outputs[self._output].shape)}",
                list(outputs[self._output].shape),
            )
        self._labelled = label is not None
        truth = reference if label is None else self._truth(label, reference.shape)
        judged = np.ones(truth.shape, dtype=bool) if label is None else (truth >= 0) & (truth != IGNORED)
        self._candidate.add(predicted[judged], truth[judged])
        self._reference.add(reference[judged], truth[judged])

    def _truth(self, label: object, shape: tuple[int, ...]) -> Array:
        truth = np.asarray(label)
        if truth.dtype.kind not in "iub" or truth.size != np.prod(shape) or truth.shape[-2:] != shape[-2:]:
            raise self.refuse(
                "the label", f"whole numbers of shape {list(shape[1:])}", f"{truth.dtype}{list(truth.shape)}"
            )
        return truth.reshape(shape).astype(np.int64)

    def _value(self) -> float:
        return self._candidate.mean()

    def _reference_value(self) -> float:
        return self._reference.mean()

    def detail(self) -> str:
        """Return which output was read, against what."""
        return f"output '{self._output}', against " + ("labels" if self._labelled else "the reference's map")
