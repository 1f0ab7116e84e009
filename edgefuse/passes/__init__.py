"""Canonicalisation: one pass a file, `NAME.py` with `NAME(model) -> PassResult`, run by `canonicalize`.

Two models that mean the same should come out the same, so that the rooms above match few patterns: operators
recovered from their written-out forms, constants folded, BatchNorm inside its convolution, nothing idle.
"""

from edgefuse.passes.contract import Pass, PassResult
from edgefuse.passes.find_repeats import RepeatedGroup, find_repeats, structural_hash
from edgefuse.passes.pipeline import MAX_ROUNDS, ORDER, canonicalize

__all__ = [
    "MAX_ROUNDS",
    "ORDER",
    "Pass",
    "PassResult",
    "RepeatedGroup",
    "canonicalize",
    "find_repeats",
    "structural_hash",
]
