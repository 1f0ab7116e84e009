"""Artifacts for devices that are not here, run in the exact reference of their arithmetic.

A build for such a device stores what the reference needs beside the payloads, and names it in the manifest's
`extra`, which the robot's runtime never reads:

    simulation/model.onnx        the model in the target's operators, in float; weights that lie in a
                                 payload's file byte for byte are named by their place, not kept twice
    simulation/<payload>/*       integers.json and *.npy: integers, scales and the target's rounding; the plan
                                 is the payload's own plan.json; model.onnx where it was repaired for int8
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

import edgefuse
from edgefuse.artifact.arrays import array_from_bytes, array_to_bytes
from edgefuse.artifact.read import Artifact, open_artifact
from edgefuse.compose.payloads import Built
from edgefuse.compose.prepare import Prepared, tensor_info
from edgefuse.errors import ArtifactError, InputError, did_you_mean
from edgefuse.graph import Model as Graph
from edgefuse.graph import model_to_bytes_without, restore_model
from edgefuse.plans import Plan
from edgefuse.quant import scheme_of
from edgefuse.quant.integer_reference import Arithmetic, IntegerReference
from edgefuse.quant.scheme_file import BiasKind, Rounding
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedBias, QuantizedWeight
from edgefuse.runtime import Engine, Model
from edgefuse.runtime import load as load_on_device
from edgefuse.runtime.selftest import run_self_test
from edgefuse.verification import Call

__all__ = ["exact_call", "load_simulated", "simulation_files", "stored_plan"]

_FOLDER = "simulation"
_MODEL = f"{_FOLDER}/model.onnx"
# Smaller weights are kept: naming a place costs as much.
_SHARED_BYTES = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class _Stored:
    """The arithmetic of a target as the artifact keeps it: later changes of a scheme do not reach it."""

    rounding: Rounding = "half_even"
    requantization: Rounding = "half_even"
    bias: BiasKind = "float"
    saturates_pairs: bool = False


def exact_call(model: Graph, plan: Plan, quantized: Quantized, scheme: Arithmetic | None) -> Call:
    """Return a function that runs the plan in the exact reference: feeds in, outputs by name out.

    model: in the target's operators.  Feeds are of the user's dtypes; where the target narrowed an input
    (int64 indices to int32), they are cast.
    """
    reference = IntegerReference(model, plan, quantized, scheme)
    dtypes = {info.name: info.dtype for info in map(tensor_info, model.graph.inputs)}

    def call(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return reference.run({name: array.astype(dtypes[name], copy=False) for name, array in feeds.items()})

    return call


def simulation_files(
    prepared: Prepared, payloads: Sequence[Built]
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the members that a simulation needs, and what the manifest's `extra` says of them."""
    lowered = {f"payloads/{b.id}/{path}": d for b in payloads for path, d in b.lowered.files.items()}
    shared = _Shared(lowered)
    files = {_MODEL: model_to_bytes_without(prepared.model, shared.holds)}
    described, models = {}, {}
    for built in payloads:
        root = f"{_FOLDER}/{built.id}"
        if built.lowered_model(prepared) is not prepared.model:
            own = _Shared(lowered)
            files[f"{root}/model.onnx"] = model_to_bytes_without(built.lowered_model(prepared), own.holds)
            models[built.id] = {"model": f"{root}/model.onnx", "weights": own.places}
        arithmetic = scheme_of(prepared.target) if built.quantized else _Stored()
        names = [field.name for field in dataclasses.fields(_Stored)]
        content = {
            "arithmetic": {name: getattr(arithmetic, name) for name in names},
            "activations": {name: _encode(p, root, files) for name, p in built.quantized.activations.items()},
            "weights": [
                [node, index, _encode(weight, root, files)]
                for (node, index), weight in built.quantized.weights.items()
            ],
            "biases": {name: _encode(b, root, files) for name, b in built.quantized.biases.items()},
            "integer_biases": {
                name: _encode(b, root, files) for name, b in built.quantized.integer_biases.items()
            },
            "scheme": built.quantized.scheme,
        }
        files[f"{root}/integers.json"] = json.dumps(content, sort_keys=True, indent=1).encode() + b"\n"
        described[built.id] = f"{root}/integers.json"
    held = {"model": _MODEL, "weights": shared.places, "payloads": described}
    return files, {_FOLDER: {**held, "models": models} if models else held}


class _Shared:
    """Where the payloads hold the weights of the float model: `places`, name -> [member, offset, bytes]."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._next = dict.fromkeys(files, 0)
        self.places: dict[str, list[Any]] = {}

    def holds(self, name: str, data: bytes) -> bool:
        """Return whether a payload's file holds these bytes, and note where."""
        if len(data) < _SHARED_BYTES:
            return False
        for path, content in self._files.items():
            # Payloads keep the order of the graph for the most part: look behind the last find first.
            start = content.find(data, self._next[path])
            start = content.find(data, 0, self._next[path] + len(data)) if start < 0 else start
            if start >= 0:
                self._next[path] = start
                self.places[name] = [path, start, len(data)]
                return True
        return False


def _encode(value: Any, root: str, files: dict[str, bytes]) -> Any:
    """Return a value of `Quantized` as JSON; arrays become members, named by number."""
    if isinstance(value, np.ndarray):
        path = f"{root}/{len(files)}.npy"
        files[path] = array_to_bytes(value)
        return {"npy": path}
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name), root, files) for f in dataclasses.fields(value)}
    return value.item() if isinstance(value, np.generic) else value


def load_simulated(
    path: str | os.PathLike[str],
    threads: int | None = None,
    family: str | None = None,
    payload: str | None = None,
    self_test: bool | str = True,
) -> Model:
    """Return the artifact as a Model that runs in the exact reference of its target's arithmetic.

    payload: which one is simulated; None = the first.  threads: the reference runs on one, whatever is asked.
    Otherwise as `edgefuse.runtime.load`, which answers where the artifact carries no simulation.
    """
    artifact = open_artifact(path)
    try:
        stored = (artifact.manifest.get("extra") or {}).get(_FOLDER)
        if stored is None:
            artifact.close()
            return load_on_device(
                path, simulate=True, threads=threads, family=family, payload=payload, self_test=self_test
            )
        entry = _entry(artifact, stored, family, payload)
        engine = _ReferenceEngine(artifact, entry)
        if self_test:
            run_self_test(artifact, entry, engine, None if self_test == "all" else 1)
        return Model(artifact, entry, engine, [f"simulated: {engine.what}"])
    except BaseException:
        artifact.close()
        raise


def _entry(
    artifact: Artifact, stored: Mapping[str, Any], family: str | None, payload: str | None
) -> Mapping[str, Any]:
    entries = [e for e in artifact.manifest["payloads"] if e["id"] in stored["payloads"]]
    for what, value, key in (("family", family, "family"), ("payload", payload, "id")):
        known = [entry[key] for entry in entries]
        if value is not None and value not in known:
            raise InputError(
                f"{artifact.path} has no {what} '{value}' to simulate{did_you_mean(value, known)}",
                expected="one of " + ", ".join(sorted(set(known))),
                got=value,
            )
        entries = [entry for entry in entries if value is None or entry[key] == value]
    entry: Mapping[str, Any] = entries[0]
    return entry


def stored_plan(artifact: Artifact, payload: str) -> tuple[Graph, Plan, Quantized, Arithmetic] | None:
    """Return the model, the plan and the integers of a payload, or None where the artifact keeps none.

    Raises ArtifactError where they cannot be read.
    """
    stored = (artifact.manifest.get("extra") or {}).get(_FOLDER)
    if stored is None or payload not in stored["payloads"]:
        return None
    try:
        held = stored.get("models", {}).get(payload, stored)
        weights = _shared_weights(artifact, held["weights"])
        model = restore_model(artifact.read(held["model"]), artifact.path, weights)
        plan = Plan.from_json(artifact.read(f"payloads/{payload}/plan.json"))
        return (model, plan, *_decoded(artifact, stored["payloads"][payload]))
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ArtifactError(
            f"{artifact.path}: its simulation cannot be read: {error}",
            hint="build the artifact again with this version of edgefuse",
        ) from error


class _ReferenceEngine(Engine):
    """The exact reference behind the contract of an engine."""

    def __init__(self, artifact: Artifact, entry: Mapping[str, Any]) -> None:
        manifest = artifact.manifest
        self.what = f"{manifest['target']['device']} in exact arithmetic"
        self._dtypes = {tensor["name"]: tensor["dtype"] for tensor in manifest["outputs"]}
        found = stored_plan(artifact, entry["id"])
        assert found is not None
        self._call: Call | None = exact_call(*found)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs in the dtypes of the manifest."""
        assert self._call is not None
        found = self._call(dict(feeds))
        return {name: array.astype(self._dtypes[name], copy=False) for name, array in found.items()}

    def close(self) -> None:
        """Drop the model."""
        self._call = None

    def describe(self) -> dict[str, Any]:
        """Return what runs: this package, in place of the target's runtime."""
        version = edgefuse.__version__
        return {"runtime": "edgefuse exact reference", "version": version, "device": self.what, "threads": 1}


def _shared_weights(artifact: Artifact, places: Mapping[str, Sequence[Any]]) -> dict[str, bytes]:
    members = {path: artifact.read(path) for path in sorted({place[0] for place in places.values()})}
    return {name: members[path][start : start + size] for name, (path, start, size) in places.items()}


def _decoded(artifact: Artifact, path: str) -> tuple[Quantized, Arithmetic]:
    content = json.loads(artifact.read(path))

    def array(described: Mapping[str, str]) -> np.ndarray:
        return array_from_bytes(artifact.read(described["npy"]), f"{artifact.path}: '{described['npy']}'")

    def build(kind: Any, fields: Mapping[str, Any]) -> Any:
        return kind(**{n: array(v) if isinstance(v, dict) and "npy" in v else v for n, v in fields.items()})

    quantized = Quantized(
        activations={n: build(QuantizedActivation, f) for n, f in content["activations"].items()},
        weights={(node, index): build(QuantizedWeight, f) for node, index, f in content["weights"]},
        scheme=content["scheme"],
        biases={n: array(v) for n, v in content["biases"].items()},
        integer_biases={n: build(QuantizedBias, f) for n, f in content["integer_biases"].items()},
    )
    return quantized, _Stored(**content["arithmetic"])
