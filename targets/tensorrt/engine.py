"""The engine of the TensorRT family on the board. Python 3.6.

TensorRT builds an engine on the very board that runs it. `load_engine` looks for the one that was built for
this payload, and says what to do where there is none.
"""

import hashlib
import importlib
import json
import os
from typing import Any, List, Mapping

from edgefuse.errors import DeviceError, InputError, ToolMissingError, UnsupportedError
from edgefuse.runtime.engine import Engine, Files, read_file

__all__ = ["build_command", "engine_path", "load_engine"]

_TRTEXEC = "/usr/src/tensorrt/bin/trtexec"


def engine_path(files: Files, entry: str, version: str) -> str:
    """Return where the engine of this payload and TensorRT version lies on this board, built or not.

    The folder is EDGEFUSE_CACHE, or edgefuse/ in the user's cache folder; the name holds the sha256 of the
    model and of its precisions, so that another payload never runs in its place.
    """
    digest = hashlib.sha256()
    for path in (entry, "precision.json"):
        digest.update(hashlib.sha256(read_file(files, path)).digest())
    root = os.environ.get("EDGEFUSE_CACHE")
    if not root:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(base, "edgefuse")
    return os.path.join(root, "{}-tensorrt-{}.plan".format(digest.hexdigest()[:32], version))


def build_command(files: Files, engine: str, workspace_mb: int) -> List[str]:
    """Return the argument list that builds the engine, from the payload's build.json.

    Paths are relative to the payload's folder.  Raises InputError where build.json is not ours.
    """
    text = read_file(files, "build.json").decode("utf-8")
    try:
        arguments = json.loads(text)["arguments"]
        filled = [
            str(argument)
            .replace("{engine}", engine)
            .replace("{timing_cache}", engine + ".timing")
            .replace("{workspace_mb}", str(workspace_mb))
            for argument in arguments
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("the payload's build.json cannot be read: {}".format(error)) from error
    return [_TRTEXEC, *filled]


def load_engine(files: Files, entry: str, options: Mapping[str, Any]) -> Engine:
    """Return the engine of a payload.

    Raises ToolMissingError (no TensorRT here), DeviceError (no engine was built on this board yet, with the
    command that builds it) and UnsupportedError (there is one: this version of edgefuse has no runner for
    it).
    """
    try:
        tensorrt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise ToolMissingError(
            "TensorRT is not installed on this machine",
            hint="JetPack brings it to the board (python3-libnvinfer); building needs none of it",
        ) from error
    version = str(tensorrt.__version__)
    path = engine_path(files, entry, version)
    if not os.path.exists(path):
        command = " ".join(build_command(files, path, 1024))
        raise DeviceError(
            "no engine was built on this board for this payload and TensorRT {}".format(version),
            expected=path,
            hint="in the payload's folder: " + command,
        )
    raise UnsupportedError(
        "the engine {} is built, and this version of edgefuse cannot run it from Python".format(path),
        hint="{} --loadEngine={}".format(_TRTEXEC, path),
    )
