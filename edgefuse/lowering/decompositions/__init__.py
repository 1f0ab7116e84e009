"""Operators written by simpler ones: one family a file, found by listing this folder.

A file holds `DECOMPOSITIONS`. All of them read and write canonical ONNX (the model's own operator set), so
that a written operator may itself be decomposed further, and shapes can be inferred between.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgefuse.graph import Node, Value
from edgefuse.lowering.builder import Builder

__all__ = ["Decomposition", "decompositions"]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """One way to write an operator.

    needs: the operators that it writes.  build: gives the new outputs, one for each output of the node (None
    for an output that nobody reads), or raises UnsupportedError naming what of the node cannot be written.
    """

    op_type: str
    needs: tuple[str, ...]
    build: Callable[[Node, Builder], Sequence[Value | None]]


@functools.cache
def decompositions() -> dict[str, tuple[Decomposition, ...]]:
    """Return every decomposition by operator, the preferred one first."""
    found: dict[str, list[Decomposition]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        for row in importlib.import_module(f"{__name__}.{module}").DECOMPOSITIONS:
            found.setdefault(row.op_type, []).append(row)
    return {op_type: tuple(rows) for op_type, rows in found.items()}
