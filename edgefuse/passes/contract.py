"""What a pass is, and the check that it keeps its word.

A pass is one file `edgefuse/passes/NAME.py` with one public function `NAME(model) -> PassResult` that
changes the model in place and keeps its meaning: the same inputs, outputs, names and order, and values equal
to 1e-5 (tests/passes hold each pass to that under the float64 executor). Its docstring numbers the cases that
it takes and those that it leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgefuse.graph import Model

__all__ = ["Pass", "PassResult"]


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass did.

    name: of the pass.  changed: how many places it changed (0 = the model is untouched).
    notes: one line for each thing that a user may want to read.
    """

    name: str
    changed: int
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.changed > 0


Pass = Callable[[Model], PassResult]
