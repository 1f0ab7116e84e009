"""Processes that die, disks that are full, builds that meet: the artifact that was there is never lost.

A fresh interpreter imports everything once and forks a child for each build: a fork of the test process
itself would copy its threads' locks. All scenarios run in that one; each test looks at one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import conv_net

pytestmark = pytest.mark.slow

# Run with the working folder as its own; prints one JSON object, scenario -> what was found.
DRIVER = '''
import json, os, random, resource, signal, sys, time
sys.modules["openvino_telemetry"] = None
from edgefuse.artifact import open_artifact
from edgefuse.cli import main

COMMAND = ["build", "--target", "jetson-nano", "-o", "out.efa"]
assert main([*COMMAND, "new.onnx"]) == 0  # imports all that a build imports
NEW = open("out.efa", "rb").read()
assert main([*COMMAND, "old.onnx"]) == 0
OLD, OLD_REPORT = open("out.efa", "rb").read(), open("out.report.json", "rb").read()
assert OLD != NEW


def fork(work):
    child = os.fork()
    if child == 0:
        out = os.open("stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        error = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(error, 2)
        code = 70
        try:
            code = work()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    return child


def end(child):
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


def look():
    data = open("out.efa", "rb").read()
    with open_artifact("out.efa") as artifact:
        for name in artifact.manifest["files"]:
            artifact.read(name)
    report = json.load(open("out.report.json"))
    return {
        "is": "old" if data == OLD else "new" if data == NEW else "other",
        "report": report["model"],
        "temporary": sum(name.endswith(".tmp") for name in os.listdir(".")),
        "files": sorted(os.listdir(".")),
    }


def restore():
    open("out.efa", "wb").write(OLD)
    open("out.report.json", "wb").write(OLD_REPORT)


def die_at(count):
    """Build, and be killed right before the count-th call that touches the disk for good."""
    seen = [0]

    def counted(call):
        def wrapper(*arguments, **named):
            seen[0] += 1
            if seen[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)
        return wrapper

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    return main([*COMMAND, "new.onnx"])


def limited(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return main([*COMMAND, "new.onnx"])


def steps():
    rows = []
    for count in range(1, 9):
        code = end(fork(lambda: die_at(count)))
        rows.append({"code": code, **look()})
        restore()
    return rows


def moments():
    random.seed(7)
    start = time.monotonic()
    assert end(fork(lambda: main([*COMMAND, "new.onnx"]))) == 0
    whole = time.monotonic() - start
    rows = []
    for _ in range(16):
        restore()
        child = fork(lambda: main([*COMMAND, "new.onnx"]))
        time.sleep(random.uniform(0.3, 1.1) * whole)
        os.kill(child, signal.SIGKILL)
        rows.append({"code": end(child), **look()})
    return rows


def full():
    restore()
    rows = []
    for size in (1000, len(NEW) // 2, len(NEW) - 1):
        code = end(fork(lambda: limited(size)))
        rows.append({"code": code, "out": open("stdout").read(), "err": open("stderr").read(), **look()})
    return rows


def meeting():
    rows = []
    for _ in range(4):
        both = [fork(lambda: main([*COMMAND, name])) for name in ("old.onnx", "new.onnx")]
        rows.append({"codes": [end(child) for child in both], **look()})
    return rows


found = {"steps": steps(), "moments": moments()}
found["swept"] = {"code": end(fork(lambda: main([*COMMAND, "new.onnx"]))), **look()}
found["full"] = full()
found["room"] = {"code": end(fork(lambda: limited(len(NEW)))), **look()}
found["meeting"] = meeting()
print(json.dumps(found))
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("interrupted")
    conv_net(folder / "old.onnx", seed=1)
    conv_net(folder / "new.onnx", seed=2)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_build_killed_at_every_step_of_writing(found: Any) -> None:
    killed = [row for row in found["steps"] if row["code"] == -9]
    assert len(killed) == 6, [
        row["code"] for row in found["steps"]
    ]  # fsync, rename, fsync of the folder, twice
    assert [row["is"] for row in killed] == ["old", "old", "new", "new", "new", "new"]
    assert [row["report"] for row in killed] == ["old.onnx"] * 5 + ["new.onnx"]
    assert all(row["temporary"] <= 2 for row in found["steps"]), "each build sweeps what the last one left"


def test_builds_killed_at_random_moments(found: Any) -> None:
    assert any(row["code"] == -9 for row in found["moments"])
    for row in found["moments"]:
        assert row["is"] in ("old", "new")
        assert row["report"] in ("old.onnx", "new.onnx")
        assert row["temporary"] <= 2


def test_the_next_build_sweeps_what_killed_ones_left(found: Any) -> None:
    row = found["swept"]
    assert (row["code"], row["is"], row["report"], row["temporary"]) == (0, "new", "new.onnx", 0)


def test_a_disk_that_is_full(found: Any) -> None:
    for row in found["full"]:
        assert (row["code"], row["is"], row["report"], row["temporary"]) == (1, "old", "old.onnx", 0), row
        assert row["out"] == ""
        said = [line for line in row["err"].splitlines() if not line.startswith("[")]  # stages apart
        assert said[0].startswith("error: cannot write"), row
        assert "File too large" in row["err"]
        assert row["err"].count("error:") == 1
    assert (found["room"]["code"], found["room"]["is"], found["room"]["temporary"]) == (0, "new", 0)


def test_two_builds_of_one_output_at_once(found: Any) -> None:
    for row in found["meeting"]:
        assert row["codes"] == [0, 0]
        assert row["is"] in ("old", "new")
        assert row["report"] in ("old.onnx", "new.onnx")
        assert row["temporary"] == 0


def test_two_processes_with_other_hash_seeds_write_the_same_bytes(tmp_path: Path) -> None:
    from edgefuse.artifact import open_artifact

    conv_net(tmp_path / "net.onnx")
    program = (
        "import sys, numpy\n"
        "sys.modules['openvino_telemetry'] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from tiny_models import samples\n"
        "from edgefuse.cli import main\n"
        "numpy.savez('calib.npz', x=samples())\n"
        "for target in ('x86-avx512-vnni', 'jetson-orin-nano'):\n"
        "    out = f'{sys.argv[2]}.{target}.efa'\n"
        "    assert main(['build', 'net.onnx', '--target', target, '--calib', 'calib.npz', '-o', out]) == 0\n"
    )
    for seed in ("0", "12345"):
        subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parent), seed],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )
    for target in ("x86-avx512-vnni", "jetson-orin-nano"):
        first, second = (tmp_path / f"{seed}.{target}.efa" for seed in ("0", "12345"))
        assert first.read_bytes() == second.read_bytes(), target
        with open_artifact(first) as artifact:
            assert len(artifact.manifest["payloads"]) == 2 or target.startswith("jetson")
