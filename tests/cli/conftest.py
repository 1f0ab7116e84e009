"""The command line in this process: `cli(...)` runs it in a folder of its own, beside a few small models."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from command_line import Cli, Result
from tiny_models import conv_net, samples

import edgefuse
from edgefuse.cli import main

PREPROCESS = 'color = "rgb"\nheight = 16\nwidth = 16\nmean = 127.5\nstd = 127.5\n'


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function: arguments in, exit code and both streams out."""

    def run(*arguments: str | os.PathLike[str]) -> Result:
        capsys.readouterr()
        code = main([os.fspath(argument) for argument in arguments])
        streams = capsys.readouterr()
        return Result(code, streams.out, streams.err)

    return run


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder made once: net.onnx, calib.npz, in.npz, images/, preprocess.toml, labels.txt."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("stock")
    conv_net(folder / "net.onnx")
    np.savez(folder / "calib.npz", x=samples())
    np.savez(folder / "in.npz", x=samples(1))
    (folder / "images").mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
    (folder / "preprocess.toml").write_text(PREPROCESS)
    (folder / "labels.txt").write_text("ant\nbee\ncat\ndog\neel\n")
    return folder


@pytest.fixture
def work(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with a copy of the stock; the test runs in it."""
    folder = tmp_path / "work"
    shutil.copytree(stock, folder)
    monkeypatch.chdir(folder)
    return folder


def _built(stock: Path, name: str, **options: Any) -> Path:
    path = stock.with_name("built") / name
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        edgefuse.build(stock / "net.onnx", output=path, **options)
    return path


@pytest.fixture(scope="session")
def nano_artifact(stock: Path) -> Path:
    """Return a float artifact for jetson-nano, with its report beside it."""
    return _built(stock, "nano.efa", target="jetson-nano")


@pytest.fixture(scope="session")
def vnni_artifact(stock: Path) -> Path:
    """Return an int8 artifact for x86-avx512-vnni, judged in simulation."""
    return _built(stock, "vnni.efa", target="x86-avx512-vnni", calib=stock / "calib.npz", precision="int8")


@pytest.fixture(scope="session")
def host() -> str:
    """Return the name of the device that this machine is, or skip where nothing can run an artifact here."""
    usable = [row["name"] for row in edgefuse.targets() if row["host"] and row["usable"]]
    if not usable:
        pytest.skip("no target is usable on this machine: artifacts can be built here, and not run")
    return str(usable[0])


@pytest.fixture(scope="session")
def host_artifact(stock: Path, host: str) -> Path:
    """Return an int8 artifact for this machine."""
    return _built(stock, "host.efa", target="host", calib=stock / "calib.npz", precision="int8")
