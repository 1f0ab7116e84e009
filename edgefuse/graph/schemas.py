"""What ONNX itself says about an operator in one version of its set: ports, types, attributes, body."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from edgefuse.errors import InternalError
from edgefuse.graph.access import SOURCE_KEY, source_name

__all__ = [
    "NO_DEFAULT",
    "OperatorForm",
    "Port",
    "expand_functions",
    "has_function_body",
    "newest_form",
    "operator_form",
]

_NEWEST = int(onnx.defs.onnx_opset_version())

# The IR version that goes with an operator set, by the ONNX release that brought both.
_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}


class _NoDefault:
    def __repr__(self) -> str:
        return "<no default>"


NO_DEFAULT = _NoDefault()


@dataclass(frozen=True, slots=True)
class Port:
    """One formal input or output.

    variable: name of the type variable ("T") that ports may share, "" where the type is written out.
    types: element types that a tensor here may have (sequences and optionals are left out).
    """

    name: str
    variable: str
    types: frozenset[ir.DataType]
    optional: bool
    variadic: bool


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """An operator as one version of the operator set defines it.

    attributes: name -> default as a plain value, or NO_DEFAULT.
    """

    op_type: str
    since: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: Mapping[str, Any]

    def input_port(self, index: int) -> Port | None:
        """Return the formal input that stands at `index`, or None past the last one."""
        return _port(self.inputs, index)

    def output_port(self, index: int) -> Port | None:
        """Return the formal output that stands at `index`, or None past the last one."""
        return _port(self.outputs, index)


def _port(ports: tuple[Port, ...], index: int) -> Port | None:
    if index < len(ports):
        return ports[index]
    return ports[-1] if ports and ports[-1].variadic else None


@functools.cache
def operator_form(op_type: str, version: int) -> OperatorForm | None:
    """Return the operator of ONNX's own domain in operator set `version`; None where it is not there."""
    try:
        schema = onnx.defs.get_schema(op_type, min(version, _NEWEST), "")
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    return OperatorForm(
        op_type=op_type,
        since=int(schema.since_version),
        inputs=tuple(_make_port(formal, constraints) for formal in schema.inputs),
        outputs=tuple(_make_port(formal, constraints) for formal in schema.outputs),
        attributes={name: _default(found) for name, found in schema.attributes.items()},
    )


def newest_form(op_type: str) -> OperatorForm | None:
    """Return the operator in the newest operator set that the installed onnx knows, or None."""
    return operator_form(op_type, _NEWEST)


def ir_version_for(version: int) -> int:
    """Return the ONNX IR version of an operator set's time, so that a reader of that time opens the file."""
    return _IR_VERSIONS.get(version, 7 if version < 13 else max(_IR_VERSIONS.values()))


def _make_port(formal: Any, constraints: Mapping[str, Iterable[str]]) -> Port:
    option = onnx.defs.OpSchema.FormalParameterOption
    written = constraints.get(formal.type_str)
    return Port(
        name=formal.name,
        variable=formal.type_str if written is not None else "",
        types=_element_types(written if written is not None else [formal.type_str]),
        optional=formal.option == option.Optional,
        variadic=formal.option == option.Variadic,
    )


def _element_types(written: Iterable[str]) -> frozenset[ir.DataType]:
    found = set()
    for text in written:
        if text.startswith("tensor(") and text.endswith(")"):
            name = text[len("tensor(") : -1].upper()
            if name in ir.DataType.__members__:
                found.add(ir.DataType[name])
    return frozenset(found)


def _default(attribute: Any) -> Any:
    if attribute.default_value.type == onnx.AttributeProto.UNDEFINED:
        return NO_DEFAULT
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, (list, tuple)) else value


def has_function_body(op_type: str, version: int) -> bool:
    """Return whether ONNX defines the operator of set `version` by other operators."""
    try:
        schema: Any = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def expand_functions(model: ir.Model, nodes: Iterable[ir.Node], version: int) -> int:
    """Replace each of `nodes` by the operators that ONNX defines it with, in place; return how many.

    The types of the inputs must be known (a body may depend on them). The body's own names are made unique.
    """
    count = 0
    for node in nodes:
        function = _body(node, version, f"expanded{count}")
        model.functions[function.identifier()] = function
        node.overload = function.overload
        for inner in function:
            inner.metadata_props[SOURCE_KEY] = source_name(node)
        count += 1
    if count:
        common.InlinePass()(model)
        model.functions.clear()
        _drop_placeholders(model)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        common.LiftSubgraphInitializersToMainGraphPass()(model)
        common.NameFixPass()(model)
        model.graph.meta.pop("edgefuse.names", None)
        for graph in model.graphs():
            for node in graph:
                node.version = None
    return count


def _body(node: ir.Node, version: int, overload: str) -> ir.Function:
    """Return the body of one node as a function that only this node calls."""
    schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    if schema.has_function:
        proto = schema.function_body
    else:
        text = schema.get_context_dependent_function(
            ir.serde.serialize_node(node).SerializeToString(),
            [_type_text(value) for value in node.inputs],
        )
        proto = onnx.FunctionProto.FromString(text)
    proto = _complete(proto, node)
    function = ir.serde.deserialize_function(proto)
    # Bodies are written for the set of their time in forms that later sets kept (tests/lowering hold that).
    function.opset_imports[""] = version
    function.domain, function.name, function.overload = node.domain, node.op_type, overload
    for name, declared in schema.attributes.items():
        held = function.attributes.get(name)
        # The body does not repeat the schema's defaults.
        if declared.default_value.type and (held is None or held.value is None):
            default = ir.from_proto(declared.default_value)
            if not isinstance(default, ir.Attr):
                raise InternalError(f"{node.op_type}: the default of {name} is no attribute")
            function.attributes[name] = ir.Attr(name, default.type, default.value)
    return function


def _drop_placeholders(model: ir.Model) -> None:
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type == "Constant" and not node.outputs[0].name and not node.outputs[0].uses():
                graph.remove(node)


def _complete(proto: Any, node: ir.Node) -> onnx.FunctionProto:
    """Return the body with a placeholder for each output that it leaves out because nobody asked for it."""
    made = onnx.FunctionProto()
    made.CopyFrom(proto)
    del made.output[len(node.outputs) :]
    written = {name for inner in made.node for name in inner.output}
    for name in made.output:
        if name not in written:
            made.node.append(onnx.helper.make_node("Constant", [], [name], value_int=0))
    return made


def _type_text(value: ir.Value | None) -> bytes:
    if value is None or value.dtype is None:
        return bytes(onnx.TypeProto().SerializeToString())
    shape = None
    if value.shape is not None:
        shape = [d if isinstance(d, int) else None for d in value.shape]
    made = onnx.helper.make_tensor_type_proto(int(value.dtype), shape)
    return bytes(made.SerializeToString())
