"""From a file and a target to what planning needs: the canonical model, and a copy with all sizes known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.backend import Backend, load_backend
from edgefuse.compose.interface import check_inputs, check_operators, check_shapes
from edgefuse.compose.sizes import fix_sizes, listed, with_all_sizes
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
from edgefuse.quant.imported import ImportedQuantization, find_imported
from edgefuse.quant.strip_quantizers import Stripped, strip_quantizers
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["Prepared", "PreparedFeeds", "find_target", "load_model", "prepare", "tensor_info"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model made ready for one target.

    original: as imported, before any pass (the reference).  model: canonical, in the target's operators.
    costed: the same nodes with every size a number.  inputs, outputs: the user's view.
    passes: what canonicalisation did.  notes: what the user should know.
    imported: the quantization that the model brought with it (it is not in `model` any more), or None.
    unrounded: `original` without that quantization, the reference of float payloads; None as `imported`.
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
    imported: ImportedQuantization | None = None
    unrounded: Model | None = None


class PreparedFeeds(Sequence[Mapping[str, np.ndarray]]):
    """Samples in the user's dtypes, given in those that `model`'s inputs have; nothing is kept.

    A runtime may read no uint8 or int64 inputs: its backend's `prepare` made them int32.
    """

    def __init__(self, model: Model, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._dtypes = {info.name: np.dtype(info.dtype) for info in map(tensor_info, model.graph.inputs)}
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._cast(feeds) for feeds in self._samples[index]]
        return self._cast(self._samples[index])

    def _cast(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.asarray(a, self._dtypes.get(name, a.dtype)) for name, a in feeds.items()}


def find_target(name: str) -> Target:
    """Return the target called `name`; "host" is this machine."""
    return probe_host() if name == "host" else resolve_target(name)


def load_model(path: str, shapes: Mapping[str, Sequence[int]]) -> Model:
    """Return the model at `path` as imported, with the inputs in `shapes` fixed.

    Raises InputError for one that can never be called (no inputs, a size of 0, no rank), and
    UnsupportedError for one that cannot be verified or is not made of tensors.
    """
    check_shapes(shapes)
    original = read_model(path)
    if shapes:
        bind_dimensions(original, shapes)
    check_operators(original, path)
    check_inputs(original, path)
    return original


def prepare(
    original: Model,
    target: Target,
    sizes: Mapping[str, Sequence[int]] | None = None,
    *,
    backend: Backend | None = None,
) -> Prepared:
    """Return an imported model made ready for `target`.

    sizes: of one calibration sample; costs are counted with them, and a target that needs fixed shapes takes
    them. Without, an open batch is 1, and other open sizes are an InputError on such a target.
    `original` gets the fixed shapes too: they are what the artifact promises.  backend: of the target's
    family; None loads it. A family that has only a scheme yet can be planned with other rules.
    """
    backend = backend if backend is not None else load_backend(target.family)
    notes = []
    if target.runtime.static_shapes:
        notes.extend(fix_sizes(original, sizes or {}, target.string))
    model = clone_model(original)
    stripped = strip_quantizers(model)
    unrounded = clone_model(model) if stripped else None
    passes = canonicalize(model)
    model = backend.prepare(model, target)
    imported = find_imported(model, stripped) if stripped else None
    notes.extend(_of_quantizers(stripped))
    costed, assumed = with_all_sizes(original, model, sizes or {})
    if assumed:
        notes.append(f"predicted times assume {listed(assumed)}; --shape states another size")
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
        imported=imported,
        unrounded=unrounded,
    )


def _of_quantizers(stripped: Stripped) -> list[str]:
    if not stripped:
        return stripped.notes()
    return [
        f"the model brings its own quantization: {stripped.pairs} activations and {len(stripped.weights)} "
        f"weights; rounding stays where the plan is int8, saturation ({stripped.clips} Clips) everywhere",
        *stripped.notes(),
    ]


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
    """Return the symbol in the letters that a manifest takes; two symbols never become one.

    >>> _symbol("batch"), _symbol("a#b"), _symbol("a$b")
    ('batch', 'a_23b', 'a_24b')
    """
    plain = re.sub(r"[^A-Za-z0-9_.\- +*/()]", lambda letter: f"_{ord(letter[0]):x}", text)
    return plain if re.match(r"[A-Za-z_]", plain) else f"d_{plain}"
