"""A limit on the error of every output channel group, kept by leaving in float the nodes that spoil one.

The mean over an output hides its dead parts: scores in 0..1 beside boxes in 0..640. Where such a limit is
asked for, the loss of each node is measured by output channel, and the nodes that add most to the worst one
go back to float, until the exact reference of the target's arithmetic is within the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.compose.planning import Int8Tables, int8_plan
from edgefuse.compose.prepare import Prepared, PreparedFeeds
from edgefuse.compose.reversion import Reverted
from edgefuse.compose.simulate import exact_call
from edgefuse.graph import Model, is_float, source_name
from edgefuse.graph.reference import Reference
from edgefuse.plans import Plan
from edgefuse.quant import repair_after
from edgefuse.quant.sensitivity import measure_channel_losses
from edgefuse.quantized import Quantized
from edgefuse.verification import Call, OutputError, OutputErrors, channel_groups
from edgefuse.verification.fidelity import decibels

__all__ = ["channel_errors", "refuse_spoilers", "spoilers"]

Feeds = Mapping[str, np.ndarray]

# Samples on which channels are judged: losses by channel settle like those by output.
CHANNEL_SAMPLES = 8
# An index either stands or flips: where 18 % of 200 samples had one (measured), eight samples may show none.
SELECTION_SAMPLES = 64
# What noise does on its way is not in the sum of losses: a round may leave a channel above the limit.
_ROUNDS = 8


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
    count = CHANNEL_SAMPLES if all(is_float(v) for v in prepared.model.graph.outputs) else SELECTION_SAMPLES
    probe = samples[:: max(1, len(samples) // count)][:count]
    losses: dict[str, dict[str, np.ndarray]] = {}
    plan, quantized = int8_plan(prepared, tables, precision, threads, None, refused=found)
    for _ in range(_ROUNDS):
        held = [node for (node, index) in quantized.weights if index == 1]
        worst = _worst(prepared, tables, plan, quantized, samples, probe) if held else None
        if worst is None or worst.worst_group_relative_error <= limit:
            break
        losses = losses or measure_channel_losses(prepared.model, held, tables.ranges, tables.scheme, probe)
        taken = spoilers({name: losses.get(name, {}) for name in held}, worst, limit)
        why = (
            f"{worst.worst_group} of the output has {decibels(worst.worst_group_relative_error):.1f} dB with "
            f"it in int8 (at least {decibels(limit):.1f} asked for)"
        )
        found.update(dict.fromkeys(taken, why))
        before = plan.predicted_ms
        plan, quantized = int8_plan(prepared, tables, precision, threads, None, refused=found)
        rows.append(Reverted(_sources(prepared, taken), why, plan.predicted_ms - before, 1))
    return found, rows


def _worst(
    prepared: Prepared,
    tables: Int8Tables,
    plan: Plan,
    quantized: Quantized,
    samples: Sequence[Feeds],
    probe: Sequence[Feeds],
) -> OutputError:
    """Return the row of the output that holds the worst channel group."""
    if prepared.imported is None:
        quantized, _ = repair_after(prepared.model, plan, quantized, samples, tables.scheme, rounding=False)
    exact = exact_call(prepared.model, plan, quantized, tables.scheme)
    errors = channel_errors(prepared.original, exact, probe)
    return max(errors, key=lambda row: row.worst_group_relative_error)


def spoilers(
    losses: Mapping[str, Mapping[str, np.ndarray]], worst: OutputError, limit: float
) -> tuple[str, ...]:
    """Return the nodes to leave in float, at least one: those that add most to the worst channel group.

    losses: node -> output -> relative mean squared error by channel, which add up to what `worst` measured,
    but for a common factor (repairs take some away, and noise passes through later layers).
    They are taken in order until what is left of that channel is within `limit`.
    """
    added = {name: _at(channels.get(worst.name), worst) for name, channels in losses.items()}
    total = sum(added.values())
    if not total or not np.isfinite(worst.worst_group_relative_error):
        return (next(reversed(added)),) if not total else (max(added, key=added.__getitem__),)
    allowed = total * (limit / worst.worst_group_relative_error) ** 2
    taken: list[str] = []
    for name in sorted(added, key=added.__getitem__, reverse=True):
        if taken and total <= allowed:
            break
        taken.append(name)
        total -= added[name]
    return tuple(taken)


def _at(channels: np.ndarray | None, worst: OutputError) -> float:
    if channels is None:
        return 0.0
    labels = list(channel_groups(worst.name, (1, len(channels), 1)))
    return float(channels[labels.index(worst.worst_group)] if worst.worst_group in labels else channels.max())


def _sources(prepared: Prepared, names: Sequence[str]) -> tuple[str, ...]:
    known = {node.name: source_name(node) for node in prepared.model.graph}
    return tuple(known[name] for name in names)
