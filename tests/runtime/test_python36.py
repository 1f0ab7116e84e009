"""The robot's half under a real Python 3.6, as JetPack 4 has it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    [
        ROOT / "edgefuse/__init__.py",
        ROOT / "edgefuse/errors.py",
        ROOT / "edgefuse/units.py",
        *(ROOT / "edgefuse/artifact").glob("*.py"),
        *(ROOT / "edgefuse/runtime").glob("*.py"),
        *(ROOT / "targets").glob("*/engine.py"),
    ]
)


def python36() -> str:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which("python3.6"), *map(str, sorted(root.glob("3.6.*/bin/python")))]
    for candidate in filter(None, candidates):
        # pyenv's shim is on the PATH even where it has nothing to call.
        asked = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True
        )
        if asked.stdout.strip() == b"(3, 6)":
            return candidate
    pytest.skip("no Python 3.6 here (python3.6 on the PATH or in pyenv)")


def run36(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [python36(), "-B", "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMPILE = """
import sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        compile(file.read(), path, "exec")
print(len(sys.argv) - 1)
"""


def test_every_file_of_the_robot_compiles() -> None:
    assert int(run36(COMPILE, *map(str, SOURCES))) == len(SOURCES) > 15


IMPORT = """
import sys
import edgefuse, edgefuse.artifact, edgefuse.runtime, edgefuse.runtime.preprocess, edgefuse.runtime.decode
steps = edgefuse.runtime.preprocess.from_dict({"height": 2, "width": 2, "resize": "letterbox"})
print(steps.geometry(4, 8).to_image(1, 1))
print("numpy" in sys.modules)
try:
    edgefuse.load("none.efa")
except edgefuse.errors.InputError as error:
    print(error)
"""


def test_everything_imports_without_numpy() -> None:
    lines = run36(IMPORT).splitlines()
    assert lines == ["(4.0, 4.0)", "False", "cannot open artifact none.efa: No such file or directory"]


REJECT = """
import sys
from edgefuse.artifact import open_artifact, write_artifact
from edgefuse.errors import ArtifactError
with open_artifact(sys.argv[1]) as artifact:
    files = {name: artifact.read(name) for name in artifact.members}
    described = {key: value for key, value in artifact.manifest.items() if key != "files"}
write_artifact(sys.argv[2], described, files)
with open(sys.argv[1], "rb") as one, open(sys.argv[2], "rb") as two:
    data = one.read()
    assert data == two.read()
refused = 0
for place in range(0, len(data), 23):
    with open(sys.argv[2], "wb") as file:
        file.write(data[:place] + bytes([data[place] ^ 1]) + data[place + 1:])
    try:
        open_artifact(sys.argv[2]).close()
    except ArtifactError:
        refused += 1
print(refused == len(range(0, len(data), 23)))
"""


def test_artifacts_are_read_written_and_refused_there_too(tmp_path: Path) -> None:
    frozen = ROOT / "tests/artifact/frozen/v1.efa"
    assert run36(REJECT, str(frozen), str(tmp_path / "copy.efa")) == "True\n"


ALLOWED = {"edgefuse", "numpy", *sys.stdlib_module_names}


ROOMS = [path for path in SOURCES if path.parent.name in ("artifact", "runtime")]


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_only_the_standard_library_numpy_and_each_other(path: Path) -> None:
    rooms: tuple[str, ...] = ("edgefuse.artifact", "edgefuse.runtime", "edgefuse.errors", "edgefuse.units")
    if "artifact" in path.parts:
        rooms = ("edgefuse.artifact", "edgefuse.errors")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            assert node.module != "__future__", f"{path.name}: Python 3.6 has no such future"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in ALLOWED, f"{path.name} imports {name}"
            assert not name.startswith("edgefuse.") or name.startswith(rooms), f"{path.name} imports {name}"
