"""The cases beside this checkout, all of them for every family: the table of docs/cases.md.

`python tests/cases/test_shared_cases.py` prints the table.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from case_families import LEAST_DB, TARGETS, Settled, float_errors, settle

from edgefuse.device import resolve_target
from edgefuse.errors import UnsupportedError
from edgefuse.graph import model_from_proto

pytestmark = [pytest.mark.shared, pytest.mark.slow]
CUSTOM = "c51"
HALF_PRECISION = {"c46"}


def cases_of(shared: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shared_cases", shared / "cases" / "cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settled(cases: ModuleType, name: str, target: str) -> Settled:
    proto, sampler = cases.build(name)
    return settle(model_from_proto(proto), target, sampler)


@pytest.mark.parametrize("target", TARGETS)
def test_every_case_is_right_in_int8(target: str, shared_dir: Path) -> None:
    cases = cases_of(shared_dir)
    total = inside = 0
    for name in cases.CASES:
        if name == CUSTOM:
            continue
        found = settled(cases, name, target)
        assert found.worst_db >= LEAST_DB, f"{name}: {found.worst_group} has {found.worst_db:.1f} dB"
        assert all("int8" in reason for reason in found.in_float.values()), name
        total, inside = total + found.macs, inside + found.int8_macs
    assert inside >= 0.8 * total


@pytest.mark.parametrize("target", TARGETS)
def test_every_case_is_right_in_float(target: str, shared_dir: Path) -> None:
    cases = cases_of(shared_dir)
    limits = {"fp32": 1e-5}
    if "fp16" in resolve_target(target).device.precisions:
        limits["fp16"] = 1e-2
    for name in cases.CASES:
        if name == CUSTOM:
            continue
        for precision, limit in limits.items():
            proto, sampler = cases.build(name)
            for row in float_errors(model_from_proto(proto), target, sampler, precision):
                held = max(limit, 1e-3) if name in HALF_PRECISION else limit
                assert row.max_relative_error <= held, f"{name} {precision} {row.note}"


@pytest.mark.parametrize("target", TARGETS)
def test_the_custom_operator_is_refused_by_name(target: str, shared_dir: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"MagicNMS.*com\.acme"):
        settled(cases_of(shared_dir), CUSTOM, target)


def print_table(shared: Path) -> None:
    """Print docs/cases.md's rows: worst decibels and MACs in int8 of each case on each target."""
    cases = cases_of(shared)
    sums = {target: [0, 0] for target in TARGETS}
    reasons: dict[tuple[str, str], list[str]] = {}
    print("| case | " + " | ".join(TARGETS) + " |\n|---" * 1 + "|---" * len(TARGETS) + "|")
    for name in cases.CASES:
        cells = []
        for target in TARGETS:
            try:
                found = settled(cases, name, target)
            except UnsupportedError:
                cells.append("refused by name")
                continue
            sums[target][0] += found.macs
            sums[target][1] += found.int8_macs
            share = 100 * found.int8_macs / max(found.macs, 1)
            cells.append(f"{min(found.worst_db, 99.9):.1f} dB, {share:.0f} %")
            for node, reason in found.in_float.items():
                reasons.setdefault((f"{name} {node}", reason.split("; ", 1)[-1]), []).append(target)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("| MACs in int8 | " + " | ".join(f"{100 * b / a:.1f} %" for a, b in sums.values()) + " |\n")
    for (node, reason), targets in reasons.items():
        print(f"| {node} | {', '.join(targets)} | {reason} |")


if __name__ == "__main__":
    print_table(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[3] / "shared")
