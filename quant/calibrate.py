"""Activation ranges from calibration data, streaming: memory does not grow with the number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from edgefuse.errors import InputError, InternalError
from edgefuse.graph import Model, clone_model, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant.histogram import Histogram
from edgefuse.quant.observers import ChannelObserver, ChannelRange, Range, make_observer
from edgefuse.quant.scheme import Scheme

__all__ = [
    "ChannelRange",
    "Range",
    "collect_channel_ranges",
    "collect_histograms",
    "collect_ranges",
    "observe",
]

Feeds = Mapping[str, np.ndarray]


class _Sink(Protocol):
    def update(self, array: np.ndarray) -> None: ...


def collect_ranges(
    model: Model,
    values: Sequence[str],
    samples: Iterable[Feeds],
    progress: Callable[[int], None] | None = None,
    *,
    observer: str = "minmax",
    scheme: Scheme | None = None,
) -> dict[str, Range]:
    """Return the range of each named value over the samples; one that is always empty is left out.

    samples: feeds by input name.  progress: called with the number of samples done.
    observer: a name of `edgefuse.quant.observers`.  scheme: the grid that "entropy" and "mse" choose for.
    Runs in ONNX Runtime, optimiser off. Raises InputError for no samples, or a value that is not finite.
    """
    observers = {name: make_observer(observer, scheme) for name in values}
    seen = observe(model, observers, samples, progress)
    return {name: observers[name].range() for name in observers if name in seen}


def collect_channel_ranges(
    model: Model,
    axes: Mapping[str, int],
    samples: Iterable[Feeds],
    progress: Callable[[int], None] | None = None,
    *,
    observer: str = "minmax",
    scheme: Scheme | None = None,
) -> dict[str, ChannelRange]:
    """Return the range of each channel of each named value; axes: value name -> axis of its channels.

    Otherwise as `collect_ranges`.
    """
    observers = {name: _channel_observer(observer, axis, scheme) for name, axis in axes.items()}
    seen = observe(model, observers, samples, progress)
    return {name: observers[name].channel_range() for name in observers if name in seen}


def collect_histograms(
    model: Model,
    values: Sequence[str],
    samples: Iterable[Feeds],
    progress: Callable[[int], None] | None = None,
) -> dict[str, Histogram]:
    """Return a histogram of each named value: `observers.range_of` then gives ranges by any rule.

    Otherwise as `collect_ranges`.
    """
    histograms = {name: Histogram() for name in values}
    seen = observe(model, histograms, samples, progress)
    return {name: histogram for name, histogram in histograms.items() if name in seen}


def observe(
    model: Model,
    observers: Mapping[str, _Sink],
    samples: Iterable[Feeds],
    progress: Callable[[int], None] | None = None,
) -> set[str]:
    """Show each observer the values of its tensor, sample by sample; return the names that had any.

    One sample's tensors are held at a time. Raises InputError for no samples, or a value that is not finite.
    """
    session, names = _session_with(model, list(observers))
    seen: set[str] = set()
    count = 0
    for feeds in samples:
        for name, array in zip(names, session.run(names, dict(feeds)), strict=True):
            if not array.size:
                continue
            # A NaN anywhere is the smallest and the largest value too.
            if not (np.isfinite(array.min()) and np.isfinite(array.max())):
                raise InputError(
                    f"calibration sample {count}: tensor {name!r} is not finite",
                    hint="check the sample and the preprocessing; float16 models may overflow",
                )
            observers[name].update(array)
            seen.add(name)
        count += 1
        if progress is not None:
            progress(count)
    if not count:
        raise InputError("calibration data holds no sample")
    return seen


def _channel_observer(name: str, axis: int, scheme: Scheme | None) -> ChannelObserver:
    return ChannelObserver(name, axis) if scheme is None else ChannelObserver(name, axis, scheme)


def _session_with(model: Model, values: Sequence[str]) -> tuple[_WithInputs, list[str]]:
    """Return a session of the model with `values` as outputs too, and the names to fetch, each once."""
    copy = clone_model(model)
    outputs = {v.name for v in copy.graph.outputs}
    inputs = {v.name for v in copy.graph.inputs}
    wanted = list(dict.fromkeys(values))
    by_name = {v.name: v for node in copy.graph for v in node.outputs}
    for name in wanted:
        if name not in outputs and name not in inputs:
            if name not in by_name:
                raise InternalError(f"there is no tensor {name!r} to observe")
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

    def run(self, names: Sequence[str], feeds: Feeds) -> list[np.ndarray]:
        inner = [name for name in names if name not in self._inputs]
        found = dict(zip(inner, self._session.run(inner, dict(feeds)), strict=True)) if inner else {}
        return [feeds[name] if name in self._inputs else found[name] for name in names]
