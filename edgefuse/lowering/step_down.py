"""Writing a canonical model in an older operator set, node by node."""

from __future__ import annotations

from edgefuse.graph import Model, Node, all_nodes, attribute, opset, remove_node, replace_value
from edgefuse.graph.check import set_opset
from edgefuse.graph.schemas import NO_DEFAULT, OperatorForm, newest_form
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import steps
from edgefuse.lowering.reader import Reader, refusal

__all__ = ["step_down"]

# Attributes that only concern element types which the older set does not have: float8, 4-bit, training.
_SILENT = {
    ("Cast", "saturate"),
    ("Cast", "round_mode"),
    ("QuantizeLinear", "saturate"),
    ("QuantizeLinear", "precision"),
    ("QuantizeLinear", "output_dtype"),
    ("DequantizeLinear", "output_dtype"),
    ("Range", "stash_type"),
}


def step_down(model: Model, reader: Reader) -> None:
    """Rewrite every node in the form of the reader's operator set, in place, and state that set.

    All operators must be ones that the set has. Raises UnsupportedError naming the node and the attribute,
    input or output that the older form cannot say. A model that is older already is stated as newer only
    where no form changed, which is true from 13 on for what canonical models hold.
    """
    if opset(model) > reader.opset:
        for node in list(all_nodes(model)):
            if node.domain in ("", "ai.onnx"):
                _step_node(model, node, reader)
    set_opset(model, min(reader.opset, opset(model)))


def _step_node(model: Model, node: Node, reader: Reader) -> None:
    for step in steps().get(node.op_type, ()):
        if reader.opset < step.since:
            new = step.rewrite(node, Builder(model, node, reader))
            if new is not None:
                for old, value in zip(node.outputs, new, strict=True):
                    if value is not None:
                        replace_value(old, value)
                remove_node(node)
                return
    form = reader.form(node.op_type)
    if form is None:
        raise refusal(node, reader.missing(node.op_type))
    _drop_defaults(node, form, reader)
    _check_ports(node, form, reader)


def _drop_defaults(node: Node, form: OperatorForm, reader: Reader) -> None:
    """Drop attributes that the older form does not have where they say nothing; refuse others."""
    newest = newest_form(node.op_type)
    for name in list(node.attributes):
        if name in form.attributes:
            continue
        default = newest.attributes.get(name, NO_DEFAULT) if newest is not None else NO_DEFAULT
        found = attribute(node, name)
        if (node.op_type, name) not in _SILENT and (default is NO_DEFAULT or found != default):
            raise refusal(node, f"{name}={found!r} is not in operator set {reader.opset}")
        del node.attributes[name]


def _check_ports(node: Node, form: OperatorForm, reader: Reader) -> None:
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if len(inputs) < len(node.inputs):
        node.resize_inputs(len(inputs))
    if inputs and form.input_port(len(inputs) - 1) is None:
        raise refusal(node, f"its input {len(inputs) - 1} is not in operator set {reader.opset}")
    read = [i for i, value in enumerate(node.outputs) if value.uses() or value.is_graph_output()]
    if read and form.output_port(read[-1]) is None:
        raise refusal(node, f"its output {read[-1]} is not in operator set {reader.opset}")
