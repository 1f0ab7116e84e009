"""clip(a * x + b, 0, 1), however it is written, into HardSigmoid."""

from __future__ import annotations

from edgefuse.graph import Model, Node, Value
from edgefuse.passes.contract import PassResult
from edgefuse.passes.expressions import Reading, close_to, outermost_first

__all__ = ["recover_hardsigmoid"]

_TOLERANCE = 2e-6
_ROOTS = ("Mul", "Div", "Add", "Sum", "Sub", "Neg", "Clip", "Min", "Max", "Relu")
_SIXTH = (1.0 / 6.0, 0.5)
# one Mul and one Add make a * x + b; what stands before them belongs to the layer before
_AFFINE_NODES = 2


def recover_hardsigmoid(model: Model) -> PassResult:
    """Write HardSigmoid(x; alpha, beta) = clip(alpha * x + beta, 0, 1) in place. Taken:

    1. Clip(x + 3, 0, 6) / 6, the division as Div or as Mul by 1/6: alpha 1/6, beta 1/2.
    2. Clip(x / 6 + 0.5, 0, 1), and Clip(a * x + b, 0, 1) for any a and b: alpha a, beta b.
    3. the clip written as Min(Max(...)), Max(Min(...)), Min(Relu(...), 6).
    4. 1 - clip(...) and the like, where the whole still saturates at 0 and 1.

    Where more scalar nodes stand before the clip, those that make alpha 1/6, beta 1/2 are taken.
    Left: a Clip to [0, 1] without a slope or without a shift (it is a Clip of the layer before, whose weights
    take the rest); other bounds; an inner tensor that is read elsewhere or is a graph output; integers.
    Exact but for rounding alpha and beta to float32 once.
    """
    changed = 0
    for root in outermost_first(model, *_ROOTS):
        changed += _rewritten(model, root)
    return PassResult("recover_hardsigmoid", changed)


def _rewritten(model: Model, root: Node) -> bool:
    for opened in range(_AFFINE_NODES + 3):
        reading = Reading(root)
        read = _read(reading, opened)
        if read is None:
            continue
        alpha, beta, x, canonical = read
        if not canonical and not _is_last(root, opened):
            continue
        source = reading.input_like_root(x)
        if source is None or not reading.fits(x) or not reading.closed():
            continue
        reading.rewrite(model, "HardSigmoid", [source], {"alpha": alpha, "beta": beta})
        return True
    return False


def _is_last(root: Node, opened: int) -> bool:
    """Return whether opening one node more is impossible or beyond one Mul and one Add, and none is 1/6."""
    if any((found := _read(Reading(root), more)) and found[3] for more in range(_AFFINE_NODES + 3)):
        return False
    return opened == _AFFINE_NODES or _read(Reading(root), opened + 1) is None


def _read(reading: Reading, opened: int) -> tuple[float, float, Value, bool] | None:
    """Return (alpha, beta, x, whether they are 1/6 and 1/2) with `opened` scalar nodes before the clip."""
    outer = _outer(reading)
    if outer is None:
        return None
    scale, shift, inner, low, high = outer
    ends = sorted((scale * low + shift, scale * high + shift))
    if abs(ends[0]) > _TOLERANCE or not close_to(ends[1], 1.0, _TOLERANCE):
        return None
    mark = len(reading.nodes)
    for count, (slope, intercept, x) in enumerate(reading.affine_steps(inner)):
        if count != opened:
            continue
        alpha, beta = scale * slope, scale * intercept + shift
        if close_to(alpha, 1.0, _TOLERANCE) or abs(beta) <= _TOLERANCE:
            return None
        canonical = close_to(alpha, _SIXTH[0], _TOLERANCE) and close_to(beta, _SIXTH[1], _TOLERANCE)
        return alpha, beta, x, canonical
    del reading.nodes[mark:]
    return None


def _outer(reading: Reading) -> tuple[float, float, Value, float, float] | None:
    """Return (scale, shift, inner, low, high): the root is scale * clip(inner, low, high) + shift."""
    root = reading.root
    if root.op_type in ("Clip", "Min", "Max", "Relu"):
        first = reading.bounds(root)
        if first is None or first[1] > first[2]:
            return None
        inner, low, high = first
        nested = reading.saturation(inner)
        if nested is None:
            return 1.0, 0.0, inner, low, high
        inner, below, above = nested
        return 1.0, 0.0, inner, min(max(below, low), high), min(max(above, low), high)
    step = reading.step(root)
    if step is None:
        return None
    scale, shift, core = reading.affine(step[2])
    bounded = reading.saturation(core)
    if bounded is None:
        return None
    return step[0] * scale, step[0] * shift + step[1], *bounded
