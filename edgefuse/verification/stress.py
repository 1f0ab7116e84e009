"""Verification level 3: inputs that no data set holds: zeros, denormals, ends of ranges, infinity, NaN.

What must hold: where the float model's output is finite, the deployed one is; a float payload stays close to
the float model inside the range of its data. What is only told: errors of int8 outside its calibrated range
(it saturates there, by definition), and the NaN policy, that is what a NaN or infinity in an input becomes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgefuse.runtime.tensors import TensorInfo
from edgefuse.verification.metric import Array, Call, Outputs

__all__ = [
    "FLOAT_LIMIT",
    "InputRange",
    "Stress",
    "StressReport",
    "judge_stress",
    "output_scales",
    "run_stress",
    "stress_inputs",
]

# A float payload on inputs inside the range of the data. Sums of hundreds of layers in another order; level 1
# holds each region to 1e-5.
FLOAT_LIMIT = 1e-3
# float16 keeps 3 digits, and a region of it may stand in a float payload.
HALF_LIMIT = 5e-2
# The smallest float32 that is not denormal is 1.2e-38.
_DENORMAL = 1e-40
_BEYOND = 100.0
_LARGE = 1e30


@dataclass(frozen=True, slots=True)
class InputRange:
    """The smallest and the largest value that data put into an input."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Stress:
    """One stress input and what came of it.

    kind: what it is.  inside: whether it lies inside the range of the data.
    expected, got: "finite", "NaN" or "infinite", of the float model and of the deployed payload; over all
    outputs the worst.  error: largest |difference| of an output / the largest value that the float model
    gives there on this input or an ordinary one; infinity where something is not finite.  why: "" or the
    fault.
    """

    kind: str
    inside: bool
    expected: str
    got: str
    error: float
    why: str

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "kind": self.kind,
            "inside": self.inside,
            "float_model": self.expected,
            "deployed": self.got,
            "error": self.error if math.isfinite(self.error) else None,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class StressReport:
    """Level 3 of one payload.

    policy: what the deployed payload makes of NaN and infinity, beside the float model, in words.
    """

    results: tuple[Stress, ...]
    policy: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Return whether nothing failed."""
        return not any(result.why for result in self.results)

    def lines(self) -> tuple[str, ...]:
        """Return the report as lines to print."""
        finite = [r for r in self.results if r.expected == r.got == "finite"]
        lines = []
        for inside in (True, False):
            held = [r for r in finite if r.inside is inside]
            if held:
                worst = max(held, key=lambda r: r.error)
                where = "inside" if inside else "outside"
                lines.append(
                    f"{len(held)} inputs {where} the range of the data, worst {worst.kind}: "
                    f"{worst.error:.2g} of the largest value"
                )
        lines += [f"FAILED {result.kind}: {result.why}" for result in self.results if result.why]
        return (*lines, *self.policy)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "level": 3,
            "ok": self.ok,
            "inputs": [result.as_json() for result in self.results],
            "nan_policy": list(self.policy),
            "lines": list(self.lines()),
        }


def stress_inputs(
    inputs: Sequence[TensorInfo], sample: Mapping[str, Array], ranges: Mapping[str, InputRange]
) -> Iterator[tuple[str, bool, dict[str, Array]]]:
    """Yield (kind, whether inside the range of the data, feeds), the same ones at each call.

    sample: one ordinary feed; it gives the sizes, and inputs of whole numbers keep its values where a kind
    says nothing of them (an index must be a legal one).  ranges: of each float input.
    """
    floats = [info.name for info in inputs if np.dtype(info.dtype).kind == "f"]

    def filled(make: Any) -> dict[str, Array]:
        feeds = {name: np.array(array) for name, array in sample.items()}
        for name in floats:
            with np.errstate(over="ignore"):
                feeds[name] = np.asarray(make(ranges[name], feeds[name])).astype(feeds[name].dtype)
        return feeds

    if floats:
        yield from _inside(filled)
        yield from _outside(filled)
    yield from _whole_numbers(inputs, sample, floats)


def _inside(filled: Any) -> Iterator[tuple[str, bool, dict[str, Array]]]:
    yield "zeros", True, filled(lambda r, a: np.zeros(a.shape))
    yield "negative zeros", True, filled(lambda r, a: np.full(a.shape, -0.0))
    yield "denormals", True, filled(lambda r, a: np.full(a.shape, _DENORMAL))
    yield "all at the low end of the range", True, filled(lambda r, a: np.full(a.shape, r.low))
    yield "all at the high end of the range", True, filled(lambda r, a: np.full(a.shape, r.high))
    yield "low and high end by turns", True, filled(_turns)
    yield "one value at the high end, the rest 0", True, filled(_impulse)


def _outside(filled: Any) -> Iterator[tuple[str, bool, dict[str, Array]]]:
    yield "100 times the data", False, filled(lambda r, a: a.astype(np.float64) * _BEYOND)
    yield "-100 times the data", False, filled(lambda r, a: a.astype(np.float64) * -_BEYOND)
    yield "65504 everywhere (the end of float16)", False, filled(lambda r, a: np.full(a.shape, 65504.0))
    yield "1e30 everywhere", False, filled(lambda r, a: np.full(a.shape, _LARGE))
    for word, value in (("NaN", np.nan), ("infinity", np.inf), ("-infinity", -np.inf)):
        yield f"one {word}", False, filled(lambda r, a, value=value: _one(a, value))
    yield "NaN everywhere", False, filled(lambda r, a: np.full(a.shape, np.nan))


def _turns(found: InputRange, array: Array) -> Array:
    turns = np.arange(array.size).reshape(array.shape) % 2
    return np.where(turns == 0, found.low, found.high)


def _impulse(found: InputRange, array: Array) -> Array:
    values = np.zeros(array.shape)
    values.flat[array.size // 2 : array.size // 2 + 1] = found.high
    return values


def _one(array: Array, value: float) -> Array:
    changed = array.astype(np.float64)
    changed.flat[array.size // 2 : array.size // 2 + 1] = value
    return changed


def _whole_numbers(
    inputs: Sequence[TensorInfo], sample: Mapping[str, Array], floats: Sequence[str]
) -> Iterator[tuple[str, bool, dict[str, Array]]]:
    """Yield feeds whose whole numbers are all 0, and all 255 where they are raw pixels."""
    whole = [info for info in inputs if info.name not in floats and np.dtype(info.dtype).kind in "iub"]
    if not whole:
        return
    for word, value in (("zeros in whole numbers", 0), ("255 in raw pixels", 255)):
        feeds = {name: np.array(array) for name, array in sample.items()}
        for info in whole:
            if value == 0 or np.dtype(info.dtype) == np.uint8:
                feeds[info.name] = np.full_like(feeds[info.name], value)
        if value == 0 or any(np.dtype(info.dtype) == np.uint8 for info in whole):
            yield word, True, feeds


def run_stress(
    deployed: Call,
    reference: Call,
    inputs: Sequence[TensorInfo],
    sample: Mapping[str, Array],
    ranges: Mapping[str, InputRange],
    *,
    precision: str,
) -> StressReport:
    """Return level 3: the deployed payload and the float model on stress inputs.

    precision: of the payload ("fp32", "fp16", "int8" or "mixed"): only float ones are held to an error.
    An input that the float model itself refuses (an index that is none) is left out.
    """
    limit = {"fp32": FLOAT_LIMIT, "fp16": HALF_LIMIT}.get(precision)
    scales = output_scales(reference(dict(sample)))
    results = []
    for kind, inside, feeds in stress_inputs(inputs, sample, ranges):
        try:
            wanted = reference(dict(feeds))
        except Exception:  # noqa: S112 - the judge's runtime raises many kinds; such an input says nothing
            continue
        got = _tried(deployed, feeds)
        results.append(judge_stress(kind, inside, wanted, got, scales, limit if inside else None))
    return StressReport(tuple(results), tuple(_policy(results)))


def _tried(deployed: Call, feeds: Mapping[str, Array]) -> Outputs | str:
    """Return the outputs, or what the runtime raised, in one line."""
    try:
        return deployed(dict(feeds))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def output_scales(outputs: Outputs) -> dict[str, float]:
    """Return the largest finite |value| of each output on an ordinary input."""
    return {name: _largest(np.asarray(array)) for name, array in outputs.items()}


def judge_stress(
    kind: str,
    inside: bool,
    wanted: Outputs,
    got: Outputs | str,
    scales: Mapping[str, float],
    limit: float | None = None,
) -> Stress:
    """Return the judgement on one stress input.

    wanted: of the float model.  got: of what is judged, or the error it raised.  scales: `output_scales`.
    limit: largest error that passes; None: only what is not finite fails.
    """
    expected = _state(wanted)
    if isinstance(got, str):
        return Stress(kind, inside, expected, "an error", math.inf, f"the deployed payload raised {got}")
    found, why, error = _state(got), "", math.inf
    if expected == found == "finite":
        error = max((_error(got[name], right, scales[name]) for name, right in wanted.items()), default=0.0)
        if limit is not None and not error <= limit:
            why = f"off by {error:.2g} of the largest value (allowed {limit:g})"
    elif expected == "finite":
        why = f"the deployed payload gives {found}, the float model does not"
    return Stress(kind, inside, expected, found, error, why)


def _error(got: Array, wanted: Array, scale: float) -> float:
    if got.shape != wanted.shape:
        return math.inf
    if wanted.dtype.kind != "f":
        return 0.0  # an index or a class may flip where two scores are close: level 2 judges those
    largest = max(scale, _largest(wanted))
    difference = _largest(got.astype(np.float64) - wanted)
    return difference / largest if largest > 0.0 else (0.0 if difference == 0.0 else math.inf)


def _largest(array: Array) -> float:
    if array.dtype.kind != "f":
        return 0.0
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(finite.max(initial=0.0))


def _state(outputs: Outputs) -> str:
    floats = [np.asarray(array) for array in outputs.values() if np.asarray(array).dtype.kind == "f"]
    if any(np.isnan(array).any() for array in floats):
        return "NaN"
    return "infinite" if any(np.isinf(array).any() for array in floats) else "finite"


_WORDS = {
    "NaN": "comes out as NaN",
    "infinite": "comes out as infinity",
    "finite": "is hidden: finite numbers come out",
    "an error": "is refused with an error",
}


def _policy(results: Sequence[Stress]) -> Iterator[str]:
    for kind, word in (
        ("one NaN", "NaN policy: a NaN in an input"),
        ("one infinity", "an infinity in an input"),
    ):
        found = next((result for result in results if result.kind == kind), None)
        if found is None:
            continue
        same = found.got == found.expected
        yield f"{word} {_WORDS[found.got]}" + (
            ", as in the float model" if same else f"; in the float model it {_WORDS[found.expected]}"
        )
