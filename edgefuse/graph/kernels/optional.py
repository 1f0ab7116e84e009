"""Optional, OptionalHasElement, OptionalGetElement: an optional is its element, or None where empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph.kernels.call import Array, Call, Kernel

__all__ = ["KERNELS"]


def _has_element(call: Call) -> Array:
    return np.array(call.get(0) is not None)


def _get_element(call: Call) -> tuple[Any, ...]:
    if call.get(0) is None:
        raise InputError(f"{call.label}: the optional is empty")
    return (call.get(0),)


KERNELS: dict[str, Kernel] = {
    "Optional": lambda call: (call.get(0),),
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}
