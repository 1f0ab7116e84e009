"""The judge of a build: the model as it was imported, in ONNX Runtime with its optimiser off.

A payload that runs on this machine is judged as deployed. One for a device that is not here is judged in
simulation: the prepared float graph, with every rounding of the int8 plan written out in float operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.compose.payloads import Built, open_built
from edgefuse.compose.prepare import Prepared, tensor_info
from edgefuse.datasets import Dataset, random_dataset
from edgefuse.errors import InputError
from edgefuse.graph import Model, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant import simulated_graph
from edgefuse.verification import Call, Comparison, compare, default_metric, make_metric, make_self_test

__all__ = ["Judge", "open_judge", "session_call"]

Feeds = Mapping[str, np.ndarray]

# Samples that stand in for data where the user gave none.
RANDOM_SAMPLES = 4
SELF_TEST_VECTORS = 2


@dataclass(slots=True)
class Judge:
    """Compares payloads with the imported model on one data set.

    data: the evaluation data, or seeded random samples (`made_up`).  example: the first sample's feeds.
    """

    prepared: Prepared
    reference: Call
    data: Dataset
    made_up: bool
    metric: str
    labels: Sequence[str] | None
    example: Feeds

    def compare(self, built: Built, here: bool) -> Comparison:
        """Return how far the payload is from the reference on all samples."""
        candidate, close = self._candidate(built, here)
        try:
            metric = make_metric(self.metric, labels=self.labels)
            return compare(candidate, self.reference, self.data, metric)
        finally:
            close()

    def self_test(self, built: Built, here: bool) -> Any:
        """Return the vectors that the artifact carries, with tolerances from the deviation measured here."""
        candidate, close = self._candidate(built, here)
        try:
            return make_self_test(self.reference, self.data, SELF_TEST_VECTORS, deployed=candidate)
        finally:
            close()

    def _candidate(self, built: Built, here: bool) -> tuple[Call, Callable[[], None]]:
        if here:
            engine = open_built(built, self.prepared, threads=1)
            return engine.run, engine.close
        model = self.prepared.model
        if built.quantized:
            model = simulated_graph(model, built.plan, built.quantized)
        return session_call(model), lambda: None


def session_call(model: Model) -> Call:
    """Return a function that runs `model` in ONNX Runtime, optimiser off: feeds in, outputs by name out.

    Feeds are of the user's dtypes; where a target narrowed an input (int64 indices to int32), they are cast.
    """
    session = judge_session(model_to_bytes(model))
    names = [value.name or "" for value in model.graph.outputs]
    dtypes = {info.name: info.dtype for info in map(tensor_info, model.graph.inputs)}

    def call(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            given = {name: array.astype(dtypes[name], copy=False) for name, array in feeds.items()}
            return dict(zip(names, session.run(names, given), strict=True))
        except Exception as error:  # onnxruntime's errors share no base class
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise InputError(
                "the float model cannot run on a sample: " + str(error).splitlines()[0][:300],
                got=shapes,
                hint="state the sizes with --shape, or give other data",
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
        infos = tuple(tensor_info(value) for value in prepared.costed.graph.inputs)
        data = random_dataset(infos, RANDOM_SAMPLES)
    name = metric or default_metric(prepared.outputs)
    make_metric(name, labels=labels)  # an unknown name fails now, not after minutes of work
    return Judge(prepared, session_call(prepared.original), data, made_up, name, labels, data[0].feeds)
