"""Sizes that a model leaves open: from the data, from the user, or found by trying what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.compose.sessions import open_session
from edgefuse.errors import InputError
from edgefuse.graph import Model, Value, bind_dimensions, clone_model, dims, static_shape

__all__ = ["fix_sizes", "listed", "with_all_sizes"]

Sizes = Mapping[str, Sequence[int]]

# What open sizes are taken to be where neither --shape nor data says: the first of these on which the model
# runs (a text reader wants 48 rows). Only predicted times and made-up samples depend on it; a note says so.
_BATCH = 1
_SPACES = ((224, 224), (48, 320), (32, 128), (640, 640), (256, 256), (64, 64))
_LENGTHS = (128, 512, 64, 16000, 1)


def listed(sizes: Sizes) -> str:
    """Return sizes as `--shape` takes them.

    >>> listed({"x": (1, 3, 48, 320)})
    'x=1x3x48x320'
    """
    return ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in sizes.items())


def fix_sizes(model: Model, sizes: Sizes, target: str) -> list[str]:
    """Fix every open size of the model's inputs, in place, and return notes for the user.

    sizes: of one sample of data. Without data an open batch becomes 1; any other open size is an InputError
    that names sizes on which the model runs: an artifact of a guessed size would fail in the field.
    """
    unknown = _open(model)
    if not unknown:
        return []
    fixed = {v.name or "": tuple(sizes[v.name or ""]) for v in unknown if v.name in sizes}
    for value in unknown:
        shape = dims(value)
        if value.name not in fixed and shape is not None and all(isinstance(d, int) for d in shape[1:]):
            fixed[value.name or ""] = (_BATCH, *(int(d) for d in shape[1:] if isinstance(d, int)))
    rest = [v for v in unknown if v.name not in fixed]
    if rest:
        found = _sizes_that_run(model, rest, fixed)
        names = ", ".join(f"{v.name} {v.shape}" for v in rest)
        flags = " ".join(f"--shape '{listed({n: s})}'" for n, s in found.items())
        raise InputError(
            f"{target} needs fixed shapes, and the model leaves open: {names}",
            hint=f"{flags} (a size on which it runs), `shapes` in edgefuse.toml, or data with --calib",
        )
    bind_dimensions(model, fixed)
    return [f"fixed for this target: {listed(fixed)}; --shape states another size"]


def with_all_sizes(original: Model, model: Model, sizes: Sizes) -> tuple[Model, dict[str, tuple[int, ...]]]:
    """Return a copy of `model` whose sizes are all numbers, and those that had to be assumed.

    original: the same model as imported, on which sizes are tried.
    Raises InputError where it runs on none of the sizes that are tried.
    """
    unknown = _open(model)
    if not unknown:
        return model, {}
    copy = clone_model(model)
    wanted = {v.name or "": tuple(sizes[v.name or ""]) for v in unknown if v.name in sizes}
    rest = [v for v in unknown if v.name not in wanted]
    assumed: dict[str, tuple[int, ...]] = {}
    if rest:
        guessed = _sizes_that_run(original, rest, wanted)
        wanted.update(guessed)
        loose = {v.name or "" for v in rest if any(not isinstance(d, int) for d in (dims(v) or ())[1:])}
        assumed = {name: shape for name, shape in guessed.items() if name in loose}
    bind_dimensions(copy, wanted)
    return copy, assumed


def _open(model: Model) -> list[Value]:
    return [v for v in model.graph.inputs if static_shape(v) is None]


def _guesses(unknown: Sequence[Value]) -> list[dict[str, tuple[int, ...]]]:
    """Return what the open inputs may be, the likeliest first."""
    found: list[dict[str, tuple[int, ...]]] = []
    for space in _SPACES:
        for length in _LENGTHS:
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
        return _BATCH
    return space[axis - rank] if rank == 4 and axis >= 2 else length


def _sizes_that_run(original: Model, unknown: Sequence[Value], known: Sizes) -> dict[str, tuple[int, ...]]:
    guesses = _guesses(unknown)
    if len(guesses) == 1:
        return guesses[0]
    session = open_session(original)
    for guess in guesses:
        feeds = {}
        for value in original.graph.inputs:
            name = value.name or ""
            shape = guess.get(name) or known.get(name) or static_shape(value) or ()
            feeds[name] = np.ones(shape, dtype=value.dtype.numpy() if value.dtype is not None else np.float32)
        try:
            session.run(None, feeds)
        except Exception:  # noqa: S112 - onnxruntime's errors share no base class; this one says: does not fit
            continue
        return guess
    raise InputError(
        "the model leaves sizes open, and runs on none of those that were tried",
        got="; ".join(listed(guess) for guess in guesses[:3]),
        hint="state them with --shape NAME=1x3x224x224, or give data with --calib",
    )
