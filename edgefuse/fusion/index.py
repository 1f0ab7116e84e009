"""A graph as numbers: what the matcher asks many times, answered by one walk over the nodes."""

from __future__ import annotations

from collections.abc import Iterable

from edgefuse.fusion.operators import COMMUTING
from edgefuse.graph import Model, Node, Value, all_nodes, dims, has_subgraphs

__all__ = ["BARRIERS", "GraphIndex"]

# The size of their result depends on the data, or they hold a body: a device waits for the host there, and no
# group reaches across.
BARRIERS = frozenset(
    {"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "SequenceMap", "Unique"}
)
ABSENT = -1


class GraphIndex:
    """The main graph of `model`: nodes and tensors by number, in the order of the graph.

    names, ops: name and operator of each node (with its domain where that is not ONNX's own).  inputs,
    outputs: tensors of each node, -1 where left out.  producer: node of each tensor, -1 for inputs and
    constants.  readers: the distinct nodes that read each tensor.  escapes: tensors that a subgraph reads or
    that are graph outputs.  commuting: whether the node's operands may stand in any order.
    by_op: nodes of each operator.  alike: operator -> (operators that read it, operators that it reads) ->
    nodes: a pattern asks once for all nodes with the same operators around them.
    answers: conditions already asked: (form, tensors) -> whether it holds.
    """

    def __init__(self, model: Model) -> None:
        self.nodes: list[Node] = list(model.graph)
        self.names: list[str] = [node.name or "" for node in self.nodes]
        self.values: list[Value] = []
        self._shapes: dict[int, tuple[int | str | None, ...] | None] = {}
        self._number: dict[int, int] = {}
        self.ops: list[str] = []
        self.inputs: list[tuple[int, ...]] = []
        self.outputs: list[tuple[int, ...]] = []
        self.producer: list[int] = []
        self.readers: list[list[int]] = []
        self.constant: list[bool] = []
        self.commuting: list[bool] = []
        self.escapes: set[int] = set()
        self.by_op: dict[str, list[int]] = {}
        self.alike: dict[str, dict[tuple[frozenset[str], frozenset[str]], list[int]]] = {}
        self.answers: dict[tuple[object, ...], bool] = {}
        for i, node in enumerate(self.nodes):
            self._add(i, node)
        for i, op in enumerate(self.ops):
            after = [self.ops[r] for t in self.outputs[i] if t != ABSENT for r in self.readers[t]]
            writers = [self.producer[t] for t in self.inputs[i] if t != ABSENT]
            before = [self.ops[w] for w in writers if w != ABSENT]
            around = (frozenset(after), frozenset(before))
            self.alike.setdefault(op, {}).setdefault(around, []).append(i)
        self._mark_escapes(model)

    def _add(self, i: int, node: Node) -> None:
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        self.ops.append(op)
        self.commuting.append(op in COMMUTING)
        self.by_op.setdefault(op, []).append(i)
        read = tuple(ABSENT if value is None else self.number(value) for value in node.inputs)
        self.inputs.append(read)
        for tensor in dict.fromkeys(read):
            if tensor != ABSENT:
                self.readers[tensor].append(i)
        written = tuple(self.number(v) if v.name else ABSENT for v in node.outputs)
        self.outputs.append(written)
        for tensor in written:
            if tensor != ABSENT:
                self.producer[tensor] = i

    def number(self, value: Value) -> int:
        """Return the number of a tensor, giving it one where it has none."""
        found = self._number.get(id(value))
        if found is None:
            found = self._number[id(value)] = len(self.values)
            self.values.append(value)
            self.producer.append(ABSENT)
            self.readers.append([])
            self.constant.append(value.const_value is not None)
        return found

    def _mark_escapes(self, model: Model) -> None:
        self.escapes.update(self._number[id(v)] for v in model.graph.outputs if id(v) in self._number)
        if not any(has_subgraphs(node) for node in self.nodes):
            return
        inner = [node for node in all_nodes(model) if node.graph is not model.graph]
        read = [value for node in inner for value in node.inputs if value is not None]
        read += [value for node in inner if node.graph is not None for value in node.graph.outputs]
        self.escapes.update(self._number[id(value)] for value in read if id(value) in self._number)

    def sole_reader(self, tensor: int) -> int:
        """Return the one node that reads the tensor, or -1 where others do, or the graph's user."""
        found = self.readers[tensor]
        return found[0] if len(found) == 1 and tensor not in self.escapes else ABSENT

    def keeps_shape(self, before: int, after: int) -> bool:
        """Return whether two tensors have one fully known shape (a symbol equals itself)."""
        first = self._shape(before)
        return first is not None and first == self._shape(after)

    def _shape(self, tensor: int) -> tuple[int | str | None, ...] | None:
        """Return the shape where every dimension has a number or a name, else None."""
        if tensor not in self._shapes:
            found = dims(self.values[tensor])
            self._shapes[tensor] = None if found is None or None in found else found
        return self._shapes[tensor]

    def leaving(self, nodes: Iterable[int]) -> list[int]:
        """Return the tensors of a set of nodes that are read outside it, in the order of the graph."""
        inside = set(nodes)
        found = []
        for i in sorted(inside):
            for tensor in self.outputs[i]:
                if tensor == ABSENT:
                    continue
                if tensor in self.escapes:
                    found.append(tensor)
                    continue
                for reader in self.readers[tensor]:
                    if reader not in inside:
                        found.append(tensor)
                        break
        return found

    def closed(self, nodes: frozenset[int], exits: set[int]) -> bool:
        """Return whether nothing outside a set of nodes reads of it what is not among `exits`."""
        for i in nodes:
            for tensor in self.outputs[i]:
                if tensor == ABSENT or tensor in exits:
                    continue
                if tensor in self.escapes or any(r not in nodes for r in self.readers[tensor]):
                    return False
        return True

    def convex(self, nodes: frozenset[int]) -> bool:
        """Return whether no path leaves the set and comes back: as one unit it would wait for itself."""
        last = max(nodes)
        seen: set[int] = set()
        stack = [r for t in self.leaving(nodes) for r in self.readers[t] if r not in nodes and r < last]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for tensor in self.outputs[node]:
                for reader in self.readers[tensor] if tensor != ABSENT else ():
                    if reader in nodes:
                        return False
                    if reader < last:
                        stack.append(reader)
        return True
