"""Sharing of equal constants."""

from __future__ import annotations

import zlib

import numpy as np

from edgefuse.graph import Model, Value, constant
from edgefuse.passes.contract import PassResult

__all__ = ["share_weights"]

# Enough to tell different weights apart without reading each one whole; equals are compared byte by byte.
_SAMPLED_BYTES = 4096


def share_weights(model: Model) -> PassResult:
    """Let constants of equal dtype, shape and bytes be one initializer, in place; the first in order stays.

    Takes: 1. initializers of the main graph whatever their size, scalars and strings too, those read inside
    subgraphs included.
    Leaves: 2. values that differ in a sign of zero or in a NaN's bits.  3. equal numbers of other dtype or
    shape.  4. graph inputs and graph outputs.
    """
    seen: dict[tuple[object, ...], list[Value]] = {}
    shared, saved = 0, 0
    initializers = model.graph.initializers
    for name, value in list(initializers.items()):
        array = constant(value)
        if array is None or value.is_graph_input() or value.is_graph_output():
            continue
        alike = seen.setdefault((value.dtype, array.shape, _sample(array)), [])
        twin = next((v for v in alike if _same_bytes(constant(v), array)), None)
        if twin is None:
            alike.append(value)
            continue
        for user, index in tuple(value.uses()):
            user.replace_input_with(index, twin)
        del initializers[name]
        shared += 1
        saved += array.nbytes
    notes = (f"{shared} equal constants shared ({saved} bytes)",) if shared else ()
    return PassResult("share_weights", shared, notes)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _sample(array: np.ndarray) -> int:
    if array.dtype.hasobject:
        return hash(tuple(array.reshape(-1)[:64]))
    flat = _bytes_of(array)
    return zlib.crc32(flat[:: max(1, flat.size // _SAMPLED_BYTES)].tobytes())


def _same_bytes(one: np.ndarray | None, other: np.ndarray) -> bool:
    if one is None:
        return False
    if other.dtype.hasobject:
        return bool(np.all(one == other))
    return bool(np.array_equal(_bytes_of(one), _bytes_of(other)))
