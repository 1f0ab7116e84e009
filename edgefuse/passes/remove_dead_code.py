"""Removal of what no output needs."""

from __future__ import annotations

from edgefuse.graph import Model
from edgefuse.graph.library_passes import remove_unused
from edgefuse.passes.contract import PassResult

__all__ = ["remove_dead_code"]


def remove_dead_code(model: Model) -> PassResult:
    """Remove nodes, optional outputs and initializers that no graph output depends on, in place.

    Takes: 1. nodes none of whose outputs is read or is a graph output, chains of them too.  2. initializers
    that nobody reads.  3. optional outputs that nobody reads (a Dropout's mask, an LSTM's Y), and empty
    trailing inputs.  4. the same inside the bodies of If, Loop and Scan.
    Leaves: 5. graph inputs that nobody reads, since they belong to the model's signature.  6. a node one of
    whose outputs is needed.
    """
    removed = remove_unused(model)
    return PassResult("remove_dead_code", removed)
