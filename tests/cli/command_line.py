"""What a call of the command line did, and what must hold where it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What one call of the command line did."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """What stands on stderr beside the lines that say which stage of the work begins."""
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not re.match(r"\[ *\d+\.\d s\] ", line))

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


def refused(result: Result, code: int, *words: str) -> None:
    """Assert one error block that holds `words`, nothing on stdout, the exit code, and no traceback."""
    assert result.code == code, result
    assert result.out == "", result
    assert result.said.startswith("error: "), result
    assert sum(line.startswith("error:") for line in result.err.splitlines()) == 1, result.err
    assert "Traceback" not in result.err
    assert "a bug of edgefuse" not in result.err, result.err
    for word in words:
        assert word in result.err, f"{word!r} is not in:\n{result.err}"


def refused_as_json(result: Result, code: int, kind: str) -> None:
    """Assert the same error as one JSON object on stdout."""
    assert result.code == code, result
    error = result.json["error"]
    assert sorted(error) == ["expected", "got", "hint", "kind", "message"]
    assert error["kind"] == kind
    assert error["message"]
    assert result.said.lstrip("\n").startswith("error: " + error["message"])
