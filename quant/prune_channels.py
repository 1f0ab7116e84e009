"""Structured pruning: whole channels leave the graph, and every layer that holds or reads them shrinks.

Which channels go together is `channel_units`; this file scores the units, chooses those that go, and cuts
every constant that follows them. What the cut changes in the layers behind it, `reconstruct` repairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from edgefuse.errors import UsageError
from edgefuse.graph import Model, Node, add_constant, bind_dimensions, clone_model, constant
from edgefuse.quant.calibrate import observe
from edgefuse.quant.channel_scaling import by_input_channel
from edgefuse.quant.channel_units import ChannelUnits, find_units

__all__ = [
    "CRITERIA",
    "SCOPES",
    "Criterion",
    "Pruned",
    "Scope",
    "choose_units",
    "prune_channels",
    "score_units",
]

Scope = Literal["layer", "model"]
SCOPES: tuple[str, ...] = get_args(Scope)
Criterion = Literal["l1", "l2", "activation", "deviation"]
CRITERIA: tuple[str, ...] = get_args(Criterion)
Feeds = Mapping[str, np.ndarray]

# Of one layer, where the share is taken from all together: a layer that is cut to a few channels is a hole.
LARGEST_SHARE = 0.7
# Vector units and tensor cores work on whole blocks of channels: a layer of 23 costs what one of 24 costs.
MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class Pruned:
    """A model with channels removed.

    model: a new one; the input is untouched.  kept: tensor name -> (channel axis, positions of the original
    that stay), for tensors that lost some.  removed: node name -> (channels removed, channels it had).
    refused: node name -> why its channels had to stay, for nodes where any had to.
    """

    model: Model
    kept: Mapping[str, tuple[int, np.ndarray]]
    removed: Mapping[str, tuple[int, int]]
    refused: Mapping[str, str]


def prune_channels(
    model: Model,
    *,
    share: float | None = None,
    threshold: float | None = None,
    criterion: Criterion = "l2",
    scope: Scope = "layer",
    samples: Iterable[Feeds] | None = None,
    multiple: int = MULTIPLE,
) -> Pruned:
    """Return the model without its least important channels.

    share: of each layer's channels that go, in (0, 1); fewer where what stays would be no multiple of
    `multiple`.
    threshold: instead of a share: channels that score less than this part of their layer's mean go.
    criterion: "l1" or "l2" norm of the weights that write a channel; "activation": mean |x| times the sum of
    |weight| that reads it; "deviation": the same with the standard deviation of x, since a bias can stand for
    a mean. The last two need samples (feeds by input name).  scope: "model" takes the share from all channels
    that may go: layers with many unimportant channels give more of them, at most LARGEST_SHARE.
    Raises UsageError for a criterion without samples, or anything but one of share and threshold.
    """
    right = (threshold is not None and threshold >= 0) if share is None else 0 < share < 1
    if not right or (share is not None and threshold is not None):
        raise UsageError(
            "channel pruning needs a share between 0 and 1 or a threshold >= 0",
            got=f"share {share}, threshold {threshold}",
        )
    units = find_units(model)
    scores = score_units(model, units, criterion, samples)
    gone = choose_units(units, scores, share=share, threshold=threshold, scope=scope, multiple=multiple)
    return _cut(model, units, gone)


def score_units(
    model: Model, units: ChannelUnits, criterion: Criterion, samples: Iterable[Feeds] | None = None
) -> dict[int, float]:
    """Return the importance of each unit, >= 0, by unit; 1 is the mean channel of a layer.

    A unit of several layers gets the sum over them, each layer's figures being divided by their mean.
    """
    if criterion in ("l1", "l2"):
        rows = [(held, _written(node, criterion)) for node, held in units.writers]
    else:
        rows = [(held, found) for held, found in _read(model, units, criterion, samples)]
    scores: dict[int, float] = dict.fromkeys(units.layer, 0.0)
    for held, found in rows:
        mean = float(found.mean()) or 1.0
        for unit, score in zip(held.tolist(), (found / mean).tolist(), strict=True):
            scores[unit] += score
    return scores


def _written(node: Node, criterion: Criterion) -> np.ndarray:
    """Return the norm of each output channel's weights (Li et al. 2017, arXiv 1608.08710, section 3.1)."""
    array = by_input_channel(node)
    order = 1 if criterion == "l1" else 2
    groups, outputs = array.shape[:2]
    norms: np.ndarray = np.linalg.norm(array.reshape(groups * outputs, -1), ord=order, axis=1)
    return norms


def _read(
    model: Model, units: ChannelUnits, criterion: Criterion, samples: Iterable[Feeds] | None
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Yield for each reader (unit, size of the activation times the weights that read it) of each channel."""
    if samples is None:
        raise UsageError(f"the criterion {criterion!r} needs calibration data", hint="l1 and l2 need none")
    names = {node.inputs[0].name or "" for node, _ in units.readers if node.inputs[0] is not None}
    sinks = {name: _Sizes(units.values[name].axis) for name in names if name in units.values}
    observe(model, sinks, samples)
    for node, held in units.readers:
        value = node.inputs[0]
        sink = sinks.get(value.name or "") if value is not None else None
        if sink is not None and sink.count:
            weights = np.abs(by_input_channel(node)).sum(axis=(1, 3)).reshape(-1)
            size = sink.mean_size() if criterion == "activation" else sink.deviation()
            yield held, size * weights


class _Sizes:
    """Mean |x| and standard deviation of each channel, streaming."""

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self.count = 0
        self._sums = np.zeros((3, 1))

    def update(self, array: np.ndarray) -> None:
        rows = np.moveaxis(array, self._axis, 0).reshape(array.shape[self._axis], -1).astype(np.float64)
        self._sums = self._sums + np.stack([np.abs(rows).sum(1), rows.sum(1), np.square(rows).sum(1)])
        self.count += rows.shape[1]

    def mean_size(self) -> np.ndarray:
        found: np.ndarray = self._sums[0] / self.count
        return found

    def deviation(self) -> np.ndarray:
        mean = self._sums[1] / self.count
        found: np.ndarray = np.sqrt(np.maximum(self._sums[2] / self.count - mean**2, 0.0))
        return found


def choose_units(
    units: ChannelUnits,
    scores: Mapping[int, float],
    *,
    share: float | None = None,
    threshold: float | None = None,
    scope: Scope = "layer",
    multiple: int = MULTIPLE,
) -> frozenset[int]:
    """Return the units that go: each layer's lowest scores, never a pinned one, never all of a tensor."""
    layers: dict[str, list[int]] = {}
    for unit, name in units.layer.items():
        layers.setdefault(name, []).append(unit)
    gone: set[int] = set()
    everywhere = None
    loose = [scores[unit] for unit in units.layer if unit not in units.pinned]
    if share is not None and scope == "model" and loose:
        everywhere = float(np.quantile(loose, share))
    for members in layers.values():
        free = sorted((u for u in members if u not in units.pinned), key=lambda u: (scores[u], u))
        if threshold is not None:
            limit = threshold * sum(scores[u] for u in members) / len(members)
            wanted = sum(scores[u] < limit for u in free)
        elif everywhere is not None:
            most = int(len(members) * max(LARGEST_SHARE, share or 0.0))
            wanted = min(sum(scores[u] < everywhere for u in free), most)
        else:
            wanted = int(len(members) * (share or 0.0) + 1e-9)
        keep = max(len(members) - min(wanted, len(free)), 1)
        keep = min(-(-keep // multiple) * multiple, len(members))
        gone.update(free[: len(members) - keep])
    for held in units.values.values():
        if gone.issuperset(held.units.tolist()):
            gone.discard(max(held.units.tolist(), key=lambda u: (scores[u], -u)))
    return frozenset(gone)


def _cut(model: Model, units: ChannelUnits, gone: frozenset[int]) -> Pruned:
    copy = clone_model(model)
    nodes = {node.name: node for node in copy.graph}
    out = np.array(sorted(gone), dtype=np.int64)

    def kept(held: np.ndarray) -> np.ndarray:
        return np.flatnonzero(~np.isin(held, out))

    for node, index, axis, held in units.slices:
        if len(kept(held)) < len(held):
            array = constant(nodes[node.name].inputs[index])
            assert array is not None
            _write(copy, nodes[node.name], index, np.take(array, kept(held), axis=axis))
    for node, index, position, held in units.counts:
        array = constant(nodes[node.name].inputs[index])
        assert array is not None
        changed = array.copy()
        changed.reshape(-1)[position] = len(kept(held))
        _write(copy, nodes[node.name], index, changed)
    for node, held in units.groups:
        _set_group(nodes[node.name], len(kept(held)))
    bind_dimensions(copy, {})
    return Pruned(copy, *_report(units, gone, kept))


def _write(model: Model, node: Node, index: int, array: np.ndarray) -> None:
    """Let the node read its own changed constant: others may read the old one."""
    old = node.inputs[index]
    assert old is not None
    node.replace_input_with(index, add_constant(model.graph, array, old.name or "constant"))
    if not old.uses() and old.is_initializer():
        model.graph.initializers.pop(old.name or "", None)


def _set_group(node: Node, groups: int) -> None:
    from edgefuse.graph import Attr, AttributeType

    node.attributes["group"] = Attr("group", AttributeType.INT, groups)


def _report(
    units: ChannelUnits, gone: frozenset[int], kept: object
) -> tuple[dict[str, tuple[int, np.ndarray]], dict[str, tuple[int, int]], dict[str, str]]:
    positions = {}
    for name, held in units.values.items():
        stay = np.array([i for i, u in enumerate(held.units.tolist()) if u not in gone])
        if len(stay) < len(held.units):
            positions[name] = (held.axis, stay)
    removed: dict[str, tuple[int, int]] = {}
    refused: dict[str, str] = {}
    for unit, name in units.layer.items():
        lost, had = removed.get(name, (0, 0))
        removed[name] = (lost + (unit in gone), had + 1)
        if unit in units.pinned:
            refused.setdefault(name, units.pinned[unit])
    return positions, {name: row for name, row in removed.items() if row[0]}, refused
