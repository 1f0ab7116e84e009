"""The judge of a build: the model as it was imported, in ONNX Runtime with its optimiser off.

A payload that runs on this machine is judged as deployed. One for a device that is not here is judged in the
exact reference of its arithmetic (quant.integer_reference): int8 in integers, float16 rounded to float16. An
int8 plan that is only a draft is judged ten times faster in float operators first, and exactly if it passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.compose.decisions import within
from edgefuse.compose.imported import made_up_data
from edgefuse.compose.interface import check_memory
from edgefuse.compose.payloads import Built, open_built
from edgefuse.compose.prepare import Prepared, tensor_info
from edgefuse.compose.sessions import first_line, open_session, require_end, sample_hint
from edgefuse.compose.simulate import exact_call
from edgefuse.datasets import Dataset, Sample
from edgefuse.errors import EdgefuseError, InputError, UnsupportedError
from edgefuse.graph import Model
from edgefuse.quant import scheme_of, simulated_graph
from edgefuse.verification import Call, Comparison, compare, default_metric, make_metric, make_self_test

__all__ = ["Judge", "open_judge", "session_call"]

Feeds = Mapping[str, np.ndarray]

# Samples that stand in for data where the user gave none.
RANDOM_SAMPLES = 4
SELF_TEST_VECTORS = 2
# A second self-test vector is left out where one takes more than this, and more than the model's weights.
SELF_TEST_BYTES = 2**20


@dataclass(slots=True)
class Judge:
    """Compares payloads with the imported model on one data set.

    data: the evaluation data, or seeded random samples (`made_up`).  example: the first sample's feeds.
    nan: what the last comparison saw of NaN in the reference's own outputs, in words, or "".
    unrounded: the reference of payloads without int8 where the model brings its own quantization: the model
    without that rounding.
    """

    prepared: Prepared
    reference: Call
    data: Dataset
    made_up: bool
    metric: str
    labels: Sequence[str] | None
    example: Feeds
    nan: str = ""
    unrounded: Call | None = None

    def reference_of(self, built: Built) -> Call:
        """Return what the payload is compared with."""
        return self.reference if built.quantized or self.unrounded is None else self.unrounded

    def compare(self, built: Built, here: bool, limit: float | None = None) -> Comparison:
        """Return how far the payload is from the reference on all samples.

        limit: an int8 payload for a device that is not here, whose drop is above it in float simulation
        already, is not run in exact arithmetic; None = always.
        """
        if limit is not None and not here and built.quantized:
            draft = session_call(
                simulated_graph(built.lowered_model(self.prepared), built.plan, built.quantized)
            )
            found = self._compared(self.reference, draft, lambda: None)
            if not within(found.drop, limit):
                return found
        return self._compared(self.reference_of(built), *self._candidate(built, here))

    def _compared(self, reference: Call, candidate: Call, close: Callable[[], None]) -> Comparison:
        try:
            metric = make_metric(self.metric, labels=self.labels)
            watched = _Watched(reference)
            found = compare(candidate, watched, self.data, metric)
            self.nan = watched.found(len(self.data))
            return found
        finally:
            close()

    def self_test(self, built: Built, here: bool) -> Any:
        """Return the vectors that the artifact carries, with tolerances from the deviation measured here."""
        candidate, close = self._candidate(built, here)
        try:
            found = make_self_test(self.reference_of(built), self.data, SELF_TEST_VECTORS, deployed=candidate)
        finally:
            close()
        # The same for every payload of a build, which store equal arrays once.
        held = [value.const_value for value in self.prepared.model.graph.initializers.values()]
        weights = sum(tensor.nbytes for tensor in held if tensor is not None)
        large = max(vector.nbytes for vector in found) > max(SELF_TEST_BYTES, weights)
        return found[:1] if large else found

    def _candidate(self, built: Built, here: bool) -> tuple[Call, Callable[[], None]]:
        if here:
            engine = open_built(built, self.prepared, threads=1)
            return _explained(engine.run), engine.close
        model = built.lowered_model(self.prepared)
        if not built.quantized and not built.plan.count("fp16"):
            return session_call(model), lambda: None
        scheme = scheme_of(self.prepared.target) if built.quantized else None
        return exact_call(model, built.plan, built.quantized, scheme), lambda: None


def _explained(run: Call) -> Call:
    """Return the deployed runtime's call, with an error that a user can read."""

    def call(feeds: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        try:
            return run(feeds)
        except EdgefuseError:
            raise
        except Exception as error:  # a vendor's runtime raises what it likes
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise UnsupportedError(
                f"the runtime of this machine fails on a sample that the model takes: {first_line(error)}",
                got=shapes,
                hint="state the sizes with --shape, or take another target",
            ) from error

    return call


class _Watched:
    """The reference, with a count of the samples on which it gives NaN."""

    def __init__(self, reference: Call) -> None:
        self._reference = reference
        self._samples = 0
        self._outputs: dict[str, None] = {}

    def __call__(self, feeds: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = self._reference(feeds)
        found = [name for name, array in outputs.items() if array.dtype.kind == "f" and np.isnan(array).any()]
        self._samples += bool(found)
        self._outputs.update(dict.fromkeys(found))
        return outputs

    def found(self, samples: int) -> str:
        """Return on how many samples, and in which outputs, there was NaN; "" for none."""
        if not self._samples:
            return ""
        return f"NaN on {self._samples} of {samples} samples (output {', '.join(map(repr, self._outputs))})"


def session_call(model: Model) -> Call:
    """Return a function that runs `model` in ONNX Runtime, optimiser off: feeds in, outputs by name out.

    Feeds are of the user's dtypes; where a target narrowed an input (int64 indices to int32), they are cast.
    Raises InputError where the model cannot run on a sample, EndlessLoopError where it never ends.
    """
    session = open_session(model)
    names = [value.name or "" for value in model.graph.outputs]
    dtypes = {info.name: info.dtype for info in map(tensor_info, model.graph.inputs)}
    check_end = require_end(model)

    def call(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            given = {name: array.astype(dtypes[name], copy=False) for name, array in feeds.items()}
            if check_end is not None:
                check_end(given)
            return dict(zip(names, session.run(names, given), strict=True))
        except EdgefuseError:
            raise
        except Exception as error:  # onnxruntime's errors share no base class
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise InputError(
                f"the float model cannot run on a sample: {first_line(error)}",
                got=shapes,
                hint=sample_hint(model),
            ) from error

    return call


def open_judge(
    prepared: Prepared, metric: str | None, data: Dataset | None, labels: Sequence[str] | None
) -> Judge:
    """Return the judge for a build.

    metric: a name or MODULE:FUNCTION; None = what the outputs suggest.  data: None = a few random samples.
    """
    made_up = data is None
    if data is None:
        data = made_up_data(prepared, RANDOM_SAMPLES)
    name = metric or default_metric(prepared.outputs)
    check_memory([tensor_info(value) for value in prepared.costed.graph.inputs])
    first = data[0]
    reference = session_call(prepared.original)
    _try_metric(name, labels, reference, first)
    unrounded = None if prepared.unrounded is None else session_call(prepared.unrounded)
    return Judge(prepared, reference, data, made_up, name, labels, first.feeds, unrounded=unrounded)


def _try_metric(name: str, labels: Sequence[str] | None, reference: Call, sample: Sample) -> None:
    """Raise where the metric cannot use these outputs or labels: now, not after minutes of work."""
    metric = make_metric(name, labels=labels)
    outputs = reference(dict(sample.feeds))
    try:
        metric.update(outputs, outputs, sample.label)
    except InputError as error:
        raise type(error)(
            f"{sample.source}: {error.message}", error.expected, error.got, error.hint
        ) from error
