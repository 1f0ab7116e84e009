"""GELU by erf, by tanh, and the quick form, into Gelu and Swish."""

from __future__ import annotations

import math

from edgefuse.graph import Model, Node, Value
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import Reading, close_to, outermost_first
from edgefuse.passes.recover_silu import read_swish

__all__ = ["recover_gelu"]

_QUICK = 1.702  # Hendrycks & Gimpel 2016 (arXiv 1606.08415), section 2
_CUBIC = 0.044715  # the same paper's tanh approximation
_TOLERANCE = 2e-5
_FACTOR_TOLERANCE = 2e-6


def recover_gelu(model: Model) -> PassResult:
    """Write Gelu (and Swish for the quick form) for the written-out forms of GELU, in place. Taken:

    1. 0.5 * x * (1 + Erf(x / sqrt 2)), the 0.5 at either factor, inside the sum or at the end, any order;
       the root as Div by 1.41421 or Mul by 0.70711: Gelu.
    2. 0.5 * x * (1 + Tanh(sqrt(2/pi) * (x + 0.044715 x^3))), the cube as Pow, Mul, Mul or factored in any
       way: Gelu approximate="tanh".
    3. x * Sigmoid(1.702 x): Swish alpha=1.702 (the model's own number, within 1e-3).
    4. a missing or other factor k: Gelu(x) * 2k, which fold_scale_shift moves into the next weight.
    5. Casts between float types inside the form.

    Left: other numbers in the erf or tanh (compared to 2e-5; in 16-bit types to one step of the type); an
    inner tensor that is read elsewhere or is a graph output; 0.5 x + 0.5 x erf(...) written as a sum;
    constants that raise the rank.

    The result differs by at most 1e-5 of the largest output, 3e-5 where a float16 model rounds 1/sqrt 2 (a
    fifteenth of half an ulp of that tensor).
    """
    changed = 0
    for root in outermost_first(model, "Mul", "Div"):
        opened = Reading(root).product(root)
        if opened is None or len(opened[1]) != 2:
            continue
        forward = all(exponent == 1 for _, exponent in opened[1])
        quick = read_swish(model, root, lambda alpha: close_to(alpha, _QUICK, 1e-3))
        if quick or (forward and any(_rewritten(model, root, order) for order in (0, 1))):
            changed += 1
    return PassResult("recover_gelu", changed)


def _rewritten(model: Model, root: Node, order: int) -> bool:
    """Try to read `root` as x * gate(x), the gate being factor `order` of the product."""
    reading = Reading(root)
    opened = reading.product(root)
    if opened is None:
        return False
    coefficient, factors = opened
    gate, x = factors[order][0], factors[1 - order][0]
    scale, shift, core = reading.affine(gate)
    node = reading.inner(core, "Erf", "Tanh")
    if node is None or node.inputs[0] is None or shift == 0 or not close_to(scale, shift, _FACTOR_TOLERANCE):
        return False
    argument = reading.polynomial(node.inputs[0], x)
    if argument is None or not _is_gelu(node.op_type, argument, _step(x)):
        return False
    source, factor = reading.input_like_root(x), reading.factor(2.0 * coefficient * shift)
    if source is None or factor is None or not reading.fits(x) or not reading.closed():
        return False
    attributes = {"approximate": "tanh"} if node.op_type == "Tanh" else {}
    reading.rewrite(model, "Gelu", [source], attributes, factor)
    return True


def _step(x: Value) -> float:
    """Return the relative tolerance of a constant: one step of a 16-bit type, else 2e-5."""
    if x.dtype is None or x.dtype.itemsize != 2:
        return _TOLERANCE
    return 2.0**-7 if "BFLOAT16" in x.dtype.name else 2.0**-10


def _is_gelu(op_type: str, argument: dict[int, float], tolerance: float) -> bool:
    """Return whether the argument of Erf or Tanh is that of GELU."""
    wanted = {1: math.sqrt(0.5)}
    if op_type == "Tanh":
        slope = math.sqrt(2.0 / math.pi)
        wanted = {1: slope, 3: slope * _CUBIC}
    degrees = {degree for degree, c in argument.items() if c != 0}
    return degrees == set(wanted) and all(close_to(argument[d], c, tolerance) for d, c in wanted.items())
