"""Models in ONNX Runtime with its optimiser off: the judge, opened with an error that a user can read."""

from __future__ import annotations

import re
from typing import Any

from edgefuse.errors import EdgefuseError, InputError
from edgefuse.graph import Model, model_to_bytes
from edgefuse.graph.reference import judge_session

__all__ = ["first_line", "open_session"]


def open_session(model: Model) -> Any:
    """Return an ONNX Runtime session of `model`; raises InputError where the runtime refuses the model."""
    try:
        return judge_session(model_to_bytes(model))
    except EdgefuseError:
        raise
    except Exception as error:  # onnxruntime's errors share no base class
        raise InputError(
            f"ONNX Runtime, the judge of every build, refuses the model: {first_line(error)}",
            hint="the model contradicts itself, or uses what ONNX Runtime lacks: export it again",
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, at most 300 characters, without places in C++ sources.

    >>> first_line(RuntimeError("[ONNXRuntimeError] : 1 : FAIL : Name:'r' /src/a.h:84 void f(int) size is 3"))
    "Name:'r' size is 3"
    """
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    plain = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])
    return re.sub(r"/\S+:\d+ .*?\) (?=\S)", "", plain)[:300]
