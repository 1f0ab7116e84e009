"""From a file and a target to what planning needs: the canonical model, and a copy with all sizes known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.backend import Backend, load_backend
from edgefuse.device import Target, probe_host, resolve_target
from edgefuse.errors import InputError
from edgefuse.graph import (
    Model,
    Value,
    bind_dimensions,
    clone_model,
    dims,
    model_digest,
    model_to_bytes,
    read_model,
    static_shape,
)
from edgefuse.graph.reference import judge_session
from edgefuse.passes import PassResult, canonicalize
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["Prepared", "find_target", "prepare", "tensor_info"]

# What open sizes are taken to be where neither --shape nor data says: the first of these on which the model
# runs (a text reader wants 48 rows). Predicted times and made-up samples depend on it, and a note says so.
_ASSUMED_BATCH = 1
_ASSUMED_SPACES = ((224, 224), (48, 320), (32, 128), (640, 640), (256, 256), (64, 64))
_ASSUMED_LENGTHS = (128, 512, 64, 16000, 1)


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
    costed, assumed = _costed(original, model, sizes or {})
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


def _costed(
    original: Model, model: Model, sizes: Mapping[str, Sequence[int]]
) -> tuple[Model, dict[str, tuple[int, ...]]]:
    """Return a copy whose sizes are all numbers, and what had to be assumed for it.

    Raises InputError where the model runs on none of the sizes that are tried.
    """
    open_inputs = [v for v in model.graph.inputs if v.shape is None or not v.shape.is_static()]
    if not open_inputs:
        return model, {}
    copy = clone_model(model)
    wanted = {v.name or "": tuple(sizes[v.name or ""]) for v in open_inputs if v.name in sizes}
    unknown = [v for v in open_inputs if v.name not in wanted]
    assumed: dict[str, tuple[int, ...]] = {}
    if unknown:
        guessed = _sizes_that_run(original, unknown, wanted)
        wanted.update(guessed)
        loose = {v.name or "" for v in unknown if any(not isinstance(d, int) for d in (dims(v) or ())[1:])}
        assumed = {name: shape for name, shape in guessed.items() if name in loose}
    bind_dimensions(copy, wanted)
    return copy, assumed


def _guesses(unknown: Sequence[Value]) -> list[dict[str, tuple[int, ...]]]:
    """Return what the open inputs may be, the likeliest first."""
    found: list[dict[str, tuple[int, ...]]] = []
    for space in _ASSUMED_SPACES:
        for length in _ASSUMED_LENGTHS:
            guess = {}
            for value in unknown:
                shape = dims(value) or ()
                guess[value.name or ""] = tuple(
                    d if isinstance(d, int) else _guess(axis, len(shape), space, length)
                    for axis, d in enumerate(shape)
                )
            if guess not in found:
                found.append(guess)
    return found


def _guess(axis: int, rank: int, space: tuple[int, int], length: int) -> int:
    if axis == 0:
        return _ASSUMED_BATCH
    return space[axis - rank] if rank == 4 and axis >= 2 else length


def _sizes_that_run(
    original: Model, unknown: Sequence[Value], known: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    guesses = _guesses(unknown)
    if len(guesses) == 1:
        return guesses[0]
    session = judge_session(model_to_bytes(original))
    for guess in guesses:
        feeds = {}
        for value in original.graph.inputs:
            name = value.name or ""
            shape = guess.get(name) or known.get(name) or static_shape(value) or ()
            feeds[name] = np.ones(shape, dtype=tensor_info(value).dtype)
        try:
            session.run(None, feeds)
        except Exception:  # noqa: S112 - onnxruntime's errors share no base class; this one says: does not fit
            continue
        return guess
    tried = "; ".join(", ".join(f"{n}={'x'.join(map(str, s))}" for n, s in g.items()) for g in guesses[:3])
    raise InputError(
        "the model leaves sizes open, and runs on none of those that were tried",
        got=tried,
        hint="state them with --shape NAME=1x3x224x224, or give data with --calib",
    )
