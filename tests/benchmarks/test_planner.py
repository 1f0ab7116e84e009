"""The planner's benchmark: what it draws, measures and promises, on one small generated network."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.architectures import mobilenet_v2
from benchmarks.planner import DescribedBackend, measure_request, synthetic_losses, verdicts
from edgefuse.compose.prepare import prepare
from edgefuse.device import resolve_target

ROW: dict[str, Any] = {"model": "m", "device": "d", "status": "optimal", "gap": 1e-4, "cpu_s": 1.0}


def test_losses_come_from_names_alone() -> None:
    first, groups = synthetic_losses(["conv1", "conv2"])
    assert synthetic_losses(["conv2"]) == ({"conv2": first["conv2"]}, {"conv2": groups["conv2"]})
    assert first["conv1"] != first["conv2"]
    assert all(loss > 0 for loss in first.values())


@pytest.mark.parametrize(
    "change", [{"gap": 2e-3}, {"cpu_s": 21.0}, {"growth": 1.4}], ids=["gap", "seconds", "growth"]
)
def test_a_broken_promise_is_told(change: dict[str, Any]) -> None:
    good = [{**ROW, "growth": 1.1} for _ in range(20)]
    assert not any("NOT KEPT" in line for line in verdicts(good))
    assert sum("NOT KEPT" in line for line in verdicts([*good, {**ROW, **change}])) == 1
    assert verdicts([{"model": "m", "device": "d", "error": "no"}]) == ["nothing was planned"]


@pytest.mark.slow
def test_a_network_is_planned_for_a_family_that_is_only_described() -> None:
    target = resolve_target("kunlun-k200")
    row = measure_request(prepare(mobilenet_v2(), target, backend=DescribedBackend(target.family)))
    assert row["status"] == "optimal"
    assert row["gap"] <= 1e-3
    assert 0 < row["int8"] <= row["groups"] <= row["nodes"] < row["columns"]
