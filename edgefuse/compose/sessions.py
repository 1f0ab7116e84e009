"""Models in ONNX Runtime with its optimiser off: the judge, opened with an error that a user can read."""

from __future__ import annotations

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
    """Return the first line of an exception's text, at most 300 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
