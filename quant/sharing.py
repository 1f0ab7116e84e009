"""Which tensors share one scale: what the plan groups, and what operators without their own scale join."""

from __future__ import annotations

from collections.abc import Iterable

from edgefuse.graph import Model, Node, constant, is_float
from edgefuse.plans import Plan
from edgefuse.quant.scheme import Scheme

__all__ = ["joined_tensors", "scale_groups"]


def joined_tensors(node: Node, scheme: Scheme) -> tuple[str, ...]:
    """Return the tensors that the node makes share one scale in int8: its float inputs and outputs, or none.

    Constants stay out (they are quantized to the shared scale). So do outputs whose parameters their operator
    fixes (a Sigmoid's): the device requantizes those at the read, and a box in pixels next to a score in 0..1
    takes nothing from it.
    """
    if node.op_type not in scheme.same_scale:
        return ()
    names = []
    for value in [*node.inputs, *node.outputs]:
        if value is None or not value.name or not is_float(value) or constant(value) is not None:
            continue
        producer = value.producer()
        if producer is None or scheme.fixed_output(producer.op_type) is None:
            names.append(value.name)
    return tuple(dict.fromkeys(names))


def scale_groups(model: Model, plan: Plan, scheme: Scheme) -> list[tuple[str, ...]]:
    """Return the sets of tensors that share one scale under the plan, each with at least two, in graph order.

    The plan's own scale groups, and what the same-scale operators of its int8 groups join.
    """
    nodes = {node.name: node for node in model.graph}
    sets = [group.tensors for group in plan.scale_groups]
    for group in plan.groups:
        if group.precision == "int8":
            sets += [joined_tensors(nodes[name], scheme) for name in group.nodes]
    order = [v.name or "" for v in model.graph.inputs]
    order += [v.name or "" for node in model.graph for v in node.outputs]
    return _merged(sets, order)


def _merged(sets: Iterable[tuple[str, ...]], order: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the connected components of overlapping sets."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    for members in sets:
        for name in members:
            root[find(name)] = find(members[0])
    found: dict[str, list[str]] = {}
    for name in order:
        if name in root:
            found.setdefault(find(name), []).append(name)
    return [tuple(members) for members in found.values() if len(members) > 1]
