"""Named arrays from a `.npz` and into one: what `edgefuse run` reads and writes."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgefuse.artifact.pack import replace_file
from edgefuse.errors import InputError

__all__ = ["read_arrays", "write_arrays"]

# What zipfile and numpy raise for a damaged, cut, encrypted or oddly packed file.
_BROKEN = (EOFError, KeyError, NotImplementedError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return name -> array of the `.npz` at `path`; pickled arrays are refused. Raises InputError."""
    what = f"the inputs {os.fspath(path)} cannot be read"
    expected = "a .npz of plain arrays, named as the model's inputs: numpy.savez(path, name=array)"
    try:
        if not zipfile.is_zipfile(path):
            Path(path).open("rb").close()  # says why it cannot be opened
            raise InputError(what, expected=expected, got=_kind(Path(path)))
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}", expected=expected) from error
    except _BROKEN as error:
        raise InputError(f"{what}: {error}", expected=expected) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out members of other kinds as bytes
            raise InputError(f"{what}: its member {name!r} is no array", expected=expected)
    return arrays


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(6)
    if head == b"\x93NUMPY":
        return "a .npy: one array without a name"
    return "a file of another kind, or one that is cut short" if head else "an empty file"


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays as a `.npz`, all of them or nothing; the same arrays give the same bytes.

    Not numpy.savez, whose own arguments ("file") cannot be names of arrays. Raises InputError.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    replace_file(path, [packed.getvalue()])
