"""Does a payload compute here what it computed where it was built? Python 3.6."""

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

from edgefuse.artifact.arrays import array_from_bytes
from edgefuse.artifact.read import Artifact
from edgefuse.errors import DeviceError
from edgefuse.runtime.engine import Engine

if TYPE_CHECKING:
    import numpy as np

__all__ = ["largest_difference", "run_self_test", "vector_inputs"]


def largest_difference(result: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> float:
    """Return max|result - expected| / max|expected|, taken in float64.

    Infinity where shapes, NaN or infinite places differ; the plain difference where `expected` is all zero.
    """
    import numpy as np

    if result.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    got = np.asarray(result, dtype=np.float64)
    want = np.asarray(expected, dtype=np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    strange = ~finite
    # A NaN equals a NaN here, and an infinity one of the same sign.
    if not np.all((got[strange] == want[strange]) | (np.isnan(got[strange]) & np.isnan(want[strange]))):
        return float("inf")
    if not finite.any():
        return 0.0
    difference = float(np.max(np.abs(got[finite] - want[finite])))
    scale = float(np.max(np.abs(want[finite])))
    return difference / scale if scale else difference


def run_self_test(
    artifact: Artifact, payload: Mapping[str, Any], engine: Engine, vectors: Optional[int] = None
) -> Dict[str, float]:
    """Run the payload's stored vectors; return the worst difference of each output (see largest_difference).

    vectors: how many of them, from the first; None = all.  Raises DeviceError naming the output that is out
    of its tolerance, ArtifactError for an altered vector.
    """
    worst: Dict[str, float] = {}
    for index, vector in enumerate(payload["self_test"][:vectors]):
        results = engine.run(vector_inputs(artifact, vector))
        for name, path in sorted(vector["outputs"].items()):
            expected = _load(artifact, path)
            got = results.get(name)
            same_type = got is not None and got.dtype == expected.dtype
            difference = largest_difference(results[name], expected) if same_type else float("inf")
            worst[name] = max(difference, worst.get(name, 0.0))
            if not difference <= vector["tolerances"][name]:
                found = "none" if got is None else "{}{}".format(got.dtype, list(got.shape))
                raise DeviceError(
                    "self-test of payload '{}' failed: output '{}' of vector {} is not what was built".format(
                        payload["id"], name, index
                    ),
                    expected="{}{}, max|difference| / max|expected| <= {:.3g}".format(
                        expected.dtype, list(expected.shape), vector["tolerances"][name]
                    ),
                    got="{}, {:.3g}".format(found, difference),
                    hint="update this device's runtime, or build for the runtime that it has",
                )
    return worst


def vector_inputs(artifact: Artifact, vector: Mapping[str, Any]) -> "Dict[str, np.ndarray[Any, Any]]":
    """Return the input arrays of one stored vector, by the user's names."""
    return {name: _load(artifact, path) for name, path in vector["inputs"].items()}


def _load(artifact: Artifact, path: str) -> "np.ndarray[Any, Any]":
    return array_from_bytes(artifact.read(path), "{}: '{}'".format(artifact.path, path))
