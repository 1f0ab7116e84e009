"""`load` and `Model`: an artifact, loaded and called by a robot's program. Python 3.6.

Threads: one Model may be called from several threads; the calls run one after the other (vendor engines are
not safe otherwise). For calls side by side, load one Model for each thread.
"""

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Type, Union

from edgefuse.artifact.read import Artifact, PayloadFiles, open_artifact
from edgefuse.errors import (
    ArtifactError,
    DeviceError,
    EdgefuseError,
    InputError,
    InternalError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from edgefuse.runtime.engine import Engine, open_engine
from edgefuse.runtime.hardware import check_hardware
from edgefuse.runtime.selftest import run_self_test, vector_inputs
from edgefuse.runtime.tensors import bind_inputs, check_feeds, missing_outputs, tensor_infos

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Model", "load"]

SelfTest = Union[bool, str]


def load(
    path: "Union[str, os.PathLike[str]]",
    simulate: bool = False,
    threads: Optional[int] = None,
    family: Optional[str] = None,
    payload: Optional[str] = None,
    self_test: SelfTest = True,
) -> "Model":
    """Return the artifact at `path` as a Model, ready to be called.

    simulate: run in the exact simulation of the target's arithmetic, where the artifact carries one.
    threads: CPU threads of the engine, >= 1; None = the build's choice.
    family, payload: take only payloads of this family, or only the one with this id.
    self_test: True runs the payload's first stored vector, "all" every one, False none.
    The first payload is the planned one. Where its runtime is not installed or its self-test fails, the next
    is tried; `Model.notes` keeps the reason. A damaged artifact is never passed over.
    Raises ArtifactError, DeviceError, ToolMissingError, UnsupportedError, InputError; see edgefuse.errors.
    """
    _check_arguments(threads, self_test)
    artifact = open_artifact(path)
    try:
        candidates = _choose(artifact, simulate, family, payload)
        if not simulate:
            check_hardware(artifact.manifest["target"])
        return _open_first(artifact, candidates, threads, self_test)
    except BaseException:
        artifact.close()
        raise


def _check_arguments(threads: Optional[int], self_test: SelfTest) -> None:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise UsageError("threads is not valid", expected="a whole number of at least 1", got=repr(threads))
    if self_test not in (True, False, "all"):
        raise UsageError("self_test is not valid", expected="True, False or 'all'", got=repr(self_test))


def _choose(
    artifact: Artifact, simulate: bool, family: Optional[str], wanted: Optional[str]
) -> List[Dict[str, Any]]:
    manifest = artifact.manifest
    payloads = [entry for entry in manifest["payloads"] if entry.get("simulates", False) == simulate]
    if not payloads and simulate:
        kinds = ", ".join("{} ({})".format(entry["id"], entry["family"]) for entry in manifest["payloads"])
        raise UnsupportedError(
            "{} cannot be simulated: it holds no payload that simulates {}".format(
                artifact.path, manifest["target"]["device"]
            ),
            expected="an artifact that carries the model, the plan and its integers",
            got="payloads " + kinds,
            hint="run it on the device, or build it again with this version of edgefuse",
        )
    if not payloads:
        raise UnsupportedError(
            "{} holds only simulations".format(artifact.path), hint="load it with simulate=True"
        )
    for what, value, key in (("family", family, "family"), ("payload", wanted, "id")):
        if value is None:
            continue
        known = [entry[key] for entry in payloads]
        payloads = [entry for entry in payloads if entry[key] == value]
        if not payloads:
            raise InputError(
                "{} has no {} '{}'{}".format(artifact.path, what, value, did_you_mean(value, known)),
                expected="one of " + ", ".join(sorted(set(known))),
                got=value,
            )
    return payloads


def _open_first(
    artifact: Artifact, candidates: List[Dict[str, Any]], threads: Optional[int], self_test: SelfTest
) -> "Model":
    failures: List[Tuple[str, EdgefuseError]] = []
    for entry in candidates:
        try:
            engine = _open_payload(artifact, entry, threads, self_test)
        except ArtifactError:
            raise
        except EdgefuseError as error:
            failures.append((entry["id"], error))
            continue
        notes = ["payload '{}' was passed over: {}".format(name, error.message) for name, error in failures]
        return Model(artifact, entry, engine, notes)
    if len(failures) == 1:
        raise failures[0][1]
    kinds = {type(error) for _, error in failures}
    kind: Type[EdgefuseError] = kinds.pop() if len(kinds) == 1 else DeviceError
    raise kind(
        "no payload of {} runs here".format(artifact.path),
        got="; ".join("{}: {}".format(name, error.message) for name, error in failures),
        hint=failures[0][1].hint,
    )


def _open_payload(
    artifact: Artifact, entry: Dict[str, Any], threads: Optional[int], self_test: SelfTest
) -> Engine:
    options = {key: value for key, value in entry["options"].items() if value is not None}
    if threads is not None:
        options["threads"] = threads
    files = PayloadFiles(artifact, entry)
    packages = artifact.manifest["target"]["requirements"].get("packages", ())
    engine: Optional[Engine] = None
    try:
        engine = open_engine(entry["family"], files, files.entry, options, packages)
        if self_test:
            run_self_test(artifact, entry, engine, None if self_test == "all" else 1)
    except Exception as error:
        if engine is not None:
            engine.close()
        if isinstance(error, EdgefuseError):
            raise
        # A vendor's runtime raises what it likes; the next payload may still run.
        raise DeviceError(
            "the engine of family '{}' failed with payload '{}': {}: {}".format(
                entry["family"], entry["id"], type(error).__name__, error
            )
        ) from error
    return engine


class Model:
    """A loaded artifact; a context manager, called with one array, a dict, or keyword arguments.

    inputs, outputs: tuples of TensorInfo (name, dtype, shape, layout);  manifest: what the artifact says;
    payload: the id of the payload that runs;  notes: why earlier payloads were passed over (empty: none was).
    """

    def __init__(
        self, artifact: Artifact, payload: Mapping[str, Any], engine: Engine, notes: List[str]
    ) -> None:
        self.manifest = artifact.manifest
        self.inputs = tensor_infos(self.manifest["inputs"])
        self.outputs = tensor_infos(self.manifest["outputs"])
        self.payload = str(payload["id"])
        self.family = str(payload["family"])
        self.notes = list(notes)
        self._entry = payload
        self._artifact = artifact
        self._engine: Optional[Engine] = engine
        self._lock = threading.Lock()
        self._image_steps: Optional[Tuple[Any, Any]] = None

    def __call__(self, *arguments: Any, **named: Any) -> "Dict[str, np.ndarray[Any, Any]]":
        """Return name -> array for every output, under the user's names and in the manifest's order.

        arguments: one array (a model with one input), or one dict name -> array; or keyword arguments.
        Anything with the buffer protocol, `__array_interface__`, `__array__` or `__dlpack__` is an array.
        Raises InputError naming the input, expected and got; nothing is cast where a value could change.
        """
        feeds = check_feeds(self.inputs, bind_inputs(self.inputs, arguments, named))
        with self._lock:
            results = self._opened().run(feeds)
        missing = missing_outputs(self.outputs, results)
        if missing:
            raise InternalError("the engine of family '{}' left out output {}".format(self.family, missing))
        return {info.name: results[info.name] for info in self.outputs}

    def predict(self, image: Any, color: str = "rgb") -> Dict[str, Any]:
        """Return what the model says about one image: {"outputs": …} and the decoder's keys.

        image: uint8 [H, W, 3] or [H, W] (or float32 with values 0..255), or a PIL image; color: the order of
        its channels, "rgb" or "bgr".  The manifest's `preprocess` is applied (docs/preprocess.md); a
        "classify" decoder adds "top": a list of {"index", "label", "score"}, best first.
        Raises UnsupportedError when the artifact carries no preprocessing.
        """
        from edgefuse.runtime.decode import decoder_from_manifest
        from edgefuse.runtime.preprocess import from_dict

        if self._image_steps is None:
            if self.manifest["preprocess"] is None:
                raise UnsupportedError(
                    "the artifact carries no preprocessing, so it cannot take an image",
                    hint="build with --preprocess FILE.toml, or call the model with arrays",
                )
            if len(self.inputs) != 1:
                raise UnsupportedError(
                    "predict takes one image, and the model has {} inputs".format(len(self.inputs))
                )
            self._image_steps = (from_dict(self.manifest["preprocess"]), decoder_from_manifest(self.manifest))
        steps, decode = self._image_steps
        outputs = self(steps.apply(image, color))
        result: Dict[str, Any] = {"outputs": outputs}
        if decode is not None:
            result.update(decode(outputs))
        return result

    def self_test(self) -> Dict[str, float]:
        """Run every stored vector; return the worst difference of each output.

        Raises DeviceError naming the output that is out of its tolerance.
        """
        with self._lock:
            return run_self_test(self._artifact, self._entry, self._opened())

    def example_inputs(self) -> "Optional[Dict[str, np.ndarray[Any, Any]]]":
        """Return the inputs of the payload's first stored vector, or None where it has none."""
        with self._lock:
            self._opened()
            vectors = self._entry["self_test"]
            return vector_inputs(self._artifact, vectors[0]) if vectors else None

    def describe(self) -> Dict[str, Any]:
        """Return what runs here, as JSON values: name, payload, family, precision, the engine's own words."""
        with self._lock:
            engine = self._opened().describe()
        return {
            "name": self.manifest["name"],
            "payload": self.payload,
            "family": self.family,
            "precision": self._entry["precision"],
            "target": dict(self.manifest["target"]),
            "notes": list(self.notes),
            "engine": engine,
        }

    def _opened(self) -> Engine:
        if self._engine is None:
            raise InputError("the model is closed", hint="load it again")
        return self._engine

    def close(self) -> None:
        """Free the engine and the file; waits for a running call; a second call does nothing."""
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()
            self._artifact.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
