"""Samples out of `.npz` files: arrays named as the model's inputs, the first axis counts samples."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from edgefuse.datasets.sample import Array, Dataset, Sample, finite
from edgefuse.errors import InputError, did_you_mean
from edgefuse.runtime.tensors import TensorInfo

__all__ = ["LABELS", "open_npz", "open_npz_folder"]

LABELS = "labels"

# What zipfile and numpy raise for a damaged, cut, encrypted or oddly packed file.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class _Member:
    """One array of a file as its header describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran: bool


@dataclass(frozen=True, slots=True)
class _Feed:
    """How samples of one input lie in its array: `step` rows each; keep: the row axis is its own."""

    info: TensorInfo
    step: int
    keep: bool


class _File:
    """One `.npz`: headers read when opened, arrays when a sample is asked for."""

    def __init__(self, path: Path, infos: Sequence[TensorInfo]) -> None:
        self.path = path
        self._members = _read_headers(path)
        self._feeds = [self._feed(info) for info in infos]
        counts = {feed.info.name: self._members[feed.info.name].shape[0] // feed.step for feed in self._feeds}
        self.count = next(iter(counts.values()))
        if LABELS in self._members and LABELS not in counts:
            shape = self._members[LABELS].shape
            counts[LABELS] = shape[0] if shape else 0
        for name, count in counts.items():
            if count != self.count:
                raise InputError(
                    f"{path}: the arrays do not hold the same number of samples",
                    expected=f"{self.count} samples, as '{self._feeds[0].info.name}' has",
                    got=f"'{name}' has {count}",
                )
        self._arrays: dict[str, Array] = {}

    def _feed(self, info: TensorInfo) -> _Feed:
        member = self._members.get(info.name)
        if member is None:
            raise InputError(
                f"{self.path} has no array '{info.name}'{did_you_mean(info.name, list(self._members))}",
                expected=str(info),
                got="arrays " + (", ".join(sorted(self._members)) or "none"),
                hint="numpy.savez(path, **{input name: array [samples, ...]})",
            )
        feed = _layout(info, member.shape)
        if feed is None:
            raise InputError(
                f"{self.path}: array '{info.name}' has the wrong shape",
                expected=f"{_accepted(info)} for input {info}",
                got=f"{member.dtype}{list(member.shape)}",
            )
        return feed

    def read(self, index: int) -> Sample:
        source = f"{self.path}[{index}]"
        feeds = {}
        for feed in self._feeds:
            array = self._array(feed.info.name)
            rows = array[index * feed.step : (index + 1) * feed.step] if feed.keep else array[index]
            where = f"{source}: array '{feed.info.name}'"
            feeds[feed.info.name] = finite(_cast(rows, feed.info, where), where)
        label: object | None = None
        if LABELS in self._members and LABELS not in feeds:
            label = _label(self._array(LABELS)[index])
        return Sample(feeds, label, source)

    def _array(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = _read_member(self.path, self._members[name])
        return self._arrays[name]

    def release(self) -> None:
        self._arrays.clear()


def _layout(info: TensorInfo, shape: tuple[int, ...]) -> _Feed | None:
    """Return how samples lie in an array of `shape`, or None where they cannot."""
    wanted = info.shape
    if len(shape) == len(wanted) + 1 and _fits(shape[1:], wanted):
        return _Feed(info, 1, keep=False)
    if len(shape) != len(wanted) or not wanted or not _fits(shape[1:], wanted[1:]):
        return None
    step = wanted[0] if isinstance(wanted[0], int) else 1
    return _Feed(info, step, keep=True) if shape[0] % step == 0 else None


def _fits(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    return all(
        size == want or (isinstance(want, str) and size > 0) for size, want in zip(shape, wanted, strict=True)
    )


def _accepted(info: TensorInfo) -> str:
    rest = ", ".join(str(size) for size in info.shape[1:])
    own = ", ".join(str(size) for size in info.shape)
    if not info.shape:
        return "[samples]"
    first = info.shape[0]
    rows = "samples" if first == 1 or isinstance(first, str) else f"samples x {first}"
    return f"[{rows}{', ' if rest else ''}{rest}] or [samples, {own}]"


def _cast(rows: Array, info: TensorInfo, where: str) -> Array:
    wanted = np.dtype(info.dtype)
    kinds = {rows.dtype.kind, wanted.kind}
    if kinds != {"f"} and not kinds <= {"i", "u"} and kinds != {"b"}:
        raise InputError(
            f"{where} has the wrong dtype",
            expected=str(info),
            got=str(rows.dtype),
            hint=f"store it as {info.dtype}; pixels need the model's scale and mean first",
        )
    with np.errstate(over="ignore"):
        result = np.array(rows, dtype=wanted, order="C")
    if kinds <= {"i", "u"} and not np.array_equal(result, rows):
        raise InputError(
            f"{where} holds whole numbers that the input cannot",
            expected=str(info),
            got=f"{rows.dtype} from {rows.min()} to {rows.max()}",
        )
    return result


def _label(value: object) -> object:
    """Return a row of `labels` as int, float, str or array."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return np.array(value)


def _read_headers(path: Path) -> dict[str, _Member]:
    members = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith(".npy"):
                    with archive.open(entry) as file:
                        name = entry.filename[: -len(".npy")]
                        members[name] = _read_header(file, path, name)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except _BROKEN as error:
        raise InputError(
            f"{path} is not a whole .npz file ({error})", hint="write it with numpy.savez(path, name=array)"
        ) from error
    return members


def _read_header(file: IO[bytes], path: Path, name: str) -> _Member:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise InputError(
            f"{path}: array '{name}' holds pickled Python objects, which are never read",
            expected="numbers, truth values or text",
            hint="convert it: numpy.asarray(values, dtype='float32'), labels as dtype 'int64' or 'U'",
        )
    return _Member(name, tuple(shape), dtype, fortran)


def _read_member(path: Path, member: _Member) -> Array:
    """Return the array; one that is stored plainly is mapped, so that only the rows in use take memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.getinfo(member.name + ".npy")
            with archive.open(entry) as file:
                if entry.compress_type != zipfile.ZIP_STORED or 0 in member.shape or not member.shape:
                    array: Array = np.lib.format.read_array(file, allow_pickle=False)
                    return array
                _read_header(file, path, member.name)
                header = file.tell()
        start = _data_start(path, entry.header_offset) + header
        size = int(np.prod(member.shape, dtype=np.int64)) * member.dtype.itemsize
        if header + size != entry.file_size or start + size > os.path.getsize(path):
            raise ValueError(f"'{member.name}' is cut short")
        rows: Array = np.memmap(
            path, member.dtype, "r", start, member.shape, order="F" if member.fortran else "C"
        )
        return rows
    except _BROKEN as error:
        raise InputError(f"{path}: array '{member.name}' cannot be read ({error})") from error


def _data_start(path: Path, header_offset: int) -> int:
    # The local header's own name and extra lengths count: they may differ from the directory's.
    with open(path, "rb") as file:
        file.seek(header_offset)
        local = file.read(30)
    if local[:4] != b"PK\x03\x04":
        raise ValueError("damaged zip header")
    return (
        header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    )


class _Files:
    """The samples of several `.npz` files, one file open at a time."""

    def __init__(self, files: Sequence[_File]) -> None:
        self._files = [file for file in files if file.count]
        self._places = [(file, index) for file in self._files for index in range(file.count)]
        self._open: _File | None = None

    def __len__(self) -> int:
        return len(self._places)

    def name(self, index: int) -> str:
        file, row = self._places[index]
        return f"{file.path.name}[{row}]"

    def read(self, index: int) -> Sample:
        file, row = self._places[index]
        if self._open is not None and self._open is not file:
            self._open.release()
        self._open = file
        return file.read(row)


def open_npz(path: Path, infos: Sequence[TensorInfo]) -> Dataset:
    """Return the samples of one `.npz`.

    Each input's array is [samples, ...] with the input's own batch axis as the sample axis (a fixed batch of
    B takes B rows a sample), or [samples, *input shape].  An array `labels` gives label i: a number, text, or
    an array row.  Floats may change width, whole numbers too where they fit.  Raises InputError.
    """
    return _open([path], infos, "npz", path)


def open_npz_folder(folder: Path, files: Sequence[Path], infos: Sequence[TensorInfo]) -> Dataset:
    """Return the samples of several `.npz` files in the order given; each as in `open_npz`."""
    return _open(files, infos, "npz folder", folder)


def _open(files: Sequence[Path], infos: Sequence[TensorInfo], kind: str, path: Path) -> Dataset:
    source = _Files([_File(file, infos) for file in files])
    if not len(source):
        raise InputError(f"{path} holds no samples", expected="at least one")
    return Dataset(source, kind=kind, path=str(path))
