"""Made-up samples where no data is given: seeded, plausible by dtype and shape. No measure of accuracy."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.datasets.sample import Array, Dataset, Sample
from edgefuse.errors import InputError
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["DEFAULT_SIZE", "random_dataset"]

# A multiple of 32, the deepest stride of usual image networks.
DEFAULT_SIZE = 64


class _Random:
    def __init__(self, infos: Sequence[TensorInfo], count: int, seed: int, sizes: Mapping[str, int]) -> None:
        self._infos = infos
        self._count = count
        self._seed = seed
        self._sizes = sizes

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        return f"random seed {self._seed} sample {index}"

    def read(self, index: int) -> Sample:
        feeds = {}
        for info in self._infos:
            # The stream depends on the input's name, not on its place: reordering inputs changes no array.
            stream = np.random.default_rng([self._seed, index, zlib.crc32(info.name.encode())])
            feeds[info.name] = _values(info, self._shape(info), stream)
        return Sample(feeds, None, self.name(index))

    def _shape(self, info: TensorInfo) -> tuple[int, ...]:
        shape = []
        for axis, size in enumerate(info.shape):
            if isinstance(size, str):
                size = self._sizes.get(size, 1 if axis == 0 else DEFAULT_SIZE)
            shape.append(size)
        return tuple(shape)


def _values(info: TensorInfo, shape: tuple[int, ...], stream: np.random.Generator) -> Array:
    dtype = np.dtype(info.dtype)
    if dtype.kind == "f":
        return stream.standard_normal(shape).astype(dtype)
    if dtype == np.uint8 and len(shape) >= 3:
        return stream.integers(0, 256, shape, dtype=np.uint8)
    return stream.integers(0, 2, shape).astype(dtype)


def random_dataset(
    inputs: Sequence[TensorInfo], count: int, *, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> Dataset:
    """Return `count` made-up samples; the same arguments give the same arrays.

    Floats are standard normal (an image after its mean and std). uint8 of three or more axes is 0..255 (raw
    pixels). Every other whole number and truth value is 0 or 1: a legal index into each table of two rows,
    a legal mask, a legal token.  sizes: symbol -> size; else 1 on the first axis and 64 on others.
    Raises InputError for a dtype that is neither number nor truth value.
    """
    for info in inputs:
        if np.dtype(info.dtype).kind not in "fiub":
            raise InputError(
                f"no data can be made up for input {info}", hint="give samples with --calib or --data"
            )
    return Dataset(_Random(inputs, count, seed, dict(sizes or {})), kind="random", path="")
