"""`open_dataset`: what lies at a path, decided by looking, and opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgefuse.datasets.arrays import open_npz, open_npz_folder
from edgefuse.datasets.coco import open_coco
from edgefuse.datasets.images import IMAGE_SUFFIXES, image_input, open_image_folder
from edgefuse.datasets.sample import Dataset
from edgefuse.errors import InputError
from edgefuse.runtime.preprocess import Preprocess
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["open_dataset"]

_KINDS = "a folder of images, a .npz, a folder of .npz, or a COCO annotation .json"


def open_dataset(
    path: str | os.PathLike[str],
    inputs: Sequence[TensorInfo],
    preprocess: Preprocess | None = None,
    *,
    labels: Sequence[str] | None = None,
) -> Dataset:
    """Return the data at `path` as samples for a model with `inputs`.

    path: a folder of images (in sub-folders named by class: with labels), a `.npz` (arrays named as the
    inputs, first axis samples, optional array `labels`), a folder of `.npz`, or a COCO annotation `.json`
    with its images beside it.  preprocess: how an image becomes the input; `.npz` arrays are taken as they
    are.  labels: the model's class names, to which class folders are matched.
    Files are listed and headers read now; samples are read when the data set is iterated. Raises InputError
    in one line: nothing there, empty, an array missing or of the wrong shape, and later a broken image.
    """
    place = Path(path)
    if not inputs:
        raise InputError("a model without inputs takes no data")
    if place.is_dir():
        return _open_folder(place, inputs, preprocess, labels)
    if not place.exists():
        raise InputError(f"there is no data at {place}", expected=_KINDS)
    suffix = place.suffix.lower()
    if suffix == ".npz":
        return open_npz(place, inputs)
    if suffix == ".json":
        return open_coco(place, image_input(place, inputs, preprocess))
    hint = f"give the folder: {place.parent}" if suffix in IMAGE_SUFFIXES else None
    raise InputError(
        f"{place} is not data that can be read", expected=_KINDS, got=suffix or "no suffix", hint=hint
    )


def _open_folder(
    folder: Path, inputs: Sequence[TensorInfo], preprocess: Preprocess | None, labels: Sequence[str] | None
) -> Dataset:
    entries = _listing(folder)
    images = _with_suffix(entries, IMAGE_SUFFIXES)
    archives = _with_suffix(entries, {".npz"})
    by_class = {
        entry.name: found
        for entry in entries
        if entry.is_dir() and (found := _with_suffix(_listing(entry), IMAGE_SUFFIXES))
    }
    kinds = [
        f"{count} {what}"
        for count, what in (
            (len(images), "images"),
            (len(archives), ".npz files"),
            (len(by_class), "sub-folders with images"),
        )
        if count
    ]
    if len(kinds) > 1:
        raise InputError(
            f"{folder} holds several kinds of data", expected="one of " + _KINDS, got=" and ".join(kinds)
        )
    if not kinds:
        raise InputError(
            f"{folder} holds no data",
            expected="images (" + ", ".join(sorted(IMAGE_SUFFIXES)) + ") or .npz files",
            got="an empty folder" if not entries else f"{len(entries)} other entries",
        )
    if archives:
        return open_npz_folder(folder, archives, inputs)
    return open_image_folder(folder, images, by_class, image_input(folder, inputs, preprocess), labels)


def _listing(folder: Path) -> list[Path]:
    """Return the entries sorted by name, without hidden ones."""
    try:
        return sorted(
            (entry for entry in folder.iterdir() if not entry.name.startswith((".", "__"))), key=_key
        )
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error


def _key(entry: Path) -> bytes:
    return os.fsencode(entry.name)


def _with_suffix(entries: Sequence[Path], suffixes: frozenset[str] | set[str]) -> list[Path]:
    return [entry for entry in entries if entry.suffix.lower() in suffixes and entry.is_file()]
