"""Written-out root-mean-square normalisation into RMSNormalization."""

from __future__ import annotations

from edgefuse.graph import Model
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import outermost_first
from edgefuse.passes.norm_forms import NORM_ROOTS, Normalization, read_normalization, shaped_like
from edgefuse.passes.recover_layernorm import add_parameter, trailing_axes

__all__ = ["recover_rmsnorm"]


def recover_rmsnorm(model: Model) -> PassResult:
    """Write RMSNormalization for x / sqrt(mean(x^2) + eps) over the last axes of x, in place. Taken:

    1. the square as Pow or Mul, ReduceMean, ReduceSum or ReduceSumSquare times 1/N.
    2. Div by Sqrt, Mul by Reciprocal(Sqrt), by Div(1, Sqrt), by Pow(., -0.5), by Sqrt(Reciprocal).
    3. a constant gain within those axes at any factor, or none; a bias after it stays an Add.
    4. Casts between float types inside: float16 x squared in float32 (Llama); the operator computes in
       float32 itself (stash_type 1).

    Left: what subtracts the mean (recover_layernorm runs first); axes that are not the last; eps outside the
    root; a computed gain (the core is taken, it stays); an inner tensor that is read elsewhere or is a graph
    output; float64 tensors; unknown sizes where a gain of ones would have to be made.
    Exact in real arithmetic.
    """
    changed = 0
    for root in outermost_first(model, *NORM_ROOTS):
        found = read_normalization(root)
        if found is not None and not found.centred and found.trailing and found.bias is None:
            changed += _written(model, found)
    return PassResult("recover_rmsnorm", changed)


def _written(model: Model, found: Normalization) -> bool:
    shape = trailing_axes(found.x, found.axes, found.gain)
    gain = None if shape is None else shaped_like(found.gain, shape, 1.0)
    if gain is None:
        return False
    scale = add_parameter(model, found.x, gain, f"{found.reading.root.name}_scale")
    if scale is None:
        return False
    attributes = {"axis": found.axes[0] - found.rank, "epsilon": found.epsilon}
    found.reading.rewrite(model, "RMSNormalization", [found.x, scale], attributes)
    return True
