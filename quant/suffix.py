"""The rest of a network from some node on, so that a sweep over its nodes need not run what comes before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgefuse.graph import Model, Node, Value, clone_model, constant, has_subgraphs

__all__ = ["Suffix", "cut_before", "cut_points"]

# Each part costs two sessions and one run of its clean suffix; a dozen probes in it pay for that.
_PARTS = 8
_PROBES_A_PART = 3


class Suffix:
    """The model from one node on.

    model: its inputs are those values that earlier nodes write and later ones read, and the graph inputs.
    reads: the names of its inputs.  outputs: names of the model's outputs that its nodes write.
    """

    def __init__(self, model: Model, reads: Sequence[str], outputs: Sequence[str]) -> None:
        self.model = model
        self.reads = tuple(reads)
        self.outputs = tuple(outputs)

    def feeds(self, held: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return what a session of the suffix is fed, taken from `held`."""
        return {name: held[name] for name in self.reads}


def cut_points(model: Model, probed: Sequence[str]) -> list[int]:
    """Return positions in graph order at which to cut, the first 0; between them even shares of the probed.

    Each cut is before a probed node; of neighbours the one that the fewest tensors cross. A model with
    branches or loops is not cut: their bodies read from outside without saying so.
    """
    if any(has_subgraphs(node) for node in model.graph):
        return [0]
    order = {node.name or "": position for position, node in enumerate(model.graph)}
    places = sorted(order[name] for name in probed)
    parts = min(_PARTS, len(places) // _PROBES_A_PART)
    crossing = _crossing(model)
    found = [0]
    for part in range(1, parts):
        middle, reach = part * len(places) / parts, len(places) / (3 * parts)
        near = places[max(1, round(middle - reach)) : round(middle + reach) + 1]
        if near:
            found.append(min(near, key=lambda place: (crossing[place], place)))
    return sorted(set(found))


def _crossing(model: Model) -> list[int]:
    """Return for each position how many tensors are written before it and read from it on."""
    nodes = list(model.graph)
    order = {id(node): position for position, node in enumerate(nodes)}
    counts = [0] * (len(nodes) + 1)
    for position, node in enumerate(nodes):
        for value in node.outputs:
            last = max((order[id(use.node)] for use in value.uses()), default=position)
            for place in range(position + 1, last + 1):
                counts[place] += 1
    return counts


def cut_before(model: Model, position: int) -> Suffix:
    """Return a copy of `model` from the node at `position` of the graph order on."""
    copy = clone_model(model)
    graph = copy.graph
    nodes = list(graph)
    early = nodes[:position]
    gone = {id(node) for node in early}
    for node in early:
        for value in node.outputs:
            later = [use for use in value.uses() if id(use.node) not in gone]
            if later:
                graph.inputs.append(_in_place_of(value, later))
    kept = [value for value in graph.outputs if value.producer() is None or id(value.producer()) not in gone]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    for node in reversed(early):
        graph.remove(node, safe=True)
    _drop_unread(copy)
    return Suffix(copy, [v.name or "" for v in graph.inputs], [v.name or "" for v in kept])


def _in_place_of(value: Value, uses: Sequence[Any]) -> Value:
    made = Value(name=value.name, type=value.type, shape=value.shape)
    value.name = f"{value.name}_cut"
    for use in uses:
        node: Node = use.node
        node.replace_input_with(use.idx, made)
    return made


def _drop_unread(model: Model) -> None:
    graph = model.graph
    for value in [v for v in graph.inputs if not v.uses() and not v.is_graph_output()]:
        graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if constant(value) is not None and not value.uses() and not value.is_graph_output():
            graph.initializers.pop(name)
