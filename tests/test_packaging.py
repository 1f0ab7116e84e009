"""The built packages, installed as a user installs them: in empty environments, outside this checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "*.egg-info",
    "build",
    "dist",
    "zoo",
    "demo",
    "tests",
)

# Prints what importing brings in, and what it costs. The cost is reported, never judged: a test that judges a
# time fails on a busy machine.
IMPORT = """
import json, sys, time
before, start = set(sys.modules), time.process_time()
import edgefuse
seconds = time.process_time() - start
new = sorted(set(sys.modules) - before)
print(json.dumps({"new": new, "file": edgefuse.__file__, "version": edgefuse.__version__, "cpu": seconds}))
"""
ROBOT = """
import importlib, json, pathlib
import edgefuse.artifact, edgefuse.runtime, edgefuse.targets
home = pathlib.Path(edgefuse.targets.__file__).parent
engines = sorted(path.parent.name for path in home.glob("*/engine.py"))
for family in engines:
    importlib.import_module("edgefuse.targets.%s.engine" % family)
devices = sorted(path.stem for path in home.glob("*/devices/*.toml"))
print(json.dumps({"engines": engines, "devices": devices, "home": str(home)}))
"""

ORIGINS = """
from importlib.util import find_spec
print(find_spec("edgefuse.quant").origin, find_spec("edgefuse.firmware_scripts").origin)
"""


def _run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Environment:
    """An empty virtual environment."""

    def __init__(self, folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        self.bin = folder / "bin"
        self.cwd = folder.parent

    def python(self, *arguments: str) -> str:
        return _run([str(self.bin / "python"), "-I", *arguments], self.cwd)

    def install(self, *what: str) -> None:
        self.python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)

    def installed(self) -> set[str]:
        listed = json.loads(
            self.python("-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
        )
        return {entry["name"].lower() for entry in listed} - {"pip", "setuptools", "wheel"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Path]]:
    """Yield (wheel, sdist, copy of the checkout); the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
    tools = Environment(folder / "tools")
    try:
        tools.install("setuptools>=77", "wheel", "numpy")
    except AssertionError as error:
        pytest.skip(f"setuptools and numpy cannot be downloaded here: {str(error).strip().splitlines()[-1]}")
    hook = "import os, setuptools.build_meta as b; os.chdir({!r}); b.build_{}({!r})"
    tools.python("-c", hook.format(str(tree), "sdist", str(folder)))
    (sdist,) = folder.glob("edgefuse-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data") if sys.version_info >= (3, 12) else (
            archive.extractall(folder / "unpacked")
        )
    (unpacked,) = (folder / "unpacked").iterdir()
    tools.python("-c", hook.format(str(unpacked), "wheel", str(folder)))
    (wheel,) = folder.glob("edgefuse-*.whl")
    yield wheel, sdist, tree
    shutil.rmtree(folder, ignore_errors=True)


def _sources(tree: Path, room: str) -> set[str]:
    kinds = (".py", ".toml", ".yaml", ".md")
    return {path.relative_to(tree).as_posix() for path in (tree / room).rglob("*") if path.suffix in kinds}


@pytest.mark.slow
def test_wheel_and_sdist_hold_every_room(built: tuple[Path, Path, Path]) -> None:
    wheel, sdist, tree = built
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = _sources(tree, "edgefuse")
    for room in ("targets", "quant", "firmware_scripts"):
        expected |= {f"edgefuse/{name}" for name in _sources(tree, room)}
    assert not expected - names, f"not in the wheel: {sorted(expected - names)}"
    assert "edgefuse/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "targets/", "quant/", "examples/"))]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= inside


@pytest.mark.slow
def test_the_robots_install_is_numpy_only(
    built: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, _, _ = built
    robot = Environment(tmp_path / "robot")
    robot.install(str(wheel))
    assert robot.installed() == {"edgefuse", "numpy"}
    imported = json.loads(robot.python("-c", IMPORT))
    assert str(tmp_path) in imported["file"]
    ours = [name for name in imported["new"] if name.partition(".")[0] not in sys.stdlib_module_names]
    assert ours == ["edgefuse"], "importing edgefuse brings in no room, no numpy and no other package"
    with capsys.disabled():
        print(f"\nimport edgefuse: {imported['cpu']:.4f} s of CPU time")
    found = json.loads(robot.python("-c", ROBOT))
    assert "openvino" in found["engines"]
    assert {"jetson-nano", "raspberry-pi-4"} <= set(found["devices"])


@pytest.mark.slow
def test_the_hosts_install_has_every_verb(built: tuple[Path, Path, Path], tmp_path: Path) -> None:
    wheel, _, _ = built
    host = Environment(tmp_path / "host")
    host.install(f"{wheel}[build]")
    shown = _run([str(host.bin / "edgefuse"), "--help"], tmp_path)
    for verb in ("build", "plan", "inspect", "targets", "run", "verify", "bench"):
        assert verb in shown
    targets = json.loads(_run([str(host.bin / "edgefuse"), "targets", "--json"], tmp_path))
    assert {"name", "family", "precisions", "usable"} <= set(targets["targets"][0])


@pytest.mark.slow
def test_an_editable_install_sees_the_rooms_at_the_top(
    built: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, _, tree = built
    developer = Environment(tmp_path / "developer")
    developer.install("--editable", str(tree))
    found = json.loads(developer.python("-c", ROBOT))
    assert Path(found["home"]) == tree / "targets"
    assert "openvino" in found["engines"]
    quant, scripts = developer.python("-c", ORIGINS).split()
    assert (Path(quant).parent, Path(scripts).parent) == (tree / "quant", tree / "firmware_scripts")
