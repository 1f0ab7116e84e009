"""Passes of onnx_ir that are right as they are, behind plain functions.

Looked at and not used (onnx_ir 1.1): CommonSubexpressionEliminationPass merges an LSTM that leaves its first
output out with one that does not, and takes Bernoulli for deterministic; DeduplicateInitializersPass skips
tensors above a size; IdentityEliminationPass drops an Identity between two graph outputs, so that one of the
user's names is lost. Their corner cases are tests of our own passes.
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

__all__ = ["remove_unused"]


def remove_unused(model: ir.Model) -> int:
    """Remove nodes and initializers that no output needs, in place; returns how many went.

    Optional outputs that nobody reads and empty trailing inputs go too; graph inputs stay.
    """
    before = _size(model)
    common.RemoveUnusedNodesPass()(model)
    return before - _size(model)


def _size(model: ir.Model) -> int:
    return sum(len(graph) + len(graph.initializers) for graph in model.graphs())
