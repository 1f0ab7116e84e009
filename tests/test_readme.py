"""The README's commands are run as they stand there, in a folder with a small model and pictures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    return [line[2:] for block in _blocks("console") for line in block.splitlines() if line.startswith("$ ")]


def _small_model() -> bytes:
    """Return a classifier of 32 x 32 images with four classes: Conv, Relu, Conv, Relu, pool, Gemm."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        values = random.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
        return numpy_helper.from_array(values, name)

    nodes = [
        helper.make_node("Conv", ["image", "w0"], ["a"], name="conv0", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu0"),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"], name="relu1"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="pool"),
        helper.make_node("Flatten", ["e"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w2"], ["scores"], name="head", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 4])],
        [weight("w0", 16, 3, 3, 3), weight("w1", 16, 16, 3, 3), weight("w2", 4, 16)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the README's commands name: model, pictures, inputs, preprocessing."""
    from PIL import Image

    path = tmp_path_factory.mktemp("readme")
    (path / "model.onnx").write_bytes(_small_model())
    (path / "images").mkdir()
    random = np.random.default_rng(1)
    for index in range(12):
        Image.fromarray(random.integers(0, 256, (40, 48, 3), np.uint8)).save(
            path / "images" / f"{index:02d}.png"
        )
    np.savez(path / "in.npz", image=random.normal(size=(1, 3, 32, 32)).astype(np.float32))
    (preprocess,) = _blocks("toml")
    (path / "preprocess.toml").write_text(preprocess, encoding="utf-8")
    (path / "examples").symlink_to(ROOT / "examples")
    return path


def _shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one line of the README as a reader's shell would, with this environment's programs in front."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_every_command_works_in_its_order(folder: Path) -> None:
    commands = _commands()
    assert len(commands) >= 8
    for command in commands:
        done = _shell(command, folder)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    with np.load(folder / "out.npz") as outputs:
        assert outputs["scores"].shape == (1, 4)
    assert (folder / "model.efa").is_file()
    assert (folder / "model.report.json").is_file()
    for number, block in enumerate(_blocks("python")):
        names: dict[str, Any] = {"frame": np.zeros((40, 48, 3), np.uint8)}
        program = compile(block, f"README.md python block {number}", "exec")
        os.chdir(folder)
        try:
            exec(program, names)
        finally:
            os.chdir(ROOT)
        assert names["result"]["outputs"]["scores"].shape == (1, 4)


def test_the_two_commands_come_first_and_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)", README.replace("and make", "")))
    assert {"demo", "test", "check"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"no make target {target}"
    head = README[: README.index("## ")]
    assert head.index("make demo") < head.index("make test")


def test_every_target_has_its_line() -> None:
    from edgefuse.device import devices

    table = README[README.index("## Targets") : README.index("## Limits")]
    named = set(re.findall(r"`([a-z0-9-]+)`", table))
    known = {device.name for device in devices()}
    assert known - named == set()
    assert named - known - {"host"} == set()


def test_every_verb_has_its_line() -> None:
    from edgefuse.cli.main import edgefuse as group

    rows = set(re.findall(r"^\| `([a-z]+)` \|", README, flags=re.MULTILINE))
    import click

    assert rows == set(group.list_commands(click.Context(group)))


def test_every_file_that_it_names_exists() -> None:
    for name in re.findall(r"`((?:docs|examples)/[A-Za-z0-9_./-]*|CONTRIBUTING\.md)`", README):
        assert (ROOT / name).exists(), name
