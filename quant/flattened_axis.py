"""Where the channel axis of a tensor is found after a reshape, if it comes through whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["flattened_axis"]


def flattened_axis(
    before: Sequence[int | str | None], after: Sequence[int | str | None], axis: int
) -> tuple[int, int, int] | None:
    """Return (axis after, tiles, repeats) where the channels come through a reshape whole, else None.

    >>> flattened_axis((1, 8, 2, 2), (1, 32), 1), flattened_axis((1, 4, 8), (1, 2, 2, 8), 2)
    ((1, 1, 4), (3, 1, 1))
    >>> flattened_axis((1, 8, 2, 2), (1, 2, 4, 2, 2), 1) is None
    True
    """
    size = before[axis]
    if not isinstance(size, int):
        return None
    for place, found in enumerate(after):
        lead = _same_count(before[:axis], after[:place])
        if not isinstance(found, int) or lead is None or found % (size * lead):
            continue
        repeats = found // (size * lead)
        inner = math.prod(d for d in before[axis + 1 :] if isinstance(d, int))
        if all(isinstance(d, int) for d in (*before[axis + 1 :], *after[place + 1 :])):
            rest = math.prod(d for d in after[place + 1 :] if isinstance(d, int))
            if repeats * rest == inner and _cuts(before[axis + 1 :], repeats):
                return place, lead, repeats
    return None


def _same_count(before: Sequence[int | str | None], after: Sequence[int | str | None]) -> int | None:
    """Return how many positions of `before` are left when `after` took its dimensions, or None."""
    known = [d for d in before if isinstance(d, int)]
    taken = [d for d in after if isinstance(d, int)]
    if [d for d in before if not isinstance(d, int)] != [d for d in after if not isinstance(d, int)]:
        return None
    one, two = math.prod(known), math.prod(taken)
    return one // two if two and one % two == 0 else None


def _cuts(shape: Sequence[int | str | None], count: int) -> bool:
    """Return whether the first axes of `shape` hold `count` positions together."""
    total = 1
    for d in shape:
        if total == count:
            return True
        total *= int(d or 0)
    return total == count
