"""A model cut between the groups of a plan, so that every region can be run and judged alone.

In the cut model a region reads what the reference computed, not what the regions before it made of it: each
float tensor that passes from one group to another becomes a graph input under its own name (plans and ranges
know it by that name), and what a group writes becomes a graph output under a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefuse.graph import Model, Node, Value, clone_model, fresh_name, is_float
from edgefuse.plans import Plan

__all__ = ["Cut", "boundary_tensors", "cut_between_groups"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut model.

    between: the tensors that became inputs, in graph order.  writes: tensor -> the output that holds it as
    its region computes it.  writers: tensor -> id of the group that writes it.
    """

    model: Model
    between: tuple[str, ...]
    writes: Mapping[str, str]
    writers: Mapping[str, str]


def cut_between_groups(model: Model, plan: Plan) -> Cut:
    """Return a copy of `model` cut between the groups of `plan`; nodes keep their names.

    Integers and truth values stay connected (shapes, indices): they pass exactly. So does what a subgraph
    reads of the outside.
    """
    copy = clone_model(model)
    graph = copy.graph
    group_of = {name: group.id for group in plan.groups for name in group.nodes}
    inputs: list[Value] = []
    writes: dict[str, str] = {}
    writers: dict[str, str] = {}
    outputs: list[Value] = []
    for node in tuple(graph):
        group = group_of.get(node.name or "", "")
        for value in node.outputs:
            away = _readers_elsewhere(value, group, group_of)
            if not is_float(value) or not (away or value.is_graph_output()):
                continue
            name = value.name or ""
            value.name = fresh_name(graph, f"{name}__region")
            writes[name], writers[name] = value.name, group
            outputs.append(value)
            if away:
                inputs.append(_input_in_place_of(value, name, away))
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    graph.inputs.extend(inputs)
    return Cut(copy, tuple(value.name or "" for value in inputs), writes, writers)


def _readers_elsewhere(value: Value, group: str, group_of: Mapping[str, str]) -> list[tuple[Node, int]]:
    """Return (node, input index) of the readers in other groups; those inside subgraphs belong to none."""
    return [
        (use.node, use.idx)
        for use in value.uses()
        if (use.node.name or "") in group_of
        and use.node.graph is value.graph
        and group_of[use.node.name or ""] != group
    ]


def _input_in_place_of(value: Value, name: str, uses: Sequence[tuple[Node, int]]) -> Value:
    shape = value.shape.copy() if value.shape is not None else None
    made = Value(name=name, type=value.type, shape=shape)
    for node, index in uses:
        node.replace_input_with(index, made)
    return made


def boundary_tensors(model: Model, names: Sequence[str]) -> Model:
    """Return a copy of `model` whose only outputs are the values called `names`."""
    copy = clone_model(model)
    found = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(found[name] for name in names)
    return copy
