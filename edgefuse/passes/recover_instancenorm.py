"""Written-out instance and group normalisation into InstanceNormalization and GroupNormalization."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_node,
    attribute,
    constant,
    dims,
    input_value,
    is_float,
    replace_node,
    sole_reader,
    static_shape,
)
from edgefuse.passes.channel_affine import affine_of_node, drop_unused
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import Reading, outermost_first
from edgefuse.passes.into_producer import fold_into_producer
from edgefuse.passes.norm_forms import NORM_ROOTS, Normalization, read_normalization
from edgefuse.passes.recover_layernorm import MVN_EPSILON, add_parameter

__all__ = ["recover_instancenorm"]


def recover_instancenorm(model: Model) -> PassResult:
    """Write InstanceNormalization and GroupNormalization for their written-out forms, in place. Taken:

    1. (x - mean) / sqrt(var + eps) over axes 2 to the last (every form of recover_layernorm, means also as
       GlobalAveragePool), gain and bias one number or one for each channel: InstanceNormalization.
    2. the same over axes 1 to the last: GroupNormalization with one group.
    3. Reshape to [N, G, -1], InstanceNormalization or LayerNormalization over the last axis, Reshape back
       (by Shape(x) or by the same numbers), then Mul and Add for each channel: GroupNormalization.
    4. MeanVarianceNormalization over axes 2 to the last or 1 to the last (epsilon 1e-18).

    Left: an unknown number of channels; a gain that varies along other axes (the core is taken, it stays);
    reshapes that cannot be shown to keep N and group whole channels; rank below 3; an inner tensor that is
    read elsewhere or is a graph output.  Exact in real arithmetic.
    """
    changed = 0
    for root in outermost_first(model, *NORM_ROOTS):
        found = read_normalization(root)
        if found is not None and found.centred and found.rank >= 3:
            changed += _written(model, found)
    for root in outermost_first(model, "MeanVarianceNormalization"):
        changed += _from_mvn(model, root)
    for root in outermost_first(model, "Reshape"):
        changed += _grouped(model, root)
    return PassResult("recover_instancenorm", changed)


def _kind(axes: tuple[int, ...], rank: int) -> str | None:
    """Return the operator that normalises over these axes."""
    if axes == tuple(range(2, rank)):
        return "InstanceNormalization"
    return "GroupNormalization" if axes == tuple(range(1, rank)) else None


def _channels(x: Value, *arrays: np.ndarray | None) -> int | None:
    """Return the number of channels of x, from its shape or from a constant that runs along them."""
    found = list(dims(x) or ())
    if len(found) < 3:
        return None
    if isinstance(found[1], int):
        return found[1]
    behind = len(found) - 1  # axis 1, counted from the end
    sizes = {list(a.shape)[-behind] for a in arrays if a is not None and a.ndim >= behind}
    sizes.discard(1)
    return sizes.pop() if len(sizes) == 1 else None


def _per_channel(array: np.ndarray | None, channels: int, rank: int, default: float) -> np.ndarray | None:
    """Return `array` as [C], or None where it varies along another axis than 1."""
    if array is None:
        return np.full(channels, default)
    if array.size == 1:
        return np.full(channels, float(array.reshape(())))
    sizes = [1] * (rank - array.ndim) + list(array.shape)
    return array.reshape(-1) if array.size == sizes[1] == channels else None


def _written(model: Model, found: Normalization) -> bool:
    kind = _kind(found.axes, found.rank)
    channels = _channels(found.x, found.gain, found.bias)
    if kind is None or channels is None:
        return False
    gain = _per_channel(found.gain, channels, found.rank, 1.0)
    bias = _per_channel(found.bias, channels, found.rank, 0.0)
    if gain is None or bias is None:
        return False
    stem = found.reading.root.name or "norm"
    scale = add_parameter(model, found.x, gain, f"{stem}_scale")
    shift = add_parameter(model, found.x, bias, f"{stem}_bias")
    if scale is None or shift is None:
        return False
    attributes: dict[str, float | int] = {"epsilon": found.epsilon}
    if kind == "GroupNormalization":
        attributes["num_groups"] = 1
    found.reading.rewrite(model, kind, [found.x, scale, shift], attributes)
    return True


def _from_mvn(model: Model, root: Node) -> bool:
    x = root.inputs[0]
    found = dims(x)
    if x is None or found is None or not is_float(x) or len(found) < 3:
        return False
    axes = tuple(sorted(int(a) % len(found) for a in attribute(root, "axes", (0, 2, 3))))
    kind, channels = _kind(axes, len(found)), _channels(x)
    if kind is None or channels is None:
        return False
    scale = add_parameter(model, x, np.ones(channels), f"{root.name}_scale")
    shift = add_parameter(model, x, np.zeros(channels), f"{root.name}_bias")
    attributes: dict[str, float | int] = {"epsilon": MVN_EPSILON}
    if kind == "GroupNormalization":
        attributes["num_groups"] = 1
    new = add_node(root, kind, [x, scale, shift], attributes, like=x, sources=[root])
    replace_node(root, [new.outputs[0]])
    return True


# --- GroupNorm as exporters write it ----------------------------------------------------------------------


def _grouped(model: Model, root: Node) -> bool:
    """Rewrite Reshape(norm(Reshape(x))) that ends in `root`, and take the Mul and Add after it along."""
    reading = Reading(root)
    norm = reading.inner(root.inputs[0], "InstanceNormalization", "LayerNormalization")
    first = reading.inner(norm.inputs[0], "Reshape") if norm is not None else None
    x = first.inputs[0] if first is not None else None
    if norm is None or first is None or x is None or any(v.uses() for v in norm.outputs[1:]):
        return False
    channels, groups = _channels(x), _groups(first, x)
    if channels is None or groups is None or channels % groups or not _returns(root, x):
        return False
    parameters = _group_parameters(norm, groups)
    if parameters is None or not reading.closed():
        return False
    gain, bias = (np.repeat(p, channels // groups) for p in parameters)
    scale = add_parameter(model, x, gain, f"{root.name}_scale")
    shift = add_parameter(model, x, bias, f"{root.name}_bias")
    if scale is None or shift is None:
        return False
    attributes = {"num_groups": groups, "epsilon": float(attribute(norm, "epsilon", 1e-5))}
    shape_input = input_value(root, 1)
    reading.rewrite(model, "GroupNormalization", [x, scale, shift], attributes)
    _drop_shape(shape_input)
    _absorb(model, scale)
    return True


def _groups(first: Node, x: Value) -> int | None:
    """Return G where the Reshape makes [N, G, the rest] of x, each row whole channels of one sample."""
    target, shape = constant(input_value(first, 1)), dims(x)
    if shape is None or target is None or target.size != 3 or attribute(first, "allowzero", 0):
        return None
    batch, groups, rest = (int(v) for v in target.reshape(-1))
    if groups <= 0 or (batch != 0 and batch != shape[0]):
        return None
    if rest == -1:
        return groups
    sizes = static_shape(x)
    return groups if sizes is not None and groups * rest == int(np.prod(sizes[1:])) else None


def _returns(root: Node, x: Value) -> bool:
    """Return whether the last Reshape restores the shape of x."""
    target = input_value(root, 1)
    maker = target.producer() if target is not None else None
    if maker is not None and maker.op_type == "Shape" and not maker.domain and maker.inputs[0] is x:
        return not attribute(maker, "start", 0) and attribute(maker, "end") is None
    have, want = dims(root.outputs[0]), dims(x)
    if have is None or want is None or len(have) != len(want):
        return False
    # the number of elements is kept: one dimension that is not known is settled by the others
    different = [(h, w) for h, w in zip(have, want, strict=True) if h != w or h is None]
    return not different or (len(different) == 1 and not all(isinstance(d, int) for d in different[0]))


def _group_parameters(norm: Node, groups: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return gain and bias of each group, float64 [G]; None where computed or varying inside one."""
    gain, bias_value = constant(input_value(norm, 1)), input_value(norm, 2)
    bias = constant(bias_value) if bias_value is not None else np.zeros(1)
    if gain is None or bias is None:
        return None
    wide = [a.astype(np.float64).reshape(-1) for a in (gain, bias)]
    if norm.op_type == "LayerNormalization":
        if attribute(norm, "axis", -1) not in (-1, 2) or any((a != a[0]).any() for a in wide):
            return None
        return np.full(groups, wide[0][0]), np.full(groups, wide[1][0])
    return (wide[0], wide[1]) if wide[0].size == wide[1].size == groups else None


def _drop_shape(value: Value | None) -> None:
    """Remove the Shape that only the last Reshape read."""
    node = value.producer() if value is not None else None
    if node is not None and node.graph is not None and node.op_type == "Shape":
        if value is not None and not value.uses() and not value.is_graph_output():
            node.graph.remove(node, safe=True)
    elif value is not None and value.graph is not None:
        drop_unused(value.graph, value)


def _absorb(model: Model, scale: Value) -> None:
    """Fold the Mul and Add that follow the new GroupNormalization (found by its scale) into it."""
    while True:
        norm = next((use.node for use in scale.uses()), None)
        reader = sole_reader(norm.outputs[0]) if norm is not None else None
        affine = affine_of_node(reader) if reader is not None else None
        if norm is None or affine is None or not fold_into_producer(model, affine):
            return
        scale = norm.inputs[1] or scale
