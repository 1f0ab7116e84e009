"""Builds of models that bring their own quantization (Q/DQ nodes): their ranges instead of measured ones."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgefuse.compose.prepare import Prepared, tensor_info
from edgefuse.datasets import Dataset, Sample, random_dataset
from edgefuse.graph import is_float
from edgefuse.planner import PlanRequest, make_plan
from edgefuse.plans import Plan
from edgefuse.quant import Range, Scheme, quantize_plan, scheme_of
from edgefuse.quant.grids import Grid
from edgefuse.quant.imported import imported_ranges, keep_imported, unranged_nodes
from edgefuse.quantized import Quantized

__all__ = ["brings_quantizers", "imported_notes", "made_up_data", "own_ranges", "plan_imported"]

# What the names of ONNX's quantizing operators have in common, and those of already fused integer ones.
_MARKS = (b"uantizeLinear", b"QLinear")

# What may stand between a graph input and its quantizer.
_FIRST = frozenset({"Clip", "Reshape", "Transpose"})


def brings_quantizers(path: str) -> bool:
    """Return whether the file may hold quantizers (its bytes name one); False where it cannot be read.

    The question is asked before a model is parsed, so that a wrong command line is refused at once.
    """
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            return any(held.find(mark) >= 0 for mark in _MARKS)
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return False


def own_ranges(prepared: Prepared, scheme: Scheme) -> dict[str, Range]:
    """Return the ranges that the model itself gives, by value name; {} for a float model."""
    return {} if prepared.imported is None else imported_ranges(prepared.imported, scheme)


def plan_imported(
    request: PlanRequest, prepared: Prepared, ranges: Mapping[str, Range], scheme: Scheme
) -> tuple[Plan, Quantized]:
    """Return the plan, and its integers with the user's own kept where the target can hold them.

    Nodes that read a tensor without a range stay float: each round refuses those that the last plan showed.
    """
    assert prepared.imported is not None
    refused = dict(request.refused)
    while True:
        plan = make_plan(replace(request, refused=refused))
        missing = unranged_nodes(prepared.model, plan, ranges)
        if not missing:
            break
        refused |= missing
    quantized = quantize_plan(prepared.model, plan, ranges, scheme)
    return plan, keep_imported(prepared.model, plan, quantized, prepared.imported, scheme).quantized


def imported_notes(prepared: Prepared, plan: Plan, quantized: Quantized) -> list[str]:
    """Return what became of the user's quantization in a payload, one line each; [] for a float model."""
    if prepared.imported is None or not quantized:
        return []
    scheme = scheme_of(prepared.target)
    kept = keep_imported(prepared.model, plan, quantized, prepared.imported, scheme)
    return kept.notes()


def made_up_data(prepared: Prepared, count: int) -> Dataset:
    """Return `count` seeded random samples; where the model gives an input a range, spread evenly over it.

    An image of 0..1 is not standard normal, and a trained range cuts off what is not like its data.
    """
    data = random_dataset([tensor_info(value) for value in prepared.costed.graph.inputs], count)
    if prepared.imported is None:
        return data
    grids = {}
    for value in prepared.model.graph.inputs:
        behind = [use.node.outputs[0] for use in value.uses() if use.node.op_type in _FIRST]
        held = (prepared.imported.ranges.get(v.name or "") for v in (value, *behind))
        grid = next((found for found in held if found is not None), None)
        if grid is not None and is_float(value):
            grids[value.name or ""] = grid
    return Dataset(_Within(data, grids), kind=data.kind, path=data.path) if grids else data


@dataclass(frozen=True, slots=True)
class _Within:
    """Samples whose float inputs are spread evenly over a range."""

    data: Dataset
    grids: Mapping[str, Grid]

    def __len__(self) -> int:
        return len(self.data)

    def name(self, index: int) -> str:
        return self.data.names()[index]

    def read(self, index: int) -> Sample:
        sample = self.data[index]
        feeds = dict(sample.feeds)
        for name, grid in self.grids.items():
            # The logistic function with this factor is the normal distribution's to 0.01: even values result.
            share = 1.0 / (1.0 + np.exp(-1.702 * feeds[name].astype(np.float64)))
            spread = grid.minimum + share * (grid.maximum - grid.minimum)
            feeds[name] = spread.astype(feeds[name].dtype)
        return Sample(feeds, sample.label, sample.source)
