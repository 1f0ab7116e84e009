"""Texts, fonts, pictures and files out of pinned wheels: what the zoo's inputs are made from."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import textwrap
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from edgefuse.errors import InputError

__all__ = ["SHARED_DATA", "Split", "fonts", "members", "sentences", "wheel_path", "zoo", "zoo_model"]

Split = Literal["calibration", "evaluation"]
ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

_MARKUP = re.compile(r"[`*|<>{}\\_=\[\]]|::|\s:\s|--|\bhttps?:|\.\.\.")
_WORDS = range(6, 41)


@functools.cache
def zoo() -> ModuleType:
    """Return examples/zoo.py as a module."""
    spec = importlib.util.spec_from_file_location("zoo", ROOT / "examples" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = msgspec.toml.decode(Path(__file__).with_name("sources.toml").read_bytes())
    return table


@functools.cache
def _zoo_table() -> dict[str, Any]:
    table: dict[str, Any] = zoo().load_table()
    return table


def zoo_model(name: str) -> dict[str, Any]:
    """Return the entry of zoo model `name`; raises InputError for a name that the table has not."""
    models = _zoo_table()["models"]
    if name not in models:
        raise InputError(f"the zoo has no model '{name}'", expected=", ".join(models))
    entry: dict[str, Any] = models[name]
    return entry


def wheel_path(name: str) -> Path:
    """Return the path of a wheel of sources.toml (`zoo:NAME`: of zoo.toml), downloaded if it is not there.

    Raises as `zoo.fetch_wheel`.
    """
    kind, _, inner = name.rpartition(":")
    wheel = _zoo_table()["wheels"][inner] if kind else _table()["wheels"][name]
    path: Path = zoo().fetch_wheel(wheel, zoo().CACHE / "wheels")
    return path


def members(split: Split) -> list[tuple[str, bytes]]:
    """Return every file of the split's wheels as (path, content), in a fixed order."""
    found = []
    for name in _table()["splits"][split]:
        with zipfile.ZipFile(wheel_path(name)) as archive:
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                if not info.is_dir():
                    found.append((info.filename, archive.read(info)))  # noqa: PERF401  (as it reads)
    return found


@functools.cache
def fonts() -> tuple[bytes, ...]:
    """Return the contents of the font files."""
    found = []
    for entry in _table()["fonts"]:
        path = wheel_path(entry["wheel"])
        found += [zoo().read_member(path, f"{entry['folder']}/{file}") for file in entry["files"]]
    return tuple(found)


@functools.cache
def sentences(split: Split) -> tuple[str, ...]:
    """Return English sentences of 6 to 40 words without markup, out of docstrings and licences.

    Each is there once, and in one split only (licences repeat each other).
    """
    found: dict[str, None] = {}
    other = set(sentences("calibration")) if split == "evaluation" else set()
    for path, content in members(split):
        for paragraph in _paragraphs(path, content):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph):
                if _is_sentence(sentence) and sentence not in other:
                    found.setdefault(sentence)
    return tuple(found)


def _paragraphs(path: str, content: bytes) -> list[str]:
    name = path.rsplit("/", 1)[-1]
    if path.endswith(".py"):
        texts = _docstrings(content)
    elif "LICENSE" in name or "NOTICE" in name or name in {"METADATA", "README.md"}:
        texts = [content.decode("utf-8", "replace")]
    else:
        return []
    return [" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", textwrap.dedent(text))]


def _docstrings(content: bytes) -> list[str]:
    holders = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return []
    found = [ast.get_docstring(tree)]
    statements: list[ast.AST] = [tree]
    for node in statements:  # breadth first, statements only: expressions are most of a tree, and hold none
        if isinstance(node, holders):
            found.append(ast.get_docstring(node))
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, name, ())
            statements += inner if isinstance(inner, list) else ()
    return [text for text in found if text]


def _is_sentence(text: str) -> bool:
    words = text.split()
    return (
        len(words) in _WORDS
        and text.isascii()
        and text[0].isupper()
        and text[-1] in ".!?"
        and not _MARKUP.search(text)
        and sum(word.strip(".,;:()").isalpha() for word in words) >= 0.8 * len(words)
    )
