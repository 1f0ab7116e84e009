"""Self-test vectors: feeds and right outputs that travel in the artifact, with measured tolerances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.datasets import Dataset, random_dataset
from edgefuse.errors import UnsupportedError, UsageError
from edgefuse.runtime.selftest import largest_difference
from edgefuse.runtime.tensors import TensorInfo
from edgefuse.verification.metric import Array, Call, Outputs, is_number

__all__ = ["FLOOR", "MARGIN", "Vector", "make_self_test"]

# The smallest tolerance: float32 sums taken in another order differ by this much on deep models.
FLOOR = 1e-4
# Another processor of the same kind rounds differently; twice the difference seen here covers it.
MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class Vector:
    """One stored call.

    feeds: input name -> array.  outputs: output name -> the reference's array.  tolerances: output name ->
    the largest max|difference| / max|outputs| that passes.  deviations: the same as measured on the deployed
    runtime here (0 where there was none).  source: the sample that it was made of.
    """

    feeds: dict[str, Array]
    outputs: dict[str, Array]
    tolerances: dict[str, float]
    deviations: dict[str, float]
    source: str

    @property
    def nbytes(self) -> int:
        """Return the bytes of its arrays."""
        return sum(array.nbytes for array in (*self.feeds.values(), *self.outputs.values()))

    @property
    def weak(self) -> bool:
        """Return whether a tolerance is so wide that outputs of zeros would pass."""
        return any(value >= 1.0 for value in self.tolerances.values())


def make_self_test(
    reference: Call,
    data: Dataset | Sequence[TensorInfo],
    count: int = 2,
    seed: int = 0,
    *,
    deployed: Call | None = None,
    floor: float = FLOOR,
) -> list[Vector]:
    """Return `count` vectors, or fewer where the data set is smaller.

    reference: the float model.  data: calibration samples, of which evenly spaced ones are taken; or the
    inputs' descriptions, for which seeded random feeds are made (see `random_dataset`; `seed` counts only
    then).  deployed: the payload in the runtime that will run it; the tolerance of an output is the larger of
    `floor` and twice the deviation measured with it on that vector. None (the device is not here): `floor`,
    which then has to hold for the device's arithmetic.  Outputs of text are left out.
    Raises UnsupportedError where the deployed runtime gives NaN, infinity or a shape that the reference has
    not: then no tolerance makes sense.
    """
    if count < 1 or not (math.isfinite(floor) and floor >= 0):
        raise UsageError("self-test vectors cannot be made so", expected="count >= 1, floor >= 0")
    dataset = data if isinstance(data, Dataset) else random_dataset(data, count, seed=seed)
    vectors = []
    for sample in dataset.spread(count):
        outputs = _numbers(reference(dict(sample.feeds)))
        deviations = dict.fromkeys(outputs, 0.0)
        if deployed is not None:
            results = _numbers(deployed(dict(sample.feeds)))
            deviations = {name: _deviation(name, results, outputs, sample.source) for name in outputs}
        tolerances = {name: max(floor, MARGIN * value) for name, value in deviations.items()}
        vectors.append(Vector(dict(sample.feeds), outputs, tolerances, deviations, sample.source))
    return vectors


def _numbers(outputs: Outputs) -> dict[str, Array]:
    arrays = {name: np.asarray(value) for name, value in outputs.items()}
    return {name: array for name, array in arrays.items() if is_number(array)}


def _deviation(name: str, results: dict[str, Array], outputs: dict[str, Array], source: str) -> float:
    value = largest_difference(results[name], outputs[name]) if name in results else math.inf
    if not math.isfinite(value):
        got = "no such output" if name not in results else f"shape {list(results[name].shape)}"
        same = name in results and results[name].shape == outputs[name].shape
        hint = "its range may not fit the precision: build with --precision fp32"
        raise UnsupportedError(
            f"the deployed runtime gives no usable output '{name}' for {source}",
            expected=f"shape {list(outputs[name].shape)}, finite where the float model is",
            got=got,
            hint=hint if same else "the runtime does not do here what the model says: another target",
        )
    return value
