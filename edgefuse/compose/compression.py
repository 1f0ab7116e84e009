"""Pruning, factorisation and sparsity that were asked for, each judged by the same accuracy budget as int8.

A step that is over the budget is declined, and the build goes on with the model before it; the report holds
MACs, milliseconds and the metric before and after of every step, taken or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefuse.backend import Candidate
from edgefuse.compose.accuracy import Judge
from edgefuse.compose.payloads import Built, lower_payload, race_payloads
from edgefuse.compose.planning import float_plan, float_precisions
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.sizes import with_all_sizes
from edgefuse.cost import CostModel
from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model, Node, static_shape
from edgefuse.planner.columns import READS
from edgefuse.plans import Format
from edgefuse.quant.compress import Compressed, Request, compress
from edgefuse.quant.low_rank import Price
from edgefuse.quant.sparsity_2_4 import supports_2_4
from edgefuse.quantized import Quantized
from edgefuse.report import Progress

__all__ = ["Compression", "compress_prepared", "with_model"]

Feeds = Mapping[str, np.ndarray]

# Calibration samples that a step is fitted to: all are held in memory with the tensors of the widest layers.
COMPRESSION_SAMPLES = 100


@dataclass(frozen=True, slots=True)
class Compression:
    """What became of the requests.

    prepared: with the smaller model.  rows: one a request, JSON values (docs/compression.md).  notes.
    """

    prepared: Prepared
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def compress_prepared(
    prepared: Prepared,
    requests: Sequence[Request],
    samples: Sequence[Feeds] | None,
    judge: Judge,
    *,
    precision: str,
    max_drop: float,
    threads: int,
    here: bool,
    progress: Progress,
) -> Compression:
    """Return `prepared` after every request that stays within `max_drop` of the judge's metric.

    samples: calibration feeds, None where there are none.  here: this machine is the target, and times are
    measured on it.  Raises UnsupportedError for a model that brings its own quantization.
    """
    if prepared.imported is not None:
        raise UnsupportedError(
            "a model with quantizers of its own is not compressed",
            hint="compress the float model before it is trained with quantizers",
        )
    held = None if samples is None else [samples[i] for i in _spread(len(samples))]
    steps = _Steps(prepared, judge, precision, max_drop, threads, here)
    progress("compress", 0, len(requests))
    compress(prepared.model, requests, steps, held, _price(prepared, precision, threads))
    progress("compress", len(requests), len(requests))
    return Compression(steps.prepared, tuple(steps.rows), tuple(steps.notes))


def _spread(count: int) -> range:
    return range(0, count, -(-count // COMPRESSION_SAMPLES))


class _Steps:
    """The judge of the steps: holds the model that was reached, and a row for each step."""

    def __init__(
        self, prepared: Prepared, judge: Judge, precision: str, max_drop: float, threads: int, here: bool
    ) -> None:
        self.prepared = prepared
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._judge, self._here = judge, here
        self._precision, self._max_drop, self._threads = precision, max_drop, threads
        self._before = self._built(prepared)

    def refuses(self, request: Request) -> str:
        device = self.prepared.target.device
        if request.kind == "sparsity" and not supports_2_4(device.compute_capability):
            return f"{device.name} skips no zeros (a GPU of compute capability 8.0 does)"
        return ""

    def sized(self, model: Model) -> Model:
        return (
            self.prepared.costed if model is self.prepared.model else with_model(self.prepared, model).costed
        )

    def takes(self, step: Compressed, why_not: str) -> bool:
        smaller = self.prepared if why_not else with_model(self.prepared, step.model)
        row = step.figures(self.prepared.costed, smaller.costed)
        if not why_not:
            built = self._built(smaller)
            row.update(self._compared(built))
            drop = built.accuracy.drop
            if not drop <= self._max_drop:
                why_not = f"it loses {drop:.4g} of {built.accuracy.metric} (allowed {self._max_drop:g})"
            else:
                self.prepared, self._before = smaller, built
        row["declined"] = why_not
        self.rows.append(row)
        self.notes.extend([_told(row), *(f"{step.request.text}: {note}" for note in step.notes)])
        return not why_not

    def _built(self, prepared: Prepared) -> Built:
        """Return the float payload of a model, judged."""
        plan = float_plan(prepared, self._precision, self._threads)
        built = lower_payload("float", prepared, plan, Quantized())
        built.accuracy = replace(self._judge, prepared=prepared).compare(built, self._here)
        return built

    def _compared(self, after: Built) -> dict[str, Any]:
        """Return milliseconds and the metric, [before, after] each; measured where the target is here."""
        before = self._before
        measured: list[float | None] = [None, None]
        if self._here:
            pair = [replace(before, id="before"), replace(after, id="after")]
            race_payloads(pair, self.prepared, self._judge.example, self._threads)
            measured = [built.ms for built in pair]
        return {
            "predicted_ms": [before.plan.predicted_ms, after.plan.predicted_ms],
            "measured_ms": measured,
            "metric": after.accuracy.metric,
            "value": [before.accuracy.value, after.accuracy.value],
            "drop": [before.accuracy.drop, after.accuracy.drop],
            "samples": after.accuracy.samples,
        }


def _told(row: Mapping[str, Any]) -> str:
    """Return the row as a note for the user."""
    macs = f"{row['macs'][0] / 1e6:.1f} -> {row['macs'][1] / 1e6:.1f} million MACs"
    text = f"{row['request']}: {macs}"
    if "value" in row:
        name = "measured_ms" if row["measured_ms"][0] is not None else "predicted_ms"
        times = f"{row[name][0]:.2f} -> {row[name][1]:.2f} ms {name.split('_')[0]}"
        text += f", {times}, {row['metric']} {row['value'][0]:.4g} -> {row['value'][1]:.4g}"
    return f"{text}; declined: {row['declined']}" if row["declined"] else f"{text}; taken"


def with_model(prepared: Prepared, model: Model) -> Prepared:
    """Return `prepared` with another model of the same inputs and outputs in it."""
    sizes = {value.name or "": static_shape(value) or () for value in prepared.costed.graph.inputs}
    costed, _ = with_all_sizes(prepared.original, model, sizes)
    return replace(prepared, model=model, costed=costed)


def _price(prepared: Prepared, precision: str, threads: int) -> Price:
    """Return a function that predicts the milliseconds of nodes, each a kernel of its own."""
    chosen = float_precisions(prepared, precision)[0]
    cost = CostModel(prepared.target, threads)
    output = Format(READS[chosen])

    def alone(node: Node) -> float:
        candidate = Candidate((node,), node, "single", tuple(node.outputs))
        return sum(term.ms for term in cost.group(candidate, chosen, READS[chosen], output))

    def price(nodes: Sequence[Node]) -> float:
        return sum(map(alone, nodes))

    return price
