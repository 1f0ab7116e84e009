"""The Engine contract: what `targets/<family>/engine.py` gives the runtime. Python 3.6.

A family's engine module has one function that the runtime calls:

    load_engine(files, entry, options) -> Engine

files: a folder (text) or a mapping name -> bytes with the payload's files, under the names that the backend
gave them (an artifact's are compared with their sha256 when read);  entry: the one that the engine opens;
options: the payload's `options`, with `threads` (whole number >= 1, or absent: the runtime's own choice)
where the caller asked for one.
It raises ToolMissingError when its vendor package is not installed, DeviceError when the hardware cannot run
the payload. `open_engine` below finds the module by its family's name and checks these promises.
"""

import importlib
import os
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence, Union

from edgefuse.errors import ArtifactError, EdgefuseError, InternalError, ToolMissingError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Engine", "Files", "open_engine", "read_file"]

Files = Union[str, Mapping[str, bytes]]

_FAMILY = re.compile(r"_?[a-z][a-z0-9_]*\Z")


class Engine(ABC):
    """One loaded payload. The runtime calls it from one thread at a time."""

    @abstractmethod
    def run(self, feeds: "Mapping[str, np.ndarray[Any, Any]]") -> "Dict[str, np.ndarray[Any, Any]]":
        """Return the outputs under the user's names for `feeds` under the user's names.

        feeds: every input, C-contiguous, of the manifest's dtype and shape.  The arrays returned belong to
        the caller: a later call neither reuses nor changes them.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the vendor's runtime holds; a second call does nothing."""

    @abstractmethod
    def describe(self) -> Dict[str, Any]:
        """Return what runs, as JSON values: at least `runtime`, `version`, `device` and `threads`."""


def read_file(files: Files, path: str) -> bytes:
    """Return the bytes of the payload's file `path`, from a folder or a mapping.

    Raises ArtifactError when it is not there.
    """
    try:
        if isinstance(files, str):
            with open(os.path.join(files, *path.split("/")), "rb") as file:
                return file.read()
        return files[path]
    except (KeyError, OSError) as error:
        raise ArtifactError("the payload's file '{}' is missing".format(path)) from error


def open_engine(
    family: str, files: Files, entry: str, options: Mapping[str, Any], packages: Sequence[str] = ()
) -> Engine:
    """Return the engine of `family` for one payload.

    packages: the artifact's pip requirements, named in the hint when the vendor's package is missing.
    Raises UnsupportedError (no such family here), ToolMissingError, and what the engine itself raises.
    """
    if _FAMILY.match(family) is None:
        raise ArtifactError("'{}' is not a family's name".format(family[:60]))
    name = "edgefuse.targets.{}.engine".format(family)
    try:
        module = importlib.import_module(name)
        opened = module.load_engine(files, entry, dict(options))
    except ImportError as error:
        missing = error.name or str(error)
        if name == missing or name.startswith(missing + "."):
            raise UnsupportedError(
                "this edgefuse has no engine for family '{}'".format(family),
                hint="install an edgefuse that has it, or build for another target",
            ) from error
        raise _missing_package(family, missing, packages) from error
    except ToolMissingError as error:
        if error.hint is None and packages:
            raise _missing_package(family, error.message, packages) from error
        raise
    if not isinstance(opened, Engine):
        raise InternalError("{}.load_engine returned {}, not an Engine".format(name, type(opened).__name__))
    return opened


def _missing_package(family: str, missing: str, packages: Sequence[str]) -> EdgefuseError:
    wanted = " ".join("'{}'".format(package) for package in packages)
    return ToolMissingError(
        "the runtime of family '{}' is not installed here ({})".format(family, missing),
        hint="pip install " + wanted
        if wanted
        else "install the runtime of that family, see `edgefuse targets`",
    )
