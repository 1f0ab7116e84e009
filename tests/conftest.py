"""What all tests share: pinned threads, no telemetry, a hypothesis profile, folders that may be absent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before any numeric package is imported: two workers on two cores must not fight over threads, and a sum that
# is split over threads may round differently from run to run.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Builds of the tests neither read nor write the calibration cache of this user; its own tests turn it on.
os.environ.setdefault("EDGEFUSE_NO_CACHE", "1")

# `import openvino` starts openvino_telemetry, which writes to the home folder and sends events unless a
# consent file says no. Without that package openvino uses its own do-nothing class: tests touch no network.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

settings.register_profile(
    "edgefuse",
    deadline=None,  # tests never judge time
    derandomize="CI" in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("edgefuse")


def _absent(what: Path) -> str:
    return f"../{what.relative_to(ROOT.parent)} is not beside this checkout (models and inputs outside it)"


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of this checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Return ../shared, or skip with the reason."""
    if not SHARED.is_dir():
        pytest.skip(_absent(SHARED))
    return SHARED


@pytest.fixture(scope="session")
def zoo_dir() -> Path:
    """Return the folder of trained models: ../shared/zoo, or skip with the reason."""
    if not (SHARED / "zoo").is_dir():
        pytest.skip(_absent(SHARED / "zoo"))
    return SHARED / "zoo"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `shared` where ../shared is absent: one reason, seen in the closing lines."""
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason=_absent(SHARED))
    for item in items:
        if item.get_closest_marker("shared") is not None:
            item.add_marker(skip)
