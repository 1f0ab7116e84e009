"""What one scale for all parts of a Concat costs at the outputs, beside a scale for each part.

On devices whose Concat copies bytes, its parts share a scale in int8: scores in 0..1 beside boxes in 0..640
have two levels left. The planner may share or stay in float; this is the measured price of sharing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.graph import Model, Node, clone_model, constant, is_float, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant.calibrate import Range
from edgefuse.quant.fake_quant import fake_quantize
from edgefuse.quant.loss_outputs import before_softmax
from edgefuse.quant.quantize import value_parameters
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.sensitivity import Losses, output_losses

__all__ = ["join_parts", "measure_join_losses"]

Feeds = Mapping[str, np.ndarray]


def join_parts(node: Node) -> tuple[str, ...]:
    """Return the names of the float tensors that a Concat joins, each once; constants stay out."""
    parts = [v.name or "" for v in node.inputs if v is not None and is_float(v) and constant(v) is None]
    return tuple(dict.fromkeys(parts))


def measure_join_losses(
    model: Model, joins: Sequence[str], ranges: Mapping[str, Range], scheme: Scheme, samples: Sequence[Feeds]
) -> Losses:
    """Return what the outputs lose when a join's parts share a scale, less what they lose with their own.

    joins: names of Concat nodes; one with a part without a range is left out. Never below 0.
    """
    model = before_softmax(model)
    found = Losses({}, {})
    nodes = {node.name: node for node in model.graph}
    clean = _run(model, samples)
    names = [v.name or "" for v in model.graph.outputs if is_float(v)]
    for join in joins:
        parts = join_parts(nodes[join])
        if len(parts) < 2 or not samples or not all(part in ranges for part in parts):
            continue
        low, high = min(ranges[p].low for p in parts), max(ranges[p].high for p in parts)
        shared = output_losses(
            names, clean, _rounded(model, join, dict.fromkeys(parts, Range(low, high)), scheme, samples)
        )
        own = output_losses(names, clean, _rounded(model, join, ranges, scheme, samples))
        found.total[join] = max(0.0, shared[0] - own[0])
        found.groups[join] = {group: max(0.0, loss - own[1][group]) for group, loss in shared[1].items()}
    return found


def _rounded(
    model: Model, join: str, ranges: Mapping[str, Range], scheme: Scheme, samples: Sequence[Feeds]
) -> list[list[np.ndarray]]:
    copy = clone_model(model)
    node = next(node for node in copy.graph if node.name == join)
    for index, value in enumerate(node.inputs):
        found = ranges.get(value.name or "") if value is not None and constant(value) is None else None
        if value is not None and found is not None:
            parameters = value_parameters(value, found, scheme)
            node.replace_input_with(index, fake_quantize(node, value, parameters, f"{join}_part{index}"))
    return _run(copy, samples)


def _run(model: Model, samples: Sequence[Feeds]) -> list[list[np.ndarray]]:
    session = judge_session(model_to_bytes(model))
    names = [v.name or "" for v in model.graph.outputs if is_float(v)]
    return [session.run(names, dict(feeds)) for feeds in samples]
