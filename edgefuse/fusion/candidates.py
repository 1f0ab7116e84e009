"""All candidates of a graph: single nodes, chains, matches of the rules, grown groups."""

from __future__ import annotations

from collections.abc import Sequence

from edgefuse.backend import Candidate
from edgefuse.fusion.grow import grown_groups
from edgefuse.fusion.index import GraphIndex
from edgefuse.fusion.library import Rule
from edgefuse.fusion.match import find_matches
from edgefuse.fusion.operators import ANCHORS
from edgefuse.fusion.vertical import vertical_candidates
from edgefuse.graph import Model, Node

__all__ = ["fusion_candidates"]


def fusion_candidates(model: Model, rules: Sequence[Rule] | None = None) -> list[Candidate]:
    """Return every set of nodes that might run as one kernel, each once, in the order of the graph.

    A set that a rule names carries the rule's name and variants; a chain or a grown group that no rule names
    is called "vertical:..." or "grown:..." by its operators. Deterministic.
    """
    order = {id(node): i for i, node in enumerate(model.graph)}
    found: dict[tuple[int, ...], Candidate] = {}
    for match in find_matches(model, rules).matches:
        key = tuple(order[id(node)] for node in match.nodes)
        found.setdefault(
            key,
            Candidate(
                nodes=match.nodes,
                anchor=_anchor(match.nodes),
                rule=match.rule.id,
                outputs=match.outputs,
                variants=match.rule.text.variants,
                why=match.rule.text.why,
            ),
        )
    for candidate in vertical_candidates(model):
        found.setdefault(tuple(order[id(node)] for node in candidate.nodes), candidate)
    index = GraphIndex(model)
    for group in grown_groups(index):
        nodes = tuple(index.nodes[i] for i in sorted(group))
        outputs = tuple(index.values[t] for t in index.leaving(group))
        name = "grown:" + "+".join(node.op_type for node in nodes)
        why = "one tensor leaves the group"
        found.setdefault(tuple(sorted(group)), Candidate(nodes, _anchor(nodes), name, outputs, why=why))
    return [found[key] for key in sorted(found)]


def _anchor(nodes: Sequence[Node]) -> Node:
    """Return the node that gives the group its kind: its first product, or the first node."""
    return next((node for node in nodes if node.op_type in ANCHORS), nodes[0])
