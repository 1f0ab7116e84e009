"""--prune, --low-rank and --sparsity in a build: judged by the budget, taken or declined, and told."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgefuse
from edgefuse.compose.build import resolve_options
from edgefuse.compose.options import BuildOptions, with_config
from edgefuse.errors import InputError, UsageError

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

SHAPE = (1, 8, 8, 8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with net.onnx, whose second half of channels is nearly nothing, and calib.npz."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((32, 8, 3, 3)).astype(np.float32)
    first[16:] *= 1e-6
    weights = {
        "w1": first,
        "w2": rng.standard_normal((32, 32, 1, 1)).astype(np.float32),
        "w3": rng.standard_normal((32, 64)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "one", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "two"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], "pool"),
        helper.make_node("Flatten", ["d"], ["e"], "flat"),
        helper.make_node("MatMul", ["e", "w3"], ["y"], "head"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 64))
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], held)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "net.onnx",
    )
    np.savez(tmp_path / "calib.npz", x=rng.standard_normal((12, *SHAPE[1:])).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _build(**options: Any) -> dict[str, Any]:
    given = {"target": "jetson-nano", "calib": "calib.npz", "metric": "cosine", "output": "n.efa", **options}
    report: dict[str, Any] = edgefuse.build("net.onnx", **given).report
    return report


def test_a_step_within_the_budget_is_taken_and_every_figure_is_told(folder: Path) -> None:
    report = _build(prune="channels=50%", max_drop=0.5)
    (row,) = report["compression"]
    assert row["declined"] == ""
    assert row["macs"][1] < row["macs"][0]
    assert row["parameters"][1] < row["parameters"][0]
    assert row["predicted_ms"][1] < row["predicted_ms"][0]
    assert row["measured_ms"] == [None, None]
    assert row["drop"][1] <= 0.5
    assert row["fitted_layers"] > 0
    assert "an output of the model" in row["refused"]["head"]
    assert any(n.startswith("channels=50%: ") and n.endswith("; taken") for n in report["notes"])
    whole = _build()
    assert report["payloads"][0]["bytes"] < whole["payloads"][0]["bytes"]
    assert whole["compression"] == []


def test_what_exceeds_the_budget_is_declined_and_the_build_goes_on_whole(folder: Path) -> None:
    report = _build(prune="channels=90%", max_drop=0.0001)
    (row,) = report["compression"]
    assert row["drop"][1] > 0.0001
    assert row["declined"].startswith("it loses ")
    assert "(allowed 0.0001)" in row["declined"]
    assert any("; declined: it loses" in n for n in report["notes"])
    assert report["payloads"][0]["plan_digest"] == _build()["payloads"][0]["plan_digest"]


def test_channels_that_carry_nothing_go_for_free(folder: Path) -> None:
    report = _build(prune="channels=0.01:l1", max_drop=0.0001)
    (row,) = report["compression"]
    assert row["declined"] == ""
    assert row["changed_nodes"] == 1
    assert row["parameters"][1] == row["parameters"][0] - 16 * (8 * 9 + 32) + 32  # and a bias for `two`


def test_steps_follow_each_other_and_each_has_its_row(folder: Path) -> None:
    report = _build(prune="weights=20%,channels=25%", low_rank=0.25, max_drop=1.0, precision="fp32")
    assert [row["request"] for row in report["compression"]] == [
        "channels=25%",
        "low-rank 0.25",
        "weights=20%",
    ]
    taken = [row for row in report["compression"] if not row["declined"]]
    for before, after in pairwise(taken):
        assert after["macs"][0] == before["macs"][1]
    assert any("single zeros save no time" in n for n in report["notes"])


def test_sparsity_is_declined_where_no_kernel_skips_zeros(folder: Path) -> None:
    (row,) = _build(sparsity="2:4", max_drop=1.0)["compression"]
    assert row["declined"] == "jetson-nano skips no zeros (a GPU of compute capability 8.0 does)"
    (row,) = _build(sparsity="2:4", max_drop=1.0, target="jetson-orin-nano")["compression"]
    assert row["declined"] == ""
    assert row["macs"][0] == row["macs"][1]


def test_without_data_nothing_is_fitted_and_the_build_says_so(folder: Path) -> None:
    report = _build(calib=None, prune="channels=50%", max_drop=1.0)
    (row,) = report["compression"]
    assert row["fitted_layers"] == 0
    assert any("nothing was fitted again" in n for n in report["notes"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prune": "channels"}, "cannot be read"),
        ({"prune": "channels=0%"}, "between 0 % and 100 %"),
        ({"prune": "channels=100%"}, "between 0 % and 100 %"),
        ({"prune": "chanels=3%"}, "did you mean 'channels'"),
        ({"prune": "channels=3%:l3"}, "'l3' says nothing more"),
        ({"prune": "weights=3%:l1"}, "'l1' says nothing more"),
        ({"prune": "channels=3%:l1:l2"}, "'l2' says nothing more"),
        ({"low_rank": 1.0}, "share of the rank"),
        ({"low_rank": 0.0}, "share of the rank"),
        ({"sparsity": "1:4"}, "is unknown"),
    ],
)
def test_a_wrong_request_is_a_usage_error_before_any_work(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve_options({"model": "absent.onnx", **options})


def test_the_configuration_file_supplies_them(tmp_path: Path) -> None:
    (tmp_path / "edgefuse.toml").write_text('prune = "channels=30%"\nlow-rank = 0.5\nsparsity = "2:4"\n')
    found = with_config(BuildOptions(), frozenset(), tmp_path)
    assert (found.prune, found.low_rank, found.sparsity) == ("channels=30%", 0.5, "2:4")
    (tmp_path / "edgefuse.toml").write_text('low-rank = "half"\n')
    with pytest.raises(InputError, match="cannot be used"):
        with_config(BuildOptions(), frozenset(), tmp_path)


def test_a_plan_says_that_it_is_of_the_whole_model(folder: Path) -> None:
    from edgefuse.compose.verbs import plan_from_options

    plan, notes = plan_from_options({"model": "net.onnx", "target": "jetson-nano", "prune": "channels=50%"})
    assert any("plan of the whole model" in note for note in notes)
    plain, notes = plan_from_options({"model": "net.onnx", "target": "jetson-nano"})
    assert plan.digest == plain.digest
    assert not any("whole model" in note for note in notes)
