"""Vertical candidates: a producer and the pointwise operators that only its result feeds.

From each anchor (and from each pointwise operator) a chain grows forward as long as the tensor between two
nodes has exactly one reader and is no graph output. Every prefix is a candidate, so the solver may stop
anywhere. A chain has one exit, hence no group of this kind can close a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgefuse.backend import Candidate
from edgefuse.fusion.operators import ANCHORS, POINTWISE
from edgefuse.graph import Model, Node, dims, has_subgraphs, sole_reader

__all__ = ["vertical_candidates"]

# Longer chains are cut: generated kernels stop gaining, and the number of columns grows squared.
MAX_EPILOGUE = 8


def vertical_candidates(model: Model) -> list[Candidate]:
    """Return a candidate for every node alone, and for every prefix of every chain, in graph order."""
    found = []
    for node in model.graph:
        found.append(_candidate((node,), node))
        if node.op_type in ANCHORS or node.op_type in POINTWISE:
            found.extend(_candidate(chain, node) for chain in _chains(node))
    return found


def _chains(head: Node) -> Iterator[tuple[Node, ...]]:
    chain = [head]
    while len(chain) <= MAX_EPILOGUE:
        last = chain[-1]
        if len(last.outputs) != 1:
            return
        reader = sole_reader(last.outputs[0])
        if reader is None or reader.graph is not head.graph or reader.op_type not in POINTWISE:
            return
        if has_subgraphs(reader) or not _same_shape(last, reader):
            return
        chain.append(reader)
        yield tuple(chain)


def _same_shape(node: Node, reader: Node) -> bool:
    """Return whether `reader` keeps the shape: a chain may not be broadcast up half-way through a kernel.

    Symbols count as equal when they are the same; unknown shapes do not.
    """
    before, after = dims(node.outputs[0]), dims(reader.outputs[0])
    return before is not None and None not in before and before == after


def _candidate(nodes: tuple[Node, ...], anchor: Node) -> Candidate:
    operators = "+".join(n.op_type for n in nodes)
    outputs = tuple(v for v in nodes[-1].outputs if v.name)
    why = "one node" if len(nodes) == 1 else "each tensor in between has one reader and is no output"
    kind = "vertical" if len(nodes) > 1 else "single"
    return Candidate(nodes=nodes, anchor=anchor, rule=f"{kind}:{operators}", outputs=outputs, why=why)
