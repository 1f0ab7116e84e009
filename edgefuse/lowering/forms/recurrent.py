"""LSTM, GRU and RNN with time first, the only layout before operator set 14."""

from __future__ import annotations

from edgefuse.graph import Node, Value, attribute, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import Step
from edgefuse.lowering.reader import refusal

# [batch, time, input] -> [time, batch, input]; [batch, directions, hidden] -> [directions, batch, hidden]
_SWAP = [1, 0, 2]
# Y: [time, directions, batch, hidden] -> [batch, time, directions, hidden]
_OUT = [2, 0, 1, 3]


def _time_first(node: Node, make: Builder) -> list[Value | None] | None:
    """layout=1 puts the batch first; Transposes around the operator do it."""
    if not attribute(node, "layout", 0):
        node.attributes.pop("layout", None)
        return None
    inputs = list(node.inputs)
    for index in (0, 5, 6):
        value = input_value(node, index)
        if value is not None:
            inputs[index] = make.op("Transpose", value, dtype=make.dtype(value), perm=_SWAP)
    kept = {name: attribute(node, name) for name in node.attributes if name != "layout"}
    inner = make.node_of(node.op_type, *inputs, outputs=len(node.outputs), **kept)
    results: list[Value | None] = []
    for index, (old, new) in enumerate(zip(node.outputs, inner.outputs, strict=True)):
        if not old.name:
            new.name = ""
            results.append(None)
            continue
        if old.type is None:
            raise refusal(node, f"the type of {old.name!r} is not known")
        new.type = old.type
        results.append(make.op("Transpose", new, like=old, perm=_OUT if index == 0 else _SWAP))
    return results


STEPS = tuple(Step(op_type, 14, _time_first) for op_type in ("LSTM", "GRU", "RNN"))
