"""One arena for all activations: where each tensor lies, and the proof that no two living ones overlap.

The problem is dynamic storage allocation (NP-hard). Buffers are placed one by one, each into the smallest gap
that fits among those already placed whose lives cross its own (best fit). Several orders are tried and the
lowest peak is kept; where it is still above the lower bound, the order is improved by hill climbing from a
fixed seed, a fixed number of times at most. The same lifetimes give the same plan everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefuse.analysis.binding import bound_model
from edgefuse.analysis.liveness import Lifetime, liveness
from edgefuse.errors import InternalError
from edgefuse.graph import Model

__all__ = ["ALIGNMENT_BYTES", "MemoryPlan", "Placed", "check_plan", "memory_plan", "plan_lifetimes"]

# A cache line on every CPU that is described, and the widest vector register.
ALIGNMENT_BYTES = 64
_REPAIRS = 400


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor at a byte offset in the arena."""

    lifetime: Lifetime
    offset: int

    @property
    def end(self) -> int:
        """The first byte after the tensor."""
        return self.offset + self.lifetime.bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets of all activations in one arena.

    peak_bytes: size of the arena.  naive_bytes: sum of all tensors, none sharing.  lower_bound_bytes: the
    largest sum of buffers that live together (no plan can be smaller, with the sharing of `liveness`).
    in_place: how many tensors are written over their input.  views: how many name another's bytes.
    order: which order of placing won, and whether it was improved.
    unknown: tensors without a known size -> why (they are not in the arena).  unplanned: nodes with bodies,
    whose inner tensors are not in the arena.
    """

    placed: tuple[Placed, ...]
    peak_bytes: int
    naive_bytes: int
    lower_bound_bytes: int
    order: str
    in_place: int = 0
    views: int = 0
    unknown: Mapping[str, str] | None = None
    unplanned: tuple[str, ...] = ()

    @property
    def offsets(self) -> dict[str, int]:
        """Byte offset in the arena by tensor name."""
        return {placed.lifetime.name: placed.offset for placed in self.placed}

    @property
    def complete(self) -> bool:
        """Whether every activation is in the arena."""
        return not self.unknown and not self.unplanned


@dataclass(slots=True)
class _Buffer:
    """All storages of one place: bytes, the positions it lives between, and its offset once placed."""

    number: int
    bytes: int
    first: int
    last: int
    offset: int = -1

    @property
    def end(self) -> int:
        return self.offset + self.bytes


def memory_plan(model: Model, binding: Mapping[str, int] | None = None) -> MemoryPlan:
    """Return the arena of the model's activations, graph inputs and outputs included, weights left out.

    binding: numbers for the inputs' symbolic dimensions; a tensor that lacks one is in `unknown`.
    The plan has been checked (`check_plan`). Raises UsageError for a wrong binding.
    """
    alive = liveness(bound_model(model, binding))
    plan = plan_lifetimes(alive.lifetimes)
    return MemoryPlan(
        plan.placed,
        plan.peak_bytes,
        plan.naive_bytes,
        plan.lower_bound_bytes,
        plan.order,
        plan.in_place,
        plan.views,
        alive.unknown,
        alive.unplanned,
    )


def plan_lifetimes(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Return a checked plan for any lifetimes. Raises InternalError where the plan breaks its own promise."""
    buffers = _buffers(lifetimes)
    bound = _lower_bound(buffers)
    order, offsets = _best(buffers, bound)
    placed = tuple(Placed(lifetime, offsets[lifetime.buffer]) for lifetime in lifetimes)
    storages = {lifetime.storage: lifetime.buffer for lifetime in lifetimes}
    held = list(storages.values())
    plan = MemoryPlan(
        placed,
        peak_bytes=max((one.end for one in placed), default=0),
        naive_bytes=sum(lifetime.bytes for lifetime in lifetimes),
        lower_bound_bytes=bound,
        order=order,
        in_place=len(held) - len(set(held)),
        views=len(lifetimes) - len(storages),
    )
    check_plan(plan)
    return plan


def check_plan(plan: MemoryPlan) -> None:
    """Raise InternalError where two tensors that live at one time overlap and may not.

    They may where they name the same storage, or where one is written over the other by the node that reads
    it last. It walks over time and compares neighbours by offset, independently of how the plan was made.
    """
    for one in plan.placed:
        if one.offset < 0 or one.offset % ALIGNMENT_BYTES or one.end > plan.peak_bytes:
            raise InternalError(
                f"memory plan: {one.lifetime.name} lies at {one.offset}, outside or unaligned"
            )
    if plan.peak_bytes < plan.lower_bound_bytes:
        raise InternalError("memory plan: the peak is below what lives at one time")
    times = {one.lifetime.first for one in plan.placed} | {one.lifetime.last for one in plan.placed}
    for time in sorted(times):
        alive = [one for one in plan.placed if one.lifetime.first <= time <= one.lifetime.last]
        _check_moment(sorted((one for one in alive if one.lifetime.bytes), key=lambda one: one.offset), time)


def _check_moment(alive: list[Placed], time: int) -> None:
    """Check the tensors that live at one time, sorted by offset."""
    reaching: list[Placed] = []
    for one in alive:
        reaching = [other for other in reaching if other.end > one.offset]
        for other in reaching:
            a, b = other.lifetime, one.lifetime
            over = a.buffer == b.buffer and (_written_over(a, b, time) or _written_over(b, a, time))
            if a.storage != b.storage and not over:
                raise InternalError(f"memory plan: {a.name} and {b.name} overlap at node {time}")
        reaching.append(one)


def _written_over(old: Lifetime, new: Lifetime, time: int) -> bool:
    return old.first < time == old.last and new.first == time


def _buffers(lifetimes: Sequence[Lifetime]) -> list[_Buffer]:
    buffers: dict[int, _Buffer] = {}
    for life in lifetimes:
        buffer = buffers.setdefault(life.buffer, _Buffer(life.buffer, life.bytes, life.first, life.last))
        buffer.bytes = max(buffer.bytes, life.bytes)
        buffer.first, buffer.last = min(buffer.first, life.first), max(buffer.last, life.last)
    return list(buffers.values())


def _lower_bound(buffers: Sequence[_Buffer]) -> int:
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.first] = changes.get(buffer.first, 0) + buffer.bytes
        changes[buffer.last + 1] = changes.get(buffer.last + 1, 0) - buffer.bytes
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    return peak


def _length(buffer: _Buffer) -> int:
    return buffer.last - buffer.first + 1


_ORDERS: Mapping[str, Callable[[_Buffer], tuple[int, ...]]] = {
    "size": lambda b: (-b.bytes, -_length(b), b.first),
    "area": lambda b: (-b.bytes * _length(b), b.first),
    "length": lambda b: (-_length(b), -b.bytes, b.first),
    "birth": lambda b: (b.first, -b.bytes),
    "death": lambda b: (-b.last, -b.bytes, b.first),
}


def _best(buffers: list[_Buffer], bound: int) -> tuple[str, dict[int, int]]:
    """Return the order that won, in words, and the offset of each buffer."""
    crossing = _crossings(buffers)
    orders = {name: sorted(buffers, key=key) for name, key in _ORDERS.items()}
    orders["moment"] = _by_moment(buffers)
    tried: list[tuple[int, str, list[_Buffer], dict[int, int]]] = []
    for name, order in orders.items():
        peak = _place(order, crossing)
        tried.append((peak, name, order, {buffer.number: buffer.offset for buffer in order}))
        if _good(peak, bound):
            break
    peak, name, order, offsets = min(tried, key=lambda one: one[0])
    if not _good(peak, bound):
        better = _repair(order, crossing, peak, bound)
        if better is not None:
            return f"{name}, improved", better
    return name, offsets


def _by_moment(buffers: list[_Buffer]) -> list[_Buffer]:
    """Return the buffers of the fullest moment first, then of the next, each by size."""
    moments = sorted({buffer.first for buffer in buffers})
    alive = {t: [b for b in buffers if b.first <= t <= b.last] for t in moments}
    order: dict[int, _Buffer] = {}
    for time in sorted(moments, key=lambda t: (-sum(b.bytes for b in alive[t]), t)):
        for buffer in sorted(alive[time], key=lambda b: (-b.bytes, b.first)):
            order.setdefault(buffer.number, buffer)
    return list(order.values())


def _crossings(buffers: list[_Buffer]) -> dict[int, list[_Buffer]]:
    """Return, for each buffer, the others whose lives cross its own."""
    crossing: dict[int, list[_Buffer]] = {buffer.number: [] for buffer in buffers}
    alive: list[_Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (b.first, b.number)):
        alive = [other for other in alive if other.last >= buffer.first]
        for other in alive:
            crossing[buffer.number].append(other)
            crossing[other.number].append(buffer)
        alive.append(buffer)
    return crossing


def _place(order: Sequence[_Buffer], crossing: Mapping[int, list[_Buffer]]) -> int:
    """Place the buffers in this order, each into the smallest gap that fits; return the peak in bytes."""
    for buffer in order:
        buffer.offset = -1
    peak = 0
    for buffer in order:
        taken = sorted(
            ((o.offset, o.end) for o in crossing[buffer.number] if o.offset >= 0), key=lambda pair: pair[0]
        )
        best_gap, best_at, free = -1, -1, 0
        for start, end in taken:
            gap = start - free
            if gap >= buffer.bytes and (best_gap < 0 or gap < best_gap):
                best_gap, best_at = gap, free
            free = max(free, _rounded(end))
        buffer.offset = best_at if best_at >= 0 else free
        peak = max(peak, buffer.end)
    return peak


def _repair(
    order: list[_Buffer], crossing: Mapping[int, list[_Buffer]], peak: int, bound: int
) -> dict[int, int] | None:
    """Return better offsets found by hill climbing, or None.

    A step moves the buffer that reaches the peak before one of those below it, or swaps the two; a step that
    raises the peak is taken back, but for one in fifty.
    """
    best: dict[int, int] | None = None
    draw = random.Random(0)  # noqa: S311  a fixed seed: the same plan everywhere
    current = _place(order, crossing)
    for _ in range(_REPAIRS):
        top = next(buffer for buffer in order if buffer.end == current)
        below = [buffer for buffer in crossing[top.number] if buffer.offset < top.offset]
        if not below:
            break
        tried = list(order)
        here, there = tried.index(top), tried.index(draw.choice(below))
        if draw.random() < 0.5:
            tried[here], tried[there] = tried[there], tried[here]
        else:
            tried.insert(there, tried.pop(here))
        reached = _place(tried, crossing)
        if reached < peak:
            peak, best = reached, {buffer.number: buffer.offset for buffer in tried}
        if _good(peak, bound):
            break
        if reached <= current or draw.random() < 0.02:
            order, current = tried, reached
        else:
            _place(order, crossing)
    return best


def _good(peak: int, bound: int) -> bool:
    # Within a thousandth, what is left is the rounding of tensors to the alignment.
    return peak <= _rounded(bound) or peak - bound <= bound / 1000


def _rounded(count: int) -> int:
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
