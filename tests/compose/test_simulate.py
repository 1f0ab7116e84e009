"""Artifacts for devices that are not here, built and run in the exact reference of their arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgefuse
from edgefuse.artifact import open_artifact, write_artifact
from edgefuse.compose import accuracy, simulate
from edgefuse.device import probe_host
from edgefuse.errors import ArtifactError, EdgefuseError, InputError, ToolMissingError, UnsupportedError
from edgefuse.graph import clone_model, model_to_bytes, read_model, restore_model
from edgefuse.graph.reference import Reference, signal_to_noise_db
from tests.passes.graphs import Build

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

DEVICE = "x86-avx512-vnni"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small model, calibration data and an int8 artifact for another machine."""
    place = tmp_path_factory.mktemp("simulate")
    b = Build(seed=2)
    x = b.x([1, 3, 8, 8], name="frame:0")
    first = b.op("Relu", b.op("Conv", x, b.rand(16, 3, 3, 3), b.rand(16), pads=[1] * 4))
    second = b.op("Conv", first, b.rand(8, 16, 1, 1), b.rand(8))
    b.y(b.op("Flatten", b.op("GlobalAveragePool", second), out="scores"))
    (place / "net.onnx").write_bytes(b.proto().SerializeToString())
    rng = np.random.default_rng(0)
    frames: dict[str, Any] = {"frame:0": rng.standard_normal((8, 3, 8, 8)).astype(np.float32)}
    np.savez(place / "calib.npz", **frames)
    if _host() == DEVICE:
        pytest.skip(f"this machine is {DEVICE}, the device that the test wants elsewhere")
    edgefuse.build(
        place / "net.onnx", target=DEVICE, calib=place / "calib.npz", precision="int8", output=place / "a.efa"
    )
    return place


def _host() -> str:
    try:
        return probe_host().device.name
    except EdgefuseError:
        return ""


def _frames(folder: Path) -> np.ndarray:
    with np.load(folder / "calib.npz") as data:
        return np.asarray(data["frame:0"])


def test_it_runs_by_the_users_names_and_is_near_the_float_model(folder: Path) -> None:
    reference = Reference(read_model(folder / "net.onnx"))
    with edgefuse.load(folder / "a.efa", simulate=True, self_test="all") as model:
        assert (model.payload, model.family) == ("int8", "openvino")
        assert "exact" in model.describe()["engine"]["runtime"]
        assert DEVICE in model.notes[0]
        for frame in _frames(folder):
            got = model(frame[None])["scores"]
            wanted = reference.run({"frame:0": frame[None]})["scores"]
            assert got.dtype == np.float32
            assert 15 < signal_to_noise_db(got, wanted) < 80, "int8 is near the float model, and not equal"


def test_it_is_what_the_build_judged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored self-test tolerances come from the same arithmetic, and the report says which."""
    report = json.loads((folder / "a.report.json").read_text())
    assert report["accuracy_by"] == "exact simulation of the target's arithmetic"
    seen: list[Any] = []
    exact = simulate.exact_call

    def watch(*arguments: Any) -> Any:
        call = exact(*arguments)

        def watched(feeds: Any) -> Any:
            seen.append((feeds["frame:0"], call(feeds)["scores"]))
            return {"scores": seen[-1][1]}

        return watched

    monkeypatch.setattr(accuracy, "exact_call", watch)
    again = folder / "again.efa"
    edgefuse.build(
        folder / "net.onnx", target=DEVICE, calib=folder / "calib.npz", precision="int8", output=again
    )
    assert again.read_bytes() == (folder / "a.efa").read_bytes(), "the same inputs give the same bytes"
    with edgefuse.load(again, simulate=True) as model:
        for frame, scores in seen:
            np.testing.assert_array_equal(model(frame)["scores"], scores)


def test_each_payload_can_be_simulated(folder: Path) -> None:
    frame = _frames(folder)[:1]
    wanted = Reference(read_model(folder / "net.onnx")).run({"frame:0": frame})["scores"]
    with edgefuse.load(folder / "a.efa", simulate=True, payload="float") as model:
        np.testing.assert_allclose(model(frame)["scores"], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="no payload 'flaot' to simulate, did you mean 'float'"):
        edgefuse.load(folder / "a.efa", simulate=True, payload="flaot")
    with pytest.raises(InputError, match="no family"):
        edgefuse.load(folder / "a.efa", simulate=True, family="_toy")


def test_a_float16_plan_is_judged_and_run_in_float16(folder: Path) -> None:
    b = Build(seed=3)
    x = b.x([1, 32, 56, 56])
    middle = b.op("Relu", b.op("Conv", x, b.rand(64, 32, 3, 3), b.rand(64), pads=[1] * 4))
    b.y(b.op("Conv", middle, b.rand(8, 64, 3, 3), out="map"))
    (folder / "wide.onnx").write_bytes(b.proto().SerializeToString())
    result = edgefuse.build(folder / "wide.onnx", target="jetson-nano", output=folder / "nano.efa")
    assert result.plan.count("fp16")
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 32, 56, 56)).astype(np.float32)}
    wanted = Reference(read_model(folder / "wide.onnx")).run(feeds)["map"]
    with edgefuse.load(folder / "nano.efa", simulate=True) as model:
        got = model(feeds)["map"]
    assert 45 < signal_to_noise_db(got, wanted) < 90, "float16 has 11 bits"


def test_weights_that_a_payload_holds_are_not_stored_twice(folder: Path) -> None:
    with open_artifact(folder / "nano.efa") as artifact:
        stored = artifact.manifest["extra"]["simulation"]
        held = sum(place[2] for place in stored["weights"].values())
        assert held == 4 * (64 * 32 * 9 + 8 * 64 * 9)
        assert len(artifact.read(stored["model"])) < held / 4


def test_float16_that_loses_too_much_becomes_float32_unless_it_was_asked_for(folder: Path) -> None:
    """Large values whose difference matters: float16 keeps 3 digits of 2,000 + x."""
    b = Build(seed=4)
    x = b.x([1, 32, 56, 56])
    far = b.op("Add", b.op("Conv", x, b.rand(64, 32, 3, 3)), b.w(np.full((1, 64, 1, 1), 2000.0)))
    # A Relu between, so that no pass folds the constant away.
    b.y(b.op("Add", b.op("Relu", far), b.w(np.full((1, 64, 1, 1), -2000.0)), out="map"))
    (folder / "far.onnx").write_bytes(b.proto().SerializeToString())
    data = np.random.default_rng(1).standard_normal((2, 32, 56, 56)).astype(np.float32) / 10
    np.savez(folder / "far.npz", x=data)
    given = {"target": "jetson-nano", "eval": folder / "far.npz", "output": folder / "far.efa"}
    result = edgefuse.build(folder / "far.onnx", **given)
    assert result.plan.count("fp16") == 0
    assert any("fp16 loses" in note and "planned in fp32" in note for note in result.report["notes"])
    with pytest.raises(UnsupportedError, match="the float payload loses"):
        edgefuse.build(folder / "far.onnx", precision="fp16", **given)
    kept = edgefuse.build(folder / "far.onnx", max_drop=1.0, **given)
    assert kept.plan.count("fp16")


def test_without_a_simulation_inside_it_says_so(folder: Path) -> None:
    changed = _rewritten(folder, lambda manifest, files: manifest.pop("extra"))
    with pytest.raises(UnsupportedError, match="cannot be simulated"):
        edgefuse.load(changed, simulate=True)


@pytest.mark.parametrize("what", ["no integers", "an unknown field", "another model", "no such payload"])
def test_a_simulation_that_cannot_be_read_is_an_artifact_error(folder: Path, what: str) -> None:
    def spoil(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        path = "simulation/int8/integers.json"
        content = json.loads(files[path])
        if what == "no integers":
            del content["weights"]
        elif what == "an unknown field":
            next(iter(content["activations"].values()))["new"] = 1
        elif what == "another model":
            for name in [name for name in files if name.endswith("/model.onnx") and "simulation" in name]:
                files[name] = b"not a model"  # of the payload, where it was repaired, too
        else:
            manifest["extra"]["simulation"]["payloads"]["int8"] = "simulation/int9/integers.json"
        files[path] = json.dumps(content).encode()

    with pytest.raises((ArtifactError, InputError)):
        edgefuse.load(_rewritten(folder, spoil), simulate=True)


def _rewritten(folder: Path, change: Any) -> Path:
    with open_artifact(folder / "a.efa") as artifact:
        manifest = {key: value for key, value in artifact.manifest.items() if key != "files"}
        files = {name: artifact.read(name) for name in artifact.members}
    change(manifest, files)
    write_artifact(folder / "changed.efa", manifest, files)
    return folder / "changed.efa"


def test_on_a_robot_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgefuse, "_simulator_missing", lambda: "no package onnx")
    with pytest.raises(ToolMissingError, match="which is not here") as caught:
        edgefuse.load(folder / "a.efa", simulate=True)
    assert caught.value.got == "no package onnx"
    assert "edgefuse[build]" in str(caught.value.hint)


def test_a_stored_model_comes_back_node_for_node(folder: Path) -> None:
    model = clone_model(read_model(folder / "net.onnx"))
    back = restore_model(model_to_bytes(model))
    assert [(n.name, n.op_type) for n in back.graph] == [(n.name, n.op_type) for n in model.graph]
    assert model_to_bytes(back) == model_to_bytes(model)
    with pytest.raises(InputError, match="cannot be read"):
        restore_model(b"no model")
