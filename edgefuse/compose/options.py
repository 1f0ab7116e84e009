"""What a build is asked for, and `edgefuse.toml`, which supplies what the command line leaves out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.quant.compress import compression_requests

__all__ = ["CONFIG_NAME", "BuildOptions", "parse_shape", "with_config"]

CONFIG_NAME = "edgefuse.toml"
PRECISIONS = ("auto", "fp32", "fp16", "int8")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The arguments of `edgefuse build`; see `edgefuse.build` for each.

    shapes: input name -> sizes.  max_drop: in absolute points of the metric.  threads: for timing here and
    for the payload's default; None = one thread for timing, the runtime's own choice in the artifact.
    prune: "channels=30%" and the like.  low_rank: share of the rank that stays.  sparsity: "2:4"
    (docs/compression.md).
    """

    model: str | None = None
    target: str = "host"
    output: str | None = None
    calib: str | None = None
    eval: str | None = None
    metric: str | None = None
    max_drop: float = 0.01
    precision: str = "auto"
    preprocess: str | None = None
    labels: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    threads: int | None = None
    name: str | None = None
    prune: str | None = None
    low_rank: float | None = None
    sparsity: str | None = None

    def check(self) -> None:
        """Raise UsageError for a value that can never be right."""
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"--precision {self.precision!r} is unknown{did_you_mean(self.precision, PRECISIONS)}",
                expected=" | ".join(PRECISIONS),
            )
        if not 0 <= self.max_drop < float("inf"):
            raise UsageError(
                "--max-drop must be a number >= 0, in points of the metric", got=str(self.max_drop)
            )
        if self.threads is not None and self.threads < 1:
            raise UsageError("--threads must be at least 1", got=str(self.threads))
        compression_requests(self.prune, self.low_rank, self.sparsity)
        if self.model is None:
            raise UsageError(
                'no model: name one, or write model = "MODEL.onnx" into edgefuse.toml',
                expected="edgefuse build MODEL.onnx --target NAME",
            )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return (input name, sizes) from "NAME=1x3x224x224".

    >>> parse_shape("x=1x3x48x192")
    ('x', (1, 3, 48, 192))
    """
    name, equals, sizes = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"\d+([x,]\d+)*", sizes):
        raise UsageError(f"--shape {text!r} cannot be read", expected="NAME=1x3x224x224")
    return name, tuple(int(d) for d in re.split("[x,]", sizes))


def with_config(
    options: BuildOptions, given: frozenset[str], folder: str | os.PathLike[str] = "."
) -> BuildOptions:
    """Return the options with what `edgefuse.toml` in `folder` supplies for those not in `given`.

    given: the names that the caller set. Paths in the file are relative to the file. No file: unchanged.
    Raises InputError for an unknown key or a value of the wrong type.
    """
    path = Path(folder) / CONFIG_NAME
    if not path.exists():
        return options
    table = _read(path)
    changes: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _KEYS:
            raise InputError(
                f"{path}: unknown key {key!r}{did_you_mean(key, list(_KEYS))}", expected=", ".join(_KEYS)
            )
        if name in seen:
            raise InputError(f"{path}: {seen[name]!r} and {key!r} are one and the same key")
        seen[name] = key
        converted = _KEYS[name](path, key, value)
        if name not in given:
            changes[name] = converted
    return replace(options, **changes)


def _read(path: Path) -> dict[str, Any]:
    import msgspec

    try:
        table: dict[str, Any] = msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
        return table
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


def _wrong(path: Path, key: str, value: object, expected: str) -> InputError:
    return InputError(f"{path}: {key} = {value!r} cannot be used", expected=expected)


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(path, key, value, "text that is not empty" if isinstance(value, str) else "text")
    return value


def _file(path: Path, key: str, value: object) -> str:
    return str(path.parent / _text(path, key, value))


def _number(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, key, value, "a number")
    return float(value)


def _whole(path: Path, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(path, key, value, "a whole number")
    return value


def _shapes(path: Path, key: str, value: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, dict):
        raise _wrong(path, key, value, 'a table such as [shapes] with "x" = [1, 3, 224, 224]')
    shapes = {}
    for name, sizes in value.items():
        if not isinstance(sizes, list) or not all(type(d) is int and d > 0 for d in sizes):
            raise _wrong(path, f"shapes.{name}", sizes, "a list of sizes such as [1, 3, 224, 224]")
        shapes[str(name)] = tuple(sizes)
    return shapes


_KEYS = {
    "model": _file,
    "target": _text,
    "output": _file,
    "calib": _file,
    "eval": _file,
    "metric": _text,
    "max_drop": _number,
    "precision": _text,
    "preprocess": _file,
    "labels": _file,
    "shapes": _shapes,
    "threads": _whole,
    "name": _text,
    "prune": _text,
    "low_rank": _number,
    "sparsity": _text,
}
