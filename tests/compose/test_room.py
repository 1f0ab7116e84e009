"""What takes the room in an artifact: told by build and inspect, and a self-test that stays in proportion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import conv_net, one_node

import edgefuse
from edgefuse.artifact import open_artifact
from edgefuse.compose import accuracy
from edgefuse.compose.room import artifact_room
from edgefuse.report.room import room_line

NANO = "jetson-nano"


def test_members_are_told_by_what_they_are_for() -> None:
    sizes = {
        "payloads/float/m.onnx": 10,
        "payloads/float/plan.json": 5,
        "payloads/int8/m.onnx": 3,
        "simulation/model.onnx": 2,
        "simulation/int8/1.npy": 1,
        "self_test/0/input_0.npy": 7,
        "README": 4,
        "payloads": 6,
    }
    room = artifact_room({path: {"bytes": size, "sha256": ""} for path, size in sizes.items()})
    assert room == {"payloads": {"float": 15, "int8": 3}, "simulation": 3, "self_test": 7, "other": 10}
    line = room_line(room)
    assert line == "room: payload float 15 B, payload int8 3 B, simulation 3 B, self-test 7 B, other 10 B"
    assert "other" not in room_line({**room, "other": 0})


def test_build_and_inspect_say_the_same(tmp_path: Path) -> None:
    output = tmp_path / "net.efa"
    report = edgefuse.build(conv_net(tmp_path / "net.onnx"), target=NANO, output=output).report
    room = report["room"]
    assert edgefuse.inspect(output)["room"] == room
    assert json.loads(output.with_suffix(".report.json").read_text())["room"] == room
    with open_artifact(output) as artifact:
        sizes = [len(artifact.read(path)) for path in artifact.manifest["files"]]
    assert sum(sizes) == room["payloads"]["float"] + room["simulation"] + room["self_test"] + room["other"]
    assert room["self_test"] > 2 * 3 * 16 * 16 * 4, "two vectors"
    assert report["payloads"][0]["bytes"] <= room["payloads"]["float"] < output.stat().st_size


@pytest.mark.parametrize(("limit", "vectors"), [(10**6, 2), (64, 1)])
def test_a_second_vector_that_would_outweigh_the_model_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, vectors: int
) -> None:
    monkeypatch.setattr(accuracy, "SELF_TEST_BYTES", limit)
    output = tmp_path / "one.efa"
    edgefuse.build(one_node(tmp_path / "one.onnx", "Relu", [1, 64]), target=NANO, output=output)
    with open_artifact(output) as artifact:
        assert len(artifact.manifest["payloads"][0]["self_test"]) == vectors


def test_vectors_that_are_small_beside_the_weights_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "SELF_TEST_BYTES", 0)
    path = one_node(tmp_path / "m.onnx", "MatMul", [1, 64], np.ones((64, 8), np.float32), out=[1, 8])
    edgefuse.build(path, target=NANO, output=tmp_path / "m.efa")
    with open_artifact(tmp_path / "m.efa") as artifact:
        assert len(artifact.manifest["payloads"][0]["self_test"]) == 2
