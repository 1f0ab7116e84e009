"""What a build decides once its payloads are made: which runs first, and whether one may be shipped."""

from __future__ import annotations

import math

from edgefuse.benchmark import Race
from edgefuse.compose.options import BuildOptions
from edgefuse.compose.payloads import Built
from edgefuse.errors import UnsupportedError

__all__ = [
    "COST_BAND",
    "FASTER_BY",
    "choose_order",
    "loses_in_half",
    "require_float_accuracy",
    "require_int8_kernels",
    "within",
]

# int8 goes first only if it is this much faster, where that was measured (a race moves by 3 % and more).
FASTER_BY = 0.02
# Without a fit, a predicted time may be off by half (136 operators: median error 14 %, p90 55 %).
COST_BAND = 0.5
# What a float payload may lose where --max-drop is smaller: a tenth of a point, for sums in another order.
FLOAT_DROP = 0.001
# 1 - 0.99 is 0.010000000000000009 in floating point, and means a drop of 0.01.
_ROUNDING = 1e-9


def within(drop: float, max_drop: float) -> bool:
    """Return whether a measured drop is allowed; one that is no number is not.

    >>> within(1 - 0.99, 0.01), within(float("nan"), 0.01)
    (True, False)
    """
    return drop <= max_drop + _ROUNDING


def choose_order(float_one: Built, int8: Built, precision: str, race: Race | None) -> tuple[list[Built], str]:
    """Return the payloads to ship, the one that runs first in front, and a note for the user ("": none).

    precision: what was asked for; "int8" puts int8 first whatever it costs.  race: of "float" and "int8" on
    the target; None where the target is not here: then both are shipped, and a prediction decides which is
    first, if it leaves no doubt.
    """
    if precision == "int8":
        return [int8, float_one], ""
    if race is None:
        predicted = int8.plan.predicted_ms / float_one.plan.predicted_ms
        if predicted <= 1 - max(FASTER_BY, COST_BAND):
            return [int8, float_one], ""
        return [float_one, int8], (
            f"float goes first: int8 is predicted at {predicted:.2f} of its time, which is inside the "
            f"estimate's band; time both on the device"
        )
    ratio = race.ratio("int8", "float").value
    if ratio <= 1 - FASTER_BY:
        return [int8, float_one], ""
    return [float_one], (
        f"int8 is not shipped: it took {ratio:.2f} of the float time here, and must save {FASTER_BY:.0%}"
    )


def require_float_accuracy(built: Built, max_drop: float, nan: str, made_up: bool) -> str:
    """Return a note ("": none); raises UnsupportedError for a float payload that is not what the model is.

    max_drop: --max-drop.  nan: what the model itself gave of NaN.  made_up: the data were seeded random
    numbers, on which a detector's order or a threshold may flip: a note then, if level 1 found that every
    region alone computes what the model says. Without that evidence made-up data refuse like real ones, and
    so does a drop without end: an output of another shape, or NaN or infinity where the model has numbers,
    is no order that flipped.
    """
    if nan:
        return f"the model itself gives {nan}: accuracy on those tells nothing"
    limit = max(max_drop, FLOAT_DROP)
    if within(built.accuracy.drop, limit):
        return ""
    what = f"the float payload loses {built.accuracy.drop:.4g} of {built.accuracy.metric} against the model"
    if made_up and _cleared(built):
        return (
            f"{what}, on made-up inputs (allowed {limit:g}); every region alone is right (level 1), so that "
            "this is an order or a threshold that flips on noise: give data with --eval"
        )
    raise UnsupportedError(
        f"{what}, on made-up inputs" if made_up else what,
        expected=f"at most {limit:g} (--max-drop)",
        got=f"worst: {_worst(built)}",
        hint=("data with --eval, " if made_up else "")
        + "--precision fp32 where it was another, or a metric that fits the outputs (--metric)",
    )


def _cleared(built: Built) -> bool:
    """Return whether level 1 speaks for a payload whose drop on doubtful data is too large."""
    return built.regions is not None and built.regions.ok and math.isfinite(built.accuracy.drop)


def _worst(built: Built) -> str:
    row = built.accuracy.worst_output
    return built.accuracy.worst_group if row is None or not row.note else f"{row.name}, {row.note}"


def loses_in_half(built: Built, options: BuildOptions, doubtful: bool) -> bool:
    """Return whether a float payload in float16 loses so much that fp32 should take its place.

    doubtful: its accuracy alone says nothing (made-up data, NaN of the model's own); it counts where level 1
    does not clear the payload.  A user who asked for fp16 gets fp16, or the refusal of
    `require_float_accuracy`.
    """
    if options.precision == "fp16" or not built.plan.count("fp16"):
        return False
    if doubtful and _cleared(built):
        return False
    return not within(built.accuracy.drop, max(options.max_drop, FLOAT_DROP))


def require_int8_kernels(built: Built) -> None:
    """Raise UnsupportedError where planned int8 ran as float: time and accuracy would be another plan's."""
    assert built.readback is not None
    groups = {group.id: group for group in built.plan.groups}
    fallen = [row for row in built.readback.groups if row.fallen]
    if fallen:
        first = groups[fallen[0].group]
        raise UnsupportedError(
            f"{len(fallen)} groups planned in int8 ran in float, first {' + '.join(first.sources)}",
            expected="an int8 kernel",
            got=fallen[0].why,
            hint="--precision fp32, and please report the model",
        )
