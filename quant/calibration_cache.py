"""Calibration results kept between builds, in $XDG_CACHE_HOME/edgefuse/calibration (~/.cache without it).

An entry is one JSON file whose name is the digest of all that decides the result: the model, the data, its
preprocessing, the scheme, the observer, the tensors and this version of edgefuse. Files are written whole or
not at all. An entry that cannot be read is ignored with a note, never an error. EDGEFUSE_NO_CACHE (any text)
turns it off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from edgefuse import __version__
from edgefuse.errors import InputError
from edgefuse.quant.observers import Range
from edgefuse.quant.scheme import Scheme

__all__ = ["cache_folder", "cached_ranges", "calibration_key", "data_digest"]

_SCHEMA = 1
# An entry is some 10 kB; the oldest go first.
_KEPT = 200


def cache_folder() -> Path | None:
    """Return where entries lie, whether it exists or not; None where the cache is off or there is no home."""
    if os.environ.get("EDGEFUSE_NO_CACHE"):
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    if os.path.isabs(base):
        return Path(base, "edgefuse", "calibration")
    try:
        return Path.home() / ".cache" / "edgefuse" / "calibration"
    except RuntimeError:
        return None


def data_digest(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a listing: each file's relative name, size and time of change, in sorted order.

    path: a file, or a folder that is searched whole. Contents are not read: 1,000 photos take milliseconds.
    Raises InputError where there is nothing at `path` or a folder cannot be read.
    """
    root = Path(path)
    if not root.exists():
        raise InputError(f"there is no calibration data at {root}")

    def refuse(error: OSError) -> None:
        raise InputError(f"calibration data cannot be read: {error}") from error

    files = [(root.name, root)] if root.is_file() else []
    if not files:
        for folder, _, names in os.walk(root, onerror=refuse, followlinks=False):
            files += [(os.path.relpath(path, root), path) for path in (Path(folder, name) for name in names)]
    digest = hashlib.sha256()
    for name, file in sorted(files):
        found = file.stat() if file.exists() else None  # a dangling link is part of the listing too
        facts = (found.st_size, found.st_mtime_ns) if found else None
        digest.update(json.dumps([name, facts]).encode())
    return digest.hexdigest()


def calibration_key(
    *,
    model: str,
    data: str,
    preprocess: Any,
    scheme: Scheme,
    observer: str,
    values: Iterable[str],
    samples: int | None = None,
) -> str:
    """Return the digest under which a result is kept.

    model: sha256 of the model that was run.  data: `data_digest`, or of the arrays.  preprocess: JSON values.
    values: names of the tensors.  samples: how many were used, where not all.
    """
    parts = {
        "schema": _SCHEMA,
        "edgefuse": __version__,
        "model": model,
        "data": data,
        "preprocess": preprocess,
        "scheme": scheme.digest,
        "observer": observer,
        "values": sorted(set(values)),
        "samples": samples,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()


def cached_ranges(
    key: str, compute: Callable[[], Mapping[str, Range]]
) -> tuple[dict[str, Range], tuple[str, ...]]:
    """Return the ranges kept under `key`, or computed and kept now; and notes for the user."""
    folder = cache_folder()
    if folder is None:
        return dict(compute()), ()
    file, notes = folder / f"{key}.json", []
    try:
        return _parsed(file.read_bytes(), key), (f"ranges taken from the calibration cache ({key[:12]})",)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"the calibration cache entry {key[:12]} was ignored: {error}")
    found = dict(compute())
    try:
        _store(file, key, found)
    except OSError as error:
        notes.append(f"the calibration could not be cached: {error}")
    return found, tuple(notes)


def _parsed(data: bytes, key: str) -> dict[str, Range]:
    """Return the ranges of an entry; raises ValueError (JSON's and Unicode's are) where it is not one."""
    entry = json.loads(data)
    if not isinstance(entry, dict) or entry.get("schema") != _SCHEMA or entry.get("key") != key:
        raise ValueError("it is not an entry of this key")
    rows = entry.get("ranges")
    if not isinstance(rows, dict):
        raise ValueError("it holds no ranges")
    found = {}
    for name, row in rows.items():
        if not (isinstance(row, list) and len(row) == 2 and all(type(x) is float for x in row)):
            raise ValueError(f"the range of {name!r} is not two numbers")
        low, high = row
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"the range of {name!r} is not one")
        found[name] = Range(low, high)
    return found


def _store(file: Path, key: str, ranges: Mapping[str, Range]) -> None:
    rows = {name: [float(r.low), float(r.high)] for name, r in sorted(ranges.items())}
    text = json.dumps({"schema": _SCHEMA, "key": key, "ranges": rows}, indent=0, allow_nan=False)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _forget_oldest(file.parent)


def _forget_oldest(folder: Path) -> None:
    """Remove entries beyond the newest ones; another build may do the same at the same time."""
    with contextlib.suppress(OSError):
        entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for old in entries[_KEPT:]:
            old.unlink()
