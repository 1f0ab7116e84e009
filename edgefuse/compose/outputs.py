"""Where results go: checked before the work begins, and never over something that is the user's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from edgefuse.errors import InputError

__all__ = ["require_arrays_place", "require_artifact_place", "require_other_file"]

_PathLike = str | os.PathLike[str]


def require_artifact_place(output: Path) -> None:
    """Raise InputError where `output` cannot become an artifact, or would take the place of another file.

    A build takes minutes: what is known now is said now. An existing artifact may be replaced, also one that
    is damaged behind its first bytes, and an empty file.
    """
    _require_place(output, "an artifact", lambda member: member == b"manifest.json")


def require_arrays_place(output: Path) -> None:
    """Raise InputError where `output` cannot become a `.npz`, or would replace a file of another kind."""
    _require_place(output, "a .npz", lambda member: member.endswith(b".npy"))


def _require_place(output: Path, kind: str, is_kind: Callable[[bytes], bool]) -> None:
    if output.is_dir():
        raise InputError(f"the output {output} is a folder", expected=f"the name of a file, {kind}")
    if output.exists() and not output.is_file():
        raise InputError(f"the output {output} is there and is not a plain file")
    _require_writable(output.parent)
    if output.is_file() and not _may_be_replaced(output, is_kind):
        raise InputError(
            f"the output {output} is there and is not {kind}: it is not overwritten",
            hint="choose another name, or remove the file",
        )


def require_other_file(output: _PathLike, inputs: Mapping[str, _PathLike | None]) -> None:
    """Raise InputError where `output` is one of the files that are read; inputs: what it is -> path."""
    for what, path in inputs.items():
        if path is not None and os.path.exists(output) and os.path.exists(path):
            if os.path.samefile(output, path):
                raise InputError(
                    f"the output {os.fspath(output)} is also {what}: it is not overwritten",
                    hint="choose another name for the output",
                )


def _require_writable(folder: Path) -> None:
    if not folder.is_dir():
        there = next((p for p in folder.parents if p.exists()), folder) if not folder.exists() else folder
        if there.is_dir():
            raise InputError(f"the output folder {folder} does not exist", hint=f"mkdir -p {folder}")
        raise InputError(f"the output folder {folder} cannot be: {there} is a file")
    try:
        # Asking for permissions tells nothing to root, and nothing of a file system that is read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"the output folder {folder} cannot be written: {error.strerror}", hint="choose another place"
        ) from error


def _may_be_replaced(output: Path, is_kind: Callable[[bytes], bool]) -> bool:
    """Return whether the file is empty, or a zip whose first member is of the right kind."""
    try:
        with output.open("rb") as file:
            head = file.read(30)  # of a zip: the first member's header, its name's length at byte 26
            name = file.read(int.from_bytes(head[26:28], "little"))
    except OSError:
        return False
    return not head or (head.startswith(b"PK\x03\x04") and is_kind(name))
