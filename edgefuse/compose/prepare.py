"""From a file and a target to what planning needs: the canonical model, and a copy with numbers for all sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefuse.backend import Backend, load_backend
from edgefuse.device import Target, probe_host, resolve_target
from edgefuse.graph import (
    Model,
    Value,
    bind_dimensions,
    clone_model,
    dims,
    model_digest,
    read_model,
)
from edgefuse.passes import PassResult, canonicalize
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["Prepared", "find_target", "prepare", "tensor_info"]

# What an open size is taken to be where nothing says: only predicted times depend on it, and a note says so.
_ASSUMED_BATCH, _ASSUMED_SPACE, _ASSUMED_LENGTH = 1, 224, 128


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model made ready for one target.

    original: as imported, before any pass (the reference).  model: canonical, in the target's operators.
    costed: the same nodes with every size a number.  inputs, outputs: the user's view.
    passes: what canonicalisation did.  notes: what the user should know.
    """

    target: Target
    backend: Backend
    original: Model
    model: Model
    costed: Model
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    passes: tuple[PassResult, ...]
    digest: str
    notes: tuple[str, ...]


def find_target(name: str) -> Target:
    """Return the target called `name`; "host" is this machine."""
    return probe_host() if name == "host" else resolve_target(name)


def prepare(
    path: str,
    target: Target,
    shapes: Mapping[str, Sequence[int]],
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Prepared:
    """Return the model at `path` made ready for `target`.

    shapes: fixed by the user, for the artifact too.  sizes: of one calibration sample, for costs only.
    """
    backend = load_backend(target.family)
    original = read_model(path)
    if shapes:
        bind_dimensions(original, shapes)
    model = clone_model(original)
    passes = canonicalize(model)
    model = backend.prepare(model, target)
    costed, assumed = _costed(model, sizes or {})
    notes = []
    if assumed:
        listed = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in assumed.items())
        notes.append(f"predicted times assume {listed}; --shape states another size")
    return Prepared(
        target=target,
        backend=backend,
        original=original,
        model=model,
        costed=costed,
        inputs=tuple(tensor_info(v) for v in original.graph.inputs),
        outputs=tuple(tensor_info(v) for v in original.graph.outputs),
        passes=tuple(passes),
        digest=model_digest(original),
        notes=tuple(notes),
    )


def tensor_info(value: Value) -> TensorInfo:
    """Return the user's view of a graph input or output; an unknown size gets a symbol of its own."""
    shape = dims(value) or ()
    known = tuple(
        d if isinstance(d, int) else _symbol(d if d is not None else f"{value.name}_dim{axis}")
        for axis, d in enumerate(shape)
    )
    dtype = str(value.dtype.numpy()) if value.dtype is not None else "float32"
    return TensorInfo(value.name or "", dtype, known)


def _symbol(text: str) -> str:
    """Return the symbol in the letters that a manifest takes."""
    plain = re.sub(r"[^A-Za-z0-9_.\- +*/()]", "_", text)
    return plain if re.match(r"[A-Za-z_]", plain) else f"d_{plain}"


def _costed(model: Model, sizes: Mapping[str, Sequence[int]]) -> tuple[Model, dict[str, tuple[int, ...]]]:
    """Return a copy whose sizes are all numbers, and what had to be assumed for it."""
    open_inputs = [v for v in model.graph.inputs if v.shape is None or not v.shape.is_static()]
    if not open_inputs:
        return model, {}
    copy = clone_model(model)
    wanted: dict[str, tuple[int, ...]] = {}
    assumed: dict[str, tuple[int, ...]] = {}
    for value in open_inputs:
        name = value.name or ""
        if name in sizes:
            wanted[name] = tuple(sizes[name])
            continue
        shape = dims(value) or ()
        wanted[name] = tuple(
            d if isinstance(d, int) else _guess(axis, len(shape)) for axis, d in enumerate(shape)
        )
        if any(not isinstance(d, int) for d in shape[1:]):
            assumed[name] = wanted[name]
    bind_dimensions(copy, wanted)
    return copy, assumed


def _guess(axis: int, rank: int) -> int:
    if axis == 0:
        return _ASSUMED_BATCH
    return _ASSUMED_SPACE if rank >= 4 and axis >= 2 else _ASSUMED_LENGTH
