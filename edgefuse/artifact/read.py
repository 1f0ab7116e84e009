"""Reading an artifact that nobody vouches for: every length, name and digest is checked before use.

Standard library only; Python 3.6.
"""

import hashlib
import os
import stat
import zlib
from types import TracebackType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, Union

from edgefuse.artifact.layout import Member, check_header, check_layout, read_directory
from edgefuse.artifact.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, parse_manifest, payload_folder
from edgefuse.errors import ArtifactError, InputError, UsageError

__all__ = ["Artifact", "PayloadFiles", "open_artifact"]

_CHUNK = 1 << 20


def open_artifact(path: Union[str, "os.PathLike[str]"], verify: str = "all") -> "Artifact":
    """Return the artifact at `path`, opened and checked; a context manager.

    verify: "all" reads every member once and compares its sha256; "on-read" leaves that to the moment a
    member is read (what is never read is then never checked).  Layout and manifest are checked either way.
    Raises InputError (no such file, not readable), ArtifactError (which file inside and why).
    """
    if verify not in ("all", "on-read"):
        raise UsageError("open_artifact: unknown verify", expected="'all' or 'on-read'", got=repr(verify))
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
        if not stat.S_ISREG(mode):
            raise InputError("cannot open artifact {}: it is not a plain file".format(name))
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InputError("cannot open artifact {}: {}".format(name, error.strerror)) from error
    try:
        artifact = Artifact(name, descriptor)
        if verify == "all":
            artifact.verify()
    except BaseException:
        os.close(descriptor)
        raise
    return artifact


class Artifact:
    """An open artifact: its manifest and its members.

    path: the file;  manifest: the checked manifest (plain JSON values; see edgefuse.artifact.manifest);
    members: the paths inside, without the manifest.  Reading may happen from several threads at once.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor: Optional[int] = descriptor
        what = os.path.basename(path)
        self._what = what
        self._total = os.fstat(descriptor).st_size
        members = read_directory(self._read_at, self._total, what)
        if not members or members[0].name != MANIFEST_NAME:
            raise ArtifactError(
                "{}: not an edgefuse artifact (a zip whose first member is not {})".format(
                    what, MANIFEST_NAME
                )
            )
        check_header(self._read_at, members[0], 0, what)
        self._manifest_data = self._read_manifest(members[0])
        self.manifest: Dict[str, Any] = parse_manifest(self._manifest_data, what)
        check_layout(self._read_at, self._total, members, what)
        self._members = {member.name: member for member in members[1:]}
        self._check_files()

    @property
    def members(self) -> Tuple[str, ...]:
        """The paths of the files inside, in order, without the manifest."""
        return tuple(self._members)

    @property
    def digest(self) -> str:
        """The sha256 of the manifest's bytes: it stands for the whole content, file by file."""
        return hashlib.sha256(self._manifest_data).hexdigest()

    def read(self, member: str) -> bytes:
        """Return the bytes of `member`, their sha256 compared with the manifest's on every call.

        Raises ArtifactError when they differ, InputError for a member that is not there.
        """
        entry = self._member(member)
        data = self._read_at(entry.data_offset, entry.size)
        self._compare(entry, len(data), hashlib.sha256(data).hexdigest())
        return data

    def verify(self) -> None:
        """Read every member once; raise ArtifactError for the first whose sha256 differs."""
        for entry in self._members.values():
            digest = hashlib.sha256()
            size = 0
            for chunk in self._chunks(entry):
                digest.update(chunk)
                size += len(chunk)
            self._compare(entry, size, digest.hexdigest())

    def extract(
        self, folder: Union[str, "os.PathLike[str]"], members: Optional[Sequence[str]] = None
    ) -> List[str]:
        """Write `members` (default: all, and the manifest) below `folder`; return the paths written.

        folder: new or empty, so that nothing of the user's is overwritten and no link there is followed.
        Raises InputError (not empty, disk full), ArtifactError (altered; the folder's new files are removed).
        """
        root = os.fspath(folder)
        written: List[str] = []
        try:
            os.makedirs(root, exist_ok=True)
            if os.listdir(root):
                raise InputError("cannot extract to {}: the folder is not empty".format(root))
            for name in self.members if members is None else members:
                self._extract_one(root, self._member(name), written)
            if members is None:
                place = os.path.join(root, MANIFEST_NAME)
                with open(place, "xb") as file:
                    written.append(place)
                    file.write(self._manifest_data)
        except BaseException as error:
            for place in written:
                if os.path.lexists(place):
                    os.unlink(place)
            if isinstance(error, OSError):
                raise InputError("cannot extract to {}: {}".format(root, error.strerror)) from error
            raise
        return written

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> "Artifact":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _read_at(self, offset: int, count: int) -> bytes:
        if self._descriptor is None:
            raise InputError("artifact {} is closed".format(self.path))
        parts: List[bytes] = []
        try:
            while count > 0:
                part = os.pread(self._descriptor, min(count, 1 << 30), offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                count -= len(part)
        except OSError as error:
            raise InputError("cannot read artifact {}: {}".format(self.path, error.strerror)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_manifest(self, member: Member) -> bytes:
        if member.size > MAX_MANIFEST_BYTES:
            raise ArtifactError(
                "{}: {} is too large".format(self._what, MANIFEST_NAME),
                expected="at most {} bytes".format(MAX_MANIFEST_BYTES),
                got=str(member.size),
            )
        data = self._read_at(member.data_offset, member.size)
        if len(data) != member.size or zlib.crc32(data) & 0xFFFFFFFF != member.crc:
            raise ArtifactError("{}: {} is altered or cut short".format(self._what, MANIFEST_NAME))
        return data

    def _check_files(self) -> None:
        files = self.manifest["files"]
        for name, member in self._members.items():
            if name not in files:
                raise ArtifactError(
                    "{}: '{}' is inside, and the manifest does not list it".format(self._what, name)
                )
            if member.size != files[name]["bytes"]:
                raise ArtifactError(
                    "{}: '{}' is altered".format(self._what, name),
                    expected="{} bytes".format(files[name]["bytes"]),
                    got="{} bytes".format(member.size),
                )
        for name in files:
            if name not in self._members:
                raise ArtifactError("{}: '{}' is missing, and the manifest lists it".format(self._what, name))

    def _member(self, name: str) -> Member:
        entry = self._members.get(name)
        if entry is None:
            raise InputError("{}: there is no file '{}' inside".format(self._what, name))
        return entry

    def _chunks(self, entry: Member) -> Iterator[bytes]:
        position, end = entry.data_offset, entry.data_offset + entry.size
        while position < end:
            chunk = self._read_at(position, min(_CHUNK, end - position))
            if not chunk:
                return
            yield chunk
            position += len(chunk)

    def _compare(self, entry: Member, size: int, digest: str) -> None:
        expected = self.manifest["files"][entry.name]["sha256"]
        if size != entry.size or digest != expected:
            raise ArtifactError(
                "{}: '{}' is altered".format(self._what, entry.name),
                expected="sha256 " + expected,
                got="sha256 {} of {} bytes".format(digest, size),
                hint="copy or build the artifact again",
            )

    def _extract_one(self, root: str, entry: Member, written: List[str]) -> None:
        place = os.path.join(root, *entry.name.split("/"))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        digest = hashlib.sha256()
        size = 0
        with open(place, "xb") as file:
            written.append(place)
            for chunk in self._chunks(entry):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        self._compare(entry, size, digest.hexdigest())


class PayloadFiles(Mapping[str, bytes]):
    """The files of one payload as a mapping name -> bytes, read and compared when asked for.

    The names are those that the backend gave: the member path without `payloads/<id>/`.  entry: the name of
    the file that the engine opens.
    """

    def __init__(self, artifact: Artifact, payload: Mapping[str, Any]) -> None:
        self._artifact = artifact
        self._folder = payload_folder(payload["id"])
        self._names = tuple(path[len(self._folder) :] for path in payload["files"])
        self.entry = str(payload["entry"][len(self._folder) :])

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        return self._artifact.read(self._folder + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
