"""Writing an artifact: the same bytes for the same content, and all of it or nothing on the disk.

The bytes go to a temporary file beside the target, which is locked while it is written, flushed to the disk
and then renamed over the target. A full disk, a killed process or a lost connection leaves the old file as
it was; a temporary file that a killed process left is removed by the next write of the same target.
Standard library only; Python 3.6.
"""

import fcntl
import glob
import hashlib
import os
import stat
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, Tuple, Union

from edgefuse.artifact.layout import checksum, directory_bytes, local_header, place_members
from edgefuse.artifact.manifest import MANIFEST_NAME, manifest_bytes, validate_manifest
from edgefuse.errors import ArtifactError, InputError, InternalError

__all__ = ["Source", "replace_file", "write_artifact"]

# Content of a member: bytes, or the path of a file that is streamed (weights larger than the memory).
Source = Union[bytes, bytearray, memoryview, "os.PathLike[str]"]

_CHUNK = 1 << 20


def write_artifact(
    path: Union[str, "os.PathLike[str]"], manifest: Mapping[str, Any], files: Mapping[str, Source]
) -> str:
    """Write the artifact to `path` and return the sha256 of its bytes (64 hexadecimal digits).

    manifest: schema 1 (see edgefuse.artifact.manifest) without `files`, which is filled in here.
    files: member path -> its content, bytes or the path of a file.  Members are written in name order
    behind the manifest, so the order of `files` does not matter.
    Raises InputError (unwritable, disk full, an input file that changed meanwhile): the old file is intact.
    Raises InternalError for a manifest that is not valid.
    """
    sizes: List[Tuple[str, int, int]] = []
    described: Dict[str, Dict[str, Any]] = {}
    for name in sorted(files):
        size, crc, digest = _measure(name, files[name])
        sizes.append((name, size, crc))
        described[name] = {"sha256": digest, "bytes": size}
    complete = dict(manifest)
    complete["files"] = described
    try:
        validate_manifest(complete)
    except ArtifactError as error:
        raise InternalError("the manifest to be written is not valid: {}".format(error)) from error
    head = manifest_bytes(complete)
    members = place_members([(MANIFEST_NAME, len(head), checksum(head)), *sizes])

    def chunks() -> Iterator[bytes]:
        yield local_header(members[0])
        yield head
        for member in members[1:]:
            yield local_header(member)
            seen = 0
            for chunk in _content(files[member.name]):
                seen = checksum(chunk, seen)
                yield chunk
            if seen != member.crc:
                raise InputError("'{}' changed while the artifact was written".format(member.name))
        yield directory_bytes(members)

    return replace_file(path, chunks())


def _content(source: Source) -> Iterator[bytes]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source).cast("B")
        for start in range(0, len(view), _CHUNK):
            yield bytes(view[start : start + _CHUNK])
        return
    try:
        with open(os.fspath(source), "rb") as file:
            while True:
                chunk = file.read(_CHUNK)
                if not chunk:
                    return
                yield chunk
    except OSError as error:
        raise InputError("cannot read {}: {}".format(os.fspath(source), error.strerror)) from error


def _measure(name: str, source: Source) -> Tuple[int, int, str]:
    digest = hashlib.sha256()
    size = crc = 0
    for chunk in _content(source):
        digest.update(chunk)
        crc = checksum(chunk, crc)
        size += len(chunk)
    return size, crc, digest.hexdigest()


def _cannot_write(target: str, error: OSError) -> InputError:
    return InputError(
        "cannot write {}: {}".format(target, error.strerror or error),
        got="errno {}".format(error.errno),
        hint="free space there or choose another place with -o; a file that was there before is unchanged",
    )


def replace_file(path: Union[str, "os.PathLike[str]"], chunks: Iterable[bytes]) -> str:
    """Write `chunks` to `path`, all of them or nothing, and return the sha256 of the bytes.

    A file that was there is replaced in one step, once the new bytes are on the disk; a link is followed.
    Raises InputError (unwritable, disk full, not a plain file): what was there is as it was.
    """
    target = os.path.realpath(os.fspath(path))
    folder = os.path.dirname(target)
    try:
        if os.path.lexists(target) and not stat.S_ISREG(os.lstat(target).st_mode):
            raise InputError("cannot write {}: it is there and is not a plain file".format(target))
        _sweep(target)
        temporary, file = _open_locked(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    digest = hashlib.sha256()
    try:
        with file:
            for chunk in chunks:
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            # Renamed while the lock is held: a sweeping neighbour must not take it in between.
            os.replace(temporary, target)
        _sync_folder(folder)
    except OSError as error:
        _remove(temporary)
        raise _cannot_write(target, error) from error
    except BaseException:
        _remove(temporary)
        raise
    return digest.hexdigest()


def _temporary_prefix(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, ".{}.".format(name[:200]))


def _open_locked(target: str) -> Tuple[str, BinaryIO]:
    while True:
        temporary = "{}{}.tmp".format(_temporary_prefix(target), os.urandom(6).hex())
        file = open(temporary, "xb", _CHUNK)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            # A neighbour may have swept it between open and lock; then it has no name any more.
            if os.fstat(file.fileno()).st_nlink:
                return temporary, file
        except OSError:
            # A file system without locks (some network mounts): no sweeping there either.
            return temporary, file
        file.close()


def _sweep(target: str) -> None:
    """Remove temporary files of `target` whose writer is gone (their lock is free)."""
    for leftover in glob.glob(glob.escape(_temporary_prefix(target)) + "*.tmp"):
        try:
            with open(leftover, "rb") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(leftover)
        except OSError:
            continue


def _remove(temporary: str) -> None:
    try:
        os.unlink(temporary)
    except OSError:
        return


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
