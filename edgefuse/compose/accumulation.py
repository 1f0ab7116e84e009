"""Sums over 16k elements and more: the error they make on real data, and what is done where it is too large.

Where this machine is the target, the error is that of the deployed kernel (level 1 of its region); elsewhere
it is emulated with one accumulator, the worst that a device may do. float16 is never left to such a sum (see
edgefuse.lowering.float16_range); in float32 it is written in two stages where it is off by more than 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefuse.compose.planning import float_plan
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.regions import Planned, check_regions, session_outputs
from edgefuse.compose.sizes import with_all_sizes
from edgefuse.errors import EdgefuseError
from edgefuse.graph import Model, attribute, clone_model, source_name, static_shape
from edgefuse.lowering.split_reductions import LongReduction, long_reductions, split_reduction
from edgefuse.quantized import Quantized
from edgefuse.verification import RegionLimits, boundary_tensors
from edgefuse.verification.accumulation import Accumulation, measure_layer_norm, measure_sum

__all__ = ["LongSum", "settle_sums"]

Feeds = Mapping[str, np.ndarray]

# Every row of a tensor says the same; a step-by-step emulation of all would take minutes.
_ROWS = 4
_ORDERS = ("plain", "two stages", "kahan")


@dataclass(frozen=True, slots=True)
class LongSum:
    """One long sum of the model, with its error before and after what was done.

    node: by the user's name.  before, after: max|difference| / max|float64 result| on one sample; by: whose.
    action: what was done, as the user reads it.
    emulated: the same sum with one accumulator, by dtype; its errors by order of adding.
    split: whether it is written in two stages.
    """

    node: str
    operator: str
    elements: int
    before: float
    after: float
    by: str
    action: str
    emulated: tuple[Accumulation, ...]
    split: bool = False

    def line(self) -> str:
        """Return the line for the report."""
        return (
            f"{self.operator} {self.node} adds up {self.elements} elements: error {self.before:.2g} before, "
            f"{self.after:.2g} after ({self.by}): {self.action}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; infinity becomes None."""
        finite = {"before": self.before, "after": self.after}
        return {
            "node": self.node,
            "operator": self.operator,
            "elements": self.elements,
            **{key: value if math.isfinite(value) else None for key, value in finite.items()},
            "by": self.by,
            "action": self.action,
            "emulated": [row.as_json() for row in self.emulated],
        }


def settle_sums(
    prepared: Prepared, feeds: Feeds, precision: str, here: bool
) -> tuple[Prepared, tuple[LongSum, ...]]:
    """Return `prepared` with long sums in two stages where their error asks for it, and a row for each sum.

    feeds: one sample.  precision: as asked for; on a device with float16 the error in it is told too.
    """
    found = long_reductions(prepared.costed)
    if not found:
        return prepared, ()
    half = precision != "fp32" and "fp16" in prepared.target.device.precisions
    limit = RegionLimits().fp32
    arrays = _inputs(prepared.model, found, feeds)
    deployed = _deployed_errors(prepared, feeds) if here else {}
    rows: list[LongSum] = []
    split: list[str] = []
    for long in found:
        name = long.node.name or ""
        emulated = _emulated(long, arrays[name], half)
        single = emulated[-1]
        error = deployed.get(name, single.before)
        if error > limit and _splits(prepared.model, name):
            split.append(name)
        rows.append(_row(long, emulated, error, name in split, name in deployed))
    if not split:
        return prepared, tuple(rows)
    made = _with_split(prepared, split)
    measured = _by_source(made.model, _deployed_errors(made, feeds)) if here else {}
    return made, tuple(
        replace(row, after=measured[row.node]) if row.split and row.node in measured else row for row in rows
    )


def _by_source(model: Model, errors: Mapping[str, float]) -> dict[str, float]:
    """Return the largest error of the nodes that stand for each of the user's nodes."""
    found: dict[str, float] = {}
    for node in model.graph:
        error = errors.get(node.name or "")
        if error is not None:
            found[source_name(node)] = max(error, found.get(source_name(node), 0.0))
    return found


def _row(
    long: LongReduction, emulated: tuple[Accumulation, ...], error: float, split: bool, deployed: bool
) -> LongSum:
    single = emulated[-1]
    by = "the deployed kernel" if deployed else "one accumulator, emulated"
    before, after, action = error, error, "left as it is"
    if split:
        after = error / max(single.gain("two stages"), 1.0)
        action = "written in two stages"
    if len(emulated) > 1:
        before = emulated[0].before
        action = "kept in float32" + (", in two stages" if split else "")
        by = "one accumulator, emulated: float16 before"
    name, operator = source_name(long.node), long.node.op_type
    return LongSum(name, operator, long.elements, before, after, by, action, emulated, split)


def _inputs(model: Model, found: Sequence[LongReduction], feeds: Feeds) -> dict[str, np.ndarray]:
    """Return what each long sum adds up, as [rows, elements], by node name."""
    names = {long.node.name or "": long.node.inputs[0].name or "" for long in found if long.node.inputs[0]}
    computed = sorted({name for name in names.values() if name not in feeds})
    held = dict(feeds)
    if computed:
        held |= session_outputs(boundary_tensors(model, computed))(dict(feeds))
    arrays = {}
    for long in found:
        array = held[names[long.node.name or ""]]
        last = tuple(range(array.ndim - len(long.axes), array.ndim))
        moved = np.moveaxis(array, long.axes, last)
        arrays[long.node.name or ""] = moved.reshape(-1, long.elements)[:_ROWS]
    return arrays


def _emulated(long: LongReduction, rows: np.ndarray, half: bool) -> tuple[Accumulation, ...]:
    found = []
    for dtype in (np.float16, np.float32) if half else (np.float32,):
        if long.node.op_type == "LayerNormalization":
            epsilon = float(attribute(long.node, "epsilon", 1e-5))
            found.append(measure_layer_norm(rows, dtype, epsilon, orders=_ORDERS))
        else:
            found.append(measure_sum(rows, dtype, mean=long.node.op_type != "ReduceSum", orders=_ORDERS))
    return tuple(found)


def _deployed_errors(prepared: Prepared, feeds: Feeds) -> dict[str, float]:
    """Return the error of each node's region in the deployed runtime, by node name; {} where it cannot be."""
    plan = float_plan(prepared, "fp32", 1)
    work = Planned(prepared.model, plan, Quantized(), None, prepared.target, prepared.backend, True)
    try:
        found = check_regions(work, [feeds])
    except EdgefuseError:
        return {}
    errors = {region.group: region.max_relative_error for region in found.regions}
    return {name: errors[group.id] for group in plan.groups for name in group.nodes}


def _splits(model: Model, name: str) -> bool:
    """Return whether the node can be written in two stages."""
    return _split(clone_model(model), [name])


def _split(model: Model, names: Sequence[str]) -> bool:
    done = [split_reduction(model, long) for long in long_reductions(model) if long.node.name in names]
    return bool(done) and all(done)


def _with_split(prepared: Prepared, names: Sequence[str]) -> Prepared:
    model = clone_model(prepared.model)
    _split(model, names)
    sizes = {value.name or "": static_shape(value) or () for value in prepared.costed.graph.inputs}
    costed, _ = with_all_sizes(prepared.original, model, sizes)
    return replace(prepared, model=model, costed=costed)
