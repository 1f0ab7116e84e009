from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgefuse.artifact import write_artifact
from edgefuse.runtime import Engine

ARTIFACT_TESTS = Path(__file__).parent.parent / "artifact"


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    """The sample artifact of tests/artifact (loaded by path: test folders are no packages)."""
    spec = importlib.util.spec_from_file_location("runtime_samples", ARTIFACT_TESTS / "samples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ToyEngine(Engine):
    """y = scale * x in the dtype of x; counts what the runtime does with it."""

    opened: list[ToyEngine] = []  # noqa: RUF012  (emptied by the fixture before each test)

    def __init__(self, files: Any, entry: str, options: dict[str, Any]) -> None:
        described = json.loads(files[entry].decode())
        self.scale = described["scale"]
        self.rename = described.get("output", "y")
        self.files, self.entry, self.options = files, entry, options
        self.closed = 0
        self.seen: list[np.ndarray[Any, Any]] = []
        ToyEngine.opened.append(self)

    def run(self, feeds: Any) -> dict[str, np.ndarray[Any, Any]]:
        assert self.closed == 0
        self.seen.append(feeds["x"])
        return {self.rename: feeds["x"] * feeds["x"].dtype.type(self.scale), "internal": np.zeros(1)}

    def close(self) -> None:
        self.closed += 1

    def describe(self) -> dict[str, Any]:
        return {"runtime": "toy", "version": "1", "device": "cpu", "threads": self.options.get("threads", 1)}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[ToyEngine]]:
    """The family `_toy`, as if it were installed."""
    module = ModuleType("edgefuse.targets._toy.engine")
    module.load_engine = ToyEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ToyEngine.opened = []
    yield ToyEngine
    assert all(engine.closed for engine in ToyEngine.opened), "an engine was never closed"


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, samples: ModuleType) -> Make:
    """A function (files=…, **manifest changes) -> path of the sample artifact with these changes."""

    def build(files: dict[str, bytes] | None = None, **changes: Any) -> Path:
        path = tmp_path / "sample.efa"
        write_artifact(path, samples.manifest(**changes), {**samples.FILES, **(files or {})})
        return path

    return build
