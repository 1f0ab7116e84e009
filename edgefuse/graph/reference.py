"""Our own judge: an executor of ONNX in float64 or in native dtypes (the other: edgefuse.graph.judge).

`Reference` walks an onnx_ir model with the kernels of `edgefuse.graph.kernels`; what has no kernel there runs
in the onnx wheel's reference operators, and what has neither is expanded by the function body of its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from edgefuse.errors import EdgefuseError, InputError, UnsupportedError, did_you_mean
from edgefuse.graph.judge import judge_session, max_relative_error, signal_to_noise_db
from edgefuse.graph.kernels import load_kernels
from edgefuse.graph.kernels.call import Array, Call, is_carried_float
from edgefuse.graph.kernels.control import EndlessLoopError
from edgefuse.graph.kernels.library import LibraryOps

__all__ = [
    "Around",
    "EndlessLoopError",
    "Precision",
    "Reference",
    "evaluate_node",
    "judge_session",
    "max_relative_error",
    "signal_to_noise_db",
]

Precision = Literal["float64", "native"]
# (node, its inputs, the reference's own way from inputs to outputs) -> the node's outputs.
Around: TypeAlias = "Callable[[ir.Node, tuple[Any, ...], Callable[[tuple[Any, ...]], list[Any]]], list[Any]]"


@dataclass(slots=True)
class _Scope:
    """Values of one run of one graph or function; a subgraph's scope sees its parent's."""

    opsets: Mapping[str, int]
    parent: _Scope | None = None
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)
    values: dict[ir.Value, Any] = field(default_factory=dict)

    def find(self, value: ir.Value) -> tuple[bool, Any]:
        scope: _Scope | None = self
        while scope is not None:
            if value in scope.values:
                return True, scope.values[value]
            scope = scope.parent
        return False, None


@dataclass(frozen=True, slots=True)
class _Step:
    node: ir.Node
    dead_after: tuple[ir.Value, ...]


class Reference:
    """Runs an ONNX model, exactly as the standard says and in the precision asked for.

    precision "float64": every float16, bfloat16, float32 tensor (inputs, initializers, constants) is carried
    in float64 and a Cast to one of them changes nothing, so float16 weights count as the values they hold;
    outputs are float64 (integers, bools and strings keep their dtype). Quantized formats (ints, float8,
    float4) round as they do on a device. "native": the dtypes that ONNX prescribes.

    Covers If, Loop, Scan, sequences, optionals, local functions and opsets 7 to the newest of the onnx wheel.
    A shape computed through float arithmetic is computed in `precision` too.
    around: called for every node that runs, in place of the kernel that it is handed; it may change inputs,
    outputs, or compute by itself.  None: nothing is changed. Schedules and constants are kept
    from the first run on: make a new Reference after the model was changed.

    >>> import onnx_ir as ir
    >>> x = ir.val("x", dtype=ir.DataType.FLOAT, shape=[2])
    >>> node = ir.node("Relu", [x])
    >>> graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 20})
    >>> list(Reference(ir.Model(graph, ir_version=10)).run({"x": np.array([-1.0, 2.0])}).values())
    [array([0., 2.])]
    """

    def __init__(
        self, model: ir.Model, *, precision: Precision = "float64", around: Around | None = None
    ) -> None:
        if precision not in ("float64", "native"):
            raise InputError(f"unknown precision '{precision}'", expected="float64 or native")
        self._model = model
        self._executor = _Executor(model, float64=precision == "float64", around=around)

    def run(
        self, feeds: Mapping[str, Array | Sequence[Any] | None], fetch: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return name -> array for the graph outputs in order, or for the values named in `fetch`.

        feeds: one entry for each graph input (those with an initializer may be left out); an ONNX sequence is
        a list, an absent optional is None. fetch: any inputs, initializers or results of the main graph.
        Only nodes that the fetched values need run; each tensor is dropped after its last reader.
        Raises InputError (a missing or unknown name, a wrong dtype or shape, a model that breaks ONNX's
        rules) and UnsupportedError (no kernel), both naming the node.
        """
        graph = self._model.graph
        wanted = self._wanted(fetch)
        scope = _Scope(self._model.opset_imports)
        known = {str(value.name): value for value in graph.inputs}
        for name in feeds:
            if name not in known:
                hint = did_you_mean(name, list(known))
                raise InputError(f"the model has no input '{name}'{hint}", expected=", ".join(known))
        for name, value in known.items():
            if name in feeds:
                scope.values[value] = self._executor.admit(value, feeds[name])
            elif value.const_value is None:
                raise InputError(f"input '{name}' is missing", expected=", ".join(known))
        results = self._executor.run_graph(graph, scope, tuple(wanted.values()))
        return dict(zip(wanted, results, strict=True))

    def _wanted(self, fetch: Sequence[str] | None) -> dict[str, ir.Value]:
        graph = self._model.graph
        if fetch is None:
            return {str(value.name): value for value in graph.outputs}
        table = {str(v.name): v for node in graph for v in node.outputs if v.name}
        table |= {str(name): v for name, v in graph.initializers.items()}
        table |= {str(v.name): v for v in graph.inputs}
        for name in fetch:
            if name not in table:
                raise InputError(f"the model has no value '{name}'{did_you_mean(name, list(table))}")
        return {name: table[name] for name in fetch}


class _Executor:
    """Runs graphs, subgraphs and functions of one model; holds its constants and schedules."""

    def __init__(self, model: ir.Model | None, *, float64: bool, around: Around | None = None) -> None:
        self._float64 = float64
        self._around = around
        self._functions: dict[tuple[str, str, str], ir.Function] = dict(model.functions) if model else {}
        self._constants: dict[ir.Value, Any] = {}
        self._schedules: dict[tuple[int, tuple[ir.Value, ...]], list[_Step]] = {}
        self._kernels = load_kernels()
        self._library = LibraryOps(float64=float64)

    def carry(self, value: Any) -> Any:
        """Return a value in this executor's precision (floats to float64, or unchanged)."""
        if isinstance(value, list):
            return [self.carry(v) for v in value]
        if value is None:
            return None
        value = np.asarray(value)
        if self._float64 and value.dtype != np.float64 and is_carried_float(value.dtype):
            return value.astype(np.float64)
        return value

    def admit(self, value: ir.Value, fed: Any) -> Any:
        """Return a feed checked against the declared type and static dimensions."""
        if fed is None or isinstance(fed, list) or not isinstance(value.type, ir.TensorType):
            return self.carry(fed)
        array = np.asarray(fed)
        declared = np.dtype(value.type.dtype.numpy()) if value.type.dtype != ir.DataType.STRING else None
        if declared is not None and array.dtype != declared:
            if not (is_carried_float(declared) and is_carried_float(array.dtype)):
                raise InputError(
                    f"input '{value.name}' has the wrong dtype", expected=declared.name, got=array.dtype.name
                )
            array = array if self._float64 else array.astype(declared)
        dims = list(value.shape) if value.shape is not None else None
        if dims is not None and (
            len(dims) != array.ndim
            or any(isinstance(d, int) and d >= 0 and d != n for d, n in zip(dims, array.shape, strict=True))
        ):
            raise InputError(
                f"input '{value.name}' has the wrong shape",
                expected="[" + ", ".join(str(d) for d in dims) + "]",
                got=str(list(array.shape)),
            )
        return self.carry(array)

    def constant(self, value: ir.Value) -> Any:
        """Return an initializer's array in this precision (converted once)."""
        if value not in self._constants:
            tensor = value.const_value
            if tensor is None:
                raise InputError(f"value '{value.name}' has no producer and no data")
            self._constants[value] = self.carry(_tensor_array(tensor))
        return self._constants[value]

    def run_graph(self, graph: ir.Graph, scope: _Scope, wanted: tuple[ir.Value, ...]) -> list[Any]:
        """Run the nodes that `wanted` needs, in order, and return the values of `wanted`."""
        key = (id(graph), wanted)
        if key not in self._schedules:
            self._schedules[key] = _schedule(graph, wanted)
        with np.errstate(all="ignore"):
            for step in self._schedules[key]:
                results = self._run_node(step.node, scope)
                for output, result in zip(step.node.outputs, results, strict=False):
                    scope.values[output] = result
                for dead in step.dead_after:
                    scope.values.pop(dead, None)
        return [self._read(value, scope) for value in wanted]

    def _read(self, value: ir.Value | None, scope: _Scope) -> Any:
        if value is None:
            return None
        found, result = scope.find(value)
        if found:
            return result
        if value.const_value is None and not value.name:
            return None
        return self.constant(value)

    def _run_node(self, node: ir.Node, scope: _Scope) -> list[Any]:
        inputs = tuple(self._read(value, scope) for value in node.inputs)
        attributes = resolve_attributes(node, scope.attributes)
        if self._around is None:
            return self.call(node, inputs, attributes, scope)
        return self._around(node, inputs, lambda given: self.call(node, given, attributes, scope))

    def call(
        self, node: ir.Node, inputs: tuple[Any, ...], attributes: dict[str, ir.Attr], scope: _Scope
    ) -> list[Any]:
        """Return one node's outputs, in this precision."""
        function = self._functions.get((node.domain, node.op_type, node.overload or ""))
        if function is not None:
            return self._call_function(function, inputs, attributes, scope)
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = _opset(node, domain, scope.opsets)
        kernel = self._kernels.get(node.op_type) if domain == "" else None
        if kernel is None:
            body = self._library.function_body(node, domain, opset, inputs, attributes)
            if body is not None:
                return self._call_function(body, inputs, attributes, scope)
            kernel = self._library.kernel(node, domain, opset, attributes)

        def run_graph(graph: ir.Graph, values: Sequence[Any]) -> list[Any]:
            inner = _Scope(scope.opsets, scope, scope.attributes)
            inner.values.update(zip(graph.inputs, values, strict=False))
            return self.run_graph(graph, inner, tuple(graph.outputs))

        call = Call(
            label(node),
            node.op_type,
            inputs,
            {name: _attribute_value(attribute) for name, attribute in attributes.items()},
            opset,
            self._float64,
            len(node.outputs),
            run_graph,
        )
        return [self.carry(result) for result in _guarded(kernel, call)]

    def _call_function(
        self,
        function: ir.Function,
        inputs: tuple[Any, ...],
        attributes: Mapping[str, ir.Attr],
        caller: _Scope,
    ) -> list[Any]:
        defaults = {name: a for name, a in function.attributes.items() if a.value is not None}
        # A graph attribute of the caller may use a domain that the function itself does not import.
        opsets = {**caller.opsets, **function.opset_imports}
        scope = _Scope(opsets, None, {**defaults, **attributes})
        for index, value in enumerate(function.inputs):
            scope.values[value] = inputs[index] if index < len(inputs) else None
        return self.run_graph(function.graph, scope, tuple(function.outputs))


def _guarded(kernel: Any, call: Call) -> tuple[Any, ...]:
    """Return the kernel's outputs as a tuple; what it raises comes back as an error that names the node."""
    try:
        result = kernel(call)
    except EdgefuseError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        raise UnsupportedError(f"{call.label}: cannot be computed", got=str(error).splitlines()[0]) from error
    except Exception as error:
        shapes = ", ".join(_describe(value) for value in call.inputs)
        raise InputError(
            f"{call.label}: its inputs do not fit the operator", got=f"{shapes} ({error})"
        ) from error
    return result if isinstance(result, tuple) else (result,)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "none" if value is None else type(value).__name__


def label(node: ir.Node) -> str:
    """Return how messages name a node: "node 'name' (Op)"."""
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    return f"node '{node.name or '?'}' ({domain}{node.op_type})"


def _opset(node: ir.Node, domain: str, opsets: Mapping[str, int]) -> int:
    if node.version is not None:
        return node.version
    found = opsets.get(domain)
    if found is None and domain == "":
        found = opsets.get("ai.onnx")
    if found is None:
        raise UnsupportedError(
            f"{label(node)}: no kernel, and the model declares no version of domain '{domain or 'ai.onnx'}'",
            hint="export the model with plain ONNX operators, or give an extension that claims this domain",
        )
    return found


def resolve_attributes(node: ir.Node, outer: Mapping[str, ir.Attr]) -> dict[str, ir.Attr]:
    """Return a node's attributes with references to the calling function's attributes replaced."""
    resolved = {}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            target = outer.get(str(attribute.ref_attr_name))
            if target is None:
                continue
            attribute = ir.Attr(name, target.type, target.value)
        resolved[name] = attribute
    return resolved


def _attribute_value(attribute: ir.Attr) -> Any:
    if attribute.type == ir.AttributeType.FLOAT:
        return float(np.float32(attribute.value))
    if attribute.type == ir.AttributeType.FLOATS:
        return tuple(float(np.float32(v)) for v in attribute.value)
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_array(attribute.value)
    return attribute.value


def _tensor_array(tensor: ir.TensorProtocol) -> Array:
    array = tensor.numpy()
    if tensor.dtype == ir.DataType.STRING:
        texts = [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in array.reshape(-1)]
        array = np.array(texts, dtype=object).reshape(array.shape)
    return array


def _outer_reads(node: ir.Node) -> Iterable[ir.Value]:
    """Yield every value that a node reads, those read inside its subgraphs included."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield from (value for value in current.inputs if value is not None)
        for attribute in current.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and attribute.value is not None:
                graphs = [attribute.value]
            elif attribute.type == ir.AttributeType.GRAPHS and attribute.value is not None:
                graphs = list(attribute.value)
            else:
                continue
            for graph in graphs:
                stack.extend(graph)
                yield from graph.outputs


def _schedule(graph: ir.Graph, wanted: tuple[ir.Value, ...]) -> list[_Step]:
    """Return the nodes needed for `wanted` in graph order, each with the values nobody reads after it."""
    needed: set[ir.Value] = set(wanted)
    steps: list[_Step] = []
    kept = set(wanted)
    seen: set[ir.Value] = set(wanted)
    for node in reversed(graph):
        if not any(output in needed for output in node.outputs):
            continue
        reads = set(_outer_reads(node))
        needed |= reads
        dead = [value for value in (*reads, *node.outputs) if value not in seen and value not in kept]
        seen.update(reads)
        steps.append(_Step(node, tuple(dead)))
    steps.reverse()
    return steps


def evaluate_node(
    node: ir.Node, inputs: Sequence[Array | None], opset: int, *, precision: Precision = "native"
) -> list[Array]:
    """Return the outputs of one node on constant inputs, for constant folding.

    inputs: one array (or None for an absent optional) for each node input; opset: version of its domain.
    Raises UnsupportedError naming the node and its operator where there is no kernel (custom domains),
    InputError where the inputs do not fit it or a subgraph reads values that are not constant.
    """
    executor = _Executor(None, float64=precision == "float64")
    domain = "" if node.domain == "ai.onnx" else node.domain
    carried = tuple(executor.carry(value) for value in inputs)
    with np.errstate(all="ignore"):
        return executor.call(node, carried, resolve_attributes(node, {}), _Scope({domain: opset, "": opset}))
