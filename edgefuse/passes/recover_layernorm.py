"""Written-out layer normalisation into LayerNormalization."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    dims,
    is_float,
    replace_node,
)
from edgefuse.passes.channel_affine import rounded
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import outermost_first
from edgefuse.passes.norm_forms import NORM_ROOTS, Normalization, read_normalization, shaped_like

__all__ = ["add_parameter", "recover_layernorm", "trailing_axes"]

# MeanVarianceNormalization adds 1e-9 to the deviation; (1e-9)^2 under the root gives the same zero for a
# constant row and differs by 1e-9 / deviation elsewhere.
MVN_EPSILON = 1e-18


def recover_layernorm(model: Model) -> PassResult:
    """Write LayerNormalization for (x - mean) / sqrt(var + eps) over the last axes of x, in place. Taken:

    1. the variance as mean((x - mean)^2), Pow or Mul, the difference written once or twice.
    2. the variance as E[x^2] - E[x]^2, also with Max(., 0) around it.
    3. Div by Sqrt, Mul by Reciprocal(Sqrt), by Div(1, Sqrt), by Pow(., -0.5), by Sqrt(Reciprocal).
    4. means as ReduceMean, ReduceSum times 1/N, dimensions kept or put back by Reshape or Unsqueeze.
    5. gain and bias constants of any broadcast form within those axes, at any factor; or none.
    6. x * m + (bias - mean * m) with m = gain / sqrt(var + eps) (Keras).
    7. Casts between float types inside: the operator computes in float32 itself (stash_type 1).
    8. MeanVarianceNormalization over the last axes (epsilon 1e-18).

    Left: axes that are not the last (LayerNorm over channels of NCHW); eps outside the root or under a Max;
    an unbiased variance (N - 1); gain or bias that is computed (the core is taken, they stay); axes 1 to the
    last with a gain for each channel or none (recover_instancenorm: GroupNormalization with one group); an
    inner tensor that is read elsewhere or is a graph output; float64 tensors; sizes that are unknown where a
    gain of ones would have to be made.

    Exact in real arithmetic. Sizes beyond 255.9 overflow float16 in a written-out square; not here.
    """
    changed = 0
    for root in outermost_first(model, *NORM_ROOTS):
        found = read_normalization(root)
        if found is not None and found.centred and found.trailing and _written(model, found):
            changed += 1
    for root in outermost_first(model, "MeanVarianceNormalization"):
        changed += _from_mvn(model, root)
    return PassResult("recover_layernorm", changed)


def trailing_axes(x: Value, axes: tuple[int, ...], *arrays: np.ndarray | None) -> tuple[int, ...] | None:
    """Return the sizes of x along `axes`; one that x leaves open comes from an array along it."""
    found = dims(x)
    if found is None:
        return None
    sizes = []
    for axis in axes:
        size = found[axis]
        if not isinstance(size, int):
            from_end = axis - len(found)
            along = {a.shape[from_end] for a in arrays if a is not None and a.ndim >= -from_end}
            along.discard(1)
            if len(along) != 1:
                return None
            size = along.pop()
        sizes.append(size)
    return tuple(sizes)


def add_parameter(model: Model, x: Value, array: np.ndarray, stem: str) -> Value | None:
    """Return a new constant with the dtype of x, or None where a number would overflow."""
    if x.dtype is None:
        return None
    held = rounded(array, np.empty(0, x.dtype.numpy()))
    return None if held is None else add_constant(model.graph, held, stem)


def _written(model: Model, found: Normalization) -> bool:
    shape = trailing_axes(found.x, found.axes, found.gain, found.bias)
    if shape is None:
        return False
    gain = shaped_like(found.gain, shape, 1.0)
    bias = None if found.bias is None else shaped_like(found.bias, shape, 0.0)
    if gain is None or (found.bias is not None and bias is None):
        return False
    if found.axes[0] == 1 and found.rank >= 3 and not _varies_inside(found):
        return False
    stem = found.reading.root.name or "layernorm"
    scale = add_parameter(model, found.x, gain, f"{stem}_scale")
    shift = None if bias is None else add_parameter(model, found.x, bias, f"{stem}_bias")
    if scale is None or (bias is not None and shift is None):
        return False
    inputs: list[Value | None] = [found.x, scale]
    if shift is not None:
        inputs.append(shift)
    attributes = {"axis": found.axes[0] - found.rank, "epsilon": found.epsilon}
    found.reading.rewrite(model, "LayerNormalization", inputs, attributes)
    return True


def _varies_inside(found: Normalization) -> bool:
    """Return whether gain or bias varies along an axis behind the channels."""
    arrays = [a for a in (found.gain, found.bias) if a is not None]
    return any(size != 1 for a in arrays for size in a.shape[max(a.ndim - found.rank + 2, 0) :])


def _from_mvn(model: Model, root: Node) -> bool:
    x = root.inputs[0]
    found = dims(x)
    if x is None or found is None or not is_float(x):
        return False
    axes = tuple(sorted(int(a) % len(found) for a in attribute(root, "axes", (0, 2, 3))))
    shape = trailing_axes(x, axes)
    if axes != tuple(range(axes[0], len(found))) or shape is None:
        return False
    if axes[0] == 1 and len(found) >= 3:
        return False
    if axes[0] == 2 and len(found) >= 4:
        return False
    scale = add_parameter(model, x, np.ones(shape), f"{root.name}_scale")
    if scale is None:
        return False
    attributes = {"axis": axes[0] - len(found), "epsilon": MVN_EPSILON}
    new = add_node(root, "LayerNormalization", [x, scale], attributes, like=x, sources=[root])
    replace_node(root, [new.outputs[0]])
    return True
