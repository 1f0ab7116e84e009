from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.errors import InputError, UsageError
from edgefuse.runtime import TensorInfo
from edgefuse.verification import METRICS, default_metric, make_metric

ONE = {"y": np.array([[1.0, 3.0]])}
TWO = {"y": np.array([[2.0, 3.0]])}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_name_makes_a_fresh_metric_of_that_name(name: str) -> None:
    assert make_metric(name).name == name
    assert make_metric(name) is not make_metric(name)


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no metric 'agrement', did you mean 'agreement'"):
        make_metric("agrement")


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([("y", "float32", ("N", 1000))], "agreement"),
        ([("y", "float16", (1, 4, 1, 1))], "agreement"),
        ([("y", "float32", (1, 1))], "worst-group"),
        ([("y", "float32", (1, "C"))], "worst-group"),
        ([("y", "int64", (1, 10))], "worst-group"),
        ([("y", "float32", (1, 84, 8400))], "worst-group"),
        ([("y", "float32", (1, 1000)), ("z", "float32", (1, 5))], "worst-group"),
        ([("y", "float32", ())], "worst-group"),
    ],
)
def test_the_metric_when_none_is_named(
    outputs: list[tuple[str, str, tuple[Any, ...]]], expected: str
) -> None:
    assert default_metric([TensorInfo(*output) for output in outputs]) == expected


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "user_metrics_for_a_test"
    (tmp_path / f"{name}.py").write_text(
        "def first(outputs, reference_outputs, label):\n"
        "    return outputs['y'][0, 0] * label\n"
        "def error(outputs, reference_outputs, label):\n"
        "    return abs(outputs['y'] - reference_outputs['y']).max()\n"
        "error.higher_is_better = False\n"
        "def nan(*_):\n"
        "    return float('nan')\n"
        "def broken(outputs, reference_outputs, label):\n"
        "    return outputs['z']\n"
        "def text(*_):\n"
        "    return 'good'\n"
        "class Largest:\n"
        "    def __init__(self):\n"
        "        self.seen = []\n"
        "    def update(self, outputs, reference_outputs, label):\n"
        "        self.seen.append(outputs['y'].max())\n"
        "    def value(self):\n"
        "        return max(self.seen)\n"
        "class Half:\n"
        "    def update(self, *_): pass\n"
        "NUMBER = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield name
    sys.modules.pop(name, None)


def test_a_users_function_is_scored_for_both_sides(module: str) -> None:
    path = list(sys.path)
    metric = make_metric(f"{module}:first")
    assert sys.path == path
    metric.update(ONE, TWO, 1)
    metric.update(ONE, TWO, 3)
    assert metric.value() == 2.0
    assert metric.reference_value() == 4.0
    assert metric.drop() == 2.0
    assert metric.name == f"{module}:first"


def test_a_users_error_goes_the_other_way(module: str) -> None:
    metric = make_metric(f"{module}:error")
    metric.update(ONE, TWO, None)
    assert (metric.value(), metric.reference_value(), metric.drop()) == (1.0, 0.0, 1.0)


def test_a_users_class_sees_the_whole_data_set(module: str) -> None:
    metric = make_metric(f"{module}:Largest")
    metric.update({"y": np.array([5.0])}, {"y": np.array([7.0])}, None)
    metric.update({"y": np.array([1.0])}, {"y": np.array([2.0])}, None)
    assert (metric.value(), metric.reference_value()) == (5.0, 7.0)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [("nan", "not a finite number"), ("broken", "KeyError: 'z'"), ("text", "could not convert")],
)
def test_what_a_users_function_does_wrong_is_said(module: str, attribute: str, message: str) -> None:
    metric = make_metric(f"{module}:{attribute}")
    with pytest.raises(InputError, match=f"{attribute} failed on sample 0: .*{message}"):
        metric.update(ONE, TWO, None)


def test_a_name_out_of_an_artifact_imports_nothing(module: str) -> None:
    with pytest.raises(InputError, match=f"judged by {module}:first"):
        make_metric(f"{module}:first", own_code=False)
    assert module not in sys.modules
    assert make_metric("agreement", own_code=False).name == "agreement"


def test_names_that_lead_nowhere(module: str) -> None:
    with pytest.raises(InputError, match="has no function 'frist', did you mean 'first'"):
        make_metric(f"{module}:frist")
    with pytest.raises(InputError, match="has no function 'NUMBER'"):
        make_metric(f"{module}:NUMBER")
    with pytest.raises(InputError, match="the class needs methods"):
        make_metric(f"{module}:Half")
    with pytest.raises(InputError, match="module 'no_such_module_here' cannot be imported"):
        make_metric("no_such_module_here:f")
    for name in (":", "a:", ":f", "a b:c", "a:b:c", "os.path:join()", "../x:y"):
        with pytest.raises(UsageError, match="names no metric"):
            make_metric(name)


def test_a_module_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_user_metric.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="RuntimeError: no licence"):
        make_metric("failing_user_metric:f")


def test_the_documentation_names_every_metric_and_its_example_runs(repository: Path) -> None:
    text = (repository / "docs" / "metrics.md").read_text()
    table = {line.split("|")[1].strip(" `") for line in text.splitlines() if line.startswith("| `")}
    assert set(METRICS) | {"MODULE:FUNCTION"} <= table
    example = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(example, "docs/metrics.md", "exec"), names)
    assert names["first_score"]({"scores": np.array([[0.25]])}, {}, None) == 0.25
