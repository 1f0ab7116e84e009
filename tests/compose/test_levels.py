"""Level 1, level 3 and the bisection on real plans, and regions that the build takes back to float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import conv_net, samples

import edgefuse
from edgefuse.artifact import open_artifact, write_artifact
from edgefuse.compose import levels
from edgefuse.compose.planning import Int8Tables, int8_plan, measure_tables
from edgefuse.compose.prepare import Prepared, find_target, prepare
from edgefuse.compose.regions import Planned, check_range_ends, check_regions
from edgefuse.compose.reversion import revert_failing
from edgefuse.device import probe_host
from edgefuse.errors import EdgefuseError, UsageError
from edgefuse.graph import model_from_proto, read_model
from edgefuse.quantized import Quantized
from edgefuse.verification import plan_prefix
from tests.passes.graphs import Build

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

AWAY = "x86-avx512-vnni"
Feeds = dict[str, np.ndarray]


def feeds(count: int = 4) -> list[Feeds]:
    return [{"x": array[None]} for array in samples(count)]


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


def work_of(prepared: Prepared, data: Sequence[Feeds]) -> tuple[Planned, Int8Tables]:
    tables = measure_tables(prepared, data, silent)
    plan, quantized = int8_plan(prepared, tables, "int8", 1, None)
    assert plan.count("int8") > 1
    return (
        Planned(prepared.model, plan, quantized, tables.scheme, prepared.target, prepared.backend, False),
        tables,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("levels")
    np.savez(place / "calib.npz", x=samples(12))
    return conv_net(place / "net.onnx")


@pytest.fixture(scope="module")
def work(model: Path) -> Planned:
    return work_of(prepare(read_model(model), find_target(AWAY)), feeds())[0]


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    output = model.with_name("away.efa")
    edgefuse.build(
        model, target=AWAY, calib=model.with_name("calib.npz"), precision="int8", max_drop=1.0, output=output
    )
    return output


def spoil(quantized: Quantized, node: str) -> Quantized:
    """Return the integers with one node's weights in the reverse order of their inputs."""
    weights = dict(quantized.weights)
    weights[(node, 1)] = replace(weights[(node, 1)], values=weights[(node, 1)].values[:, ::-1].copy())
    return replace(quantized, weights=weights)


def test_int8_regions_of_a_good_plan_pass(work: Planned) -> None:
    found = check_regions(work, feeds())
    assert found.ok
    assert found.by.startswith("the exact reference")
    assert {r.precision for r in found.regions} == {"fp32", "int8"}
    assert 20 < min(r.sqnr_db for r in found.regions if r.precision == "int8") < 60
    assert max(r.max_relative_error for r in found.regions if r.precision == "fp32") < 1e-6


def test_wrong_integers_fail_their_region_and_no_other(work: Planned) -> None:
    bad = check_regions(replace(work, quantized=spoil(work.quantized, "conv2")), feeds())
    assert [region.sources[0] for region in bad.failing] == ["conv2"]


def test_a_corrected_bias_is_no_error_of_its_region(work: Planned) -> None:
    shifted = replace(work.quantized, biases={"conv2": np.full(16, 5.0, np.float32)})
    before, after = check_regions(work, feeds()), check_regions(replace(work, quantized=shifted), feeds())
    assert [r.sqnr_db for r in before.regions] == [r.sqnr_db for r in after.regions]


def test_this_machine_judges_regions_in_its_own_kernels(model: Path) -> None:
    try:
        target = probe_host()
    except EdgefuseError as error:
        pytest.skip(f"no target is this machine: {error.message}")
    work, _ = work_of(prepare(read_model(model), target), feeds())
    found = check_regions(replace(work, here=True), feeds())
    assert found.by == "the deployed runtime"
    assert found.ok
    spoiled = replace(work, here=True, quantized=spoil(work.quantized, "conv2"))
    assert [r.sources[0] for r in check_regions(spoiled, feeds()).failing] == ["conv2"]


def test_every_region_is_run_at_the_ends_of_its_ranges(work: Planned) -> None:
    rows = check_range_ends(work, feeds()[0])
    assert [row.kind for row in rows] == [
        "every region at the low end of its range",
        "every region at the high end of its range",
        "every region at both ends by turns",
    ]
    assert all(row.why == "" and row.error < 0.1 for row in rows), [row.error for row in rows]
    weights = work.quantized.weights
    endless = replace(weights[("conv2", 1)], scale=np.full_like(weights[("conv2", 1)].scale, 3e38))
    broken = replace(work, quantized=replace(work.quantized, weights={**weights, ("conv2", 1): endless}))
    assert any(", the float model does not" in row.why for row in check_range_ends(broken, feeds()[0]))


def test_a_float_plan_has_no_ranges(work: Planned) -> None:
    float_plan = plan_prefix(work.plan, 0)
    assert check_range_ends(replace(work, plan=float_plan), feeds()[0]) == ()


@pytest.mark.parametrize("node", ["conv1", "conv2", "head"])
def test_the_bisection_finds_the_spoiled_region(work: Planned, node: str) -> None:
    found = levels.bisect(replace(work, quantized=spoil(work.quantized, node)), feeds())
    assert found.group is not None
    assert found.group.sources[0] == node
    assert found.before.sqnr_db > 20 > found.after.sqnr_db
    assert found.own_db is not None
    assert found.own_db < 15


def test_the_bisection_of_a_good_plan_finds_nothing(work: Planned) -> None:
    found = levels.bisect(work, feeds())
    assert found.group is None
    assert found.own_db is None


def test_verify_runs_three_levels(model: Path, artifact: Path) -> None:
    report = edgefuse.verify(artifact, model=model, data=model.with_name("calib.npz"), simulate=True)
    assert report["levels"] == {"1": "passed", "2": "passed", "3": "passed"}
    assert report["ok"] is True
    assert any("int8 regions" in line for line in report["regions"]["lines"])
    assert any("NaN policy" in line for line in report["stress"]["lines"])
    kinds = {row["kind"] for row in report["stress"]["inputs"]}
    assert kinds >= {"zeros", "denormals", "one NaN", "every region at both ends by turns"}


def test_level_1_needs_no_model(artifact: Path) -> None:
    report = edgefuse.verify(artifact, simulate=True)
    assert report["levels"] == {"1": "passed", "2": "not run: no --model", "3": "not run: no --model"}
    assert report["regions"]["samples"] == 1, (
        "the artifact's own vector, since random inputs leave the ranges"
    )


def test_verify_fails_where_a_region_fails(artifact: Path, tmp_path: Path) -> None:
    changed = rewritten(artifact, tmp_path / "bad.efa", lambda manifest, files: _negate(files))
    found = edgefuse.verify(changed, simulate=True, bisect=True)["bisect"]
    assert found["region"] is not None
    assert found["steps"][0]["groups"] >= 5


def _negate(files: dict[str, bytes]) -> None:
    """Turn the sign of the largest stored integer weight."""
    path = max(
        (p for p in files if p.startswith("simulation/int8/") and p.endswith(".npy") and b"|i1" in files[p]),
        key=lambda p: len(files[p]),
    )
    head = len(files[path]) % 64 or 64
    start = files[path].index(b"\n") + 1
    assert start >= head
    values = -np.frombuffer(files[path][start:], np.int8)
    files[path] = files[path][:start] + values.tobytes()


def rewritten(artifact: Path, output: Path, change: Any) -> Path:
    with open_artifact(artifact) as held:
        files = {path: held.read(path) for path in held.members}
        manifest = {k: v for k, v in held.manifest.items() if k != "files"}
        for entry in manifest["payloads"]:
            entry["self_test"] = []
    change(manifest, files)
    used = {p: d for p, d in files.items() if not p.startswith("self_test/")}
    write_artifact(output, manifest, used)
    return output


def test_what_is_not_stored_is_said(model: Path, artifact: Path, tmp_path: Path) -> None:
    def drop(manifest: Any, files: dict[str, bytes]) -> None:
        manifest.pop("extra")
        for path in [p for p in files if p.startswith("simulation/")]:
            del files[path]

    bare = rewritten(artifact, tmp_path / "bare.efa", drop)
    with open_artifact(bare) as held:
        assert levels.planned_payload(held, "float", None, True) == "no --model"
        said = levels.planned_payload(held, "int8", read_model(model), True)
        assert isinstance(said, str)
        assert "keeps no integers" in said
        made = levels.planned_payload(held, "float", read_model(model), True)
        assert isinstance(made, Planned)
        assert check_regions(made, feeds()).ok


@pytest.mark.parametrize("option", [{"metric": "agreement"}, {"max_drop": 0.1}])
def test_bisect_takes_no_metric(model: Path, artifact: Path, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--bisect judges by"):
        edgefuse.verify(artifact, model=model, bisect=True, simulate=True, **option)


def loud() -> tuple[Prepared, list[Feeds]]:
    """Return a net whose middle layer reads one channel a thousand times louder, and does not weigh it."""
    b = Build(seed=5)
    x = b.x([1, 4, 8, 8])
    loud, quiet = b.rng.uniform(-1, 1, (16, 4, 3, 3)), b.rng.uniform(-1, 1, (16, 16, 1, 1))
    loud[3] *= 3000.0
    quiet[:, 3] = 0.0
    scaled = b.op("Relu", b.op("Conv", x, b.w(loud), pads=[1] * 4, name="one"))
    second = b.op("Relu", b.op("Conv", scaled, b.w(quiet), name="two"))
    b.y(b.op("Conv", second, b.rand(8, 16, 1, 1), name="three", out="map"))
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(4)]
    return prepare(model_from_proto(b.proto()), find_target(AWAY)), data


def test_a_failing_region_goes_back_to_float_and_the_note_says_what_it_cost() -> None:
    prepared, data = loud()
    tables = measure_tables(prepared, data, silent)
    plan, _ = int8_plan(prepared, tables, "int8", 1, None)
    held = plan.group_of("two")
    assert held is not None
    assert held.precision == "int8"
    refused, reverted = revert_failing(prepared, tables, "int8", 1, data, False)
    assert "two" in refused
    assert "level 1" in refused["two"]
    (row,) = reverted
    assert "two" in row.nodes
    assert row.note().startswith("two")
    assert "reverted to float" in row.note()
    assert "costs about" in row.note()
    again, quantized = int8_plan(prepared, tables, "int8", 1, None, refused=refused)
    held = again.group_of("two")
    assert held is not None
    assert held.precision == "fp32"
    assert "level 1" in held.reason, "the plan says why"
    assert again.count("int8") == plan.count("int8") - 1
    assert ("two", 1) not in quantized.weights


def test_a_good_plan_is_not_touched(model: Path) -> None:
    prepared = prepare(read_model(model), find_target(AWAY))
    tables = measure_tables(prepared, feeds(), silent)
    assert revert_failing(prepared, tables, "int8", 1, feeds(), False) == ({}, [])


def test_the_report_holds_the_regions(artifact: Path) -> None:
    import json

    report = json.loads(artifact.with_suffix(".report.json").read_text())
    for payload in report["payloads"]:
        assert payload["regions"]["ok"] is True
        assert payload["reverted"] == []
