"""Mul, Add, Sub and Div by per-channel constants into the weights beside them, or merged with each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    all_nodes,
    remove_node,
    replace_node,
    sole_reader,
)
from edgefuse.passes.channel_affine import ChannelAffine, affine_of_node, drop_unused, rounded
from edgefuse.passes.commute_scale import fold_scale_behind_shift, fold_scale_past_layout
from edgefuse.passes.contract import PassResult
from edgefuse.passes.into_consumer import fold_into_consumer
from edgefuse.passes.into_producer import fold_into_producer

__all__ = ["fold_scale_shift"]

# A shift this many ulps large rounds on purpose (x + 2^23 - 2^23): such pairs are not merged.
_ROUNDING_SHIFT_ULPS = 0.125
_SANE_SCALES = (1e-20, 1e20)


def fold_scale_shift(model: Model) -> PassResult:
    """Fold Mul, Add, Sub, Div with a constant (one number, or one for each channel) away, in place. Taken:

    1. after Conv, ConvTranspose (grouped too), Gemm, MatMul, Add(one of these, constant), and after Layer-,
       RMS-, Instance- and GroupNormalization: into weight and bias; a Conv without bias gets one.
    2. before Conv, ConvTranspose, Gemm, MatMul: into the weight, and W.shift onto the bias.
    3. chains of such nodes with constants along one axis (x * a * b, x + a + b, (x * a + b) * c ...): merged
       into at most one Mul and one Add where that makes fewer nodes; what comes to x itself disappears.
    4. s * x + t before a padded Conv, s one number: the Conv takes s, x + t / s stays.
    5. x * s, s one number, with Reshape, Transpose, Flatten, Squeeze, Unsqueeze, Slice or an average pooling
       between it and such weights (the 1/sqrt(d) on the queries of an attention).

    Constants may be scalars, [C, 1, 1], [1, C, 1, 1], [N] after Gemm or MatMul, with either operand order;
    Sub(constant, x) too. Left: a constant along another axis (width), along two axes, or of a higher rank
    than x; a shift before zero padding or before ConvTranspose (a scale passes both); a tensor that is read
    elsewhere or is a graph output; computed weights, a MatMul with its constant on the left; integers; shifts
    so large that they round on purpose; results that would overflow or vanish in their dtype.

    Exact in real arithmetic; the constants are computed in float64 and rounded once (float32: 6e-8 relative),
    and a merge saves one rounding of the tensor, so it is never less accurate. Shared weights are copied.
    """
    changed = 0
    while True:
        found = _sweep(model)
        if found == 0:
            return PassResult("fold_scale_shift", changed)
        changed += found


def _sweep(model: Model) -> int:
    """Fold forward into producers, then backward into consumers, then merge; return the number of changes."""
    changed = sum(fold_into_producer(model, affine) for affine in _affines(list(all_nodes(model))))
    backward = list(all_nodes(model))[::-1]
    changed += sum(fold_into_consumer(model, affine) for affine in _affines(backward))
    changed += sum(fold_scale_behind_shift(model, affine) for affine in _affines(backward))
    changed += sum(fold_scale_past_layout(model, affine) for affine in _affines(backward))
    return changed + sum(_merge(model, chain) for chain in _chains(model))


def _affines(nodes: list[Node]) -> Iterator[ChannelAffine]:
    for node in nodes:
        if node.graph is None:
            continue  # folded away since the list was made
        affine = affine_of_node(node)
        if affine is not None:
            yield affine


def _chains(model: Model) -> list[list[ChannelAffine]]:
    """Return the maximal runs of affine nodes, each the sole reader of the one before, along one axis."""
    seen: set[Node] = set()
    chains = []
    for affine in _affines(list(all_nodes(model))):
        if affine.node in seen:
            continue
        chain = [affine]
        axis = affine.axis
        while True:
            result = chain[-1].node.outputs[0]
            reader = sole_reader(result)
            follower = affine_of_node(reader) if reader is not None and not reader.domain else None
            if follower is None or follower.value is not result or follower.rank != affine.rank:
                break
            if follower.node.graph is not affine.node.graph:
                break
            if axis is not None and follower.axis is not None and follower.axis != axis:
                break
            axis = axis if axis is not None else follower.axis
            chain.append(follower)
        seen.update(link.node for link in chain)
        chains.append(chain)
    return chains


def _merge(model: Model, chain: list[ChannelAffine]) -> bool:
    """Write a chain as one Mul and one Add where that makes fewer nodes; return whether it did."""
    first = affine_of_node(chain[0].node)  # read anew: merging the chain before may have replaced its input
    total = _composed([first, *chain[1:]]) if first is not None else None
    if total is None or int(total.scales) + int(total.shifts) >= len(chain):
        return False
    last = chain[-1].node
    element = last.outputs[0].dtype
    if element is None:
        return False
    like = np.empty(0, element.numpy())
    scale, shift = _kept(total.scale, like), _kept(total.shift, like)
    if scale is None or shift is None:
        return False
    current = total.value
    nodes = [link.node for link in chain]
    stem = last.name or "scale"
    for op_type, array, needed in (("Mul", scale, total.scales), ("Add", shift, total.shifts)):
        if needed:
            factor = add_constant(model.graph, _shaped(array, total), f"{stem}_{op_type.lower()}")
            current = add_node(
                last, op_type, [current, factor], like=last.outputs[0], stem=stem, sources=nodes
            ).outputs[0]
    read: list[Value | None] = [value for node in nodes for value in node.inputs]
    replace_node(last, [current])
    for node in reversed(nodes[:-1]):
        remove_node(node)
    for value in read:
        if value is not None and value.graph is not None:
            drop_unused(value.graph, value)
    return True


def _composed(chain: list[ChannelAffine]) -> ChannelAffine | None:
    """Return the whole chain as one affine, or None where merging it could change what it is for."""
    total = chain[0]
    eps = float(np.finfo(np.float16).eps) if _is_half(total.value) else float(np.finfo(np.float32).eps)
    low, high = _SANE_SCALES
    for link in chain:
        sizes = np.abs(link.scale[link.scale != 0])
        if ((sizes < low) | (sizes > high)).any():
            return None
        if len(chain) > 1 and (np.abs(link.shift) >= _ROUNDING_SHIFT_ULPS / eps).any():
            return None
    for link in chain[1:]:
        total = replace(
            total,
            scale=total.scale * link.scale,
            shift=total.shift * link.scale + link.shift,
            axis=total.axis if total.axis is not None else link.axis,
        )
    return total


def _is_half(value: Value) -> bool:
    return value.dtype is not None and value.dtype.itemsize == 2


def _kept(array: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Return the array in the dtype of `like`, or None where it overflows or loses digits to underflow."""
    result = rounded(array, like)
    if result is None or (np.abs(result.astype(np.float64) - array) > np.abs(array) / 128).any():
        return None
    return result


def _shaped(array: np.ndarray, affine: ChannelAffine) -> np.ndarray:
    if affine.axis is None or affine.rank is None:
        return array.reshape(())
    return array.reshape(array.size, *[1] * (affine.rank - 1 - affine.axis))
