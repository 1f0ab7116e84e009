"""Options of a build, and what edgefuse.toml supplies of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefuse.compose.build import resolve_options
from edgefuse.compose.options import BuildOptions, parse_shape, with_config
from edgefuse.errors import InputError, UsageError


def _config(folder: Path, text: str | bytes) -> Path:
    path = folder / "edgefuse.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


WHOLE = """
model = "nets/net.onnx"
target = "jetson-nano"
output = "out.efa"
calib = "images"
eval = "more/images"
metric = "cosine"
max-drop = 1
precision = "fp16"
preprocess = "p.toml"
labels = "labels.txt"
threads = 3
name = "reader"
[shapes]
x = [1, 3, 32, 32]
"""


def test_every_key_fills_in_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    _config(tmp_path, WHOLE)
    found = with_config(BuildOptions(), frozenset(), tmp_path)
    assert found == BuildOptions(
        model=str(tmp_path / "nets/net.onnx"),
        target="jetson-nano",
        output=str(tmp_path / "out.efa"),
        calib=str(tmp_path / "images"),
        eval=str(tmp_path / "more/images"),
        metric="cosine",
        max_drop=1.0,
        precision="fp16",
        preprocess=str(tmp_path / "p.toml"),
        labels=str(tmp_path / "labels.txt"),
        shapes={"x": (1, 3, 32, 32)},
        threads=3,
        name="reader",
    )


def test_what_the_caller_gave_wins_key_by_key(tmp_path: Path) -> None:
    _config(tmp_path, WHOLE)
    given = BuildOptions(target="host", max_drop=0.5)
    found = with_config(given, frozenset({"target", "max_drop"}), tmp_path)
    assert (found.target, found.max_drop) == ("host", 0.5)
    assert (found.metric, found.threads) == ("cosine", 3)


def test_an_absolute_path_stays_and_no_file_changes_nothing(tmp_path: Path) -> None:
    options = BuildOptions(model="m.onnx")
    assert with_config(options, frozenset(), tmp_path) is options
    _config(tmp_path, f'model = "{tmp_path}/a.onnx"')
    assert with_config(options, frozenset(), tmp_path / ".").model == f"{tmp_path}/a.onnx"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('modle = "m.onnx"', "unknown key 'modle', did you mean 'model'?"),
        ("model = 3", "model = 3 cannot be used"),
        ('model = ""', "text that is not empty"),
        ('calib = " "', "text that is not empty"),
        ('max-drop = "much"', "max-drop = 'much' cannot be used"),
        ("max-drop = true", "a number"),
        ("threads = 1.5", "a whole number"),
        ("threads = true", "a whole number"),
        ("shapes = 3", "a table such as"),
        ('[shapes]\nx = ["a"]', "a list of sizes"),
        ("[shapes]\nx = [true, 3]", "a list of sizes"),
        ("[shapes]\nx = [0, 3]", "a list of sizes"),
        ("max-drop = 0.1\nmax_drop = 0.2", "one and the same key"),
        ("model = ", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        ('model = "a"\nmodel = "b"', "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str | bytes, word: str) -> None:
    path = _config(tmp_path, text)
    with pytest.raises(InputError) as caught:
        with_config(BuildOptions(), frozenset(), tmp_path)
    assert word in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_wrong_key_is_refused_also_where_the_caller_gave_that_option(tmp_path: Path) -> None:
    _config(tmp_path, "threads = 1.5")
    with pytest.raises(InputError):
        with_config(BuildOptions(threads=1), frozenset({"threads"}), tmp_path)


def test_a_folder_of_that_name_is_an_error_and_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "edgefuse.toml").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        with_config(BuildOptions(), frozenset(), tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x=1x3x48x192", ("x", (1, 3, 48, 192))),
        ("x=7", ("x", (7,))),
        ("a=b=2,3", ("a=b", (2, 3))),
        ("in put:0=1x2", ("in put:0", (1, 2))),
    ],
)
def test_shapes_are_read(text: str, found: tuple[str, tuple[int, ...]]) -> None:
    assert parse_shape(text) == found


@pytest.mark.parametrize("text", ["", "x", "x=", "=1x3", "x=1xx3", "x=1x-3", "x=ax3", "1x3", "x=1x3x"])
def test_shapes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"model": "m.onnx", "precision": "int9"}, "did you mean 'int8'"),
        ({"model": "m.onnx", "max_drop": -0.1}, "--max-drop"),
        ({"model": "m.onnx", "max_drop": float("nan")}, "--max-drop"),
        ({"model": "m.onnx", "max_drop": float("inf")}, "--max-drop"),
        ({"model": "m.onnx", "threads": 0}, "--threads"),
        ({"model": "m.onnx", "precison": "int8"}, "no option 'precison'"),
        ({}, "no model"),
        ({"model": ""}, "model: the path is empty"),
        ({"model": "m.onnx", "calib": ""}, "calib: the path is empty"),
    ],
)
def test_options_that_can_never_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        resolve_options(given)
    assert word in str(caught.value)


def test_paths_may_be_path_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = resolve_options({"model": Path("a/m.onnx"), "output": Path("o.efa"), "calib": None})
    assert (found.model, found.output, found.calib) == ("a/m.onnx", "o.efa", None)
