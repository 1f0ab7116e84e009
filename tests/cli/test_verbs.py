"""plan, inspect, targets, run, verify, bench: results, JSON, exit codes, functions of the same names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli, refused, refused_as_json
from onnx import TensorProto
from tiny_models import conv_net, one_node, samples

import edgefuse

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

VNNI = ("--target", "x86-avx512-vnni")
FAST = ("--seconds", "0.05")


def test_plan_as_json_has_the_documented_keys(cli: Cli, work: Path) -> None:
    found = cli("plan", "net.onnx", *VNNI, "--calib", "calib.npz", "--precision", "int8", "--json").json
    assert {"groups", "gap", "status", "target", "predicted_ms", "digest", "notes", "rejected"} <= set(found)
    assert found["status"] == "optimal"
    assert found["gap"] <= 1e-4
    for group in found["groups"]:
        assert {"id", "nodes", "sources", "rule", "variant", "precision", "cost", "loss", "reason"} <= set(
            group
        )
        assert group["precision"] in ("fp32", "fp16", "int8")
        assert {term["provenance"] for term in group["cost"]} <= {"estimate", "fitted", "measured"}
        assert all(term["source"] for term in group["cost"])
    named = [name for group in found["groups"] for name in group["sources"]]
    assert sorted(named) == ["conv1", "conv2", "flat", "head", "pool", "relu1", "relu2"]


def test_plan_and_the_function_agree(cli: Cli, work: Path) -> None:
    plan = edgefuse.plan("net.onnx", target="x86-avx512-vnni", calib="calib.npz")
    assert cli("plan", "net.onnx", *VNNI, "--calib", "calib.npz", "--json").json["digest"] == plan.digest
    again = edgefuse.plan(work / "net.onnx", target="x86-avx512-vnni", calib=work / "calib.npz")
    assert again.digest == plan.digest


def test_plan_writes_no_file(cli: Cli, work: Path) -> None:
    before = sorted(work.iterdir())
    result = cli("plan", "net.onnx", *VNNI)
    assert result.code == 0
    assert "Conv + Relu" in result.out
    assert "(estimate)" in result.out
    assert "note: no --calib: no int8" in result.out
    assert sorted(work.iterdir()) == before


def test_plan_explains_a_node(cli: Cli, work: Path) -> None:
    text = cli("plan", "net.onnx", *VNNI, "--explain", "relu1").out
    assert text.startswith("relu1: group g000, Conv + Relu")
    assert "why: " in text
    assert "(estimate)" in text
    found = cli("plan", "net.onnx", *VNNI, "--explain", "relu1", "--json").json
    assert found["group"]["sources"] == ["conv1", "relu1"]
    refused(cli("plan", "net.onnx", *VNNI, "--explain", "conv7"), 1, "no node 'conv7', did you mean 'conv")


def test_targets_as_json(cli: Cli) -> None:
    rows = cli("targets", "--json").json["targets"]
    assert rows == edgefuse.targets()
    for row in rows:
        assert {"name", "family", "precisions", "usable", "buildable", "runtime", "why"} <= set(row)
        assert row["usable"] or row["why"], f"{row['name']}: not usable, and no reason"
        assert "fp32" in row["precisions"]
    by_name = {row["name"]: row for row in rows}
    assert len(by_name) == len(rows) >= 19
    assert by_name["jetson-nano"]["precisions"] == ["fp32", "fp16"]
    assert by_name["jetson-nano"]["int8"] == "none"
    assert by_name["jetson-nano"]["buildable"]
    assert not by_name["kunlun-k200"]["buildable"]
    assert sum(row["host"] for row in rows) <= 1


def test_targets_lists_and_describes(cli: Cli) -> None:
    text = cli("targets").out
    assert "jetson-nano" in text
    assert "x86-avx512-vnni" in text
    one = cli("targets", "jetson-nano")
    assert "no int8: this GPU has no INT8 arithmetic" in one.out
    assert "published" in one.out or "recalled" in one.out
    found = cli("targets", "jetson-nano", "--json").json
    assert found["device"]["name"] == "jetson-nano"
    assert "jetpack-4.6" in found["runtimes"]
    refused(cli("targets", "jetson-nono"), 2, "did you mean 'jetson-nano'?")


def test_inspect_a_model(cli: Cli, work: Path) -> None:
    found = cli("inspect", "net.onnx", "--target", "jetson-nano", "--json").json
    assert found == json.loads(json.dumps(edgefuse.inspect("net.onnx", target="jetson-nano")))
    assert (found["kind"], found["nodes"]) == ("model", 7)
    assert found["parameters"] == 16 * 3 * 9 + 16 * 16 * 9 + 5 * 16
    assert abs(sum(row["flops_share"] for row in found["operators"]) - 1) < 1e-9
    assert found["operators"][0]["operator"] == "Conv"
    assert found["memory"]["lower_bound_bytes"] <= found["memory"]["peak_bytes"]
    text = cli("inspect", "net.onnx", "--target", "jetson-nano").out
    assert "on jetson-nano@jetpack-4.6" in text
    assert "(estimate)" in text


def test_inspect_an_artifact_whatever_its_name(cli: Cli, work: Path, vnni_artifact: Path) -> None:
    shutil.copy(vnni_artifact, work / "renamed.bin")
    found = cli("inspect", "renamed.bin", "--json").json
    assert found["kind"] == "artifact"
    assert found["manifest"]["target"]["device"] == "x86-avx512-vnni"
    text = cli("inspect", vnni_artifact).out
    assert "every file has its sha256" in text
    assert "agreement drop 0 on 16" in text
    refused(cli("inspect", vnni_artifact, *VNNI), 2, "are for a model")
    refused(cli("inspect", vnni_artifact, "--shape", "x=1"), 2, "are for a model")


def _damaged(name: str, whole: Path, folder: Path) -> Path:
    data = bytearray(whole.read_bytes())
    path = folder / f"{name}.efa"
    if name == "folder":
        path.mkdir()
    elif name == "altered":
        data[data.index(b"payloads/") + 2000] ^= 1
        path.write_bytes(data)
    elif name != "missing":
        content = {"cut": data[: len(data) // 2], "longer": data + b"x", "empty": b"", "text": b"hello\n"}
        path.write_bytes(content[name])
    return path


DAMAGES = {
    "missing": "No such file",
    "folder": "not a plain file",
    "cut": "cut short",
    "longer": "appended",
    "empty": "the file is empty",
    "text": "not an edgefuse artifact",
    "altered": "altered",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_artifact_is_refused_by_every_verb(
    cli: Cli, work: Path, nano_artifact: Path, damage: str
) -> None:
    path = _damaged(damage, nano_artifact, work)
    for verb, *more in (
        ("inspect",),
        ("verify",),
        ("bench", *FAST),
        ("run", "--input", "in.npz", "--output", "o.npz"),
    ):
        refused(cli(verb, path, *more), 1, DAMAGES[damage])
        kind = "input" if damage in ("missing", "folder") else "artifact"
        refused_as_json(cli(verb, path, *more, "--json"), 1, kind)
    assert not (work / "o.npz").exists()


@pytest.mark.parametrize("verb", ["run", "verify", "bench"])
def test_an_artifact_for_other_hardware_ends_with_3(
    cli: Cli, work: Path, nano_artifact: Path, verb: str
) -> None:
    import platform

    if platform.machine() == "aarch64":
        pytest.skip("this machine may be the board itself")
    more = ("--input", "in.npz", "--output", "o.npz") if verb == "run" else ()
    refused(cli(verb, nano_artifact, *more), 3, "built for other hardware: jetson-nano", "aarch64")
    refused_as_json(cli(verb, nano_artifact, *more, "--json"), 3, "device")


def test_run_writes_what_the_function_returns(cli: Cli, work: Path, host_artifact: Path) -> None:
    result = cli("run", host_artifact, "--input", "in.npz", "--output", "o.npz", "--threads", "1", "--json")
    assert result.json == {"output": "o.npz", "arrays": {"y": {"shape": [1, 5], "dtype": "float32"}}}
    with np.load("o.npz") as file:
        written = dict(file)
    outputs = edgefuse.run(host_artifact, "in.npz", threads=1)
    assert list(written) == list(outputs) == ["y"]
    np.testing.assert_array_equal(written["y"], outputs["y"])
    assert cli("run", host_artifact, "--input", "in.npz", "--output", "o.npz").out == (
        "y  float32 [1, 5]  -> o.npz\n"
    )


INPUTS = {
    "two": "axis 0 is 2, not 1",
    "named": "no input 'z'",
    "double": "wrong dtype",
    "more": "no input 'extra'",
    "none": "leaves out an input",
}


@pytest.mark.parametrize("name", INPUTS)
def test_run_refuses_other_arrays(cli: Cli, work: Path, host_artifact: Path, name: str) -> None:
    x = samples(1)
    arrays = {
        "two": {"x": samples(2)},
        "named": {"z": x},
        "double": {"x": x.astype(np.float64)},
        "more": {"x": x, "extra": x},
        "none": {},
    }[name]
    np.savez("given.npz", **arrays)  # type: ignore[arg-type]
    refused(cli("run", host_artifact, "--input", "given.npz", "--output", "o.npz"), 1, INPUTS[name])
    assert not Path("o.npz").exists()


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ("net.onnx", "is not a .npz: it is not overwritten"),
        ("in.npz", "is also --input"),
        ("here.efa", "not overwritten"),
        ("images", "is a folder"),
        ("no/o.npz", "mkdir -p no"),
        ("/dev/full", "not a plain file"),
    ],
)
def test_run_overwrites_nothing_but_arrays(
    cli: Cli, work: Path, host_artifact: Path, output: str, word: str
) -> None:
    shutil.copy(host_artifact, "here.efa")
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    refused(cli("run", "here.efa", "--input", "in.npz", "--output", output), 1, word)
    assert {path: path.read_bytes() for path in work.rglob("*") if path.is_file()} == before


def test_run_keeps_the_old_arrays_where_the_disk_is_full(
    cli: Cli, work: Path, host_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez("o.npz", y=np.zeros(3))
    before = Path("o.npz").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(cli("run", host_artifact, "--input", "in.npz", "--output", "o.npz"), 1, "No space left")
    assert Path("o.npz").read_bytes() == before
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


def test_run_writes_outputs_that_have_the_names_of_numpys_arguments(cli: Cli, work: Path, host: str) -> None:
    one_node(work / "file.onnx", "Neg", [2], output="file")
    assert cli("build", "file.onnx", "--target", "host", "-o", "f.efa").code == 0
    np.savez("two.npz", x=np.float32([1, -2]))
    assert cli("run", "f.efa", "--input", "two.npz", "--output", "o.npz").code == 0
    with np.load("o.npz") as found:
        np.testing.assert_array_equal(found["file"], np.float32([-1, 2]))


def test_run_simulates_a_device_that_is_not_here(cli: Cli, work: Path, vnni_artifact: Path) -> None:
    assert cli("run", vnni_artifact, "--input", "in.npz", "--output", "o.npz", "--simulate").code == 0
    with edgefuse.load(vnni_artifact, simulate=True) as model, np.load("in.npz") as given:
        wanted = model(dict(given))
    with np.load("o.npz") as found:
        assert sorted(found) == sorted(wanted)
        for name in found:
            np.testing.assert_array_equal(found[name], wanted[name])


def test_an_artifact_for_this_machine_can_be_simulated_too(cli: Cli, work: Path, host_artifact: Path) -> None:
    result = cli("run", host_artifact, "--input", "in.npz", "--output", "o.npz", "--simulate")
    assert result.code == 0, result
    with np.load(work / "o.npz") as found:
        assert found["y"].dtype == np.float32


def test_verify_prints_three_levels_and_bisect_the_region(cli: Cli, work: Path, host_artifact: Path) -> None:
    found = cli("verify", host_artifact, "--model", "net.onnx", "--data", "calib.npz")
    assert found.code == 0, found
    assert "regions: " in found.out
    assert "stress: NaN policy" in found.out
    for level in (1, 2, 3):
        assert f"level {level}: passed" in found.out
    searched = cli("verify", host_artifact, "--bisect", "--data", "calib.npz", "--model", "net.onnx")
    assert searched.code == 0, searched
    assert "no output is below 20 dB" in searched.out
    assert "level" not in searched.out
    refused(
        cli("verify", host_artifact, "--bisect", "--max-drop", "0.1", "--model", "net.onnx"), 2, "--bisect"
    )


def test_verify_passes_and_the_function_says_the_same(cli: Cli, work: Path, host_artifact: Path) -> None:
    alone = cli("verify", host_artifact)
    assert alone.code == 0
    assert "level 2: not run: no --model" in alone.out
    assert alone.out.endswith("ok\n")
    arguments = ("verify", host_artifact, "--model", "net.onnx", "--data", "calib.npz", "--threads", "1")
    found = cli(*arguments, "--json").json
    assert (found["ok"], found["levels"]["2"], found["metric"], found["samples"]) == (
        True,
        "passed",
        "agreement",
        16,
    )
    assert found["data"] == "calib.npz"
    same = edgefuse.verify(host_artifact, model="net.onnx", data="calib.npz", threads=1)
    assert (same["ok"], same["drop"], same["value"]) == (found["ok"], found["drop"], found["value"])
    assert "seeded random inputs" in cli("verify", host_artifact, "--model", "net.onnx").out


def test_verify_fails_with_1_where_the_drop_is_over_the_budget(
    cli: Cli, work: Path, host_artifact: Path
) -> None:
    arguments = (
        "verify",
        host_artifact,
        "--model",
        "net.onnx",
        "--metric",
        "worst-group",
        "--max-drop",
        "1e-9",
    )
    result = cli(*arguments)
    assert (result.code, result.said) == (1, "")
    assert result.out.endswith("FAILED\n")
    as_json = cli(*arguments, "--json")
    assert as_json.code == 1
    assert (as_json.json["ok"], as_json.json["levels"]["2"]) == (False, "failed")


def test_verify_refuses_another_model_and_options_without_one(
    cli: Cli, work: Path, host_artifact: Path
) -> None:
    conv_net(work / "other.onnx", seed=8)
    refused(cli("verify", host_artifact, "--model", "other.onnx"), 1, "is not the model that the artifact")
    refused(cli("verify", host_artifact, "--model", "gone.onnx"), 1, "No such file")
    for option, value in (("--data", "calib.npz"), ("--metric", "top1"), ("--max-drop", "0.1")):
        refused(cli("verify", host_artifact, option, value), 2, f"{option} needs --model")
    model = ("--model", "net.onnx")
    refused(cli("verify", host_artifact, *model, "--metric", "top2"), 2, "did you mean 'top1'?")
    refused(cli("verify", host_artifact, *model, "--max-drop", "nan"), 2, "--max-drop")
    refused(cli("verify", host_artifact, *model, "--data", "gone"), 1, "there is no data at gone")


@pytest.mark.slow
def test_bench_measures_and_gates(cli: Cli, work: Path, host_artifact: Path) -> None:
    good = cli(
        "bench", host_artifact, *FAST, "--threads", "1", "--gate", "p90<=10s", "--gate", "load<60s", "--json"
    )
    assert good.code == 0
    report = good.json
    assert report["threads"] == 1
    assert report["payload"] == "int8"
    assert [row["ok"] for row in report["gates"]] == [True, True]
    latency = report["latency"]
    assert 0 < latency["p50_ms"] <= latency["p90_ms"] <= latency["p99_ms"]
    assert latency["cpu_p50_ms"] > 0
    assert report["load_ms"] > 0
    assert report["first_ms"] > 0
    bad = cli("bench", host_artifact, *FAST, "--gate", "p90<=10s", "--gate", "p50<=0.001us")
    assert (bad.code, bad.said) == (1, "")
    assert "gate p90<=10s: passed" in bad.out
    assert bad.out.count("p50<=0.001us: FAILED") == 1
    other = cli("bench", host_artifact, *FAST, "--payload", "float", "--json").json
    assert (other["payload"], other["precision"]) == ("float", "fp32")
    assert set(edgefuse.bench(host_artifact, seconds=0.05)) == set(report)


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("--gate", "p91<=1ms"), "did you mean 'p99'?"),
        (("--gate", "p90<=1"), "needs a unit"),
        (("--gate", "quick"), "cannot be understood"),
        (("--gate", "p90<=1ms", "--gate", ""), "cannot be understood"),
        (("--seconds", "0"), "--seconds"),
        (("--seconds", "nan"), "--seconds"),
        (("--threads", "0"), "--threads"),
    ],
)
def test_bench_refuses_before_it_measures(
    cli: Cli, work: Path, nano_artifact: Path, words: tuple[str, ...], word: str
) -> None:
    # For another machine: were the artifact opened first, the exit code would be 3.
    refused(cli("bench", nano_artifact, *words), 2, word)


def test_bench_of_a_payload_that_is_not_there(cli: Cli, work: Path, host_artifact: Path) -> None:
    refused(cli("bench", host_artifact, "--payload", "int4"), 1, "no payload 'int4', did you mean 'int8'?")


def test_a_model_of_whole_numbers_goes_the_whole_way(cli: Cli, work: Path, host: str) -> None:
    one_node(work / "abs.onnx", "Abs", ["N", 4], element=TensorProto.INT32)
    assert cli("build", "abs.onnx", "--target", "host", "-o", "abs.efa").code == 0
    np.savez("four.npz", x=np.int32([[1, -2, 3, -4]]))
    assert cli("run", "abs.efa", "--input", "four.npz", "--output", "o.npz").code == 0
    with np.load("o.npz") as found:
        assert (found["y"].dtype, found["y"].tolist()) == (np.int32, [[1, 2, 3, 4]])
    assert cli("verify", "abs.efa", "--model", "abs.onnx").code == 0
