"""Sibling matrix products as one of more columns."""

from __future__ import annotations

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.fusion.merging import split_results
from edgefuse.graph import Model, Node, Value, add_constant, add_node, attribute, constant, dims, input_value

__all__ = ["merge_columns"]


def merge_columns(model: Model, nodes: list[Node], match: Match) -> bool:
    """Write the sibling MatMuls or Gemms of the group as one product and a Split, in place.

    Q, K and V of attention read one activation: it is loaded once, and the wide product fills more of the
    machine. Takes products of one left operand with constant two-dimensional right operands; Gemms with equal
    attributes and constant biases of one number a column, or none. False otherwise. Exact.
    """
    wanted = {node.name for node in match.siblings}
    siblings = [node for node in nodes if node.name in wanted]
    weights = [constant(input_value(node, 1)) for node in siblings]
    rank = len(dims(siblings[0].outputs[0]) or ()) if siblings else 0
    if len(siblings) < 2 or rank < 2 or len({node.op_type for node in siblings}) != 1:
        return False
    if siblings[0].op_type == "Gemm" and not _same_gemms(siblings):
        return False
    across = 0 if attribute(siblings[0], "transB", 0) else 1
    parts = [w for w in weights if w is not None and w.ndim == 2]
    if len(parts) != len(siblings) or len({w.shape[1 - across] for w in parts}) != 1:
        return False
    first = siblings[0]
    stem = f"{first.name}_merged"
    inputs: list[Value | None] = [
        first.inputs[0],
        add_constant(model.graph, np.concatenate(parts, axis=across), f"{stem}_weight"),
    ]
    biases = [constant(input_value(node, 2)) for node in siblings]
    if any(bias is not None for bias in biases):
        columns = [
            np.zeros(w.shape[across], w.dtype)
            if b is None
            else np.broadcast_to(b.reshape(-1), w.shape[across])
            for b, w in zip(biases, parts, strict=True)
        ]
        inputs.append(add_constant(model.graph, np.concatenate(columns), f"{stem}_bias"))
    attributes = {name: attribute(first, name) for name in first.attributes}
    wide = add_node(first, first.op_type, inputs, attributes, stem=stem, sources=siblings).outputs[0]
    wide.type = first.outputs[0].type
    split_results(model, siblings, wide, [w.shape[across] for w in parts], axis=rank - 1)
    return True


def _same_gemms(nodes: list[Node]) -> bool:
    """Return whether Gemms agree in all attributes and their biases can stand side by side."""
    defaults = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    forms = {tuple(attribute(node, name, value) for name, value in defaults.items()) for node in nodes}
    for node in nodes:
        bias, columns = input_value(node, 2), dims(node.outputs[0])
        array = constant(bias)
        if bias is not None and (array is None or columns is None or array.size not in (1, columns[-1])):
            return False
        if array is not None and array.ndim == 2 and array.shape[0] != 1:
            return False  # one number a row
    return len(forms) == 1
