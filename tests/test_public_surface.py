"""What other programs rely on: the package's names, a function for each verb, `__all__` everywhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import edgefuse

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = ("bench", "build", "inspect", "load", "plan", "rules", "run", "targets", "verify")


def _fresh(program: str) -> str:
    """Return what a new interpreter prints: there nothing was imported before."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names_of_the_package() -> None:
    assert sorted(edgefuse.__all__) == sorted(("__version__", *FUNCTIONS))
    assert edgefuse.__version__.count(".") == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_says_what_comes_back(name: str) -> None:
    function = getattr(edgefuse, name)
    assert callable(function)
    assert (inspect.getdoc(function) or "").strip()


def test_each_verb_has_a_function_and_json() -> None:
    import click

    from edgefuse.cli.main import edgefuse as group

    context = click.Context(group)
    for verb in group.list_commands(context):
        command = group.get_command(context, verb)
        assert command is not None
        assert verb in FUNCTIONS, f"no function edgefuse.{verb}"
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, verb


def test_importing_the_package_imports_no_room_and_no_other_package() -> None:
    program = "import sys; before = set(sys.modules); import edgefuse; print(*set(sys.modules) - before)"
    brought = set(_fresh(program).split())
    assert {name for name in brought if name.partition(".")[0] not in sys.stdlib_module_names} == {"edgefuse"}


def test_help_imports_no_heavy_package() -> None:
    program = (
        "import json, sys\n"
        "from edgefuse.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'onnxscript', 'openvino', 'highspy', 'PIL'}\n"
        "print(json.dumps(sorted(heavy & set(sys.modules))))\n"
    )
    assert json.loads(_fresh(program).splitlines()[-1]) == []


def test_functions_stay_functions_whatever_was_imported() -> None:
    program = (
        "import edgefuse, edgefuse.compose.build, edgefuse.compose.verbs, edgefuse.targets, edgefuse.plans\n"
        "import edgefuse.verification, edgefuse.benchmark, edgefuse.runtime\n"
        f"print(all(callable(getattr(edgefuse, name)) for name in {FUNCTIONS!r}))\n"
        "print(len(edgefuse.targets()) > 10)\n"
    )
    assert _fresh(program).split() == ["True", "True"]


def _public_modules() -> list[str]:
    found = []
    for path in sorted((ROOT / "edgefuse").rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__main__":
            continue
        if parts[-1] == "__init__":
            parts.pop()
        names = {
            target.id
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if "__all__" in names:
            found.append(".".join(parts))
    return found


def test_every_all_is_sorted_true_and_without_private_names() -> None:
    modules = _public_modules()
    assert len(modules) > 30
    for name in modules:
        module = importlib.import_module(name)
        listed = list(module.__all__)
        assert len(set(listed)) == len(listed), name
        missing = [entry for entry in listed if not hasattr(module, entry)]
        assert not missing, f"{name}.__all__ names what it has not: {missing}"
        private = [entry for entry in listed if entry.startswith("_") and not entry.endswith("__")]
        assert not private, f"{name}.__all__ makes private names public: {private}"
