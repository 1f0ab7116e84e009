"""Small checks that the manifest's description is built of; each names the field that is wrong.

A check is a function (value, where) -> None that raises ArtifactError. Standard library; Python 3.6.
"""

import math
import re
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from edgefuse.errors import ArtifactError, did_you_mean

__all__ = [
    "Check",
    "anything",
    "boolean",
    "either",
    "integer",
    "list_of",
    "map_of",
    "number",
    "one_of",
    "optional",
    "record",
    "text",
    "wrong",
]

Check = Callable[[Any, str], None]


def wrong(where: str, expected: str, value: Any) -> ArtifactError:
    """Return the error for field `where`, which should have been `expected`."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return ArtifactError("manifest field '{}' is not valid".format(where), expected=expected, got=shown)


def anything(value: Any, where: str) -> None:
    """Accept any JSON value (the parser has bounded its depth and its numbers)."""


def boolean(value: Any, where: str) -> None:
    """Accept true and false."""
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)


def integer(low: int, high: int = 2**63 - 1) -> Check:
    """Return a check for a whole number in low..high (a bool is none)."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(where, "a whole number from {} to {}".format(low, high), value)

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """Return a check for a finite number in low..high."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise wrong(where, "a finite number", value)
        if not low <= value <= high:
            raise wrong(where, "a number from {} to {}".format(low, high), value)

    return check


def text(
    pattern: Optional[str] = None, expected: str = "text", longest: int = 1000, empty: bool = False
) -> Check:
    """Return a check for text of at most `longest` characters that matches `pattern` as a whole."""
    regex = re.compile(pattern + r"\Z") if pattern else None

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or len(value) > longest or (not value and not empty):
            raise wrong(where, "{} (1 to {} characters)".format(expected, longest), value)
        if regex is not None and regex.match(value) is None:
            raise wrong(where, expected, value)

    return check


def one_of(values: Iterable[str]) -> Check:
    """Return a check for one of the words `values`."""
    known = tuple(values)

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in known:
            raise wrong(where, "one of " + ", ".join(known), value)

    return check


def optional(inner: Check) -> Check:
    """Return a check for null, or what `inner` takes."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def either(first: Check, second: Check, expected: str) -> Check:
    """Return a check for what one of two checks takes."""

    def check(value: Any, where: str) -> None:
        for inner in (first, second):
            try:
                inner(value, where)
            except ArtifactError:
                continue
            return
        raise wrong(where, expected, value)

    return check


def list_of(inner: Check, shortest: int = 0, longest: int = 100000) -> Check:
    """Return a check for a list whose entries pass `inner`."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not shortest <= len(value) <= longest:
            raise wrong(where, "a list of {} to {} entries".format(shortest, longest), value)
        for index, entry in enumerate(value):
            inner(entry, "{}[{}]".format(where, index))

    return check


def map_of(inner: Check, key: Optional[Check] = None, longest: int = 20000) -> Check:
    """Return a check for an object with free keys whose values pass `inner` (and keys pass `key`)."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or len(value) > longest:
            raise wrong(where, "an object of at most {} entries".format(longest), value)
        for name, entry in value.items():
            place = "{}.{}".format(where, name)
            if key is not None:
                key(name, place)
            inner(entry, place)

    return check


def record(fields: Dict[str, Tuple[bool, Check]]) -> Check:
    """Return a check for an object with exactly these fields: name -> (must be there, check)."""

    def check(value: Any, where: str) -> None:
        prefix = where + "." if where else ""
        if not isinstance(value, dict):
            raise wrong(where or "manifest", "an object", value)
        for name in sorted(value):
            if name not in fields:
                raise ArtifactError(
                    "manifest field '{}' is not known{}".format(
                        prefix + name, did_you_mean(name, list(fields))
                    )
                )
        for name, (needed, inner) in fields.items():
            if name in value:
                inner(value[name], prefix + name)
            elif needed:
                raise ArtifactError("manifest field '{}' is missing".format(prefix + name))

    return check
