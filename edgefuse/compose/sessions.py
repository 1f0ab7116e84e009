"""Models in ONNX Runtime with its optimiser off: the judge, opened with an error that a user can read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgefuse.errors import EdgefuseError, InputError
from edgefuse.graph import Model, Value, all_nodes, input_value, is_float, model_to_bytes, scalar
from edgefuse.graph.kernels.control import NO_LIMIT
from edgefuse.graph.reference import EndlessLoopError, Reference, judge_session

__all__ = ["first_line", "open_session", "require_end", "sample_hint"]


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


def require_end(model: Model) -> Callable[[Mapping[str, np.ndarray]], None] | None:
    """Return what raises EndlessLoopError on a sample on which `model` never ends; None: it always ends.

    ONNX Runtime would turn for ever, and cannot be stopped from outside: a model with a Loop that only its
    condition ends runs in our own executor first, which counts the turns.
    """
    if not any(node.op_type == "Loop" and _unbounded(input_value(node, 0)) for node in all_nodes(model)):
        return None
    counted = Reference(model, precision="native")

    def check(feeds: Mapping[str, np.ndarray]) -> None:
        try:
            counted.run(feeds)
        except EndlessLoopError:
            raise
        except EdgefuseError:
            return  # the judge says better what it is

    return check


def _unbounded(turns: Value | None) -> bool:
    return turns is None or (scalar(turns) or 0.0) >= NO_LIMIT


def sample_hint(model: Model) -> str:
    """Return what to try where `model` fails on a sample: sizes, or real numbers where made-up ones misfit.

    Whole numbers and truth values may be sizes, indices or conditions, which no random number fits.
    """
    names = [repr(value.name) for value in model.graph.inputs if not is_float(value)]
    if not names:
        return "state the sizes with --shape, or give other data"
    return (
        f"where {', '.join(names)} holds a size, an index or a condition, made-up numbers do not fit: give "
        "real ones with --calib or --eval; else state the sizes with --shape"
    )


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
