"""Runs the example's payload in ONNX Runtime. Python 3.6 syntax; needs numpy and onnxruntime."""

import json
import os
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Tuple

from edgefuse.errors import ArtifactError
from edgefuse.runtime.engine import Engine, Files, read_file

__all__ = ["ExampleEngine", "load_engine"]

_EVENT = "_kernel_time"


class ExampleEngine(Engine):
    """One inference session; with `profile`, `kernels` tells what ran."""

    def __init__(self, session: Any, version: str, threads: Optional[int], folder: str) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self._described = {"runtime": "onnxruntime", "version": version, "device": "CPU", "threads": threads}
        self._folder = folder  # of the profile, "" where none is written

    def run(self, feeds: Mapping[str, Any]) -> Dict[str, Any]:
        """Return every output by its name; ONNX Runtime makes a new array for each call."""
        arrays = iter(self._session.run(self._names, dict(feeds)))
        return {name: next(arrays) for name in self._names}

    def kernels(self) -> List[Tuple[str, str, float]]:
        """Return (node, operator, fastest run in ms) of all runs so far, and end the profile."""
        if not self._folder:
            return []
        with open(self._session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
        self._forget()
        found = {}  # type: Dict[str, Tuple[float, str]]
        for event in events:
            if event["name"].endswith(_EVENT):
                row = (event["dur"] / 1000, event["args"]["op_name"])
                node = event["name"][: -len(_EVENT)]
                found[node] = min(row, found.get(node, row))
        return [(node, kind, ms) for node, (ms, kind) in found.items()]

    def close(self) -> None:
        """Free the session, and a profile that nobody read."""
        self._session = None
        self._forget()

    def _forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    def describe(self) -> Dict[str, Any]:
        """Return what runs; `threads` is None where ONNX Runtime chose."""
        return dict(self._described)


def load_engine(files: Files, entry: str, options: Mapping[str, Any]) -> ExampleEngine:
    """Return a session of the payload. options: `threads` (absent: all cores), `profile`.

    Raises ImportError without onnxruntime, ArtifactError where the model cannot be read.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = int(options.get("threads") or 0)  # 0: all cores
    folder = tempfile.mkdtemp(prefix="edgefuse-") if options.get("profile") else ""
    if folder:
        settings.enable_profiling = True
        settings.profile_file_prefix = os.path.join(folder, "profile")
    try:
        model = read_file(files, entry)
        session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class
        shutil.rmtree(folder, ignore_errors=True)
        raise ArtifactError("ONNX Runtime cannot read the payload: {}".format(error)) from error
    return ExampleEngine(session, onnxruntime.__version__, options.get("threads"), folder)
