"""Bad input gets one clear line and loses nothing: whole calls of the command line, an artifact beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli, refused, refused_as_json
from onnx import TensorProto, helper, numpy_helper
from tiny_models import conv_net, one_node, samples, save

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

VNNI = ("--target", "x86-avx512-vnni")
NANO = ("--target", "jetson-nano")


@pytest.fixture
def old(work: Path, nano_artifact: Path) -> Path:
    """Return out.efa, which is there with its report: a failing build must leave both as they are."""
    shutil.copy(nano_artifact, work / "out.efa")
    shutil.copy(nano_artifact.with_name("nano.report.json"), work / "out.report.json")
    return work / "out.efa"


def _state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _break(model: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    proto = onnx.load(model)
    change(proto)
    onnx.save(proto, model)


def _nan_weight(proto: onnx.ModelProto) -> None:
    array = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    array.flat[3] = np.nan
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, proto.graph.initializer[0].name))


def _model(name: str, folder: Path) -> Path:
    """Write the broken model `name` and return its path."""
    path = folder / f"{name}.onnx"
    whole = (folder / "net.onnx").read_bytes()
    if name == "folder":
        path.mkdir()
    elif name == "zero_size":
        one_node(path, "Relu", [0, 4])
    elif name == "no_rank":
        one_node(path, "Relu", None, out=[1])
    elif name == "huge":
        one_node(path, "Relu", [10**12, 4])
    elif name == "text_input":
        one_node(path, "StringNormalizer", [4], element=TensorProto.STRING)
    elif name == "bfloat16":
        one_node(path, "Relu", [1, 4], element=TensorProto.BFLOAT16)
    elif name == "contradiction":
        one_node(path, "MatMul", [1, 4], np.ones((5, 3), np.float32), out=[1, 3])
    elif name == "unknown_operator":
        one_node(path, "Frobnicate", [1, 4])
    elif name == "no_inputs":
        node = helper.make_node("Constant", [], ["y"], "c", value=numpy_helper.from_array(np.ones(3, "f4")))
        save(helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, [3])]), path)
    elif name == "nan":
        path.write_bytes(whole)
        _break(path, _nan_weight)
    elif name == "old_opset":
        path.write_bytes(whole)
        _break(path, lambda proto: setattr(proto.opset_import[0], "version", 3))
    elif name != "missing":
        content = {"text": b"hello world\n", "empty": b"", "cut": whole[: len(whole) // 2]}
        path.write_bytes({**content, "image": b"\x89PNG\r\n\x1a\n" + bytes(40)}[name])
    return path


MODELS = {
    "missing": "No such file",
    "folder": "Is a directory",
    "text": "is not an ONNX file, or it is cut short (12 bytes)",
    "empty": "an empty file",
    "cut": "cut short",
    "image": "a PNG image",
    "nan": "'w1' holds NaN (first at index [0, 0, 1, 0])",
    "old_opset": "operator set",
    "zero_size": "input 'x' holds no element",
    "no_rank": "input 'x' has no shape",
    "no_inputs": "has no inputs",
    "huge": "larger than the memory of this machine",
    "text_input": "text",
    "bfloat16": "bfloat16",
    "contradiction": "Incompatible dimensions",
    "unknown_operator": "Frobnicate",
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_built(cli: Cli, work: Path, old: Path, name: str) -> None:
    model = _model(name, work)
    before = _state(work)
    refused(cli("build", model.name, *VNNI, "-o", old.name), 1, MODELS[name])
    refused_as_json(
        cli("build", model.name, *VNNI, "-o", old.name, "--json"),
        1,
        "unsupported" if name in ("text_input", "bfloat16", "unknown_operator") else "input",
    )
    assert _state(work) == before


def _data(name: str, folder: Path) -> str:
    """Write calibration data that cannot be used, and return its path."""
    x = samples(4)
    arrays: dict[str, dict[str, np.ndarray]] = {
        "wrong_name.npz": {"z": x},
        "wrong_shape.npz": {"x": x[:, :, :8]},
        "wrong_rank.npz": {"x": x[0, 0]},
        "pixels.npz": {"x": (x * 9).astype(np.int64)},
        "nan.npz": {"x": np.where(np.arange(4)[:, None, None, None] == 2, np.nan, x)},
        "empty.npz": {"x": x[:0]},
        "pickled.npz": {"x": np.array([None])},
        "labels_short.npz": {"x": x, "labels": np.arange(3)},
    }
    path = folder / name
    if name in arrays:
        np.savez(path, **arrays[name])  # type: ignore[arg-type]
    elif name == "cut.npz":
        path.write_bytes((folder / "calib.npz").read_bytes()[:2000])
    elif name == "broken_image":
        shutil.copytree(folder / "images", path)
        (path / "9.png").write_bytes((path / "0.png").read_bytes()[:60])
    elif name == "mixed":
        shutil.copytree(folder / "images", path)
        shutil.copy(folder / "calib.npz", path)
    elif name in ("nothing_in_it", "other_files"):
        path.mkdir()
        if name == "other_files":
            (path / "readme.md").write_text("x")
    elif name == "notes.txt":
        path.write_text("x")
    return name


DATA = {
    "missing": "there is no data at missing",
    "nothing_in_it": "an empty folder",
    "other_files": "1 other entries",
    "notes.txt": "is not data that can be read",
    "net.onnx": "is not data that can be read",
    "broken_image": "broken_image/9.png cannot be read as an image",
    "mixed": "several kinds of data",
    "wrong_name.npz": "has no array 'x'",
    "wrong_shape.npz": "has the wrong shape",
    "wrong_rank.npz": "has the wrong shape",
    "pixels.npz": "pixels need the model's scale and mean first",
    "nan.npz": "nan.npz[2]",
    "empty.npz": "holds no samples",
    "pickled.npz": "pickled",
    "labels_short.npz": "labels",
    "cut.npz": "not a whole .npz file",
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("option", ["--calib", "--eval"])
def test_data_that_cannot_be_used(cli: Cli, work: Path, old: Path, option: str, name: str) -> None:
    path = _data(name, work)
    before = _state(work)
    arguments = ("build", "net.onnx", *VNNI, option, path, "--preprocess", "preprocess.toml", "-o", old.name)
    refused(cli(*arguments), 1, DATA[name])
    refused_as_json(cli(*arguments, "--json"), 1, "input")
    assert _state(work) == before


FILES = {
    ("--preprocess", "heigt = 16\nwidth = 16\n"): "no key 'heigt', did you mean 'height'?",
    ("--preprocess", "height = \n"): "TOML",
    ("--preprocess", "height = 20\nwidth = 16\n"): "does not give what input 'x' takes",
    ("--preprocess", None): "No such file",
    ("--labels", "ant\nbee\n"): "output 'y' has 5 classes",
    ("--labels", "\n\n"): "hold no name",
    ("--labels", b"\xff\xfe\x00"): "not UTF-8",
    ("--labels", None): "No such file",
}


@pytest.mark.parametrize(("option", "content"), FILES)
def test_files_beside_the_model(
    cli: Cli, work: Path, old: Path, option: str, content: str | bytes | None
) -> None:
    if content is not None:
        (work / "given").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = _state(work)
    arguments = ("build", "net.onnx", *VNNI, "--calib", "images", option, "given", "-o", old.name)
    if option == "--labels":
        arguments = (*arguments, "--preprocess", "preprocess.toml")
    refused(cli(*arguments), 1, FILES[option, content])
    assert _state(work) == before


USAGE = {
    ("--target", "jetson-nono"): "did you mean 'jetson-nano'?",
    ("--target", "jetson-nano@jetpack-6.3"): "did you mean 'jetpack-6.2'?",
    ("--target", "jetson-nano@"): "ends in '@'",
    ("--target", "jetson-nano@openvino-2026.4"): "belongs to the family openvino",
    ("--precision", "int9"): "did you mean 'int8'?",
    ("--precision", "fp16"): "has no fp16",
    ("--precision", "int8"): "--precision int8 needs calibration data",
    ("--max-drop", "-0.1"): "--max-drop must be a number >= 0",
    ("--max-drop", "nan"): "--max-drop must be a number >= 0",
    ("--max-drop", "much"): "not a valid float",
    ("--threads", "0"): "--threads",
    ("--metric", "top2"): "did you mean 'top1'?",
    ("--metric", ":f"): "names no metric",
    ("--shape", "x=1x3x16"): "input 'x' has 4 dimensions",
    ("--shape", "z=1x3x16x16"): "no input 'z'",
    ("--shape", "x=2x3x16x16"): "fixed shape",
    ("--shape", "x=1x3xAx16"): "cannot be read",
    ("--shape", "x=1x3x0x16"): "whole numbers from 1",
    ("--shape", "x=1x3x99999999999x16"): "whole numbers from 1",
    ("--calib", ""): "the path is empty",
    ("-o", ""): "the path is empty",
    ("--targt", "host"): "Did you mean '--target'?",
    ("second.onnx",): "build takes one model",
}


@pytest.mark.parametrize("words", USAGE)
def test_wrong_use_ends_with_2(cli: Cli, work: Path, words: tuple[str, ...]) -> None:
    before = _state(work)
    refused(cli("build", "net.onnx", *VNNI, *words), 2, USAGE[words])
    refused_as_json(cli("build", "net.onnx", *VNNI, *words, "--json"), 2, "usage")
    assert _state(work) == before


def test_the_same_shape_twice(cli: Cli, work: Path) -> None:
    shape = ("--shape", "x=1x3x16x16")
    for verb in ("build", "plan", "inspect"):
        refused(cli(verb, "net.onnx", *shape, *shape), 2, "names input 'x' twice")


def test_no_model_at_all(cli: Cli, work: Path) -> None:
    refused(cli("build", *VNNI), 2, "no model: name one", "edgefuse.toml")
    refused(cli("plan", *VNNI), 2, "no model: name one")


@pytest.mark.parametrize("verb", ["build", "plan"])
def test_int8_on_a_board_without_it_is_refused_before_anything_is_read(
    cli: Cli, work: Path, verb: str
) -> None:
    result = cli(verb, "not_there.onnx", *NANO, "--precision", "int8", "--calib", "not_there")
    refused(result, 2, "--precision int8 is not possible on jetson-nano", "this GPU has no INT8 arithmetic")


@pytest.mark.parametrize("verb", ["build", "plan"])
def test_int8_without_data_is_refused_before_the_model_is_read(cli: Cli, work: Path, verb: str) -> None:
    refused(cli(verb, "not_there.onnx", *VNNI, "--precision", "int8"), 2, "--calib PATH")


def test_a_family_without_a_backend_says_so(cli: Cli, work: Path) -> None:
    refused(cli("build", "net.onnx", "--target", "kunlun-k200"), 1, "no backend in this version")


METRICS = {
    "top1": "data without labels",
    "map50": "cannot use these outputs",
    "cer": "metric cer",
    "not_there:score": "module 'not_there' cannot be imported",
    "mine:nothing": "has no function 'nothing'",
    "mine:raises": "ZeroDivisionError",
    "mine:word": "metric mine:word failed",
}


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_that_cannot_be_used_is_found_before_the_work(
    cli: Cli, work: Path, old: Path, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "mine.py").write_text(
        "def raises(a, b, c):\n    return 1 / 0\n\ndef word(a, b, c):\n    return 'good'\n"
    )
    monkeypatch.setattr("edgefuse.compose.build.measure_tables", lambda *_: pytest.fail("the work began"))
    before = _state(work)
    arguments = ("build", "net.onnx", *VNNI, "--calib", "calib.npz", "-o", old.name)
    refused(cli(*arguments, "--metric", metric), 1, METRICS[metric])
    shutil.rmtree(work / "__pycache__", ignore_errors=True)
    assert _state(work) == before


OUTPUTS = {
    "net.onnx": "not overwritten",
    "calib.npz": "not overwritten",
    "labels.txt": "not overwritten",
    "images": "is a folder",
    "images/": "is a folder",
    "no/such/out.efa": "mkdir -p no/such",
    "labels.txt/out.efa": "labels.txt is a file",
    "/dev/full": "not a plain file",
    "x" * 300 + ".efa": "too long",
    "taken.efa": "taken.report.json is a folder",
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs_that_cannot_be_written_or_are_something_else(cli: Cli, work: Path, output: str) -> None:
    (work / "taken.report.json").mkdir()
    before = _state(work)
    refused(cli("build", "net.onnx", *NANO, "-o", output), 1, OUTPUTS[output])
    refused_as_json(cli("build", "net.onnx", *NANO, "-o", output, "--json"), 1, "input")
    assert _state(work) == before


def test_an_unwritable_folder(cli: Cli, work: Path) -> None:
    if os.geteuid() == 0:
        if not Path("/proc/self").is_dir():
            pytest.skip("root may write anywhere, and there is no /proc, where nobody may")
        refused(cli("build", "net.onnx", *NANO, "-o", "/proc/out.efa"), 1, "cannot be written")
        return
    (work / "locked").mkdir(mode=0o500)
    refused(cli("build", "net.onnx", *NANO, "-o", "locked/out.efa"), 1, "cannot be written")


CONFIGS = {
    'modle = "net.onnx"': (1, "unknown key 'modle', did you mean 'model'?"),
    'model = "net.onnx"\nthreads = "two"': (1, "threads = 'two' cannot be used"),
    'model = "net.onnx"\ncalib = "gone"': (1, "there is no data at gone"),
    'model = "net.onnx"\nprecision = "int9"': (2, "did you mean 'int8'?"),
    'model = "net.onnx"\n[shapes]\nx = [1, 3, 16]': (2, "has 4 dimensions"),
    "model = 'net.onnx": (1, "not valid TOML"),
}


@pytest.mark.parametrize("text", CONFIGS)
@pytest.mark.parametrize("verb", ["build", "plan"])
def test_a_wrong_edgefuse_toml(cli: Cli, work: Path, verb: str, text: str) -> None:
    (work / "edgefuse.toml").write_text(text)
    code, word = CONFIGS[text]
    refused(cli(verb, *VNNI), code, word)


def test_a_model_that_gives_nan_is_built_with_a_plain_word(cli: Cli, work: Path) -> None:
    one_node(work / "log.onnx", "Log", [1, 4])
    np.savez(work / "c4.npz", x=-np.ones((6, 4), np.float32))
    result = cli("build", "log.onnx", *VNNI, "--calib", "c4.npz", "--json")
    assert result.code == 0, result
    assert "the model itself gives NaN on 6 of 6 samples (output 'y')" in " ".join(result.json["notes"])
    assert [p["id"] for p in result.json["payloads"]] == ["float"]


def test_weights_beyond_float16_stay_in_float32(cli: Cli, work: Path) -> None:
    path = conv_net(work / "wide.onnx")

    def widen(proto: onnx.ModelProto) -> None:
        array = numpy_helper.to_array(proto.graph.initializer[1]) * np.float32(1e6)
        proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(array, "w2"))

    _break(path, widen)
    found = cli("plan", "wide.onnx", *NANO, "--precision", "fp16", "--json").json
    precisions = {node: g["precision"] for g in found["groups"] for node in g["sources"]}
    assert precisions["conv2"] == "fp32"
    reasons = [r["reason"] for r in found["rejected"] if r["what"] == "fp16"]
    assert any("float16" in reason or "fp16" in reason for reason in reasons), reasons


def test_a_batch_too_large_for_the_memory(cli: Cli, work: Path) -> None:
    one_node(work / "open.onnx", "Relu", ["N", 4])
    refused(cli("build", "open.onnx", *VNNI, "--shape", "x=2147483647x4"), 1, "memory of this machine")


def test_names_with_spaces_and_letters_of_all_kinds(cli: Cli, work: Path) -> None:
    folder = work / "мои модели"
    folder.mkdir()
    model = conv_net(folder / "сеть №1 (копия).onnx")
    shutil.copy("calib.npz", folder / "données d'été.npz")
    output = folder / "выход 1.efa"
    result = cli("build", model, *VNNI, "--calib", folder / "données d'été.npz", "-o", output)
    assert result.code == 0, result
    assert "выход 1.efa" in result.out
    assert (folder / "выход 1.report.json").is_file()
    manifest = cli("inspect", output, "--json").json["manifest"]
    assert manifest["model"]["file"] == "сеть №1 (копия).onnx"


def test_a_name_that_is_no_text_at_all(cli: Cli, work: Path) -> None:
    model = os.fsdecode(b"net\xff\n.onnx")
    shutil.copy("net.onnx", model)
    result = cli("build", model, *NANO, "--json")
    assert result.code == 0, result
    assert cli("inspect", result.json["artifact"], "--json").json["manifest"]["model"]["file"] == "net__.onnx"
