"""A limit on the error of every output channel group, kept by leaving in float the nodes that spoil one.

The mean over an output hides its dead parts: scores in 0..1 beside boxes in 0..640. Where such a limit is
asked for, the loss of each node is measured by output channel, and of the worst channel the node that adds
most goes back to float, until the exact reference of the target's arithmetic is within the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.compose.planning import Int8Tables, int8_plan
from edgefuse.compose.prepare import Prepared, PreparedFeeds
from edgefuse.compose.reversion import Reverted
from edgefuse.compose.simulate import exact_call
from edgefuse.graph import Model, source_name
from edgefuse.graph.reference import Reference
from edgefuse.quant import repair_after
from edgefuse.quant.sensitivity import measure_channel_losses
from edgefuse.verification import Call, OutputError, OutputErrors, channel_groups
from edgefuse.verification.fidelity import decibels

__all__ = ["channel_errors", "refuse_spoilers"]

Feeds = Mapping[str, np.ndarray]

# Samples on which channels are judged: losses by channel settle like those by output.
CHANNEL_SAMPLES = 8


def channel_errors(model: Model, candidate: Call, samples: Sequence[Feeds]) -> tuple[OutputError, ...]:
    """Return one row for each output of `candidate` beside the float64 reference of `model`.

    samples: in the dtypes of the user or of the target; the reference gets those of `model`'s inputs.
    """
    reference = Reference(model)
    errors = OutputErrors()
    for feeds in PreparedFeeds(model, samples):
        errors.update(candidate(dict(feeds)), reference.run(feeds))
    return errors.results()


def refuse_spoilers(
    prepared: Prepared,
    tables: Int8Tables,
    precision: str,
    threads: int,
    samples: Sequence[Feeds],
    refused: Mapping[str, str],
    limit: float,
) -> tuple[dict[str, str], list[Reverted]]:
    """Return node name -> why it must stay float, `refused` included, and what the user should know of it.

    limit: largest rms noise / rms signal of an output channel group (see `channel_groups`).
    Judged with corrected biases, on calibration samples, in the exact reference of the target's arithmetic.
    """
    found = dict(refused)
    rows: list[Reverted] = []
    probe = samples[:: max(1, len(samples) // CHANNEL_SAMPLES)][:CHANNEL_SAMPLES]
    losses: dict[str, dict[str, np.ndarray]] = {}
    while True:
        plan, quantized = int8_plan(prepared, tables, precision, threads, None, refused=found)
        held = [node for (node, index) in quantized.weights if index == 1]
        if not held:
            return found, rows
        if prepared.imported is None:
            quantized, _ = repair_after(
                prepared.model, plan, quantized, samples, tables.scheme, rounding=False
            )
        exact = exact_call(prepared.model, plan, quantized, tables.scheme)
        worst = max(
            channel_errors(prepared.original, exact, probe),
            key=lambda row: row.worst_group_relative_error,
        )
        if worst.worst_group_relative_error <= limit:
            return found, rows
        losses = losses or measure_channel_losses(prepared.model, held, tables.ranges, tables.scheme, probe)
        node = _spoiler(worst, {name: losses[name] for name in held if name in losses}, held)
        why = (
            f"{worst.worst_group} of the output has {decibels(worst.worst_group_relative_error):.1f} dB with it "
            f"in int8 (at least {decibels(limit):.1f} asked for)"
        )
        found[node] = why
        rows.append(_reverted(prepared, node, why))


def _spoiler(worst: OutputError, losses: Mapping[str, Mapping[str, np.ndarray]], held: Sequence[str]) -> str:
    """Return the node that adds most to the worst channel group; the last one where nothing was measured."""

    def added(name: str) -> float:
        channels = losses[name].get(worst.name)
        if channels is None:
            return 0.0
        labels = list(channel_groups(worst.name, (1, len(channels), 1)))
        return float(channels[labels.index(worst.worst_group)] if worst.worst_group in labels else channels.max())

    return max(losses, key=added) if losses else held[-1]


def _reverted(prepared: Prepared, name: str, why: str) -> Reverted:
    source = next(source_name(node) for node in prepared.model.graph if node.name == name)
    return Reverted((source,), why, 0.0, 1)
