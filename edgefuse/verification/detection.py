"""map50: mean average precision of boxes at an overlap of one half, as COCO counts it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgefuse.datasets import Boxes
from edgefuse.verification.metric import Array, Metric, Outputs

__all__ = [
    "MAX_DETECTIONS",
    "REFERENCE_SCORE",
    "Detections",
    "Map50",
    "average_precision",
    "box_overlap",
    "detections",
]

# COCO's evaluation keeps the best hundred of each class in an image.
MAX_DETECTIONS = 100
# Without labels, a detection of the reference counts as true from this score on (what tools show by default).
REFERENCE_SCORE = 0.25
_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class Detections:
    """The boxes that a model found in one image, best first.

    corners: float64 [n, 4], left, top, right, bottom.  scores: float64 [n].  classes: int64 [n].
    """

    corners: Array
    scores: Array
    classes: Array


def detections(outputs: Outputs) -> Detections | None:
    """Return decoded boxes out of a model's outputs for one image, or None where they are not decoded.

    Either outputs `boxes` [n, 4], `scores` [n] and `classes` [n], or one output [n, 6] of left, top, right,
    bottom, score, class; each with or without a batch axis of 1. Rows without a positive score (padding) and
    rows with a NaN are left out.
    """
    if all(name in outputs for name in ("boxes", "scores", "classes")):
        sizes = (4, 1, 1)
        parts = [np.asarray(outputs[name], dtype=np.float64) for name in ("boxes", "scores", "classes")]
        if any(part.size % size for part, size in zip(parts, sizes, strict=True)) or parts[0].shape[-1:] != (
            4,
        ):
            return None
        columns = [part.reshape(-1, size) for part, size in zip(parts, sizes, strict=True)]
        if len({len(column) for column in columns}) != 1:
            return None
        table: Array = np.concatenate(columns, axis=1)
    else:
        tables = [array for array in outputs.values() if array.shape[-1:] == (6,) and array.ndim in (2, 3)]
        if len(tables) != 1 or len(outputs) != 1 or (tables[0].ndim == 3 and tables[0].shape[0] != 1):
            return None
        table = np.asarray(tables[0], dtype=np.float64).reshape(-1, 6)
    table = table[np.isfinite(table).all(axis=1) & (table[:, 4] > 0)]
    table = table[np.argsort(-table[:, 4], kind="stable")]
    return Detections(table[:, :4], table[:, 4], np.rint(table[:, 5]).astype(np.int64))


def box_overlap(found: Array, truth: Array, crowd: Array) -> Array:
    """Return intersection over union, float64 [found, truth]; over a crowd box, over the found box's area."""
    low = np.maximum(found[:, None, :2], truth[None, :, :2])
    high = np.minimum(found[:, None, 2:], truth[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    found_area = np.prod(found[:, 2:] - found[:, :2], axis=1)[:, None]
    truth_area = np.prod(truth[:, 2:] - truth[:, :2], axis=1)[None, :]
    union = np.where(crowd[None, :], found_area, found_area + truth_area - both)
    result: Array = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return result


def average_precision(scores: Array, right: Array, truths: int) -> float:
    """Return the mean over recall 0, 0.01, ... 1 of the best precision at that recall or beyond.

    scores: float [n].  right: bool [n], which detections are true.  truths: how many there are to find, >= 1.
    Equal scores keep their order. As pycocotools' COCOeval.accumulate.
    """
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    if not hits.size:
        return 0.0
    precision = hits / np.arange(1, hits.size + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    # The same rounding of 0.01 steps as COCO's: a recall that equals a step must find it.
    places = np.searchsorted(hits / truths, np.linspace(0.0, 1.0, 101), side="left")
    return float(np.append(envelope, 0.0)[np.minimum(places, hits.size)].mean())


class _Tally:
    """Scores and hits of each class over all images."""

    def __init__(self) -> None:
        self._truths: dict[int, int] = {}
        self._found: dict[int, list[tuple[Array, Array]]] = {}

    def add(self, found: Detections, truth: Boxes) -> None:
        for index in np.union1d(found.classes, truth.classes).tolist():
            mine = found.classes == index
            theirs = truth.classes == index
            crowd = truth.crowd[theirs]
            scores = found.scores[mine][:MAX_DETECTIONS]
            overlap = box_overlap(found.corners[mine][:MAX_DETECTIONS], truth.corners[theirs], crowd)
            right, judged = _match(overlap, crowd)
            self._truths[index] = self._truths.get(index, 0) + int((~crowd).sum())
            self._found.setdefault(index, []).append((scores[judged], right[judged]))

    def mean(self) -> float | None:
        """Return the mean average precision over classes with truths, or None where there are none."""
        values = []
        for index, truths in sorted(self._truths.items()):
            if truths:
                scores, right = (np.concatenate(parts) for parts in zip(*self._found[index], strict=True))
                values.append(average_precision(scores, right, truths))
        return float(np.mean(values)) if values else None


def _match(overlap: Array, crowd: Array) -> tuple[Array, Array]:
    """Return for each detection, best first, whether it is right, and whether it is judged at all.

    Each takes the free true box that it covers most, from an overlap of one half on (of equal ones the
    later, as COCO); failing that a crowd box, which leaves it unjudged.
    """
    right = np.zeros(len(overlap), dtype=bool)
    judged = np.ones(len(overlap), dtype=bool)
    free = ~crowd
    for row, values in enumerate(overlap):
        candidates = np.flatnonzero(free & (values >= _OVERLAP))
        if candidates.size:
            best = candidates[values[candidates] == values[candidates].max()][-1]
            free[best] = False
            right[row] = True
        elif (values[crowd] >= _OVERLAP).any():
            judged[row] = False
    return right, judged


class Map50(Metric):
    """Mean over classes of average precision at an overlap of 0.5: all areas, 100 boxes a class and image.

    Truth: the label `Boxes` in pixels of the model's input; without labels the reference's boxes of score
    0.25 and more. The outputs must be decoded boxes (see `detections`); else score them with MODULE:FUNCTION.
    """

    name = "map50"

    def __init__(self) -> None:
        super().__init__()
        self._candidate = _Tally()
        self._reference = _Tally()
        self._labelled = False

    def _update(self, outputs: Outputs, reference_outputs: Outputs, label: object | None) -> None:
        found = detections(outputs)
        wanted = detections(reference_outputs)
        if found is None or wanted is None:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
            raise self.refuse(
                "these outputs",
                "boxes [n, 4], scores [n] and classes [n], or one output [n, 6]",
                shapes,
                "decode them in a metric of your own: --metric MODULE:FUNCTION (docs/metrics.md)",
            )
        if label is not None and not isinstance(label, Boxes):
            raise self.refuse("the label", "boxes of a COCO annotation file", type(label).__name__)
        self._labelled = label is not None
        truth = _as_truth(wanted) if label is None else label
        self._candidate.add(found, truth)
        self._reference.add(wanted, truth)

    def _value(self) -> float:
        return self._of(self._candidate)

    def _reference_value(self) -> float:
        return self._of(self._reference)

    def _of(self, tally: _Tally) -> float:
        value = tally.mean()
        if value is None:
            raise self.refuse("this data", "at least one true box", "none in any image")
        return value

    def detail(self) -> str:
        """Return what the boxes were compared with."""
        if self._labelled:
            return "against labels"
        return f"against the reference's boxes of score {REFERENCE_SCORE} and more"


def _as_truth(found: Detections) -> Boxes:
    sure = found.scores >= REFERENCE_SCORE
    return Boxes(found.corners[sure], found.classes[sure], np.zeros(int(sure.sum()), dtype=bool))
