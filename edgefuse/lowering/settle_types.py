"""Element types: what the target does not hold becomes what it holds, and back only where ONNX insists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgefuse.graph import (
    DataType,
    Graph,
    Model,
    Node,
    TensorType,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    has_subgraphs,
    opset,
)
from edgefuse.graph.schemas import OperatorForm, Port, operator_form
from edgefuse.lowering.reader import Reader, refusal

__all__ = ["Casts", "settle_types"]

# What stands for a type that an operator does not compute in, in order of preference.
_WIDER = {
    DataType.BOOL: (DataType.INT32, DataType.FLOAT),
    DataType.INT8: (DataType.INT32, DataType.FLOAT),
    DataType.UINT8: (DataType.INT32, DataType.FLOAT),
    DataType.INT16: (DataType.INT32, DataType.FLOAT),
    DataType.UINT16: (DataType.INT32, DataType.FLOAT),
    DataType.INT32: (DataType.INT64, DataType.FLOAT),
    DataType.INT64: (DataType.INT32, DataType.FLOAT),
    DataType.FLOAT16: (DataType.FLOAT,),
    DataType.BFLOAT16: (DataType.FLOAT,),
}
_SMALL = frozenset({DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16})

# Arithmetic in which a small integer type would wrap around, and a wider one would not.
_WRAPPING = frozenset({"Add", "Sub", "Mul", "Neg", "Pow", "ReduceSum", "ReduceProd", "Sum", "CumSum", "Abs"})

# ONNX prescribes int64 for how often a Loop runs, as for the number of the turn that its body reads.
_TRIP_COUNT = ("Loop", 0)

# Inputs where a number past the int32 range says "to the end" and may be clamped: (operator, input index).
_CLAMPED = frozenset({("Slice", 1), ("Slice", 2), _TRIP_COUNT})

# Attributes that name an element type.
_TYPE_ATTRIBUTES = {
    "Cast": "to",
    "EyeLike": "dtype",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
}


@dataclass(slots=True)
class Casts:
    """What changed: inputs and outputs by the user's name as (theirs, the payload's), and notes."""

    inputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def settle_types(model: Model, reader: Reader) -> Casts:
    """Give every tensor an element type that the reader holds and every operator one that it computes in.

    The model must be in the reader's operator set already. In place. An integer that does not fit the
    narrower type is refused, but in the bounds of a Slice, where it is clamped. Inputs and outputs of the
    graph change too; the engine converts them (see `Casts`).
    """
    return _Settler(model, reader).run()


class _Settler:
    def __init__(self, model: Model, reader: Reader) -> None:
        self.model = model
        self.reader = reader
        self.version = opset(model)
        self.casts = Casts()
        self.counts: Counter[str] = Counter()
        self.converted: dict[tuple[Value, DataType], Value] = {}
        self.before = {
            value: value.dtype
            for graph in model.graphs()
            for value in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))
        }

    def run(self) -> Casts:
        graph = self.model.graph
        for value in graph.inputs:
            self._settle_io(value, self.casts.inputs)
        kept = {value.name: value.dtype for value in graph.outputs}
        self._graph(graph)
        for value in graph.outputs:
            before = kept[value.name]
            if before is not None and value.dtype is not None and before != value.dtype:
                self.casts.outputs[value.name or ""] = (before.name.lower(), value.dtype.name.lower())
        _drop_same_casts(self.model)
        self._unused()
        self.casts.notes += [f"{text} ({count} places)" for text, count in sorted(self.counts.items())]
        return self.casts

    def _settle_io(self, value: Value, record: dict[str, tuple[str, str]]) -> None:
        if value.dtype is not None and self.reader.held(value.dtype) != value.dtype:
            held = self.reader.held(value.dtype)
            record[value.name or ""] = (value.dtype.name.lower(), held.name.lower())
            value.type = TensorType(held)

    def _graph(self, graph: Graph, fixed: Sequence[Value] = ()) -> None:
        """Settle the nodes of a graph; fixed: inputs whose type ONNX prescribes."""
        for value in graph.inputs:
            if value.dtype is not None and value not in fixed:
                value.type = TensorType(self.reader.held(value.dtype))
        for node in list(graph):
            self._node(node)
            for body in _bodies(node):
                self._graph(body, body.inputs[:1] if node.op_type == "Loop" else ())
                self._body_outputs(body)

    def _body_outputs(self, body: Graph) -> None:
        """Let a body give its results in the types that its node passes on."""
        for index, value in enumerate(body.outputs):
            before = self.before.get(value)
            last = next(reversed(body), None)
            if before is None or last is None or value.dtype == self.reader.held(before):
                continue
            wanted = self.reader.held(before)
            body.outputs[index] = _append_cast(last, value, wanted).outputs[0]
            body.outputs[index].type = TensorType(wanted)

    def _node(self, node: Node) -> None:
        form = operator_form(node.op_type, self.version) if node.domain in ("", "ai.onnx") else None
        if form is None or has_subgraphs(node):
            # Inputs of If, Loop and custom operators keep their types, which are held ones but for constants.
            for index, value in enumerate(node.inputs):
                if value is None or value.dtype is None:
                    continue
                if (node.op_type, index) == _TRIP_COUNT:
                    self._feed(node, index, DataType.INT64)
                elif constant(value) is not None:
                    self._feed(node, index, self.reader.held(value.dtype))
            if form is not None:
                for value in node.outputs:
                    if value.dtype is not None:
                        value.type = TensorType(self.reader.held(value.dtype))
            return
        self._name_types(node)
        chosen = self._choose(node, form)
        for index, value in enumerate(node.inputs):
            port = form.input_port(index)
            if value is not None and port is not None:
                self._feed(node, index, chosen[_key(port, index)])
        self._outputs(node, form, chosen)

    def _name_types(self, node: Node) -> None:
        """Let Cast and its kind name a type that the target holds."""
        name = _TYPE_ATTRIBUTES.get(node.op_type)
        named = attribute(node, name) if name is not None else None
        if name is not None and named is not None:
            node.attributes[name] = type(node.attributes[name])(
                name, node.attributes[name].type, int(self.reader.held(DataType(named)))
            )

    def _choose(self, node: Node, form: OperatorForm) -> dict[str, DataType]:
        """Return an element type for each type variable (or fixed port) of the node."""
        main = _main_variable(form)
        groups: dict[str, list[Value]] = {}
        allowed: dict[str, frozenset[DataType]] = {}
        for index, value in enumerate(node.inputs):
            port = form.input_port(index)
            if value is not None and port is not None:
                groups.setdefault(_key(port, index), []).append(value)
                allowed[_key(port, index)] = port.types
        limit = self.reader.limits.get(node.op_type)
        return {
            key: self._pick(
                node, values, allowed[key], limit.types if limit is not None and key == main else frozenset()
            )
            for key, values in groups.items()
        }

    def _pick(
        self, node: Node, values: Sequence[Value], standard: frozenset[DataType], target: frozenset[DataType]
    ) -> DataType:
        found = [value.dtype for value in values if value.dtype is not None]
        if not found:
            raise refusal(node, f"the element type of {values[0].name!r} is not known")
        wanted = self.reader.held(found[0])
        both = standard & target if target else standard
        for dtype in (wanted, *_WIDER.get(wanted, ())):
            if dtype in both:
                self._note_widening(node, self.before.get(values[0]) or wanted, dtype)
                return dtype
        if wanted != found[0] and found[0] in standard and not target:
            return found[0]
        raise refusal(node, f"the target has no {node.op_type} of {wanted.name.lower()}")

    def _note_widening(self, node: Node, wanted: DataType, dtype: DataType) -> None:
        if wanted in _SMALL and dtype != wanted and node.op_type in _WRAPPING:
            raise refusal(
                node, f"the target has no {node.op_type} of {wanted.name.lower()}, which wraps around"
            )
        if dtype == DataType.FLOAT and wanted in (DataType.INT32, DataType.INT64):
            self.counts[f"{node.op_type} of integers runs in float32, exact up to 2^24"] += 1

    def _feed(self, node: Node, index: int, dtype: DataType) -> None:
        """Let the node read its input as `dtype`."""
        value = node.inputs[index]
        if value is None or value.dtype == dtype:
            if value is not None and constant(value) is not None and dtype == DataType.INT64:
                self._narrow(node, index, value, dtype)
            return
        array = constant(value)
        if array is not None:
            self._narrow(node, index, value, dtype)
            return
        key = (value, dtype)
        found = self.converted.get(key)
        if found is None or found.producer() is None or found.producer().graph is not node.graph:  # type: ignore[union-attr]
            made = add_node(
                node,
                "Cast",
                [value],
                {"to": int(dtype)},
                like=value,
                stem=f"{value.name}_{dtype.name.lower()}",
            )
            found = made.outputs[0]
            found.type = TensorType(dtype)
            self.converted[key] = found
        node.replace_input_with(index, found)

    def _narrow(self, node: Node, index: int, value: Value, dtype: DataType) -> None:
        """Let the node read a constant as `dtype`, with integers in int32 where the target has no int64."""
        array = constant(value)
        if array is None:
            return
        clamp = (node.op_type, index) in _CLAMPED
        key = (value, dtype)
        found = None if clamp else self.converted.get(key)
        if found is None:
            fitted = self._fit(node, value, array, dtype, clamp)
            if fitted is array:
                return
            found = add_constant(self.model.graph, fitted, value.name or "c")
            self.converted[key] = found
        node.replace_input_with(index, found)

    def _fit(self, node: Node, value: Value, array: np.ndarray, dtype: DataType, clamp: bool) -> np.ndarray:
        """Return the array as `dtype` (itself where nothing changes)."""
        if array.dtype.kind in "iu" and self.reader.held(DataType.INT64) == DataType.INT32 and array.size:
            limits = np.iinfo(np.int32)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                if not clamp:
                    raise refusal(
                        node,
                        f"the constant {value.name!r} holds integers outside the int32 range "
                        f"({int(array.min())} to {int(array.max())})",
                    )
                array = np.clip(array, limits.min, limits.max)
        wanted = dtype.numpy()
        if array.dtype == wanted:
            return array
        narrowed = array.astype(wanted)
        if array.dtype.kind == "f" and narrowed.dtype.kind == "f":
            lost = np.isfinite(array) & ~np.isfinite(narrowed)
            if lost.any():
                raise refusal(node, f"the constant {value.name!r} does not fit {dtype.name.lower()}")
        return narrowed

    def _outputs(self, node: Node, form: OperatorForm, chosen: dict[str, DataType]) -> None:
        for index, value in enumerate(node.outputs):
            port = form.output_port(index)
            if port is None or not value.name or value.dtype is None:
                continue
            before = value.dtype
            written = self._written(node, port, chosen, before)
            value.type = TensorType(written)
            wanted = self.reader.held(before)
            if written != wanted:
                self._cast_after(node, value, wanted)

    def _written(self, node: Node, port: Port, chosen: dict[str, DataType], before: DataType) -> DataType:
        """Return the element type that the node writes at `port`."""
        if port.variable in chosen:
            return chosen[port.variable]
        if len(port.types) == 1:
            return next(iter(port.types))
        if node.op_type in _TYPE_ATTRIBUTES:
            return self.reader.held(before)
        if node.op_type == "ConstantOfShape":
            filled = attribute(node, "value")
            return before if filled is None else DataType.from_numpy(filled.dtype)
        return before

    def _cast_after(self, node: Node, value: Value, wanted: DataType) -> None:
        """Let the readers of `value` read it as `wanted`; a graph output keeps its name and becomes that."""
        graph = node.graph
        following = _next(node)
        if graph is None:
            return
        uses = list(value.uses())
        if following is None:
            made = _append_cast(node, value, wanted)
        else:
            made = add_node(
                following, "Cast", [value], {"to": int(wanted)}, like=value, stem=f"{value.name}_cast"
            )
        new = made.outputs[0]
        new.type = TensorType(wanted)
        if value.is_graph_output():
            name = value.name
            value.name = f"{name}__{value.dtype.name.lower() if value.dtype else 'raw'}"
            new.name = name
            for place, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[place] = new
        for user, place in uses:
            user.replace_input_with(place, new)

    def _unused(self) -> None:
        graph = self.model.graph
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]


def _key(port: Port, index: int) -> str:
    return port.variable or f"#{index}"


def _main_variable(form: OperatorForm) -> str:
    """Return the type variable that an operator computes in: its output's, or else its first input's."""
    inputs = {port.variable for port in form.inputs}
    for port in form.outputs:
        if port.variable and port.variable in inputs:
            return port.variable
    return form.inputs[0].variable if form.inputs else ""


def _bodies(node: Node) -> list[Graph]:
    return [a.as_graph() for a in node.attributes.values() if isinstance(a.value, Graph)]


def _next(node: Node) -> Node | None:
    graph = node.graph
    found = False
    for other in graph or ():
        if found:
            return other
        found = other is node
    return None


def _append_cast(node: Node, value: Value, wanted: DataType) -> Node:
    """Return a Cast placed right after `node`, the last of its graph."""
    made = add_node(node, "Cast", [value], {"to": int(wanted)}, like=value, stem=f"{value.name}_cast")
    graph = node.graph
    if graph is not None:
        graph.remove(made)
        graph.append(made)
    return made


def _drop_same_casts(model: Model) -> None:
    """Take out casts to the type that a tensor has by now; those that write a graph output stay."""
    for graph in model.graphs():
        for node in list(graph):
            source = node.inputs[0] if node.op_type == "Cast" else None
            if source is None or source.dtype is None or source.dtype != DataType(attribute(node, "to")):
                continue
            if node.outputs[0].is_graph_output():
                node.op_type = "Identity"
                node.attributes.clear()
                continue
            for user, index in tuple(node.outputs[0].uses()):
                user.replace_input_with(index, source)
            graph.remove(node, safe=True)
