"""What takes the room in an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["artifact_room"]


def artifact_room(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bytes of each payload, the simulation, the self-test and other members.

    files: as in a manifest, path -> {"bytes": ...}; the manifest itself and the zip's own are not counted.

    >>> artifact_room({"payloads/float/m.bin": {"bytes": 9}, "self_test/0/x.npy": {"bytes": 4}})
    {'payloads': {'float': 9}, 'simulation': 0, 'self_test': 4, 'other': 0}
    """
    payloads: dict[str, int] = {}
    rest = {"simulation": 0, "self_test": 0, "other": 0}
    for path, entry in files.items():
        folder, _, inner = path.partition("/")
        if folder == "payloads" and "/" in inner:
            name = inner.split("/")[0]
            payloads[name] = payloads.get(name, 0) + int(entry["bytes"])
        else:
            rest[folder if folder in rest else "other"] += int(entry["bytes"])
    return {"payloads": payloads, **rest}
