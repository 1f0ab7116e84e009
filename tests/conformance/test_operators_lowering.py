"""Operator cases of the onnx wheel keep their results when they are lowered for the oldest reader.

Operator set 13, that reader's operators, no int64, no double, fixed shapes. What it cannot have is refused as
unsupported, never answered wrongly. Parameters that a case feeds at run time (axes, sizes) are made constants
where the reader wants them so.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from node_cases import NodeCase, differences, node_cases

from edgefuse.device import load_runtime
from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model, all_nodes, bind_dimensions, model_from_proto
from edgefuse.graph.reference import Reference
from edgefuse.graph.schemas import has_function_body, newest_form
from edgefuse.lowering import LoweringNotes, lower_model
from edgefuse.lowering.decompositions import decompositions
from edgefuse.lowering.forms import steps

READABLE = frozenset(load_runtime("tensorrt", "jetpack-4.6").readable_ops) - {
    "QuantizeLinear",
    "DequantizeLinear",
}
RETYPE = {"double": "float", "float16": "float", "uint8": "int32"}
# Random numbers; the maximum of no bool at all, which a cast to integers makes the smallest integer.
LEFT_OUT = ("test_bernoulli", "test_reduce_max_empty_set_bool", "test_mod_float_edge_cases")


def _touched(op_type: str) -> bool:
    """Return whether lowering does something to the operator."""
    form = newest_form(op_type)
    body = form is not None and op_type not in READABLE and has_function_body(op_type, form.since)
    return op_type in decompositions() or op_type in steps() or body


# Attention has 85 cases that expand to 40 nodes each: every fifth is enough here.
EVERY_FIFTH = "test_attention_"


def _cases() -> list[NodeCase]:
    found = [
        case
        for case in node_cases()
        if case.kind == "plain"
        and not case.name.endswith(("_expanded", "_expanded_ver18"))
        and not case.name.startswith(LEFT_OUT)
        and any(_touched(op_type) for op_type in case.op_types)
    ]
    attention = [case for case in found if case.name.startswith(EVERY_FIFTH)]
    left_out = {case.name for index, case in enumerate(attention) if index % 5}
    return [case for case in found if case.name not in left_out]


def _with_constants(case: NodeCase) -> Model:
    """Return the case's model with every input but the first as a constant."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    kept = []
    for index, value in enumerate(case.model.graph.input):
        array = case.inputs.get(value.name)
        if index == 0 or not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
            kept.append(value)
        else:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return model_from_proto(proto)


def _lower(model: Model, case: NodeCase) -> tuple[Model, LoweringNotes]:
    names = {value.name for value in model.graph.inputs}
    shapes = {
        name: array.shape
        for name, array in case.inputs.items()
        if name in names and isinstance(array, np.ndarray) and all(array.shape)
    }
    bind_dimensions(model, shapes)
    return lower_model(model, opset=13, operators=READABLE, index_dtype="int32", static=True, retype=RETYPE)


def _outcome(case: NodeCase) -> str:
    """Return "equal", "refused: REASON", or what is wrong."""
    try:
        try:
            made, notes = _lower(model_from_proto(case.model), case)
        except UnsupportedError:
            made, notes = _lower(_with_constants(case), case)
    except UnsupportedError as error:
        named = any(source in error.message for source in ("node ", "raising the model"))
        return f"refused: {error.message}" if named else f"{case.name}: {error.message} names no node"
    left = {node.op_type for node in all_nodes(made)} - READABLE
    if left:
        return f"{case.name}: still holds {sorted(left)}"
    feeds = {
        str(value.name): np.asarray(case.inputs[str(value.name)]).astype(value.dtype.numpy())
        for value in made.graph.inputs
        if value.dtype is not None
    }
    results = Reference(made, precision="native").run(feeds)
    for name in notes.output_casts:
        results[name] = np.asarray(results[name]).astype(np.asarray(case.outputs[name]).dtype)
    return "; ".join(differences(case, results)) or "equal"


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(4))
def test_cases_keep_their_results(shard: int) -> None:
    cases = _cases()
    outcomes = {case.name: _outcome(case) for case in cases[shard::4]}
    wrong = [text for text in outcomes.values() if text != "equal" and not text.startswith("refused")]
    assert not wrong, "\n".join(wrong)
    equal = sum(text == "equal" for text in outcomes.values())
    assert equal / len(outcomes) >= 0.7, f"{equal} of {len(outcomes)} are lowered"
