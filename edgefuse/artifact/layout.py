"""The bytes around the members of an artifact: a zip (PKWARE APPNOTE 6.3.9) with one allowed spelling.

Members are stored, not deflated; each member's data starts at a multiple of 64 bytes (the padding lies in an
extra field of its local header, id 0xD935, as Android's zipalign does it); times are the zip epoch; members
follow each other without a gap. The reader encodes what the writer would have written and compares, so an
overlap, a duplicate, a hidden gap, a symbolic link, a compressed member or one flipped header bit is refused
without a list of special cases. Standard library only; runs under Python 3.6.
"""

import re
import struct
import zlib
from typing import Callable, List, NamedTuple, Sequence, Set, Tuple

from edgefuse.errors import ArtifactError

__all__ = [
    "ALIGNMENT",
    "MAX_MEMBERS",
    "Member",
    "check_header",
    "check_layout",
    "check_member_name",
    "checksum",
    "directory_bytes",
    "local_header",
    "place_members",
    "read_directory",
]

ALIGNMENT = 64
MAX_MEMBERS = 10000
MAX_NAME = 200

# Sizes and offsets from here on need the zip64 records (a test lowers it to see them written and read).
ZIP64_FROM = 0xFFFFFFFF

_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_CENTRAL = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_END = struct.Struct("<4sHHHHLLH")
_END64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR = struct.Struct("<4sLQL")
_PADDING_ID = 0xD935
_ZIP64_ID = 0x0001
_EPOCH_DATE = 0x0021  # 1980-01-01, the earliest that the format can say
_FILE_MODE = 0o100644 << 16
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*\Z")

ReadAt = Callable[[int, int], bytes]


class Member(NamedTuple):
    """One file inside the artifact: its name, bytes, CRC-32, and where its local header starts."""

    name: str
    size: int
    crc: int
    offset: int

    @property
    def data_offset(self) -> int:
        """Where the data starts, in bytes from the start of the artifact; a multiple of 64."""
        return self.offset + len(local_header(self))


def check_member_name(name: str, what: str) -> None:
    """Raise ArtifactError unless `name` is a plain relative path of safe ASCII characters.

    Safe: letters, digits, `_ . + -` and `/` between parts, no part starts with a dot or a dash, at most 200
    characters. That leaves no absolute path, no `..`, no backslash, no drive letter and no control character.
    """
    if len(name) > MAX_NAME or _NAME.match(name) is None:
        raise ArtifactError(
            "{}: the name of a file inside is not allowed".format(what),
            expected="a relative path of letters, digits, _ . + - and /, at most {} long".format(MAX_NAME),
            got=ascii(name[: MAX_NAME + 1]),
        )


def _version(zip64: bool) -> int:
    return 45 if zip64 else 20


def local_header(member: Member) -> bytes:
    """Return the local header of `member`, padded so that its data starts at a multiple of 64 bytes."""
    name = member.name.encode("ascii")
    zip64 = member.size >= ZIP64_FROM
    extra = struct.pack("<HHQQ", _ZIP64_ID, 16, member.size, member.size) if zip64 else b""
    unpadded = member.offset + _LOCAL.size + len(name) + len(extra) + 6
    padding = b"\0" * (-unpadded % ALIGNMENT)
    extra += struct.pack("<HHH", _PADDING_ID, 2 + len(padding), ALIGNMENT) + padding
    size = 0xFFFFFFFF if zip64 else member.size
    head = _LOCAL.pack(
        b"PK\3\4", _version(zip64), 0, 0, 0, _EPOCH_DATE, member.crc, size, size, len(name), len(extra)
    )
    return head + name + extra


def place_members(sizes: Sequence[Tuple[str, int, int]]) -> List[Member]:
    """Return the members of (name, size in bytes, CRC-32), one behind the other in the order given."""
    members: List[Member] = []
    offset = 0
    for name, size, crc in sizes:
        member = Member(name, size, crc, offset)
        members.append(member)
        offset = member.data_offset + size
    return members


def _central_entry(member: Member) -> bytes:
    name = member.name.encode("ascii")
    wide = b""
    size, offset = member.size, member.offset
    if size >= ZIP64_FROM:
        wide += struct.pack("<QQ", size, size)
        size = 0xFFFFFFFF
    if offset >= ZIP64_FROM:
        wide += struct.pack("<Q", offset)
        offset = 0xFFFFFFFF
    extra = struct.pack("<HH", _ZIP64_ID, len(wide)) + wide if wide else b""
    version = _version(bool(wide))
    head = _CENTRAL.pack(
        b"PK\1\2",
        (3 << 8) | version,  # 3: Unix, so that the mode below is read as one
        version,
        0,
        0,
        0,
        _EPOCH_DATE,
        member.crc,
        size,
        size,
        len(name),
        len(extra),
        0,
        0,
        0,
        _FILE_MODE,
        offset,
    )
    return head + name + extra


def directory_bytes(members: Sequence[Member]) -> bytes:
    """Return everything behind the last member: the central directory and the end records."""
    entries = b"".join(_central_entry(member) for member in members)
    start = members[-1].data_offset + members[-1].size if members else 0
    count = len(members)
    tail = b""
    shown = start
    if start >= ZIP64_FROM:
        record = start + len(entries)
        tail = _END64.pack(b"PK\6\6", 44, (3 << 8) | 45, 45, 0, 0, count, count, len(entries), start)
        tail += _LOCATOR.pack(b"PK\6\7", 0, record, 1)
        shown = 0xFFFFFFFF
    return entries + tail + _END.pack(b"PK\5\6", 0, 0, count, count, len(entries), shown, 0)


def read_directory(read_at: ReadAt, total: int, what: str) -> List[Member]:
    """Return the members that the central directory names, in its order, each wholly inside the file.

    read_at(offset, count) -> bytes;  total: bytes of the file;  what: the artifact's name for messages.
    Raises ArtifactError: not a zip, cut short, too many members, a bad name, a compressed member.
    """
    start, size, count = _find_directory(read_at, total, what)
    if count > MAX_MEMBERS:
        raise ArtifactError(
            "{}: too many files inside".format(what),
            expected="at most {}".format(MAX_MEMBERS),
            got=str(count),
        )
    if start + size > total or size > MAX_MEMBERS * (_CENTRAL.size + MAX_NAME + 28):
        raise _broken(what, "the directory of files lies outside the file")
    directory = read_at(start, size)
    members: List[Member] = []
    position = 0
    for _ in range(count):
        member, position = _read_entry(directory, position, start, what)
        members.append(member)
    if position != size:
        raise _broken(what, "the directory of files has bytes that belong to no file")
    _check_names(members, what)
    return members


def _broken(what: str, why: str) -> ArtifactError:
    return ArtifactError(
        "{}: {} (cut short or altered)".format(what, why),
        hint="use the file as `edgefuse build` wrote it: copy or build it again",
    )


def _find_directory(read_at: ReadAt, total: int, what: str) -> Tuple[int, int, int]:
    if total == 0:
        raise ArtifactError("{}: the file is empty".format(what), hint="copy or build the artifact again")
    if not read_at(0, 4).startswith(b"PK\3\4"[: min(4, total)]):
        raise ArtifactError(
            "{}: not an edgefuse artifact (not a zip)".format(what),
            expected="a file that `edgefuse build` wrote",
            got="{} bytes that start with {}".format(total, ascii(read_at(0, 8))),
        )
    if total < _END.size:
        raise _broken(what, "the end of the file is missing")
    fields = _END.unpack(read_at(total - _END.size, _END.size))
    if fields[0] != b"PK\5\6" or fields[7] != 0:
        raise _broken(what, "the end of the file is missing, or something was appended to it")
    count, size, start = fields[4], fields[5], fields[6]
    if start == 0xFFFFFFFF:
        behind = _END.size + _LOCATOR.size + _END64.size
        if total < behind:
            raise _broken(what, "the zip64 records are missing")
        record = _END64.unpack(read_at(total - behind, _END64.size))
        if record[0] != b"PK\6\6":
            raise _broken(what, "the zip64 records are missing")
        count, size, start = record[7], record[8], record[9]
    return start, size, count


def _read_entry(directory: bytes, position: int, end: int, what: str) -> Tuple[Member, int]:
    if position + _CENTRAL.size > len(directory):
        raise _broken(what, "the directory of files ends early")
    fields = _CENTRAL.unpack_from(directory, position)
    if fields[0] != b"PK\1\2":
        raise _broken(what, "the directory of files is damaged")
    method, crc, stored, size, name_length, extra_length, offset = (
        fields[i] for i in (4, 7, 8, 9, 10, 11, 16)
    )
    position += _CENTRAL.size
    raw = directory[position : position + name_length]
    extra = directory[position + name_length : position + name_length + extra_length]
    position += name_length + extra_length
    if position > len(directory):
        raise _broken(what, "the directory of files ends early")
    name = raw.decode("latin-1")
    check_member_name(name, what)
    if method != 0:
        raise ArtifactError(
            "{}: '{}' is compressed".format(what, name),
            expected="stored members (method 0)",
            got="method {}: another tool packed it again".format(method),
            hint="use the artifact as `edgefuse build` wrote it",
        )
    wide = _wide_numbers(extra)
    if size == 0xFFFFFFFF and len(wide) >= 2:
        size, stored = wide[0], wide[1]
        wide = wide[2:]
    if offset == 0xFFFFFFFF and wide:
        offset = wide[0]
    member = Member(name, size, crc, offset)
    if stored != size or offset + size > end:
        raise _broken(what, "'{}' lies outside the file".format(name))
    return member, position


def _wide_numbers(extra: bytes) -> Tuple[int, ...]:
    if len(extra) < 4:
        return ()
    kind, length = struct.unpack_from("<HH", extra)
    if kind != _ZIP64_ID or length % 8 or length + 4 != len(extra):
        return ()
    return struct.unpack_from("<{}Q".format(length // 8), extra, 4)


def _check_names(members: Sequence[Member], what: str) -> None:
    seen: Set[str] = set()
    folders: Set[str] = set()
    for member in members:
        # Compared without case: extracting to a case-blind disk must not let one file overwrite another.
        key = member.name.lower()
        if key in seen:
            raise ArtifactError("{}: '{}' is there twice".format(what, member.name))
        seen.add(key)
        parts = key.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    both = sorted(seen & folders)
    if both:
        raise ArtifactError("{}: '{}' is a file and a folder at once".format(what, both[0]))


def check_layout(read_at: ReadAt, total: int, members: Sequence[Member], what: str) -> None:
    """Raise ArtifactError unless headers and directory are byte for byte what the writer writes.

    This is what refuses overlaps, gaps, links, foreign flags and flipped header bits.
    """
    position = 0
    for member in members:
        check_header(read_at, member, position, what)
        position = member.data_offset + member.size
    tail = directory_bytes(members)
    if position + len(tail) != total or read_at(position, len(tail)) != tail:
        raise _broken(what, "the directory of files is not as edgefuse writes it")


def check_header(read_at: ReadAt, member: Member, position: int, what: str) -> None:
    """Raise ArtifactError unless `member` starts at `position` with the header that the writer writes."""
    header = local_header(member)
    if member.offset != position or read_at(position, len(header)) != header:
        raise _broken(what, "the header of '{}' is not as edgefuse writes it".format(member.name))


def checksum(chunk: bytes, value: int = 0) -> int:
    """Return the CRC-32 of `chunk`, continued from `value`."""
    return zlib.crc32(chunk, value) & 0xFFFFFFFF
