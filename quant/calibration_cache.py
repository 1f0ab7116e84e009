"""Calibration results kept between builds, in $XDG_CACHE_HOME/edgefuse/calibration (~/.cache without it).

An entry is one JSON file whose name is the digest of all that decides the result: the model, the samples as
the model is fed with them, the scheme, the tensors, the machine and the code of this package. Numbers are
kept to their last bit, so that a build gives the same bytes with and without it. Files are written whole or
not at all: builds may run at the same time. An entry that cannot be read is ignored with a note, never an
error. EDGEFUSE_NO_CACHE (any text) turns it off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgefuse import __version__
from edgefuse.quant.observers import Range
from edgefuse.quant.repair import Repair
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.sensitivity import Losses

__all__ = ["cache_folder", "cached_losses", "cached_ranges", "calibration_key", "samples_digest"]

Result = TypeVar("Result")
Ranges = tuple[dict[str, Range], tuple[Repair, ...]]

_SCHEMA = 2
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


def samples_digest(samples: Iterable[Mapping[str, np.ndarray]]) -> str:
    """Return the sha256 of every array, its name, dtype and shape, sample by sample.

    What the model is fed is what decides; names and times of files say little of it (a copied folder has new
    times, an archive old ones). Reading 100 photos takes 0.3 s, calibrating on them 10 s.
    """
    digest = hashlib.sha256()
    for feeds in samples:
        for name in sorted(feeds):
            array = np.ascontiguousarray(feeds[name])
            digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
            digest.update(array.data if array.dtype.kind in "biufc" and array.size else array.tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def calibration_key(kind: str, *, model: str, samples: str, scheme: Scheme, names: Iterable[str]) -> str:
    """Return the digest under which a result is kept.

    kind: what the result is, with what else decides it.  model: sha256 of the model that was run.  samples:
    `samples_digest`.  names: of the tensors or nodes.
    """
    parts = {
        "schema": _SCHEMA,
        "kind": kind,
        "code": _code_digest(),
        "machine": _machine(),
        "model": model,
        "samples": samples,
        "scheme": scheme.digest,
        "names": list(dict.fromkeys(names)),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()


@functools.cache
def _code_digest() -> str:
    """Return the version, and the sha256 of this package's code: another rule gives another result."""
    digest = hashlib.sha256(__version__.encode())
    for file in sorted(resources.files("edgefuse.quant").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _machine() -> list[str]:
    """Return what decides the last bits of a float sum: the processor, the kernels' version."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    facts = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    processor = [facts.get(name, "") for name in ("model name", "flags", "Features")]
    runtime = metadata.version("onnxruntime")
    return [platform.machine(), runtime, np.__version__, *processor, str(os.cpu_count())]


def cached_ranges(key: str, compute: Callable[[], Ranges]) -> tuple[Ranges, tuple[str, ...]]:
    """Return the ranges, and the rules tried, kept under `key`, or computed and kept now; and notes."""
    return _cached(key, compute, _ranges_to_json, _ranges_from_json)


def cached_losses(key: str, compute: Callable[[], Losses]) -> tuple[Losses, tuple[str, ...]]:
    """Return the losses kept under `key`, or computed and kept now; and notes for the user."""
    return _cached(key, compute, _losses_to_json, _losses_from_json)


def _cached(
    key: str,
    compute: Callable[[], Result],
    to_json: Callable[[Result], Any],
    from_json: Callable[[Any], Result],
) -> tuple[Result, tuple[str, ...]]:
    folder = cache_folder()
    if folder is None:
        return compute(), ()
    file, notes = folder / f"{key}.json", []
    try:
        return from_json(_opened(file.read_bytes(), key)), ()
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"the calibration cache entry {key[:12]} was ignored: {error}")
    found = compute()
    try:
        _store(file, key, to_json(found))
    except (OSError, ValueError) as error:  # a loss that is not finite has no JSON
        notes.append(f"the calibration could not be cached: {error}")
    return found, tuple(notes)


def _opened(data: bytes, key: str) -> Any:
    """Return what an entry holds; raises ValueError (JSON's and Unicode's are) where it is not one."""
    entry = json.loads(data)
    if not isinstance(entry, dict) or entry.get("schema") != _SCHEMA or entry.get("key") != key:
        raise ValueError("it is not an entry of this key")
    return entry.get("result")


def _ranges_to_json(found: Ranges) -> Any:
    ranges, tried = found
    rows = {name: [float(r.low), float(r.high)] for name, r in ranges.items()}
    repairs = [
        [r.name, r.kept, None if r.gain_db is None else float(r.gain_db), list(r.detail)] for r in tried
    ]
    return {"ranges": rows, "tried": repairs}


def _ranges_from_json(held: Any) -> Ranges:
    rows, tried = _part(held, "ranges", dict), _part(held, "tried", list)
    ranges = {}
    for name, row in rows.items():
        if not (isinstance(row, list) and len(row) == 2 and all(type(x) is float for x in row)):
            raise ValueError(f"the range of {name!r} is not two numbers")
        low, high = row
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"the range of {name!r} is not one")
        ranges[name] = Range(low, high)
    repairs = []
    for row in tried:
        if not (isinstance(row, list) and [type(x) for x in row[:2]] == [str, bool] and len(row) == 4):
            raise ValueError("a rule that was tried is not one")
        gain, detail = row[2:]
        if not (gain is None or type(gain) is float) or not isinstance(detail, list):
            raise ValueError("a rule that was tried has no gain")
        repairs.append(Repair(row[0], row[1], gain, tuple(map(str, detail))))
    return ranges, tuple(repairs)


def _losses_to_json(found: Losses) -> Any:
    return {"total": found.total, "groups": found.groups}


def _losses_from_json(held: Any) -> Losses:
    total, groups = _part(held, "total", dict), _part(held, "groups", dict)
    if set(total) != set(groups):
        raise ValueError("its losses are not of one set of nodes")
    numbers = [*total.values()]
    for row in groups.values():
        if not isinstance(row, dict):
            raise ValueError("the losses of a node are no table")
        numbers += row.values()
    if not all(type(x) is float and math.isfinite(x) for x in numbers):
        raise ValueError("a loss is no number")
    return Losses(total, groups)


def _part(held: Any, name: str, kind: type) -> Any:
    found = held.get(name) if isinstance(held, dict) else None
    if not isinstance(found, kind):
        raise ValueError(f"it holds no {name}")
    return found


def _store(file: Path, key: str, result: Any) -> None:
    text = json.dumps({"schema": _SCHEMA, "key": key, "result": result}, indent=0, allow_nan=False)
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
