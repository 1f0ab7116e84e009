"""Options that several verbs share, and the printing of one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["given_names", "json_option", "print_json", "shape_option", "target_option", "threads_option"]

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


def threads_option(function: _Command) -> _Command:
    """Add `--threads N`."""
    return click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of the runtime.")(
        function
    )


def given_names(values: dict[str, Any]) -> frozenset[str]:
    """Return the option names that the caller set (not None, not empty)."""
    return frozenset(name for name, value in values.items() if value is not None and value != ())


def print_json(value: object) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2, sort_keys=True, default=str))
