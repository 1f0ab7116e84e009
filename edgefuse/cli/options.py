"""Options that several verbs share, and the printing of one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

__all__ = ["json_option", "print_json", "shape_option", "shapes_of", "target_option", "threads_option"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(function: _Command) -> _Command:
    """Add `--json`: one object on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")(function)


def target_option(function: _Command) -> _Command:
    """Add `--target NAME[@RUNTIME]`."""
    return click.option(
        "--target", metavar="NAME[@RUNTIME]", help="Device to build for; `host` is this machine."
    )(function)


def shape_option(function: _Command) -> _Command:
    """Add `--shape NAME=1x3x224x224`, repeatable."""
    return click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1x3x224x224",
        help="Fix the shape of an input; repeat for several.",
    )(function)


def shapes_of(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return input name -> sizes from the values of `--shape`; raises UsageError, also for a name twice."""
    from edgefuse.compose.options import parse_shape
    from edgefuse.errors import UsageError

    shapes: dict[str, tuple[int, ...]] = {}
    for name, sizes in map(parse_shape, texts):
        if name in shapes:
            raise UsageError(f"--shape names input {name!r} twice", expected="one shape for each input")
        shapes[name] = sizes
    return shapes


def threads_option(function: _Command) -> _Command:
    """Add `--threads N`."""
    return click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of the runtime.")(
        function
    )


def print_json(value: object) -> None:
    """Print one JSON object."""
    from edgefuse.report import json_text

    print(json_text(value))
