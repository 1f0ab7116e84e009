from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgefuse.artifact import write_artifact
from edgefuse.benchmark import bench_artifact, gate
from edgefuse.errors import ArtifactError, InputError
from edgefuse.runtime import Engine


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the toy engine moves: 2 s to load, 0.5 s for the first run, then 10 ms a run."""
    clock = Clock()

    class Slow(Engine):
        runs = 0

        def run(self, feeds: Any) -> dict[str, np.ndarray[Any, Any]]:
            clock.now += 0.01 if self.runs else 0.5
            self.runs += 1
            return {"y": 2 * feeds["x"]}

        def close(self) -> None:
            clock.now += 1000

        def describe(self) -> dict[str, Any]:
            return {"runtime": "toy", "version": "1", "device": "cpu", "threads": self.threads}

        def __init__(self, threads: int) -> None:
            self.threads = threads

    def load_engine(files: Any, entry: str, options: dict[str, Any]) -> Slow:
        clock.now += 2.0
        return Slow(options.get("threads", 7))

    module = ModuleType("edgefuse.targets._toy.engine")
    module.load_engine = load_engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return clock


def test_load_first_and_steady_state_stand_apart(tmp_path: Path, samples: ModuleType, clock: Clock) -> None:
    path = tmp_path / "a.efa"
    write_artifact(path, samples.manifest(), samples.FILES)
    report = bench_artifact(path, seconds=5, clock=clock, cpu_clock=lambda: 2 * clock.now)
    assert report["load_ms"] == pytest.approx(2000)
    assert report["first_ms"] == pytest.approx(500)
    latency = report["latency"]
    assert latency["p50_ms"] == latency["p99_ms"] == pytest.approx(10)
    assert latency["max_ms"] == pytest.approx(10)
    assert latency["cpu_p50_ms"] == pytest.approx(20)
    assert latency["runs"] == pytest.approx(500, abs=1)
    assert latency["stopped_by"] == "seconds"
    assert latency["warmup_runs"] == pytest.approx(50, abs=1)
    assert (report["threads"], report["payload"], report["family"]) == (7, "planned", "_toy")
    assert (report["precision"], report["feeds"], report["notes"]) == ("fp32", "self_test", [])
    assert set(report["memory_mb"]) == {"before", "loaded", "after", "peak"}
    assert report["machine"]["cores"] >= 1
    assert json.loads(json.dumps(report)) == report
    assert gate("p90<=12ms", report)[0]
    assert not gate("load<=1s", report)[0]


def test_threads_and_payload_are_passed_on(tmp_path: Path, samples: ModuleType, clock: Clock) -> None:
    path = tmp_path / "a.efa"
    payloads = [samples.payload("planned"), samples.payload("float", self_test=[])]
    write_artifact(path, samples.manifest(payloads=payloads), samples.FILES)
    report = bench_artifact(
        path, threads=3, seconds=5, min_runs=4, payload="float", clock=clock, cpu_clock=clock
    )
    assert (report["threads"], report["payload"], report["feeds"]) == (3, "float", "random")
    assert (report["latency"]["runs"], report["latency"]["stopped_by"]) == (4, "runs")


def test_errors_of_loading_come_through(tmp_path: Path, samples: ModuleType, clock: Clock) -> None:
    with pytest.raises(InputError, match="No such file"):
        bench_artifact(tmp_path / "none.efa")
    (tmp_path / "bad.efa").write_bytes(b"x")
    with pytest.raises(ArtifactError, match="not a zip"):
        bench_artifact(tmp_path / "bad.efa")
    write_artifact(tmp_path / "a.efa", samples.manifest(), samples.FILES)
    with pytest.raises(InputError, match="no payload 'none'"):
        bench_artifact(tmp_path / "a.efa", payload="none")
