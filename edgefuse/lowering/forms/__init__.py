"""Operators in the form of an older operator set: one family a file, found by listing this folder.

A file holds `STEPS`: for an operator, the version that brought its newer form and a function that rewrites a
node (already one that the reader knows) for a version before it. What no step rewrites falls under the
general rule of edgefuse.lowering.step_down: an attribute at its default is dropped, anything else refused.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgefuse.graph import Node, Value
from edgefuse.lowering.builder import Builder

__all__ = ["Step", "steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """How a node is written for operator sets older than `since`.

    rewrite: changes the node in place and returns None, or returns what takes the place of its outputs;
    raises UnsupportedError naming the attribute that the older form cannot say.
    """

    op_type: str
    since: int
    rewrite: Callable[[Node, Builder], Sequence[Value | None] | None]


@functools.cache
def steps() -> dict[str, tuple[Step, ...]]:
    """Return the steps of every operator, newest first."""
    found: dict[str, list[Step]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        for row in importlib.import_module(f"{__name__}.{module}").STEPS:
            found.setdefault(row.op_type, []).append(row)
    return {op_type: tuple(sorted(rows, key=lambda row: -row.since)) for op_type, rows in found.items()}
