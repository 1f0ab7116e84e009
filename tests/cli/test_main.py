"""The frame around the verbs: help, did-you-mean, streams, terminals, and exceptions that nobody foresaw."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cli, refused, refused_as_json

from edgefuse.cli.main import edgefuse as group

# What a child process runs: the command line, without the telemetry that `import openvino` would start.
PROGRAM = (
    "import sys; sys.modules['openvino_telemetry'] = None; "
    "from edgefuse.cli import main; sys.exit(main(sys.argv[1:]))"
)
VERBS = ("bench", "build", "inspect", "plan", "rules", "run", "targets", "verify")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_each_verb(cli: Cli, verb: str, flag: str) -> None:
    result = cli(verb, flag)
    assert (result.code, result.said) == (0, "")
    assert f"Usage: edgefuse {verb}" in result.out
    assert "--json" in result.out


def test_help_names_every_verb_with_a_line(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    listed = {
        line.split()[0]: line.split()[1:] for line in result.out.split("Commands:\n")[1].splitlines() if line
    }
    assert sorted(listed) == list(VERBS) == group.list_commands(None)  # type: ignore[arg-type]
    assert all(len(words) > 2 for words in listed.values())


def test_no_verb_shows_the_help_and_is_wrong_use(cli: Cli) -> None:
    result = cli()
    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


def test_the_version(cli: Cli) -> None:
    import edgefuse

    assert cli("--version").out == f"edgefuse, version {edgefuse.__version__}\n"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("biuld", "net.onnx"), "no such verb 'biuld', did you mean 'build'?"),
        (("main",), "no such verb 'main'"),
        (("build", "--tragte", "x"), "--target"),
        (("run", "x.efa"), "Missing option"),
        (("verify",), "Missing argument 'X.efa'"),
        (("targets", "a", "b"), "unexpected extra argument"),
        (("build", "net.onnx", "--target"), "requires an argument"),
    ],
)
def test_a_wrong_command_line(cli: Cli, words: tuple[str, ...], word: str) -> None:
    refused(cli(*words), 2, word)
    if words[-1] != "--target":
        refused_as_json(cli(*words, "--json"), 2, "usage")


@pytest.mark.parametrize(
    ("error", "code", "kind", "word"),
    [
        (ValueError("one\n  two"), 1, "internal", "a bug of edgefuse: ValueError: one two"),
        (KeyError("k"), 1, "internal", "please report it"),
        (EOFError("early"), 1, "internal", "a bug of edgefuse: EOFError: early"),
        (AssertionError(), 1, "internal", "AssertionError"),
        (MemoryError("Unable to allocate 9 GiB"), 1, "input", "Unable to allocate 9 GiB"),
        (
            OSError(28, "No space left on device", "/there"),
            1,
            "input",
            "'/there' cannot be used: No space left",
        ),
        (ModuleNotFoundError("no", name="highspy"), 1, "missing", "pip install 'edgefuse[build]'"),
        (ModuleNotFoundError("no", name="edgefuse.nothing"), 1, "internal", "a bug of edgefuse"),
    ],
)
def test_exceptions_that_nobody_foresaw_are_one_block_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, kind: str, word: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("edgefuse.compose.targets.list_targets", fail)
    result = cli("targets")
    assert (result.code, result.out) == (code, "")
    assert result.said.lstrip("\n").startswith("error: ")
    assert word in result.err
    assert "Traceback" not in result.err
    refused_as_json(cli("targets", "--json"), code, kind)
    monkeypatch.setenv("EDGEFUSE_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli("targets")


def test_an_interrupt_ends_with_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgefuse.compose.targets.list_targets", stop)
    result = cli("targets")
    assert (result.code, result.out, result.said.strip()) == (130, "", "interrupted")


def test_a_terminal_that_cannot_show_a_letter(monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    from edgefuse.cli import main

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    os.rename("net.onnx", "сеть.onnx")
    assert main(["build", "сеть.onnx", "--target", "jetson-nano"]) == 0
    assert b"\\u0441\\u0435\\u0442\\u044c.jetson-nano.efa" in raw.getvalue()


def test_a_line_a_stage_where_stderr_is_no_terminal(cli: Cli, work: Path) -> None:
    result = cli("build", "net.onnx", "--target", "x86-avx512-vnni", "--calib", "calib.npz", "--json")
    assert (result.code, result.said) == (0, "")
    assert result.json["payloads"]
    stages = [re.fullmatch(r"\[ *\d+\.\d s\] (.*)", line) for line in result.err.splitlines()]
    told = [stage[1] for stage in stages if stage is not None]
    assert told[:2] == ["read and canonicalise", "plan and lower float"]
    assert len(told) == len(set(told)) == len(stages)  # each stage once, and nothing else


def test_what_needs_no_work_says_nothing_on_stderr(cli: Cli, work: Path) -> None:
    assert cli("targets").err == ""


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal_and_never_on_stdout(work: Path) -> None:
    main_end, child_end = pty.openpty()
    arguments = ["build", "net.onnx", "--target", "x86-avx512-vnni", "--calib", "calib.npz", "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=child_end,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as child:
        os.close(child_end)
        drawn = b""
        while True:
            try:
                chunk = os.read(main_end, 65536)
            except OSError:  # EIO: the child has closed its end
                break
            if not chunk:
                break
            drawn += chunk
        assert child.stdout is not None
        out = child.stdout.read()
    os.close(main_end)
    assert child.returncode == 0, drawn
    report = json.loads(out)
    assert report["payloads"]
    for step in (b"read and canonicalise", b"ranges", b"losses"):
        assert step in drawn, drawn


@pytest.mark.slow
@pytest.mark.parametrize("words", [["targets", "--json"], ["--version"]])
def test_a_reader_that_goes_away_is_no_error(work: Path, words: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=write_end,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
def test_nothing_but_our_own_words_reaches_the_streams_of_a_process(work: Path) -> None:
    """Libraries write to the file descriptors themselves, which no test in this process would see."""
    import numpy as np
    from tiny_models import one_node

    one_node(work / "bad.onnx", "MatMul", [1, 4], np.ones((5, 3), np.float32), out=[1, 3])
    (work / "cut.onnx").write_bytes((work / "net.onnx").read_bytes()[:5000])
    program = (
        "import sys; sys.modules['openvino_telemetry'] = None; from edgefuse.cli import main\n"
        "for name in ('bad', 'cut', 'net'):\n"
        "    code = main(['build', name + '.onnx', '--target', 'x86-avx512-vnni', '--json'])\n"
        "    print('code', code, file=sys.stderr, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    decoder = json.JSONDecoder()
    text, found = done.stdout.strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].strip()
    assert ["error" in value for value in found] == [True, True, False]
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("code")] == ["code 1", "code 1", "code 0"]
    assert all(
        line.startswith(("error: ", "  expected: ", "  got: ", "  try: ", "code "))
        or re.fullmatch(r"\[ *\d+\.\d s\] (read and canonicalise|plan and lower float)", line)
        for line in lines
    ), lines
