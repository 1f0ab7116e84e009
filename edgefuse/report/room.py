"""The line that says what takes the room in an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgefuse.units import format_bytes

__all__ = ["room_line"]


def room_line(room: Mapping[str, Any]) -> str:
    """Return the line; room: bytes of each payload and of the other parts.

    >>> room_line({"payloads": {"float": 2048}, "simulation": 512, "self_test": 1024, "other": 0})
    'room: payload float 2.0 KiB, simulation 512 B, self-test 1.0 KiB'
    """
    parts = [f"payload {name} {format_bytes(size)}" for name, size in room["payloads"].items()]
    rest = {"simulation": "simulation", "self_test": "self-test", "other": "other"}
    parts += [f"{word} {format_bytes(room[key])}" for key, word in rest.items() if room[key]]
    return f"room: {', '.join(parts)}"
