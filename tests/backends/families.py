"""The way of a small model through one family, and what each test needs of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx
import pytest
from corpus import feeds_of, model_of

from edgefuse.backend import Backend, Readback, load_backend
from edgefuse.compose.accuracy import session_call
from edgefuse.compose.payloads import Built, lower_payload, open_built, read_back
from edgefuse.compose.planning import float_plan, int8_plan, measure_tables
from edgefuse.compose.prepare import Prepared, prepare
from edgefuse.device import devices, families, resolve_target
from edgefuse.errors import EdgefuseError, UnsupportedError
from edgefuse.graph import model_from_proto
from edgefuse.quantized import Quantized

__all__ = ["FAMILIES", "Way", "backend_of", "first_device", "require_engine", "way"]


def _with_backend() -> list[str]:
    found = []
    for family in families(examples=True):
        try:
            load_backend(family)
        except UnsupportedError:
            continue
        found.append(family)
    return found


FAMILIES = _with_backend()


def backend_of(family: str) -> Backend:
    return load_backend(family)


def first_device(family: str) -> str:
    """Return the family's device that this machine is most like: one that was measured, else the first."""
    return next((d.name for d in devices(family) if d.measured), devices(family)[0].name)


def require_engine(family: str) -> None:
    probe = load_backend(family).probe()
    if not probe.available:
        pytest.skip(f"{family} payloads cannot run here: {probe.install}")


@dataclass(frozen=True)
class Way:
    """A model made ready for a device, planned and lowered; `feeds` are what it is tried on."""

    proto: onnx.ModelProto
    prepared: Prepared
    built: Built
    feeds: list[dict[str, np.ndarray]]

    def expected(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the model as it was imported, from ONNX Runtime with its optimiser off."""
        return dict(session_call(self.prepared.original)(feeds))

    def readback(self) -> Readback:
        return read_back(self.built, self.prepared, self.feeds[0], threads=1)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        engine = open_built(self.built, self.prepared, threads=1)
        try:
            return dict(engine.run(feeds))
        finally:
            engine.close()


def _prepared(name: str, device: str, batch: int) -> tuple[onnx.ModelProto, Prepared]:
    proto = model_of(name)
    sizes = {key: array.shape for key, array in feeds_of(proto, 0, batch).items()}
    return proto, prepare(model_from_proto(proto), resolve_target(device), sizes)


@lru_cache(maxsize=256)
def way(name: str, device: str, precision: str = "fp32") -> Way:
    """Return the model's way to a device; raises what prepare, plan and lower raise."""
    proto, prepared = _prepared(name, device, batch=2)
    feeds = [feeds_of(proto, seed) for seed in range(3)]
    if precision == "int8":
        tables = measure_tables(prepared, feeds, lambda what, done, of: None)
        plan, quantized = int8_plan(prepared, tables, precision, threads=1, budget=None)
    else:
        plan, quantized = float_plan(prepared, precision, threads=1), Quantized()
    return Way(proto, prepared, lower_payload(precision, prepared, plan, quantized), feeds)


def refusal(name: str, device: str) -> EdgefuseError | None:
    """Return why a family refuses the model, or None."""
    try:
        way(name, device)
    except EdgefuseError as error:
        return error
    return None
