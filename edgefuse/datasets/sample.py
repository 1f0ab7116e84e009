"""A sample, and the data set: an ordered, re-iterable sequence of samples that are read when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgefuse.errors import InputError

__all__ = ["Array", "Boxes", "Dataset", "Sample", "Source", "dataset_from_samples"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Boxes:
    """The true boxes of one image.

    corners: float64 [n, 4], left, top, right, bottom in pixels of the model's input (the image's own pixels
    where it was not resized).  classes: int64 [n], index among the data set's classes.  crowd: bool [n];
    such a box covers many objects, and a detection on it is neither right nor wrong.
    """

    corners: Array
    classes: Array
    crowd: Array


@dataclass(frozen=True, slots=True)
class Sample:
    """What one call of the model takes, and what is known about it.

    feeds: input name -> array of the input's dtype and shape (batch axis 1 where the model leaves it open).
    label: class index (int), text (str), an array, `Boxes`, or None.  source: where it was read.
    """

    feeds: dict[str, Array]
    label: object | None
    source: str


class Source(Protocol):
    """Samples by number; reading one must give the same sample each time."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the sample's name without reading it; unique in the source."""

    def read(self, index: int) -> Sample:
        """Return the sample; raises InputError naming the file when it cannot be used."""


class Dataset:
    """Samples in a fixed order. Nothing is kept between samples, so a large set needs no large memory.

    kind: "images", "npz", "npz folder", "coco" or "samples".  path: where it lies.  classes: names of the
    classes that int labels and `Boxes.classes` count, or None.
    """

    def __init__(
        self,
        source: Source,
        *,
        kind: str,
        path: str = "",
        classes: Sequence[str] | None = None,
        indices: Sequence[int] | None = None,
    ) -> None:
        self._source = source
        self._indices: Sequence[int] = range(len(source)) if indices is None else indices
        self.kind = kind
        self.path = path
        self.classes = None if classes is None else tuple(classes)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Sample]:
        for index in self._indices:
            yield self._source.read(index)

    def __getitem__(self, index: int) -> Sample:
        return self._source.read(self._indices[index])

    def names(self) -> tuple[str, ...]:
        """Return the name of each sample, in order, without reading one."""
        return tuple(self._source.name(index) for index in self._indices)

    def take(self, count: int) -> Dataset:
        """Return the first `count` samples, or all where there are fewer."""
        if count < 0:
            raise InputError("a data set cannot be cut", expected="count >= 0", got=str(count))
        return self._of(self._indices[:count])

    def spread(self, count: int) -> Dataset:
        """Return `count` samples evenly spaced over the order, so that sorted classes all have a part."""
        if count < 0:
            raise InputError("a data set cannot be cut", expected="count >= 0", got=str(count))
        total = len(self)
        if count >= total:
            return self._of(self._indices)
        return self._of([self._indices[(2 * step + 1) * total // (2 * count)] for step in range(count)])

    def split(self, count: int) -> tuple[Dataset, Dataset]:
        """Return two disjoint data sets: `count` samples, and the rest.

        The samples of the first are those whose names have the smallest sha256: the choice mixes classes,
        is the same on every machine, and hardly changes when a sample is added. Both keep the order.
        """
        if not 0 <= count <= len(self):
            raise InputError(
                f"{self.path or self.kind}: the data set cannot be split so",
                expected=f"0 to {len(self)} samples in the first part",
                got=str(count),
            )
        ranked = sorted(
            self._indices, key=lambda index: hashlib.sha256(self._source.name(index).encode()).digest()
        )
        chosen = set(ranked[:count])
        first = [index for index in self._indices if index in chosen]
        return self._of(first), self._of([index for index in self._indices if index not in chosen])

    def _of(self, indices: Sequence[int]) -> Dataset:
        return Dataset(self._source, kind=self.kind, path=self.path, classes=self.classes, indices=indices)


class _InMemory:
    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = tuple(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def name(self, index: int) -> str:
        return f"{self._samples[index].source}#{index}"

    def read(self, index: int) -> Sample:
        return self._samples[index]


def dataset_from_samples(samples: Sequence[Sample], classes: Sequence[str] | None = None) -> Dataset:
    """Return samples that are already in memory as a data set."""
    return Dataset(_InMemory(samples), kind="samples", classes=classes)


def finite(array: Array, what: str) -> Array:
    """Return `array`; raises InputError naming `what` where a float array holds NaN or infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise InputError(
            f"{what} holds numbers that are not finite",
            expected="finite numbers",
            got=f"{bad} of {array.size} are NaN or infinite",
        )
    return array
