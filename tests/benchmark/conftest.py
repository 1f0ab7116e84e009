from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    """The sample artifact of tests/artifact (loaded by path: test folders are no packages)."""
    path = Path(__file__).parent.parent / "artifact/samples.py"
    spec = importlib.util.spec_from_file_location("benchmark_samples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
