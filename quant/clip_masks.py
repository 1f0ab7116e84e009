"""Attention masks of -3.4e38 or -inf, raised to a number that masks as well and leaves a usable range.

A mask adds "minus infinity" to the scores before Softmax. The sum's range is then that of the mask: an int8
scale of 1e36, infinity in float16, calibration that is not finite. exp(m - max) is 0 in float32 long before:
with m at most (largest score - smallest score) + 104 below zero nothing changes, and a few more decibels of
range are kept by the least that changes the Softmax by no more than 1e-7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from edgefuse.graph import Model, Node, Value, attribute, clone_model, constant, dims, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant.unshare import write_own

__all__ = ["clip_masks"]

# What is far below any score that a network makes on purpose.
_MASK = -1e3
# exp(-ln(1e7)) = 1e-7 is what all masked places together may hold of a row.
_MASKED_SHARE = 1e-7
# Scores in the field may spread wider than on calibration data.
_MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class _Mask:
    """node, index: the constant.  scores: what it is added to, or chosen against.  axis: of the Softmax."""

    softmax: Node
    join: Node
    node: Node
    index: int
    scores: Value
    axis: int


def clip_masks(model: Model, samples: Iterable[Mapping[str, np.ndarray]]) -> list[str]:
    """Raise the masks before every Softmax, in place; return one line for each.

    samples: feeds by input name, from which the spread of the scores is known.
    Cases: 1. Softmax(scores + constant).  2. Softmax(scores + x * constant), one number, x computed (a mask
    from an input).  3. Softmax(Where(condition, scores, constant)) and its mirror image.
    Left alone: masks that are no larger than -1000; constants with a row that masks every place (its Softmax
    is a mean, and would become one of the scores); scores that are not finite or are read elsewhere.
    """
    masks = [found for node in model.graph if node.op_type == "Softmax" for found in _masks_before(node)]
    if not masks:
        return []
    spreads = _spreads(model, masks, samples)
    done = []
    for shared in _by_constant(masks):
        known = [m for m in shared if m.scores.name in spreads]
        array = constant(shared[0].node.inputs[shared[0].index])
        if not known or array is None:
            continue
        floor = min(_floor(mask, *spreads[mask.scores.name or ""]) for mask in known)
        wide = array.astype(np.float64)
        if not (wide < min(floor, _MASK)).any():
            continue
        first = known[0]
        if write_own(model, first.node, first.index, np.maximum(wide, floor)):
            for mask in known[1:]:
                mask.node.replace_input_with(mask.index, first.node.inputs[first.index])
            names = ", ".join(mask.softmax.name or "" for mask in known)
            done.append(f"{names}: mask of {wide.min():.3g} raised to {floor:.4g}")
    return done


def _by_constant(masks: list[_Mask]) -> list[list[_Mask]]:
    """Return the masks that read one constant together: they keep sharing it."""
    found: dict[int, list[_Mask]] = {}
    for mask in masks:
        found.setdefault(id(mask.node.inputs[mask.index]), []).append(mask)
    return list(found.values())


def _floor(mask: _Mask, low: float, high: float) -> float:
    shape = dims(mask.softmax.inputs[0]) or ()
    width = shape[mask.axis] if shape and isinstance(shape[mask.axis], int) else 4096
    needed = np.log(float(width)) - np.log(_MASKED_SHARE)  # type: ignore[arg-type]
    spread = _MARGIN * (high - low) + needed
    # In a Where the mask stands alone; in a sum the score is added to it.
    return float(np.floor(low - spread)) if mask.join.op_type == "Where" else float(np.floor(-spread))


def _masks_before(softmax: Node) -> list[_Mask]:
    value = softmax.inputs[0]
    join = value.producer() if value is not None else None
    shape = dims(value)
    if (
        value is None
        or join is None
        or shape is None
        or len(tuple(value.uses())) != 1
        or value.is_graph_output()
    ):
        return []
    axis = int(attribute(softmax, "axis", -1)) % len(shape)
    if join.op_type == "Add":
        return _added(softmax, join, axis, len(shape))
    if join.op_type == "Where" and len(join.inputs) == 3:
        for index, other in ((1, 2), (2, 1)):
            array, scores = constant(join.inputs[index]), join.inputs[other]
            if array is not None and scores is not None and constant(scores) is None and array.size == 1:
                return [_Mask(softmax, join, join, index, scores, axis)]
    return []


def _added(softmax: Node, join: Node, axis: int, rank: int) -> list[_Mask]:
    for index, value in enumerate(join.inputs):
        scores = join.inputs[1 - index]
        if value is None or scores is None or constant(scores) is not None:
            continue
        array = constant(value)
        if array is not None and array.dtype.kind == "f" and not _masks_a_row(array, axis, rank):
            return [_Mask(softmax, join, join, index, scores, axis)]
        producer = value.producer()
        if array is None and producer is not None and producer.op_type == "Mul":
            for place, factor in enumerate(producer.inputs):
                number = constant(factor)
                if number is not None and number.size == 1 and float(number.reshape(())) < _MASK:
                    return [_Mask(softmax, join, producer, place, scores, axis)]
    return []


def _masks_a_row(array: np.ndarray, axis: int, rank: int) -> bool:
    place = axis - (rank - array.ndim)
    if place < 0 or array.shape[place] == 1:
        return bool((array < _MASK).any())  # the same number along the whole row
    return bool((array < _MASK).all(axis=place).any())


def _spreads(
    model: Model, masks: list[_Mask], samples: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, tuple[float, float]]:
    """Return (lowest, highest) of all finite scores by name."""
    copy = clone_model(model)
    wanted = {mask.scores.name for mask in masks}
    outputs = {v.name for v in copy.graph.outputs}
    for value in [v for node in copy.graph for v in node.outputs]:
        if value.name in wanted and value.name not in outputs:
            copy.graph.outputs.append(value)
    names = [v.name or "" for v in copy.graph.outputs if v.name in wanted]
    session = judge_session(model_to_bytes(copy))
    found: dict[str, tuple[float, float]] = {}
    for feeds in samples:
        for name, array in zip(names, session.run(names, dict(feeds)), strict=True):
            if array.size and np.isfinite(array).all():
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found
