"""The teaching family stays small, is not offered to users, and its README's backend works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from families import way

from edgefuse.backend import Backend
from edgefuse.device import families
from edgefuse.graph import model_to_bytes
from edgefuse.plans import Format
from edgefuse.quantized import Quantized

EXAMPLE = Path(__file__).resolve().parents[2] / "targets" / "_example"


@pytest.mark.parametrize(("file", "most"), [("backend.py", 150), ("engine.py", 80)])
def test_it_can_be_read_in_one_sitting(file: str, most: int) -> None:
    assert len((EXAMPLE / file).read_text(encoding="utf-8").splitlines()) <= most


def test_it_is_not_offered_to_users() -> None:
    assert "_example" not in families()
    assert "_example" in families(examples=True)


def test_the_readmes_backend_works_as_printed() -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(blocks) == 1
    assert len(blocks[0].splitlines()) <= 30
    written: dict[str, type[Backend]] = {}
    exec(blocks[0], written)
    backend = written["FamilyBackend"]()
    assert isinstance(backend, Backend)
    made = way("residual", "example-cpu")
    target, model, plan = made.prepared.target, made.prepared.model, made.built.plan
    assert backend.probe().available
    lowered = backend.lower(model, plan, Quantized(), target)
    assert lowered.files == {"model.onnx": model_to_bytes(model)}
    assert len(backend.readback(None, plan).groups) == len(plan.groups)

    from edgefuse.fusion import vertical_candidates

    for candidate in vertical_candidates(made.prepared.costed):
        verdict = backend.legal(candidate, "plain", "fp32", Format(), target)
        assert bool(verdict) == (len(candidate.nodes) == 1)
        assert not backend.legal(candidate, "plain", "int8", Format(), target)
