"""Activation ranges from calibration data, streaming: memory does not grow with the number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph import Model, clone_model, model_to_bytes
from edgefuse.graph.reference import judge_session

__all__ = ["Range", "collect_ranges"]


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and largest value of a tensor over all samples; both finite, low <= high."""

    low: float
    high: float

    def including_zero(self) -> Range:
        """Return the range widened to hold 0, which padding and zero points need to be exact."""
        return Range(min(self.low, 0.0), max(self.high, 0.0))


def collect_ranges(
    model: Model,
    values: Sequence[str],
    samples: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[int], None] | None = None,
) -> dict[str, Range]:
    """Return the min-max range of each named value over the samples.

    samples: feeds by input name.  progress: called with the number of samples done.
    Runs in ONNX Runtime, optimiser off. Raises InputError for no samples, or a value that is not finite.
    """
    session, names = _session_with(model, values)
    low = dict.fromkeys(names, np.inf)
    high = dict.fromkeys(names, -np.inf)
    count = 0
    for feeds in samples:
        for name, array in zip(names, session.run(names, dict(feeds)), strict=True):
            if not array.size:
                continue
            if not np.isfinite(array).all():
                raise InputError(
                    f"calibration sample {count}: tensor {name!r} is not finite",
                    hint="check the sample and the preprocessing; float16 models may overflow",
                )
            low[name] = min(low[name], float(array.min()))
            high[name] = max(high[name], float(array.max()))
        count += 1
        if progress is not None:
            progress(count)
    if not count:
        raise InputError("calibration data holds no sample")
    return {name: Range(low[name], high[name]) for name in names if low[name] <= high[name]}


def _session_with(model: Model, values: Sequence[str]) -> tuple[_WithInputs, list[str]]:
    """Return a session of the model with `values` as outputs too, and the names to fetch, each once."""
    copy = clone_model(model)
    outputs = {v.name for v in copy.graph.outputs}
    inputs = {v.name for v in copy.graph.inputs}
    wanted = list(dict.fromkeys(values))
    by_name = {v.name: v for node in copy.graph for v in node.outputs}
    for name in wanted:
        if name not in outputs and name not in inputs:
            copy.graph.outputs.append(by_name[name])
    probe = [name for name in wanted if name not in inputs]
    return _WithInputs(judge_session(model_to_bytes(copy)), inputs), [
        *probe,
        *(n for n in wanted if n in inputs),
    ]


class _WithInputs:
    """A session whose graph inputs can be fetched like outputs."""

    def __init__(self, session: Any, inputs: set[str | None]) -> None:
        self._session = session
        self._inputs = inputs

    def run(self, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        inner = [name for name in names if name not in self._inputs]
        found = dict(zip(inner, self._session.run(inner, dict(feeds)), strict=True)) if inner else {}
        return [feeds[name] if name in self._inputs else found[name] for name in names]
