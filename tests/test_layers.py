"""The rooms and their one direction: who may import whom, and what no file may hold.

The table below is the rule (docs/architecture.md draws it). It is read off the source text, so a lazy import
inside a function counts like any other.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Top to bottom. A room imports rooms of lower lines only; rooms of one line do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("compose",),
    ("targets",),
    ("verification", "deployment", "benchmark", "report"),
    ("datasets",),
    ("planner",),
    ("quant",),
    ("codegen",),
    ("cost",),
    ("fusion",),
    ("lowering",),
    ("passes",),
    ("analysis",),
    ("backend",),
    ("device", "quantized"),
    ("plans",),
    ("graph",),
    ("runtime",),
    ("artifact",),
    ("errors", "units"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Stands on nothing of ours: it is copied to devices and runs there on the standard library alone.
DEVICE_ROOM = "firmware_scripts"

# What the planner decides on comes as tables; it may not look behind them.
NEVER = {"planner": {"quant", "targets"}}
# What runs on the robot (Python 3.6, numpy and one vendor package).
ROBOT_ROOMS = {"runtime", "artifact", "errors", "units"}
# These are called (edgefuse.build(), edgefuse.targets()): they reach any room, inside functions only.
FACES = {"edgefuse", "edgefuse.targets"}
# Only these rooms may import these packages; `passes` takes onnxscript's optimiser inside functions.
ONLY_IN = {"onnx": {"graph"}, "onnx_ir": {"graph"}, "onnxscript": {"graph", "passes"}}

BANNED_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve"}
BANNED_CALLS = {"eval", "exec"}
BANNED_METHODS = {
    "os.system": "run a program with subprocess and an argument list",
    "os.popen": "run a program with subprocess and an argument list",
    "yaml.load": "use yaml.safe_load",
    "yaml.unsafe_load": "use yaml.safe_load",
}
BANNED_FLAGS = {
    "shell": "an argument list needs no shell",
    "allow_pickle": "a pickle runs code when it is read",
}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager"}
VENDORS = re.compile("tensorrt|openvino|tflite|litert|kunlun", re.IGNORECASE)
LONGEST_FILE = 700


def room_of(module: str) -> str:
    """Return the room of a module: the part after `edgefuse.`, "" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def family_of(module: str) -> str:
    """Return the family of edgefuse.targets.<family>…, else ""."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["edgefuse", "targets"] and len(parts) > 2 else ""


def module_of(path: Path) -> str:
    """Return the dotted name under which a file of this checkout is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] == "edgefuse" else ["edgefuse", *parts])


def imports(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, dotted name, whether relative) of each import, at any depth of the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, False
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if base == "edgefuse" and not node.level:
                for alias in node.names:  # `from edgefuse import device` reaches a room, not the package
                    known = alias.name in LEVEL or alias.name == DEVICE_ROOM
                    yield node.lineno, f"edgefuse.{alias.name}" if known else "edgefuse", False
            else:
                yield node.lineno, base, bool(node.level)


def top_level(tree: ast.Module) -> set[int]:
    """Return the lines of the imports that run when the module is imported."""
    return {node.lineno for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))}


def is_engine(module: str) -> bool:
    """Return whether a module is a family's engine, which runs on the robot."""
    return family_of(module) != "" and module.endswith(".engine")


def import_fault(module: str, target: str, lazy: bool) -> str:
    """Return why `module` may not import `target`, or ""."""
    room, package = room_of(module), target.split(".")[0]
    allowed = ONLY_IN.get(package)
    if allowed is not None and room not in allowed:
        return f"only {' and '.join(sorted(allowed))} may import {package}"
    if package == "onnxscript" and room == "passes" and not lazy:
        return "onnxscript is imported inside the function that needs it"
    if package in BANNED_MODULES:
        return f"{package} runs code when it reads data"
    if package in {"targets", "quant", "firmware_scripts"}:
        return f"import edgefuse.{package}: `{package}` would make a second copy of each class"
    if package != "edgefuse":
        return device_fault(module, package)
    return room_fault(module, target, lazy)


def device_fault(module: str, package: str) -> str:
    """Return why a file that runs on the robot may not import an outside package, or ""."""
    room = room_of(module)
    if package in sys.stdlib_module_names or package == "__future__":
        return ""
    if room == DEVICE_ROOM:
        return "firmware_scripts uses the standard library only"
    if room in ROBOT_ROOMS and package != "numpy":
        return f"{room} runs on the robot: the standard library and numpy only"
    return ""


def room_fault(module: str, target: str, lazy: bool) -> str:
    """Return why `module` may not import `target`, both of edgefuse, or ""."""
    room, other = room_of(module), room_of(target)
    if room == DEVICE_ROOM:
        return "firmware_scripts imports nothing of edgefuse"
    if module in FACES:
        return "" if lazy else "a package that is called imports other rooms inside functions only"
    if is_engine(module) and other not in ROBOT_ROOMS and other:
        return "an engine runs on the robot: runtime, artifact, errors, units, numpy and its vendor's package"
    if other == "" or room == other:
        mine, theirs = family_of(module), family_of(target)
        if theirs and mine != theirs:
            return f"a family imports no other family ({theirs})"
        return ""
    if (
        module.endswith(".engine")
        and room == "targets"
        and other not in {"runtime", "artifact", "errors", "units"}
    ):
        return "an engine runs on the robot: runtime, artifact, errors, units, numpy and its vendor's package"
    if other == DEVICE_ROOM:
        return "" if room == "deployment" else "only deployment ships firmware_scripts"
    if other not in LEVEL or room not in LEVEL:
        missing = room if room not in LEVEL else other
        return f"{missing} has no line in the table of rooms (tests/test_layers.py)"
    if other in NEVER.get(room, set()):
        return f"{room} never imports {other}"
    if LEVEL[other] <= LEVEL[room]:
        return f"{other} stands above or beside {room}"
    return ""


def engine_faults(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each package beyond numpy and one vendor's that an engine imports."""
    vendor = ""
    for line, target, _ in sorted(imports(tree)) if is_engine(module) else ():
        package = target.split(".")[0]
        if package in sys.stdlib_module_names or package in {"edgefuse", "numpy", vendor}:
            continue
        if vendor:
            yield line, f"an engine needs one vendor's package ({vendor}), not {package} too"
        vendor = vendor or package


def call_faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each call that no file may hold."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in BANNED_CALLS:
            yield node.lineno, f"{name}() runs text as code"
        if name in BANNED_METHODS:
            yield node.lineno, f"{name}: {BANNED_METHODS[name]}"
        for keyword in node.keywords:
            literal_false = isinstance(keyword.value, ast.Constant) and not keyword.value.value
            if keyword.arg in BANNED_FLAGS and not literal_false:
                yield node.lineno, f"{keyword.arg}: {BANNED_FLAGS[keyword.arg]}"


def vendor_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of each vendor's name in names and strings; comments and docstrings may."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        docstring = token.type == tokenize.STRING and text.lstrip("rRbBfFuU")[:3] in ('"""', "'''")
        code = token.type in (tokenize.NAME, tokenize.STRING) or token.type == FSTRING_MIDDLE
        if code and not docstring and VENDORS.search(text):
            yield token.start[0], f"a vendor's name in a shared room: {text.strip()[:40]}"


FSTRING_MIDDLE = getattr(tokenize, "FSTRING_MIDDLE", -1)  # from Python 3.12 on, f-strings come in pieces


def faults(module: str, source: str) -> list[str]:
    """Return what a file of the package may not hold, as "line: reason", in the order of the lines."""
    tree = ast.parse(source)
    eager = top_level(tree)
    found: list[tuple[int, str]] = []
    for line, target, relative in imports(tree):
        reason = "imports are absolute" if relative else import_fault(module, target, line not in eager)
        if reason:
            found.append((line, reason))
    found += call_faults(tree)
    found += engine_faults(module, tree)
    if room_of(module) not in {"targets", DEVICE_ROOM}:
        found += vendor_faults(source)
    length = len(source.splitlines())
    if length > LONGEST_FILE:
        found.append((length, f"{length} lines are too many for one sitting (at most {LONGEST_FILE})"))
    return [f"{line}: {reason}" for line, reason in sorted(found)]


def package_files() -> list[Path]:
    """Return every source file that is installed."""
    rooms = ("edgefuse", "targets", "quant", DEVICE_ROOM)
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def all_files() -> list[Path]:
    """Return every source file of the checkout."""
    return package_files() + sorted(
        path for room in ("tests", "examples") for path in (ROOT / room).rglob("*.py")
    )


def test_every_file_keeps_the_rules() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in package_files()
        for fault in faults(module_of(path), path.read_text(encoding="utf-8"))
    ]
    assert len(package_files()) > 20
    assert not found, "\n".join(found)


def test_every_room_has_a_line_in_the_table() -> None:
    rooms = {room_of(module_of(path)) for path in package_files()} - {"", DEVICE_ROOM}
    assert rooms <= set(LEVEL), f"rooms without a line: {sorted(rooms - set(LEVEL))}"


def test_tests_and_examples_are_readable_too() -> None:
    found = []
    for path in all_files():
        tree, length = (
            ast.parse(path.read_text(encoding="utf-8")),
            len(path.read_text(encoding="utf-8").splitlines()),
        )
        bad = [reason for _, reason in call_faults(tree)] if "tests" not in path.parts else []
        if length > LONGEST_FILE:
            bad.append(f"{length} lines")
        found += [f"{path.relative_to(ROOT)}: {reason}" for reason in bad]
    assert not found, "\n".join(found)


def test_names_say_the_thing() -> None:
    named = [path for path in all_files() for part in (path.stem, *path.parent.parts) if part in BANNED_NAMES]
    inside = [
        path
        for path in named
        if not BANNED_NAMES.isdisjoint((*path.relative_to(ROOT).parent.parts, path.stem))
    ]
    assert not inside, f"these names say nothing: {[str(path.relative_to(ROOT)) for path in inside]}"


CAUGHT = {
    "an upward import": ("edgefuse.graph.read", "from edgefuse.planner import plan"),
    "a sideways import": ("edgefuse.report.html", "from edgefuse.benchmark import measure"),
    "an upward import inside a function": (
        "edgefuse.passes.fold",
        "def f():\n    import edgefuse.quant.observe",
    ),
    "a room taken from the package": ("edgefuse.graph.read", "from edgefuse import planner"),
    "the planner reading quant": ("edgefuse.planner.choose", "from edgefuse.quant import losses"),
    "the planner reading targets": ("edgefuse.planner.choose", "import edgefuse.targets"),
    "onnx outside graph": ("edgefuse.analysis.flops", "from onnx import helper"),
    "onnx_ir outside graph": ("edgefuse.targets.tensorrt.backend", "import onnx_ir as ir"),
    "onnxscript when a pass is imported": ("edgefuse.passes.fold", "from onnxscript import optimizer"),
    "another package on the robot": ("edgefuse.runtime.model", "import msgspec"),
    "the host's rooms on the robot": ("edgefuse.artifact.read", "from edgefuse.plans import Plan"),
    "an engine that needs the host": ("edgefuse.targets.openvino.engine", "from edgefuse.graph import Model"),
    "an engine that needs its family": (
        "edgefuse.targets.openvino.engine",
        "from edgefuse.targets.openvino.encode import f",
    ),
    "an engine with two packages": (
        "edgefuse.targets.tflite.engine",
        "import ai_edge_litert\nimport flatbuffers",
    ),
    "a family reading a family": (
        "edgefuse.targets.tflite.backend",
        "from edgefuse.targets.openvino import encode",
    ),
    "a relative import": ("edgefuse.graph.read", "from .access import Model"),
    "a second copy of a room": ("edgefuse.compose", "import targets"),
    "a device script with a package": ("edgefuse.firmware_scripts.agent", "import numpy"),
    "a device script with edgefuse": (
        "edgefuse.firmware_scripts.agent",
        "from edgefuse.errors import InputError",
    ),
    "a room that nobody placed": (
        "edgefuse.graph.read",
        "from edgefuse import planner\nimport edgefuse.corner",
    ),
    "an eager import in the package": ("edgefuse", "from edgefuse.runtime import load"),
    "an eager import in the targets": (
        "edgefuse.targets",
        "from edgefuse.compose.targets import list_targets",
    ),
    "a family reading the composition": (
        "edgefuse.targets.openvino.backend",
        "def f():\n    import edgefuse.compose",
    ),
    "a shell": ("edgefuse.deployment.ssh", "import subprocess\nsubprocess.run('ls', shell=True)"),
    "os.system": ("edgefuse.deployment.ssh", "import os\nos.system('ls')"),
    "eval": ("edgefuse.verification.metrics", "eval('1')"),
    "exec": ("edgefuse.verification.metrics", "exec('1')"),
    "a pickle": ("edgefuse.artifact.read", "import pickle"),
    "a pickled array": ("edgefuse.datasets.arrays", "import numpy\nnumpy.load('a', allow_pickle=True)"),
    "an unsafe YAML": ("edgefuse.fusion.rules", "import yaml\nyaml.load('a')"),
    "a vendor in a name": ("edgefuse.planner.choose", "tensorrt_bias = 1"),
    "a vendor in a string": ("edgefuse.planner.choose", "x = 'TFLite'"),
    "a vendor in an f-string": ("edgefuse.planner.choose", "y = 1\nx = f'{y} OpenVINO'"),
    "a long file": ("edgefuse.units", "x = 1\n" * (LONGEST_FILE + 1)),
}
LEFT_ALONE = {
    "a downward import": (
        "edgefuse.planner.choose",
        "from edgefuse.plans import Plan\nimport edgefuse.errors",
    ),
    "its own room": ("edgefuse.graph.read", "from edgefuse.graph.access import Model"),
    "a lazy import in the package": ("edgefuse", "def load():\n    from edgefuse.runtime import load"),
    "a lazy import in the targets": (
        "edgefuse.targets",
        "def f():\n    from edgefuse.compose.targets import list_targets",
    ),
    "the version": ("edgefuse.artifact.pack", "from edgefuse import __version__"),
    "onnx in graph": ("edgefuse.graph.read", "import onnx_ir\nfrom onnx import helper"),
    "onnxscript inside a pass": ("edgefuse.passes.fold", "def f():\n    from onnxscript import optimizer"),
    "a vendor in a comment": (
        "edgefuse.planner.choose",
        '"""As tensorrt does."""\n# openvino: the same\nx = 1',
    ),
    "a vendor in its family": ("edgefuse.targets.openvino.backend", "import openvino\nx = 'openvino'"),
    "an engine's own package": (
        "edgefuse.targets.openvino.engine",
        "import numpy\nimport openvino\nfrom edgefuse.runtime.engine import Engine",
    ),
    "an argument list": ("edgefuse.deployment.ssh", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
    "a method called eval": ("edgefuse.quant.observe", "model.eval()"),
    "no pickle": ("edgefuse.datasets.arrays", "import numpy\nnumpy.load('a', allow_pickle=False)"),
}


@pytest.mark.parametrize("case", CAUGHT)
def test_the_checker_catches(case: str) -> None:
    module, source = CAUGHT[case]
    found = faults(module, source)
    assert found, f"{case} was let through"
    assert re.match(r"\d+: \w", found[0])


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_the_checker_leaves_alone(case: str) -> None:
    module, source = LEFT_ALONE[case]
    assert faults(module, source) == []


def test_modules_are_named_as_they_are_installed() -> None:
    assert module_of(ROOT / "targets/openvino/engine.py") == "edgefuse.targets.openvino.engine"
    assert module_of(ROOT / "edgefuse/__init__.py") == "edgefuse"
    assert module_of(ROOT / "quant/__init__.py") == "edgefuse.quant"
