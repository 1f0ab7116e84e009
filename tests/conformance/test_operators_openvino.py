"""Every operator case of the onnx wheel that OpenVINO reads runs there, through our import and engine.

The path is that of a build without the passes: import, the family's `prepare`, IR, engine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from node_cases import NodeCase, differences, node_cases

from edgefuse.backend import load_backend
from edgefuse.device import Target, resolve_target
from edgefuse.errors import DeviceError, EdgefuseError, UnsupportedError
from edgefuse.graph import model_from_proto
from edgefuse.runtime.engine import open_engine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'edgefuse[openvino]'")
pytestmark = pytest.mark.slow

SHARDS = 8
# A case whose operators the reader does not have is no case of this family; it is counted by operator.
_CANNOT_READ = "OpenVINO cannot read the model: "
_OURS = "its reader ignores"
_OPTIONS = {"threads": 1, "streams": 1, "inference_precision": "f32"}


@lru_cache(maxsize=1)
def exclusions() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("openvino.toml").read_text(encoding="utf-8"))


def exclusion_of(case: NodeCase) -> str | None:
    for name, entry in exclusions().items():
        if any(fnmatchcase(case.name, pattern) for pattern in entry["names"]):
            return name
    return None


@lru_cache(maxsize=1)
def target() -> Target:
    return resolve_target("x86-avx2")


def outcome_of(case: NodeCase) -> tuple[str, str]:
    """Return ("passed" | "unsupported" | "refused" | "fails" | "differs", what was said)."""
    from edgefuse.targets.openvino.emit import write_ir

    model = model_from_proto(case.model)
    try:
        xml, weights = write_ir(load_backend("openvino").prepare(model, target()))
    except UnsupportedError as error:
        unread = error.message.startswith(_CANNOT_READ) and _OURS not in error.message
        return ("unsupported" if unread else "refused"), error.message
    try:
        engine = open_engine("openvino", {"m.xml": xml, "m.bin": weights}, "m.xml", _OPTIONS)
        lines = differences(case, engine.run(case.inputs))
        engine.close()
    except (DeviceError, RuntimeError) as error:
        return "fails", str(error).strip().splitlines()[0]
    return ("differs" if lines else "passed"), "; ".join(lines)


def readable_cases() -> Iterator[NodeCase]:
    """Yield the plain cases that the import reads at all (operator sets from 7 on)."""
    return (
        c
        for c in node_cases()
        if c.kind == "plain" and c.name not in ("test_not_2d", "test_not_3d", "test_not_4d")
    )


@lru_cache(maxsize=1)
def outcomes() -> dict[str, tuple[str, str]]:
    """Return the outcome of every case; filled by the shards and shared with the counting tests."""
    return {}


def outcome(case: NodeCase) -> tuple[str, str]:
    known = outcomes()
    if case.name not in known:
        known[case.name] = outcome_of(case)
    return known[case.name]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cases_run(shard: int) -> None:
    cases = list(readable_cases())[shard::SHARDS]
    assert len(cases) > 150
    lines = [
        f"{case.name}: {found}: {text}"
        for case in cases
        for found, text in [outcome(case)]
        if found not in ("passed", "unsupported") and exclusion_of(case) is None
    ]
    assert not lines, "\n".join(lines)


def test_exclusions_are_few_and_none_is_stale(capsys: pytest.CaptureFixture[str]) -> None:
    cases = list(readable_cases())
    counts = Counter(outcome(case)[0] for case in cases)
    supported = [case for case in cases if outcome(case)[0] != "unsupported"]
    excluded = [case for case in supported if exclusion_of(case) is not None]
    missing = Counter(op for c in cases if outcome(c)[0] == "unsupported" for op in _to_blame(c))
    with capsys.disabled():
        print(
            f"\nOpenVINO operator conformance: {counts['passed']} passed, {len(excluded)} excluded "
            f"({len(excluded) / len(supported):.1%} of {len(supported)}), {counts['unsupported']} not read: "
            + ", ".join(f"{op} {n}" for op, n in missing.most_common())
        )
    assert len(supported) > 1400
    assert len(excluded) <= 0.05 * len(supported)
    assert counts["unsupported"] < 0.12 * len(cases)
    for name, entry in exclusions().items():
        assert entry["reason"], name
        for pattern in entry["names"]:
            members = [c for c in cases if fnmatchcase(c.name, pattern)]
            assert members, f"{name}: no case is called {pattern}"
            wrong = [c.name for c in members if outcome(c)[0] != entry["outcome"]]
            assert not wrong, f"exclusion '{name}' is stale: {wrong} no longer ends as {entry['outcome']!r}"


def _to_blame(case: NodeCase) -> list[str]:
    """Return the operators that OpenVINO's message names, else those of the case."""
    text = outcome(case)[1]
    named = [op for op in case.op_types if f" {op}-" in text]
    return named or (sorted(case.op_types) if len(case.op_types) == 1 else ["several"])


def test_a_refusal_names_the_node_and_the_reason() -> None:
    refused = [c for c in readable_cases() if exclusion_of(c) in ("roialign-max", "dft", "run-time-sizes")]
    assert refused
    for case in refused:
        with pytest.raises(EdgefuseError, match="OpenVINO") as caught:
            load_backend("openvino").prepare(model_from_proto(case.model), target())
        assert next(iter(case.op_types)) in caught.value.message
