"""The float network and the quantized one side by side, node by node, on the same samples.

What a layer-wise repair needs: what a layer reads and writes in float, and what it reads and writes behind
layers that are quantized *and repaired already*. One pass over the graph; each tensor is dropped after its
last reader, so that memory is that of the live tensors of all samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph import (
    DataType,
    Graph,
    Model,
    Node,
    Shape,
    TensorType,
    Value,
    constant,
    has_subgraphs,
    model_to_bytes,
    opset,
    source_name,
)
from edgefuse.graph.reference import evaluate_node, judge_session
from edgefuse.plans import Plan
from edgefuse.quantized import Quantized, QuantizedActivation, QuantizedWeight

__all__ = ["Visitor", "rounded_to_grid", "walk"]

Feeds = Mapping[str, np.ndarray]
Arrays = list[np.ndarray]


class Visitor(Protocol):
    """What is done at each layer that holds an integer weight, in graph order."""

    def weight(
        self, node: Node, index: int, float_reads: Arrays, reads: Arrays, weight: QuantizedWeight
    ) -> QuantizedWeight:
        """Return the weight to go on with; reads: the layer's activation (input 0), one array a sample."""
        ...

    def shift(self, node: Node, float_writes: Arrays, writes: Arrays) -> np.ndarray | None:
        """Return what is added to the quantized output, broadcast to it; None for nothing."""
        ...


def rounded_to_grid(array: np.ndarray, parameters: QuantizedActivation) -> np.ndarray:
    """Return the activation on its integer grid in its own dtype; computed in float32, as a device does."""
    scale = np.float32(parameters.scale)
    low, high = parameters.low - parameters.zero_point, parameters.high - parameters.zero_point
    steps: np.ndarray = np.rint(array / scale)  # float32 of float16 too
    np.clip(steps, np.float32(low), np.float32(high), out=steps)
    steps *= scale
    return steps.astype(array.dtype, copy=False)


def walk(
    model: Model,
    plan: Plan,
    quantized: Quantized,
    samples: Sequence[Feeds],
    visitor: Visitor,
) -> None:
    """Run both networks over the samples, showing each quantized layer to `visitor`.

    Biases of `quantized` are not applied: the visitor makes them. Raises UnsupportedError for a model with
    branches or loops, whose bodies read values from outside.
    """
    for node in model.graph:
        if has_subgraphs(node):
            raise UnsupportedError(f"node {source_name(node)!r} ({node.op_type}) holds a body of its own")
    _Walk(model, plan, quantized, samples, visitor).run()


class _Walk:
    def __init__(
        self, model: Model, plan: Plan, quantized: Quantized, samples: Sequence[Feeds], visitor: Visitor
    ) -> None:
        self._model = model
        self._quantized = quantized
        self._visitor = visitor
        self._count = len(samples)
        self._group = {name: g.id for g in plan.groups if g.precision == "int8" for name in g.nodes}
        self._runner = _NodeRunner(opset(model))
        self._floats: dict[int, Arrays] = {}
        self._rounded: dict[int, Arrays] = {}
        for value in model.graph.inputs:
            held = [np.asarray(feeds[value.name or ""]) for feeds in samples]
            self._floats[id(value)] = self._rounded[id(value)] = held

    def run(self) -> None:
        left = {id(v): len(tuple(v.uses())) for node in self._model.graph for v in node.outputs}
        left |= {id(v): len(tuple(v.uses())) for v in self._model.graph.inputs}
        for node in self._model.graph:
            self._step(node)
            for value in node.inputs:
                if value is not None and id(value) in left:
                    left[id(value)] -= 1
            for value in (*node.inputs, *node.outputs):
                if value is not None and left.get(id(value)) == 0:
                    self._floats.pop(id(value), None)
                    self._rounded.pop(id(value), None)

    def _step(self, node: Node) -> None:
        floats = [self._read(self._floats, v) for v in node.inputs]
        rounded = [self._read(self._rounded, v) for v in node.inputs]
        if node.name in self._group:
            rounded = [self._on_grid(node, i, r) for i, r in enumerate(rounded)]
        weight = self._quantized.weights.get((node.name or "", 1))
        if weight is not None:
            assert floats[0] is not None
            assert rounded[0] is not None
            weight = self._visitor.weight(node, 1, floats[0], rounded[0], weight)
            kind = constant(node.inputs[1]) if node.inputs[1] is not None else None
            held = weight.dequantized()
            rounded[1] = [held if kind is None else held.astype(kind.dtype)] * self._count
        same = all(a is b for a, b in zip(floats, rounded, strict=True))
        writes = self._evaluate(node, floats)
        written = writes if same else self._evaluate(node, rounded)
        if weight is not None:
            shift = self._visitor.shift(node, writes[0], written[0])
            if shift is not None:
                written[0] = [array + shift.astype(array.dtype) for array in written[0]]
        named = [value for value in node.outputs if value.name]
        for value, mine, theirs in zip(named, writes, written, strict=True):
            self._floats[id(value)], self._rounded[id(value)] = mine, theirs

    def _read(self, held: dict[int, Arrays], value: Value | None) -> Arrays | None:
        if value is None:
            return None
        found = held.get(id(value))
        if found is None:
            array = constant(value)
            assert array is not None
            found = held[id(value)] = [array] * self._count
            # Both networks share the list, so that a node that reads the same twice is run once.
            self._floats[id(value)] = self._rounded[id(value)] = found
        return found

    def _on_grid(self, node: Node, index: int, arrays: Arrays | None) -> Arrays | None:
        value = node.inputs[index]
        if value is None or arrays is None or constant(value) is not None:
            return arrays
        producer = value.producer()
        if producer is not None and self._group.get(producer.name or "") == self._group[node.name or ""]:
            return arrays
        parameters = self._quantized.activations.get(value.name or "")
        if parameters is None:
            return arrays
        return [rounded_to_grid(array, parameters) for array in arrays]

    def _evaluate(self, node: Node, inputs: list[Arrays | None]) -> list[Arrays]:
        rows = [
            self._runner.run(node, [None if a is None else a[i] for a in inputs]) for i in range(self._count)
        ]
        return [list(column) for column in zip(*rows, strict=True)]


class _NodeRunner:
    """Runs one node at a time: ONNX Runtime with its optimiser off, else our own executor."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._node: Node | None = None
        self._session: Any = None
        self._names: list[str] = []

    def run(self, node: Node, inputs: Sequence[np.ndarray | None]) -> Arrays:
        """Return what the node writes, without the outputs that it leaves out."""
        if node is not self._node:
            self._open(node, inputs)
        if self._session is None:
            made = evaluate_node(node, inputs, self._version)
            return [np.asarray(a) for v, a in zip(node.outputs, made, strict=False) if v.name]
        feeds = {name: a for name, a in zip(self._names, inputs, strict=True) if a is not None}
        return list(self._session.run(None, feeds))

    def _open(self, node: Node, inputs: Sequence[np.ndarray | None]) -> None:
        self._node = node
        self._names = [f"i{index}" for index in range(len(inputs))]
        try:
            self._session = judge_session(model_to_bytes(_alone(node, self._names, inputs, self._version)))
        except Exception:  # onnxruntime's errors share no base class; our executor knows more operators
            self._session = None


def _alone(node: Node, names: list[str], inputs: Sequence[np.ndarray | None], version: int) -> Model:
    """Return a model of this node only, all of its inputs graph inputs."""
    reads = [
        None
        if array is None
        else Value(name=name, type=_type_of(array, value), shape=Shape([None] * array.ndim))
        for name, array, value in zip(names, inputs, node.inputs, strict=True)
    ]
    writes = [Value(name=f"o{i}" if v.name else "", type=v.type) for i, v in enumerate(node.outputs)]
    copy = Node(node.domain, node.op_type, reads, list(node.attributes.values()), outputs=writes, name="node")
    graph = Graph(
        list(dict.fromkeys(v for v in reads if v is not None)),
        [v for v in writes if v.name],
        nodes=[copy],
        opset_imports={"": version},
        name="one",
    )
    return Model(graph, ir_version=10)


def _type_of(array: np.ndarray, value: Value | None) -> Any:
    if value is not None and value.type is not None:
        return value.type
    return TensorType(DataType.from_numpy(array.dtype))
