"""JSON that every reader takes: sorted keys, null for a figure that is no number (equal outputs in dB)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["json_text"]


def json_text(value: object) -> str:
    """Return `value` as indented JSON without a newline at its end.

    NaN and infinity become null, for JSON has no word for them; what JSON does not know is written as text.

    >>> json_text({"b": float("inf"), "a": 1})
    '{\\n  "a": 1,\\n  "b": null\\n}'
    """
    return json.dumps(_plain(value), indent=2, sort_keys=True, default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None  # -0.0 becomes 0.0
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value
