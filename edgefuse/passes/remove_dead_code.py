"""Removal of what no output needs."""

from __future__ import annotations

from edgefuse.graph import Model, all_nodes, has_subgraphs
from edgefuse.graph.library_passes import remove_unused
from edgefuse.passes.contract import PassResult
from edgefuse.passes.resolve_if import release_bodies

__all__ = ["remove_dead_code"]


def remove_dead_code(model: Model) -> PassResult:
    """Remove nodes, optional outputs and initializers that no graph output depends on, in place.

    Takes: 1. nodes none of whose outputs is read or is a graph output, chains of them too.  2. initializers
    that nobody reads.  3. optional outputs that nobody reads (a Dropout's mask, an LSTM's Y), and empty
    trailing inputs.  4. the same inside the bodies of If, Loop and Scan.
    Leaves: 5. graph inputs that nobody reads, since they belong to the model's signature.  6. a node one of
    whose outputs is needed.
    """
    removed, found = 0, -1
    while found:
        carriers = [n for n in all_nodes(model) if has_subgraphs(n)]
        found = remove_unused(model)
        removed += found
        for node in carriers:
            if node.graph is None:  # its bodies still count as readers of outer values
                release_bodies(node)
        if not carriers:
            break
    return PassResult("remove_dead_code", removed)
