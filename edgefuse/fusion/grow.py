"""Groups that no rule names: grown from a node until only one tensor leaves them.

A node whose result is read several times starts a set; the readers of what leaves the set are added in the
order of the graph, until one tensor is all that leaves. So written-out normalizations, gates and activations
of any kind are found unaided. One exit means that no path can leave the group and come back.
"""

from __future__ import annotations

from edgefuse.fusion.index import ABSENT, BARRIERS, GraphIndex
from edgefuse.fusion.operators import ANCHORS, CLASSES, MOVEMENT, POINTWISE

__all__ = ["MAX_NODES", "grown_groups"]

MAX_NODES = 12  # LayerNorm written out has nine nodes, GELU's tanh form eight
# What a generated kernel can hold in one pass over rows: element by element, or reduced and spread again.
_MEMBERS = (POINTWISE | CLASSES["reduction"] | {"Softmax", "Cast"}) - ANCHORS - BARRIERS - MOVEMENT


def grown_groups(index: GraphIndex) -> list[frozenset[int]]:
    """Return the smallest single-exit group from each node, and that group with the chain behind it.

    The first node may be a convolution or a product; the others are pointwise operators and reductions.
    Groups of a single chain are left to the rules. Bounded: at most MAX_NODES nodes a group, and as many
    groups from each node of the graph.
    """
    found: dict[frozenset[int], None] = {}
    for start, op in enumerate(index.ops):
        if op not in _MEMBERS and op not in ANCHORS:
            continue
        group = _grow(index, start)
        while group is not None:
            found.setdefault(group, None)
            group = _one_more(index, group)
    return list(found)


def _grow(index: GraphIndex, start: int) -> frozenset[int] | None:
    """Return the group that begins at `start`; None where one node reads it, or its readers never join."""
    inside = {start}
    frontier = set(_readers(index, start))
    if len(frontier) < 2 or _escapes(index, start):
        return None
    while len(inside) < MAX_NODES:
        node = min(frontier)
        if index.ops[node] not in _MEMBERS:
            return None
        inside.add(node)
        frontier.discard(node)
        frontier.update(r for r in _readers(index, node) if r not in inside)
        if len(index.leaving(inside)) == 1:
            return frozenset(inside)
        if _escapes(index, node) or not frontier:
            return None
    return None


def _one_more(index: GraphIndex, group: frozenset[int]) -> frozenset[int] | None:
    """Return the group with the pointwise node that alone reads its result, or None."""
    exits = index.leaving(group)
    node = index.sole_reader(exits[0])
    if node == ABSENT or len(group) >= MAX_NODES or index.ops[node] not in POINTWISE:
        return None
    return group | {node} if index.keeps_shape(exits[0], index.outputs[node][0]) else None


def _readers(index: GraphIndex, node: int) -> list[int]:
    return [r for tensor in index.outputs[node] if tensor != ABSENT for r in index.readers[tensor]]


def _escapes(index: GraphIndex, node: int) -> bool:
    return any(tensor in index.escapes for tensor in index.outputs[node])
