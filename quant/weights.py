"""Weights as integers: which axis is the output channel, which channels pair, how large an integer may be.

Symmetric, q = clamp(round_half_even(w / s), -limit, limit), s = max|w| / limit for each output channel (or
the tensor). Pair-aware: s is also at least the largest same-sign sum of a pair / 127.4, so that no pair of
integers sums to more than 128 (`edgefuse.quant.scheme`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgefuse.errors import InternalError
from edgefuse.graph import Node, attribute, constant, input_value
from edgefuse.quant.scheme import PAIR_SUM_LIMIT, PAIR_SUM_STEPS, SMALLEST_SCALE, Scheme
from edgefuse.quantized import QuantizedWeight

__all__ = [
    "WEIGHTED",
    "WeightRule",
    "is_depthwise",
    "largest_pair_sum",
    "output_axis",
    "quantize_by_rule",
    "quantize_node_weight",
    "quantize_weight",
    "weight_rule",
]

# Operators whose input 1 is a weight.
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class WeightRule:
    """How one weight becomes integers.

    axis: of the output channels, None for one scale.  pair_axis: of the input channels whose neighbours
    (2k, 2k + 1) are summed in int16, None where nothing pairs.  limit: the largest integer.  bits: 8 or 7.
    groups: into which axis 0 falls (a grouped ConvTranspose), else 1; shared: they have one scale a channel.
    """

    axis: int | None
    pair_axis: int | None
    limit: int
    bits: int
    groups: int = 1
    shared: bool = False


def output_axis(node: Node) -> int | None:
    """Return the axis of the weight (input 1) that runs over output channels.

    Conv [O, I/g, ...]: 0.  ConvTranspose [I, O/g, ...]: 1.  MatMul [..., K, N]: the last; None for a vector
    [K], which has no output channels.  Gemm: 1, or 0 with transB.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    rank = _weight_of(node).ndim
    return rank - 1 if rank > 1 else None


def _input_axis(node: Node) -> int:
    """Return the axis of the weight that is summed over: input channels of one group, or K."""
    if node.op_type == "Conv":
        return 1
    if node.op_type == "ConvTranspose":
        return 0
    if node.op_type == "Gemm":
        return 1 if attribute(node, "transB", 0) else 0
    return max(_weight_of(node).ndim - 2, 0)


def is_depthwise(node: Node) -> bool:
    """Return whether the node is a Conv with as many groups as input and as output channels (at least 2)."""
    if node.op_type != "Conv":
        return False
    shape, groups = _weight_of(node).shape, attribute(node, "group", 1)
    return bool(groups > 1 and shape[0] == groups and shape[1] == 1)


def weight_rule(node: Node, scheme: Scheme) -> WeightRule:
    """Return how the weight (input 1, a constant) of a Conv, ConvTranspose, MatMul or Gemm is quantized.

    Depthwise weights keep 8 bits where the scheme says that their kernel does not saturate. Where pairs are
    not known a pair-aware scheme gives 7 bits (see `_pairs_known`).
    """
    axis = output_axis(node) if scheme.is_per_channel(node.op_type) else None
    groups = attribute(node, "group", 1) if node.op_type == "ConvTranspose" else 1
    exempt = is_depthwise(node) and not scheme.depthwise_saturates
    pairs = None
    bits = 8 if exempt else scheme.weight_bits
    if scheme.pair_aware and not exempt:
        pairs = _input_axis(node)
        if not _pairs_known(node, groups):
            pairs, bits = None, 7
    shared = scheme.shared_groups or axis is None
    return WeightRule(axis, pairs, 63 if bits == 7 else 127, bits, groups, shared)


def _pairs_known(node: Node, groups: int) -> bool:
    """Return whether the products that are added in int16 are those of input channels 2k and 2k + 1.

    Not with one input channel a group. Not in a Conv of several groups with an odd number of channels each
    and several kernel places: its kernel walks over places and channels in one row, so that the last channel
    of a place pairs with the first of the next (measured, tests/targets/openvino/test_pair_sums.py).
    groups: into which the weight's input axis falls.
    """
    if node.op_type not in ("Conv", "ConvTranspose"):
        return True
    shape = _weight_of(node).shape
    channels = shape[_input_axis(node)] // groups
    if channels == 1:
        return False
    crossed = int(attribute(node, "group", 1)) > 1 and int(np.prod(shape[2:])) > 1
    return not (crossed and channels % 2)


def quantize_node_weight(
    node: Node, scheme: Scheme, *, smallest: np.ndarray | None = None
) -> QuantizedWeight:
    """Return the constant weight of a node as integers; `smallest` as in `quantize_by_rule`."""
    return quantize_by_rule(_weight_of(node), weight_rule(node, scheme), smallest=smallest)


def quantize_weight(weight: np.ndarray, axis: int | None, scheme: Scheme) -> QuantizedWeight:
    """Return a float weight as integers; a channel of zeros gets scale 1 (its integers are 0).

    For a weight without a node. Raises InternalError for a pair-aware scheme: pairs need the node.
    """
    if scheme.pair_aware:
        raise InternalError("a pair-aware weight needs its node: call quantize_node_weight")
    return quantize_by_rule(weight, WeightRule(axis, None, scheme.weight_limit, scheme.weight_bits))


def quantize_by_rule(
    weight: np.ndarray, rule: WeightRule, *, smallest: np.ndarray | None = None
) -> QuantizedWeight:
    """Return a float weight as integers under `rule`.

    smallest: no channel's scale is below this ([channels] or [1]): what its bias needs to fit in int32.
    No scale is below SMALLEST_SCALE. Raises InternalError where a pair could still saturate.
    """
    values = weight.astype(np.float64)
    parts = _by_group(values, rule.groups)
    channels = () if rule.axis is None else (rule.axis + 1,)
    if rule.groups > 1 and not rule.shared:
        channels = (0, *channels)
    scale = _reduced(np.abs(parts), channels) / rule.limit
    if rule.pair_axis is not None:
        sums = _pair_sums(parts, rule.pair_axis + 1)
        scale = np.maximum(scale, _reduced(sums, channels) / PAIR_SUM_STEPS)
    scale = np.where(scale > 0, np.maximum(scale, SMALLEST_SCALE), 1.0).reshape(-1)
    if smallest is not None:
        scale = np.maximum(scale, smallest.reshape(-1))
    stored = scale.astype(np.float32)
    groups = rule.groups if channels[:1] == (0,) and rule.groups > 1 else 1
    shell = QuantizedWeight(np.empty(weight.shape, np.int8), stored, rule.axis, rule.bits, groups)
    steps = values / shell.expanded_scale().astype(np.float64)
    integers = np.clip(np.rint(steps), -rule.limit, rule.limit).astype(np.int8)
    if rule.pair_axis is not None:
        found = largest_pair_sum(integers, rule.pair_axis, rule.groups)
        if found > PAIR_SUM_LIMIT:
            raise InternalError(
                f"a pair-aware weight has a pair sum of {found}", expected=f"<= {PAIR_SUM_LIMIT}"
            )
    return QuantizedWeight(integers, stored, rule.axis, rule.bits, groups)


def largest_pair_sum(values: np.ndarray, pair_axis: int, groups: int = 1) -> int:
    """Return the largest same-sign sum of two neighbours (2k, 2k + 1) along an axis of an integer weight.

    groups: into which axis 0 falls; pairs do not cross them. At most PAIR_SUM_LIMIT: no pair of products with
    activations in 0..255 leaves int16.
    """
    if not values.size:
        return 0
    return int(_pair_sums(_by_group(values.astype(np.int64), groups), pair_axis + 1).max())


def _by_group(values: np.ndarray, groups: int) -> np.ndarray:
    """Return [groups, rows of a group, ...], a view."""
    rows, *rest = values.shape or (1,)
    return values.reshape(groups, rows // groups, *rest)


def _pair_sums(values: np.ndarray, axis: int) -> np.ndarray:
    """Return max(sum of the positive, -sum of the negative) of each pair; the axis stays, half as long."""
    moved = np.moveaxis(values, axis, -1)
    if moved.shape[-1] % 2:
        moved = np.concatenate([moved, np.zeros_like(moved[..., :1])], axis=-1)
    pairs = moved.reshape(*moved.shape[:-1], -1, 2)
    up, down = np.maximum(pairs, 0).sum(axis=-1), np.maximum(-pairs, 0).sum(axis=-1)
    return np.moveaxis(np.maximum(up, down), -1, axis)


def _reduced(values: np.ndarray, kept: tuple[int, ...]) -> np.ndarray:
    others = tuple(i for i in range(values.ndim) if i not in kept)
    largest: np.ndarray = values.max(axis=others, initial=0.0)
    return largest


def _weight_of(node: Node) -> np.ndarray:
    weight = constant(input_value(node, 1))
    if weight is None:
        raise InternalError(f"node {node.name!r} ({node.op_type}) has no constant weight")
    return weight
