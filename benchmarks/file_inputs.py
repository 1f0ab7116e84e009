"""Files of many kinds as the file-type model sees them: their first and last 1024 bytes."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import sysconfig
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.sources import Split, members, sentences, wheel_path, zoo

__all__ = ["file_tokens", "files", "right_classes"]

Array = np.ndarray[Any, np.dtype[Any]]
PART, BLOCK, PADDING = 1024, 4096, 256
SMALLEST_BYTES = 64
MODULES = 40
STANDARD_LIBRARY = ("calibration", "abcdefghijklm"), ("evaluation", "nopqrstuvwxyz")
PICTURES = ("bmp", "gif", "tiff", "webp", "ico", "jpeg", "png", "tga", "jp2", "pdf")


def file_tokens(content: bytes) -> Array:
    """Return int32 [2048]: 1024 bytes of the start and of the end, outer white space dropped, 256 beyond.

    As magika 1.0 reads a file (its features version 2: blocks of 4096 bytes).
    """
    tokens = np.full(2 * PART, PADDING, dtype=np.int32)
    head = np.frombuffer(content[:BLOCK].lstrip()[:PART], np.uint8)
    tail = np.frombuffer(content[-BLOCK:].rstrip()[-PART:], np.uint8)
    tokens[: len(head)] = head
    tokens[2 * PART - len(tail) :] = tail
    return tokens


@functools.lru_cache(maxsize=2)
def files(split: Split) -> tuple[tuple[str, bytes], ...]:
    """Return (kind, content) of files, one of each kind in turn, kinds in the order of their names.

    Sources: the members of the split's wheels, modules of this Python's standard library (40 of names a to m
    calibrate, 40 of n to z evaluate), and the split's own texts and pictures written in other formats. kind:
    the name's suffix, "" where it has none. No content comes twice, also not in both splits.
    """
    kinds: dict[str, list[bytes]] = {}
    seen = {content for _, content in files("calibration")} if split == "evaluation" else set()
    for kind, content in [*_wheel_files(split), *_library_files(split), *_written(split)]:
        if len(content) >= SMALLEST_BYTES and content not in seen:
            seen.add(content)
            kinds.setdefault(kind, []).append(content)
    turns = max(map(len, kinds.values()))
    ordered = [kinds[kind] for kind in sorted(kinds)]
    return tuple(
        (kind, each[turn])
        for turn in range(turns)
        for kind, each in zip(sorted(kinds), ordered, strict=True)
        if turn < len(each)
    )


def _wheel_files(split: Split) -> Iterator[tuple[str, bytes]]:
    for path, content in members(split):
        yield Path(path).suffix.lower().lstrip("."), content


def _library_files(split: Split) -> Iterator[tuple[str, bytes]]:
    folder = Path(sysconfig.get_path("stdlib"))
    first = dict(STANDARD_LIBRARY)[split]
    paths = [path for path in sorted(folder.glob("*.py")) if path.name[0].lower() in first]
    for path in paths[:MODULES]:
        content = path.read_bytes()
        yield "py", content
        yield "pyc", _compiled(content, path.name)


def _compiled(content: bytes, name: str) -> bytes:
    import importlib.util
    import marshal

    code = compile(content, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _written(split: Split) -> Iterator[tuple[str, bytes]]:
    """Yield texts and pictures of the split in formats that its wheels do not hold."""
    texts = sentences(split)
    for part in range(8):
        some = texts[part * 12 : part * 12 + 12]
        for kind, write in _WRITERS.items():
            yield kind, write(some)
    pictures = [content for path, content in members(split) if path.endswith((".png", ".jpg"))][:8]
    for content in pictures:
        with Image.open(io.BytesIO(content)) as opened:
            picture = opened.convert("RGB")
        picture.thumbnail((200, 200))
        for kind in PICTURES:
            buffer = io.BytesIO()
            picture.save(buffer, "JPEG2000" if kind == "jp2" else kind.upper())
            yield kind, buffer.getvalue()


def _plain(texts: tuple[str, ...]) -> bytes:
    return "\n".join(texts).encode()


def _zip(texts: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, text in enumerate(texts):
            archive.writestr(zipfile.ZipInfo(f"notes/{number}.txt"), text)
    return buffer.getvalue()


def _tar(texts: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number, text in enumerate(texts):
            entry = tarfile.TarInfo(f"notes/{number}.txt")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _sqlite(texts: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes.sqlite"
        _write_notes(path, texts)
        return path.read_bytes()


def _write_notes(path: Path, texts: tuple[str, ...]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
    connection.executemany("INSERT INTO notes (text) VALUES (?)", [(text,) for text in texts])
    connection.commit()
    connection.close()


def _sql(texts: tuple[str, ...]) -> bytes:
    rows = "\n".join(f"  ({number}, '{text}')," for number, text in enumerate(texts))
    table = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT);"
    return f"{table}\nINSERT INTO notes VALUES\n{rows}\n".encode()


def _mail(texts: tuple[str, ...]) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", texts[0][:50]
    message["Date"], message["Message-ID"] = "Tue, 01 Dec 2026 10:00:00 +0000", "<1@example.org>"
    message.set_content("\n\n".join(texts))
    return bytes(message)


def _html(texts: tuple[str, ...]) -> bytes:
    body = "\n".join(f"    <p>{text}</p>" for text in texts)
    head = f"<!DOCTYPE html>\n<html>\n  <head><title>{texts[0]}</title></head>\n  <body>\n"
    return f"{head}{body}\n  </body>\n</html>\n".encode()


def _xml(texts: tuple[str, ...]) -> bytes:
    rows = "\n".join(f'  <note id="{number}"><text>{text}</text></note>' for number, text in enumerate(texts))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<notes>\n{rows}\n</notes>\n'.encode()


def _rows(mark: str) -> Callable[[tuple[str, ...]], bytes]:
    def write(texts: tuple[str, ...]) -> bytes:
        lines = [mark.join(("id", "words", "first", "last"))]
        for number, text in enumerate(texts):
            words = text.replace(mark, " ").split()
            lines.append(mark.join((str(number), str(len(words)), words[0], words[-1])))
        return "\n".join(lines).encode()

    return write


def _toml(texts: tuple[str, ...]) -> bytes:
    rows = (f"[[note]]\nid = {n}\ntext = {json.dumps(text)}\n" for n, text in enumerate(texts))
    return "\n".join(rows).encode()


def _yaml(texts: tuple[str, ...]) -> bytes:
    rows = (f"  - id: {n}\n    text: {json.dumps(text)}\n    kept: true\n" for n, text in enumerate(texts))
    return ("notes:\n" + "".join(rows)).encode()


def _subtitles(texts: tuple[str, ...]) -> bytes:
    rows = (f"{n + 1}\n00:00:{n:02d},000 --> 00:00:{n:02d},900\n{text}\n" for n, text in enumerate(texts))
    return "\n".join(rows).encode()


def _shell(texts: tuple[str, ...]) -> bytes:
    rows = "\n".join(f'# {text}\nif [ -n "$1" ]; then\n    echo "{len(text)}" >> "$1"\nfi' for text in texts)
    return f"#!/bin/sh\nset -eu\n{rows}\n".encode()


def _numbers(texts: tuple[str, ...]) -> Array:
    return np.array([[ord(c) for c in text[:24].ljust(24)] for text in texts], dtype=np.float32)


def _npy(texts: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, _numbers(texts))
    return buffer.getvalue()


def _notebook(texts: tuple[str, ...]) -> bytes:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": [text]} for text in texts]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()


# The suffix that a file of that format has -> how it is written.
_WRITERS: dict[str, Callable[[tuple[str, ...]], bytes]] = {
    "txt": _plain,
    "gz": lambda texts: gzip.compress(_plain(texts), mtime=0),
    "bz2": lambda texts: bz2.compress(_plain(texts)),
    "xz": lambda texts: lzma.compress(_plain(texts)),
    "zlib": lambda texts: zlib.compress(_plain(texts)),
    "zip": _zip,
    "tar": _tar,
    "sqlite": _sqlite,
    "sql": _sql,
    "eml": _mail,
    "html": _html,
    "xml": _xml,
    "csv": _rows(","),
    "tsv": _rows("\t"),
    "json": lambda texts: json.dumps([{"id": n, "text": t} for n, t in enumerate(texts)], indent=2).encode(),
    "jsonl": lambda texts: b"\n".join(json.dumps({"id": n, "text": t}).encode() for n, t in enumerate(texts)),
    "toml": _toml,
    "yaml": _yaml,
    "srt": _subtitles,
    "sh": _shell,
    "npy": _npy,
    "pickle": lambda texts: pickle.dumps({"notes": list(texts)}),
    "ipynb": _notebook,
}


@functools.cache
def _content_types() -> tuple[tuple[str, ...], dict[str, frozenset[str]]]:
    """Return the model's labels in the order of its output, and each content type's suffixes."""
    wheel = wheel_path("zoo:magika")
    config = json.loads(zoo().read_member(wheel, "magika/models/standard_v3_3/config.min.json"))
    known = json.loads(zoo().read_member(wheel, "magika/config/content_types_kb.min.json"))
    suffixes = {name: frozenset(entry.get("extensions", ())) for name, entry in known.items()}
    return tuple(config["target_labels_space"]), suffixes


def right_classes(kind: str) -> frozenset[int] | None:
    """Return the indices of the classes that a file with suffix `kind` may have; None: no class has it."""
    names, suffixes = _content_types()
    found = frozenset(index for index, name in enumerate(names) if kind in suffixes.get(name, frozenset()))
    return found or None
