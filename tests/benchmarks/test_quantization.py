"""Quantizers compared on a model of three layers: every row, and every way in which a peer may fail."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import peers, quantization
from benchmarks.peers import PEERS, Peer, Task, read_task, write_task
from benchmarks.quantization import compare, judge
from edgefuse.errors import InputError, UsageError
from edgefuse.graph.reference import judge_session

RNG = np.random.default_rng(5)


def _tiny(path: Path) -> Task:
    """Write Conv, Relu, Conv, mean and Gemm; return its task."""
    weights = {
        "w1": RNG.standard_normal((16, 3, 3, 3)) * 0.3,
        "w2": RNG.standard_normal((16, 16, 3, 3)) * 0.1,
        "w3": RNG.standard_normal((10, 16)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "w3"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        path / "tiny.onnx",
    )
    return Task("tiny", str(path / "tiny.onnx"), {"x": [1, 3, 16, 16]})


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Task, tuple[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    task = _tiny(tmp_path)
    calibration, evaluation = (
        {"x": RNG.standard_normal((count, 3, 16, 16)).astype(np.float32)} for count in (12, 8)
    )
    session = judge_session(task.model)
    reference = {"y": np.concatenate([session.run(None, {"x": row[None]})[0] for row in evaluation["x"]])}
    return task, (calibration, evaluation), reference


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["edgefuse", "onnxruntime", "nncf-best"])
def test_each_quantizer_gives_its_rows(peer: str, tiny: Any, tmp_path: Path) -> None:
    if peer.startswith("nncf") and importlib.util.find_spec("nncf") is None:
        pytest.skip("nncf is not installed (it is one of the dev extras)")
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("openvino is not installed: nothing runs int8 here")
    task, data, reference = tiny
    rows = compare(task, [peer], data, reference, tmp_path / "work", seconds=0.2)
    assert [row["arithmetic"] for row in rows] == list(PEERS[peer].runs)
    for row in rows:
        assert row["error"] == ""
        assert 15.0 < row["scores"]["sqnr_db"] < 80.0
        assert row["build_cpu_s"] > 0.0
        assert 0.9 < row["int8_share"] <= 1.0
    assert rows[0]["race_error"] == ""
    assert rows[0]["race"]["ratio"] > 0.0
    cells = quantization._cells(rows[0])
    assert len(cells) == len(quantization.HEADINGS)
    json.dumps(quantization._plain(rows), allow_nan=False)


@pytest.mark.slow
def test_one_that_cannot_race_costs_the_others_nothing(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="nothing to race against")
    task, data, _ = tiny
    write_task(tmp_path, task, *data)
    (tmp_path / "onnxruntime.onnx").write_bytes(Path(task.model).read_bytes())
    ratios, error = quantization._raced(["onnxruntime", "onnxruntime-7bit"], tmp_path, 0.1, 60.0)
    assert "ended with 1" in error
    assert ratios["onnxruntime"]["ratio"] > 0.0
    assert "onnxruntime-7bit" not in ratios


def test_a_crash_is_told_in_the_row_that_it_cost(tiny: Any, tmp_path: Path) -> None:
    task, data, reference = tiny
    np.savez(tmp_path / "onnxruntime.own-kernels.npz", **reference)
    result = {"errors": {}, "notes": [], "died": "ended with -9: no message", "build_cpu_s": 1.0}
    rows = quantization._rows(task, "onnxruntime", result, data[1], reference, tmp_path)
    assert [row["error"] for row in rows] == ["", "ended with -9: no message"]
    assert rows[0]["scores"]["sqnr_db"] == np.inf


@pytest.mark.slow
def test_a_peer_that_fails_is_a_row_with_its_error(tiny: Any, tmp_path: Path) -> None:
    task, data, reference = tiny
    Path(task.model).write_bytes(b"not a model")
    (row,) = compare(task, ["onnxruntime"], data, reference, tmp_path / "work", seconds=0.2)
    assert "Error" in row["error"]
    assert row["scores"] == {}
    assert quantization._cells(row)[4] == "FAIL"


def test_a_peer_that_hangs_is_stopped(tiny: Any, tmp_path: Path) -> None:
    task, data, reference = tiny
    (row,) = compare(task, ["onnxruntime"], data, reference, tmp_path / "work", seconds=0.2, limit=0.01)
    assert row["error"].startswith("did not end within")


@pytest.mark.slow
def test_a_child_that_crashes_tells_how() -> None:
    assert "ended with 2" in quantization._child(["no-such-verb"], 60.0)


def test_steps_that_worked_stand_beside_the_one_that_failed(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data, reference = tiny
    write_task(tmp_path / "work", task, *data)
    session = judge_session(task.model)

    def fails(folder: Path) -> Any:
        raise ValueError("two\nlines")

    def works(folder: Path) -> Any:
        return lambda feeds: {"y": session.run(None, feeds)[0]}

    half = Peer("file", lambda folder: ["noted"], {"own kernels": fails, "exact": works}, lambda folder: 0.5)
    monkeypatch.setitem(PEERS, "half", half)
    peers._build("half", tmp_path / "work")
    result = json.loads((tmp_path / "work" / "half.result.json").read_text())
    assert result["errors"] == {"own kernels": "ValueError: two lines"}
    rows = quantization._rows(task, "half", result, data[1], reference, tmp_path / "work")
    assert [row["error"] for row in rows] == ["ValueError: two lines", ""]
    assert rows[1]["scores"]["sqnr_db"] == np.inf
    assert rows[1]["int8_share"] == 0.5
    assert rows[1]["notes"] == ["noted"]
    assert quantization._plain(rows)[1]["scores"]["sqnr_db"] is None


def test_outputs_that_lack_one_are_no_score() -> None:
    with pytest.raises(InputError, match="does not answer"):
        judge("ppocr_cls", {"y": np.zeros((2, 2))}, {"z": np.zeros((2, 2))}, {})


def test_tasks_are_kept(tmp_path: Path) -> None:
    task = Task("m", "m.onnx", {"x": [1, 2]}, True)
    write_task(tmp_path / "deep" / "work", task, {"x": np.ones((1, 2))}, {"x": np.ones((1, 2))})
    assert read_task(tmp_path / "deep" / "work") == task


def test_the_int8_share_of_a_model_without_quantizers_is_zero(tiny: Any) -> None:
    task, _, _ = tiny
    assert peers._share_of_onnx(Path(task.model), task.shapes) == 0.0


@pytest.mark.parametrize("arguments", [["resnet"], ["ppocr_cls", "--peers", "nnfc"]])
def test_unknown_names_are_usage_errors(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="not known here"):
        quantization.main(arguments)
