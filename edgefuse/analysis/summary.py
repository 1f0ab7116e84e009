"""What a whole model costs, what dominates it, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgefuse.analysis.binding import bound_model
from edgefuse.analysis.constants import foldable_values
from edgefuse.analysis.flops import OpCost, Shapes, UnknownCostError, node_cost, node_weights
from edgefuse.graph import Model, Value, all_nodes, source_name

__all__ = ["NodeCost", "OperatorShare", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node's cost: its internal name, the name the user knows, its operator."""

    name: str
    source: str
    op_type: str
    cost: OpCost


@dataclass(frozen=True, slots=True)
class OperatorShare:
    """All nodes of one operator: how many, their cost, and their share of FLOPs and of bytes (0 to 1)."""

    op_type: str
    count: int
    cost: OpCost
    flops_share: float
    bytes_share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A model's cost: totals, shares by operator (most FLOPs first), and every node in graph order.

    Totals are lower bounds where `unknown` is not empty: those nodes count as 0. `total.parameters` and
    `weight_storage_bytes` count a weight once; `total.weight_bytes` counts it each time it is read.
    """

    total: OpCost
    weight_storage_bytes: int
    operators: tuple[OperatorShare, ...]
    nodes: tuple[NodeCost, ...]

    @property
    def unknown(self) -> tuple[NodeCost, ...]:
        """The nodes whose cost is not known; `cost.unknown` says why."""
        return tuple(node for node in self.nodes if node.cost.unknown)

    def top(self, count: int = 10, by: str = "flops") -> tuple[NodeCost, ...]:
        """Return the `count` dearest nodes by "flops", "bytes" or "parameters", dearest first."""
        key = "traffic_bytes" if by == "bytes" else by
        order = sorted(range(len(self.nodes)), key=lambda k: (-getattr(self.nodes[k].cost, key), k))
        return tuple(self.nodes[k] for k in order[:count])


def summarize(model: Model, binding: Mapping[str, int] | None = None) -> Summary:
    """Return what one run of the model costs.

    binding: numbers for the inputs' symbolic dimensions ({"batch": 1}); without one, a node that needs it is
    reported as unknown. Work on constants alone costs nothing: an engine does it once, when it is built.
    Raises UsageError for a name that the inputs do not have, or a number below 1.
    """
    model = bound_model(model, binding)
    constants = foldable_values(model)
    nodes = tuple(
        NodeCost(node.name or "", source_name(node), node.op_type, node_cost(node, binding, constants))
        for node in model.graph
        if not (node.outputs and all(value in constants for value in node.outputs))
    )
    parameters, storage = _weights(model, binding)
    total = replace(_sum([node.cost for node in nodes]), parameters=parameters)
    return Summary(total, storage, _shares(nodes, total), nodes)


def _weights(model: Model, binding: Mapping[str, int] | None) -> tuple[int, int]:
    """Return (parameters, bytes) of all weights, bodies included, each counted once."""
    constants, shapes = foldable_values(model), Shapes(binding)
    parameters: dict[Value, int] = {}
    storage: dict[Value, int] = {}
    for node in all_nodes(model):
        if node.outputs and all(value in constants for value in node.outputs):
            continue
        try:
            for value, count in node_weights(node, shapes, constants).items():
                parameters[value] = max(count, parameters.get(value, 0))
                storage[value] = shapes.bytes(value)
        except UnknownCostError:
            continue  # the node itself is reported as unknown
    return sum(parameters.values()), sum(storage.values())


def _sum(costs: list[OpCost]) -> OpCost:
    return OpCost(
        flops=sum(cost.flops for cost in costs),
        macs=sum(cost.macs for cost in costs),
        read_bytes=sum(cost.read_bytes for cost in costs),
        write_bytes=sum(cost.write_bytes for cost in costs),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        parameters=sum(cost.parameters for cost in costs),
        float_elements=sum(cost.float_elements for cost in costs),
        float_bytes=sum(cost.float_bytes for cost in costs),
    )


def _shares(nodes: tuple[NodeCost, ...], total: OpCost) -> tuple[OperatorShare, ...]:
    groups: dict[str, list[OpCost]] = {}
    for node in nodes:
        groups.setdefault(node.op_type, []).append(node.cost)
    traffic = sum(node.cost.traffic_bytes for node in nodes)
    shares = []
    for op_type, costs in groups.items():
        cost = _sum(costs)
        flops_share = cost.flops / total.flops if total.flops else 0.0
        bytes_share = cost.traffic_bytes / traffic if traffic else 0.0
        shares.append(OperatorShare(op_type, len(costs), cost, flops_share, bytes_share))
    return tuple(sorted(shares, key=lambda s: (-s.cost.flops, -s.cost.traffic_bytes, s.op_type)))
