"""`edgefuse build`: what is made, what the report says, what edgefuse.toml supplies."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli, refused
from onnx import TensorProto, helper
from tiny_models import conv_net, one_node, samples, save

import edgefuse
from edgefuse.artifact import open_artifact
from edgefuse.compose.options import BuildOptions
from edgefuse.plans import Plan

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

VNNI = ("--target", "x86-avx512-vnni")
NANO = ("--target", "jetson-nano")


def _report(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_float_for_a_board_that_is_not_here(cli: Cli, work: Path) -> None:
    result = cli("build", "net.onnx", *NANO)
    assert (result.code, result.said) == (0, "")
    assert "net.jetson-nano.efa" in result.out
    assert "not measured" in result.out
    assert "note: no int8 on jetson-nano: this GPU has no INT8 arithmetic" in result.out
    report = _report(work / "net.jetson-nano.report.json")
    assert report["target"] == "jetson-nano@jetpack-4.6"
    assert report["measured_here"] is False
    assert "simulation" in str(report["accuracy_by"])
    assert "seeded random inputs" in str(report["data"])
    assert report["timing"] is None
    assert any(note.startswith("unchecked, for jetson-nano is not here: times") for note in report["notes"])


def test_the_report_says_what_is_estimated_and_what_was_measured(cli: Cli, work: Path, host: str) -> None:
    arguments = ("build", "net.onnx", "--target", "host", "--calib", "calib.npz", "--precision", "int8")
    report = cli(*arguments, "-o", "h.efa", "--json").json
    assert report == _report(work / "h.report.json")
    data = (work / "h.efa").read_bytes()
    assert report["artifact_bytes"] == len(data)
    assert report["artifact_sha256"] == hashlib.sha256(data).hexdigest()
    assert report["measured_here"] is True
    assert report["accuracy_by"] == "the deployed runtime on this machine"
    assert report["data"] == "calib.npz"
    assert "no --eval: accuracy was measured on the calibration data itself" in report["notes"]
    assert not any(note.startswith("unchecked") for note in report["notes"])
    assert report["timing"]["what"].startswith("median process CPU time, payloads interleaved")
    assert report["timing"]["threads"] == 1
    assert report["timing"]["rounds"] >= 1
    assert [p["id"] for p in report["payloads"]] == ["int8", "float"]
    for payload in report["payloads"]:
        assert payload["predicted_by"].startswith("estimate: ")
        assert payload["predicted_ms"] > 0
        assert payload["measured_ms"] > 0
        assert 0 <= payload["plan_honoured"] <= 1
        assert payload["accuracy"]["metric"] == "agreement"
        assert payload["accuracy"]["samples"] == 16
        assert payload["solver"]["status"] == "optimal"
    int8 = report["payloads"][0]
    assert int8["int8_groups"] > 0
    assert int8["accuracy"]["drop"] <= report["max_drop"] == 0.01
    assert int8["time_over_float"]["value"] > 0


def test_int8_for_a_device_that_is_not_here_is_judged_in_simulation(cli: Cli, work: Path) -> None:
    report = cli("build", "net.onnx", *VNNI, "--calib", "calib.npz", "--json").json
    assert "exact simulation" in report["accuracy_by"]
    assert sorted(p["id"] for p in report["payloads"]) == ["float", "int8"]
    for payload in report["payloads"]:
        assert payload["measured_ms"] is None
        assert payload["plan_honoured"] is None
        assert "not_honoured" not in payload
    int8 = next(p for p in report["payloads"] if p["id"] == "int8")
    assert 0 < int8["accuracy"]["max_relative_error"] < 0.05
    text = cli("build", "net.onnx", *VNNI, "--calib", "calib.npz").out
    assert "unchecked" in text
    assert "not measured" in text
    assert "by exact simulation of the target's arithmetic" in text


def test_equal_outputs_have_no_snr_and_the_report_stays_valid(cli: Cli, work: Path) -> None:
    arguments = ("build", "net.onnx", *NANO, "--calib", "calib.npz", "--metric", "snr")
    result = cli(*arguments, "--json")
    accuracy = result.json["payloads"][0]["accuracy"]
    assert "Infinity" not in result.out
    assert (accuracy["metric"], accuracy["value"], accuracy["drop"]) == ("snr", None, 0.0)
    assert "accuracy: snr no finite number on 16 samples" in cli(*arguments).out


def test_images_labels_and_preprocessing_travel_with_the_artifact(cli: Cli, work: Path) -> None:
    more = ("--preprocess", "preprocess.toml", "--labels", "labels.txt")
    assert cli("build", "net.onnx", *VNNI, "--calib", "images", *more, "-o", "o.efa").code == 0
    manifest = cli("inspect", "o.efa", "--json").json["manifest"]
    assert manifest["labels"] == ["ant", "bee", "cat", "dog", "eel"]
    assert set(manifest["preprocess"]["mean"]) == {127.5}
    assert manifest["decoder"] == {"kind": "classify"}
    assert manifest["inputs"][0]["layout"] == "NCHW"


@pytest.mark.parametrize(
    "target", ["x86-avx512-vnni", "jetson-orin-nano", pytest.param("host", marks=pytest.mark.slow)]
)
def test_two_builds_are_byte_identical(
    cli: Cli, work: Path, target: str, request: pytest.FixtureRequest
) -> None:
    if target == "host":
        request.getfixturevalue("host")
    shutil.copytree(work, work / "elsewhere" / "deep")
    for folder in (work, work / "elsewhere" / "deep"):
        edgefuse.build(
            folder / "net.onnx",
            target=target,
            calib=folder / "calib.npz",
            precision="int8" if target != "jetson-orin-nano" else "fp16",
            output=folder / "o.efa",
        )
    assert (work / "o.efa").read_bytes() == (work / "elsewhere" / "deep" / "o.efa").read_bytes()


def test_an_artifact_holds_no_path_and_no_measured_time(work: Path, host_artifact: Path, stock: Path) -> None:
    with open_artifact(host_artifact) as artifact:
        texts = [json.dumps(artifact.manifest)]
        texts += [
            artifact.read(name).decode()
            for name in artifact.manifest["files"]
            if name.endswith((".json", ".xml"))
        ]
    for text in texts:
        assert str(stock) not in text
        assert "measured" not in text
    assert len(texts) > 3


def test_the_plan_in_the_artifact_is_the_one_of_the_result(work: Path) -> None:
    result = edgefuse.build("net.onnx", target="x86-avx512-vnni", calib="calib.npz", precision="int8")
    assert result.artifact == Path("net.x86-avx512-vnni.efa")
    with open_artifact(result.artifact) as artifact:
        first = artifact.manifest["payloads"][0]
        plan = Plan.from_json(artifact.read("payloads/int8/plan.json"))
    assert (first["id"], first["plan_digest"]) == ("int8", result.plan.digest)
    assert plan == result.plan
    assert result.report["payloads"][0]["plan_digest"] == plan.digest


def test_the_function_and_the_verb_build_and_report_the_same(cli: Cli, work: Path) -> None:
    verb = cli("build", "net.onnx", *VNNI, "--calib", "calib.npz", "-o", "a.efa", "--json").json
    result = edgefuse.build("net.onnx", target="x86-avx512-vnni", calib="calib.npz", output=Path("b.efa"))
    assert Path("a.efa").read_bytes() == Path("b.efa").read_bytes()
    function = json.loads(json.dumps(result.report))
    for key in ("artifact", "build_seconds"):
        del verb[key], function[key]
    assert verb == function


def test_a_drop_over_the_budget_is_planned_again_until_float_is_left(cli: Cli, work: Path) -> None:
    arguments = ("build", "net.onnx", *VNNI, "--calib", "calib.npz", "--precision", "int8")
    result = cli(*arguments, "--metric", "snr", "--max-drop", "1e-9", "--json")
    assert result.code == 0
    report = result.json
    assert [p["id"] for p in report["payloads"]] == ["float"]
    again = [note for note in report["notes"] if "planned again with less" in note]
    assert again
    assert "of snr (allowed 1e-09)" in again[0]
    assert any(note.startswith("no int8: ") for note in report["notes"])


def test_a_budget_in_between_keeps_the_part_of_int8_that_fits(cli: Cli, work: Path) -> None:
    arguments = ("build", "net.onnx", *VNNI, "--calib", "calib.npz", "--precision", "int8", "--json")
    arguments = (*arguments, "--metric", "snr", "--max-drop")
    whole = cli(*arguments, "1").json["payloads"][0]
    assert whole["id"] == "int8"
    drop = whole["accuracy"]["drop"]
    part = cli(*arguments, str(0.9 * drop)).json
    assert any("planned again with less" in note for note in part["notes"])
    first = part["payloads"][0]
    assert first["accuracy"]["drop"] <= 0.9 * drop
    assert first["int8_groups"] < whole["int8_groups"]


def test_auto_without_data_plans_no_int8_and_says_so(cli: Cli, work: Path) -> None:
    report = cli("build", "net.onnx", *VNNI, "--json").json
    assert "no --calib: no int8" in report["notes"]
    assert [p["id"] for p in report["payloads"]] == ["float"]


def test_auto_ships_int8_here_only_with_a_note_or_first(cli: Cli, work: Path, host: str) -> None:
    report = cli("build", "net.onnx", "--target", "host", "--calib", "calib.npz", "--json").json
    ids = [p["id"] for p in report["payloads"]]
    if ids == ["int8", "float"]:
        assert report["payloads"][0]["time_over_float"]["value"] <= 0.98
    else:
        assert ids == ["float"]
        assert any(note.startswith("int8 is not shipped: it took") for note in report["notes"])


def test_planned_int8_that_runs_in_float_is_an_error(
    cli: Cli, work: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime is given the float payload in place of the int8 one; its readback must say so."""
    from edgefuse.compose import payloads

    opened = payloads.open_built

    def float_instead(built: payloads.Built, prepared: object, *rest: object, **named: object) -> object:
        if built.id == "int8":
            plan = payloads.Plan(model="", target="", requested="fp32", groups=())
            built = payloads.lower_payload("float", prepared, plan, payloads.Quantized())  # type: ignore[arg-type]
        return opened(built, prepared, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(payloads, "open_built", float_instead)
    arguments = ("build", "net.onnx", "--target", "host", "--calib", "calib.npz", "--precision", "int8")
    refused(cli(*arguments), 1, "planned in int8 ran in float", "expected: an int8 kernel")
    assert not list(work.glob("*.efa"))


def test_edgefuse_toml_supplies_what_is_left_out(cli: Cli, work: Path) -> None:
    (work / "data").mkdir()
    shutil.move(work / "calib.npz", work / "data" / "calib.npz")
    (work / "edgefuse.toml").write_text(
        'model = "net.onnx"\ntarget = "x86-avx512-vnni"\ncalib = "data/calib.npz"\nmetric = "cosine"\n'
        'max-drop = 0.25\nprecision = "int8"\noutput = "from toml.efa"\nname = "reader"\n'
    )
    report = cli("build", "--json").json
    assert report["artifact"] == "from toml.efa"
    assert report["target"].startswith("x86-avx512-vnni@")
    assert (report["precision"], report["max_drop"]) == ("int8", 0.25)
    assert report["payloads"][0]["accuracy"]["metric"] == "cosine"
    assert cli("inspect", "from toml.efa", "--json").json["manifest"]["name"] == "reader"
    over = cli(
        "build", *NANO, "--precision", "fp32", "--metric", "snr", "--max-drop", "0.5", "-o", "n.efa", "--json"
    )
    assert over.json["target"].startswith("jetson-nano@")
    assert (over.json["precision"], over.json["max_drop"]) == ("fp32", 0.5)
    assert over.json["payloads"][0]["accuracy"]["metric"] == "snr"
    assert (work / "n.report.json").is_file()
    plan = cli("plan", "--json").json
    assert plan["target"].startswith("x86-avx512-vnni@")
    assert "int8" in {group["precision"] for group in plan["groups"]}


def test_a_bare_target_is_a_whole_command(cli: Cli, work: Path) -> None:
    (work / "edgefuse.toml").write_text('model = "net.onnx"\n')
    assert cli("build", *NANO).code == 0
    assert (work / "net.jetson-nano.efa").is_file()


def test_every_option_of_the_function_can_stand_in_the_file() -> None:
    from dataclasses import fields

    from edgefuse.compose.options import _KEYS

    assert {field.name for field in fields(BuildOptions)} == set(_KEYS)


def test_an_open_batch_is_fixed_by_shape_and_stays_open_without(cli: Cli, work: Path) -> None:
    conv_net(work / "open.onnx", batch="N")
    cli("build", "open.onnx", *VNNI, "-o", "open.efa")
    cli("build", "open.onnx", *VNNI, "--shape", "x=2x3x16x16", "-o", "two.efa")
    shapes = {
        name: cli("inspect", name, "--json").json["manifest"]["inputs"][0]["shape"]
        for name in ("open.efa", "two.efa")
    }
    assert shapes == {"open.efa": ["N", 3, 16, 16], "two.efa": [2, 3, 16, 16]}


def test_two_open_sizes_stay_two(cli: Cli, work: Path, host: str) -> None:
    """A manifest takes fewer letters in a symbol than ONNX: "a#b" and "a$b" must not become one size."""
    node = helper.make_node("Concat", ["x", "z"], ["y"], "join", axis=0)
    x, z, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 6])
        for name, size in (("x", "a#b"), ("z", "a$b"), ("y", "c"))
    )
    save(helper.make_graph([node], "g", [x, z], [y]), work / "two.onnx")
    assert cli("build", "two.onnx", "--target", "host", "-o", "two.efa").code == 0
    np.savez("in2.npz", x=np.ones((1, 6), np.float32), z=np.ones((2, 6), np.float32))
    result = cli("run", "two.efa", "--input", "in2.npz", "--output", "o.npz", "--json")
    assert result.json["arrays"]["y"]["shape"] == [3, 6]


def test_no_drop_is_plain_zero(cli: Cli, work: Path) -> None:
    arguments = ("build", "net.onnx", *VNNI, "--metric", "worst-group")
    row = next(line for line in cli(*arguments).out.splitlines() if line.startswith("float"))
    assert "-0" not in row.split()
    assert "-0.0" not in cli(*arguments, "--json").out


def test_a_runtime_that_fails_on_a_sample_is_named(
    cli: Cli, work: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgefuse.compose import accuracy

    opened = accuracy.open_built

    def breaking(*arguments: Any, **named: Any) -> Any:
        engine = opened(*arguments, **named)

        def run(feeds: object) -> object:
            raise RuntimeError("[CPU] Eltwise node: shapes do not match\n at /src/eltwise.cpp")

        engine.run = run  # type: ignore[method-assign, assignment]
        return engine

    monkeypatch.setattr(accuracy, "open_built", breaking)
    result = cli("build", "net.onnx", "--target", "host", "-o", "o.efa")
    refused(
        result,
        1,
        "fails on a sample that the model takes: [CPU] Eltwise node: shapes do not match",
        "x [1, 3",
    )
    assert not (work / "o.efa").exists()


def test_a_sample_on_which_the_model_does_not_run(cli: Cli, work: Path) -> None:
    one_node(work / "shape.onnx", "Reshape", ["N", 6], np.array([-1, 4]), out=["a", "b"])
    np.savez("six.npz", x=np.ones((4, 6), np.float32))
    result = cli("build", "shape.onnx", *VNNI, "--calib", "six.npz")
    refused(result, 1, "the float model cannot run on a sample", "cannot be reshaped", "x [1, 6]", "--shape")
    assert "onnxruntime_src" not in result.err


def test_an_evaluation_set_of_its_own(cli: Cli, work: Path) -> None:
    labels = np.arange(8) % 5
    np.savez(work / "eval.npz", x=samples(8, seed=9), labels=labels)
    arguments = ("build", "net.onnx", *VNNI, "--calib", "calib.npz", "--eval", "eval.npz", "--metric", "top1")
    report = cli(*arguments, "--max-drop", "1", "--json").json
    assert report["data"] == "eval.npz"
    assert report["payloads"][0]["accuracy"]["samples"] == 8
    assert not any("calibration data itself" in note for note in report["notes"])


def test_an_old_artifact_is_replaced_and_a_link_is_followed(cli: Cli, work: Path) -> None:
    (work / "store").mkdir()
    (work / "o.efa").symlink_to("store/real.efa")
    assert cli("build", "net.onnx", *NANO, "-o", "o.efa").code == 0
    first = (work / "store" / "real.efa").read_bytes()
    conv_net(work / "other.onnx", seed=3)
    assert cli("build", "other.onnx", *NANO, "-o", "o.efa").code == 0
    assert (work / "o.efa").is_symlink()
    assert (work / "store" / "real.efa").read_bytes() != first
    assert sorted(p.name for p in (work / "store").iterdir()) == ["real.efa"]


def test_threads_are_carried_into_the_payloads(cli: Cli, work: Path) -> None:
    cli("build", "net.onnx", *VNNI, "--threads", "2", "-o", "t.efa")
    cli("build", "net.onnx", *VNNI, "-o", "n.efa")
    options = {
        name: cli("inspect", name, "--json").json["manifest"]["payloads"][0]["options"].get("threads")
        for name in ("t.efa", "n.efa")
    }
    assert options == {"t.efa": 2, "n.efa": None}


def test_a_float_payload_that_is_not_the_model_is_refused(
    cli: Cli, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that changes what a model computes must not reach an artifact: data shows it, and it is said."""
    from edgefuse.compose import accuracy

    made = accuracy.session_call
    calls: list[object] = []

    def second_is_wrong(model: object) -> object:
        calls.append(model)
        call = made(model)  # type: ignore[arg-type]
        if len(calls) == 1:
            return call
        return lambda feeds: {name: -array for name, array in call(feeds).items()}

    monkeypatch.setattr(accuracy, "session_call", second_is_wrong)
    arguments = ("build", "net.onnx", *NANO, "-o", "o.efa")
    refused(cli(*arguments, "--calib", "calib.npz"), 1, "the float payload loses", "at most 0.01")
    assert not (work / "o.efa").exists()
