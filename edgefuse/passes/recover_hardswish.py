"""x * clip(x + 3, 0, 6) / 6, however it is written, into HardSwish."""

from __future__ import annotations

from edgefuse.graph import Model, Node, Value, attribute
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import Reading, close_to, outermost_first

__all__ = ["recover_hardswish"]

_TOLERANCE = 2e-6


def recover_hardswish(model: Model) -> PassResult:
    """Write HardSwish(x) = x * clip(x / 6 + 1/2, 0, 1) for its written-out forms, in place. Taken:

    1. x * Clip(x + 3, 0, 6) / 6, the division (or Mul by 1/6) at either factor or at the end, any order.
    2. x * Clip(x / 6 + 0.5, 0, 1).
    3. x * HardSigmoid(x) with alpha 1/6, beta 1/2.
    4. the clip written as Min(Max(...)), Max(Min(...)), Min(Relu(...), 6).
    5. a missing or other factor k (the 1/6 was folded into the next layer): HardSwish(x) * k.

    Left: other slopes or bounds (x * clip(0.2 x + 0.5, 0, 1) becomes x * HardSigmoid elsewhere); x * gate(y)
    of two different tensors (squeeze-and-excite); an inner tensor that is read elsewhere or is a graph
    output; integers; constants that raise the rank;
    a float16 Mul by 1/6, which is 2.4e-4 off 1/6 and by which no float16 factor k makes up for (Div by 6 is
    taken).  Numbers must agree to 2e-6 relative, and the result differs by no more than that.
    """
    changed = 0
    for root in outermost_first(model, "Mul", "Div"):
        opened = Reading(root).product(root)
        if opened is None or sorted(exponent for _, exponent in opened[1]) != [1, 1]:
            continue
        if any(_rewritten(model, root, order) for order in (0, 1)):
            changed += 1
    return PassResult("recover_hardswish", changed)


def _rewritten(model: Model, root: Node, order: int) -> bool:
    """Try to read `root` as x * gate(x), the gate being factor `order` of the product."""
    reading = Reading(root)
    opened = reading.product(root)
    if opened is None:
        return False
    coefficient, factors = opened
    gate, x = factors[order][0], factors[1 - order][0]
    shape = _gate(reading, gate, x)
    if shape is None:
        return False
    slope, intercept, low, high = (coefficient * number for number in shape)
    low, high = min(low, high), max(low, high)
    if high <= 0 or abs(low) > _TOLERANCE * high:
        return False
    if not (close_to(slope * 6, high, _TOLERANCE) and close_to(intercept * 2, high, _TOLERANCE)):
        return False
    source, factor = reading.input_like_root(x), reading.factor(high)
    if source is None or factor is None or not reading.fits(x) or not reading.closed():
        return False
    reading.rewrite(model, "HardSwish", [source], scale=factor)
    return True


def _gate(reading: Reading, gate: Value, x: Value) -> tuple[float, float, float, float] | None:
    """Return (slope, intercept, one end, other end) of clip(slope * x + intercept) as the gate writes it."""
    scale, shift, core = reading.affine(gate)
    node = reading.inner(core, "HardSigmoid")
    if node is not None and node.inputs[0] is not None:
        line = reading.linear(node.inputs[0], x)
        alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
        line = None if line is None else (alpha * line[0], alpha * line[1] + beta)
        low, high = 0.0, 1.0
    else:
        bounded = reading.saturation(core)
        if bounded is None:
            return None
        inner, low, high = bounded
        line = reading.linear(inner, x)
    if line is None:
        return None
    return scale * line[0], scale * line[1] + shift, scale * low + shift, scale * high + shift
