"""x * sigmoid(alpha * x) into Swish."""

from __future__ import annotations

from collections.abc import Callable

from edgefuse.graph import Model, Node, Value
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import Reading, close_to, outermost_first

__all__ = ["read_swish", "recover_silu"]

_TOLERANCE = 2e-6


def recover_silu(model: Model) -> PassResult:
    """Write Swish(x) = x * sigmoid(alpha * x) for its written-out forms, in place. Taken:

    1. x * Sigmoid(x), either order (SiLU, alpha 1).
    2. x * Sigmoid(alpha * x), the factor by Mul, Div or Neg, for any alpha but 0.
    3. x / (1 + Exp(-alpha * x)).
    4. a constant factor k anywhere in the product: Swish(x) * k.

    Left: x * Sigmoid(y) of another tensor (a gate); Sigmoid(x + b); a Sigmoid that is read elsewhere or is a
    graph output; constants that raise the rank.  Exact: alpha is the model's own number.
    """
    roots = outermost_first(model, "Mul", "Div")
    changed = sum(read_swish(model, root, lambda alpha: alpha != 0) for root in roots)
    return PassResult("recover_silu", changed)


def read_swish(model: Model, root: Node, accept: Callable[[float], bool]) -> bool:
    """Rewrite `root` where it ends x * sigmoid(alpha * x) and `accept` takes alpha; return whether."""
    opened = Reading(root).product(root)
    if opened is None or len(opened[1]) != 2:
        return False
    return any(_rewritten(model, root, order, accept) for order in (0, 1))


def _rewritten(model: Model, root: Node, order: int, accept: Callable[[float], bool]) -> bool:
    reading = Reading(root)
    opened = reading.product(root)
    if opened is None:
        return False
    coefficient, factors = opened
    (gate, gate_exponent), (x, x_exponent) = factors[order], factors[1 - order]
    if x_exponent != 1:
        return False
    read = _sigmoid(reading, gate, x) if gate_exponent == 1 else _exponential(reading, gate, x)
    if read is None:
        return False
    scale, alpha = read
    source, factor = reading.input_like_root(x), reading.factor(coefficient * scale)
    if factor is None or not accept(alpha) or source is None or not reading.fits(x) or not reading.closed():
        return False
    attributes = {} if alpha == 1.0 else {"alpha": alpha}
    reading.rewrite(model, "Swish", [source], attributes, factor)
    return True


def _sigmoid(reading: Reading, gate: Value, x: Value) -> tuple[float, float] | None:
    """Return (scale, alpha) where the gate is scale * Sigmoid(alpha * x)."""
    scale, shift, core = reading.affine(gate)
    node = reading.inner(core, "Sigmoid")
    if node is None or shift != 0 or node.inputs[0] is None:
        return None
    line = reading.linear(node.inputs[0], x)
    return None if line is None or line[1] != 0 else (scale, line[0])


def _exponential(reading: Reading, gate: Value, x: Value) -> tuple[float, float] | None:
    """Return (scale, alpha) where 1 / gate is scale / (1 + Exp(-alpha * x))."""
    scale, shift, core = reading.affine(gate)
    node = reading.inner(core, "Exp")
    if node is None or shift == 0 or not close_to(scale, shift, _TOLERANCE) or node.inputs[0] is None:
        return None
    line = reading.linear(node.inputs[0], x)
    return None if line is None or line[1] != 0 else (1.0 / shift, -line[0])
