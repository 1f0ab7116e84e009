"""Int8 tables and plans: limits for each output channel group, the price of repairs, shared weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgefuse.backend import Candidate, Verdict
from edgefuse.compose.planning import Int8Tables, int8_plan, measure_tables, repair_prepared
from edgefuse.compose.prepare import Prepared, find_target, prepare
from edgefuse.device import Target
from edgefuse.graph import clone_model, model_to_bytes
from edgefuse.plans import Format, Precision
from edgefuse.quant import Range, scheme_of
from edgefuse.quant.unshare import differing_readers
from edgefuse.targets.openvino.backend import FamilyBackend as OpenvinoBackend
from tests.passes.graphs import Build, conv

pytestmark = pytest.mark.slow  # plans and trials in float simulation: seconds in all

TARGET = find_target("x86-avx2")
Samples = list[dict[str, np.ndarray]]


def _quiet(what: str, done: int, of: int) -> None:
    pass


def two_heads() -> Prepared:
    """Return boxes and scores: two convolutions behind one."""
    b = Build(seed=3)
    trunk = b.op("Relu", conv(b, b.x([1, 32, 16, 16]), 32, 32, name="trunk"))
    return prepare(
        b.y(conv(b, trunk, 32, 32, name="boxes"), conv(b, trunk, 32, 32, name="scores")).model(), TARGET
    )


def tables(prepared: Prepared) -> Int8Tables:
    ranges = {v.name or "": Range(-1, 1) for n in prepared.model.graph for v in n.inputs if v is not None}
    losses = {"trunk": 0.01, "boxes": 0.02, "scores": 0.03}
    groups = {
        "trunk": {"boxes[0]": 0.01, "scores[0]": 0.01},
        "boxes": {"boxes[0]": 0.1},
        "scores": {"scores[0]": 0.9},
    }
    return Int8Tables(scheme_of(TARGET), ranges, losses, group_losses=groups)


def _int8(prepared: Prepared, held: Int8Tables, budget: float | None, groups: float | None) -> set[str]:
    plan, _ = int8_plan(prepared, held, "int8", 1, budget, group_budget=groups)
    return {g.nodes[0] for g in plan.groups if g.precision == "int8"}


def test_a_channel_group_keeps_its_share_of_the_budget() -> None:
    prepared = two_heads()
    held = tables(prepared)
    whole, _ = int8_plan(prepared, held, "int8", 1, None)
    assert whole.count("int8") == 3
    groups = held.group_budget(whole, whole.budget_used / 2)
    assert groups == pytest.approx((0.01 + 0.9) / 2)
    assert _int8(prepared, held, None, groups) == {"trunk", "boxes"}
    assert _int8(prepared, held, 0.06, None) == {"trunk", "boxes", "scores"}
    assert _int8(prepared, held, None, 1.0) == {"trunk", "boxes", "scores"}


def test_there_is_no_limit_for_groups_that_were_not_measured() -> None:
    prepared = two_heads()
    held = tables(prepared)
    whole, _ = int8_plan(prepared, held, "int8", 1, None)
    assert replace(held, group_losses={}).group_budget(whole, 0.01) is None
    nothing, _ = int8_plan(prepared, held, "int8", 1, 0.0)
    assert held.group_budget(nothing, 0.01) is None


def test_losses_are_measured_for_each_output_channel_group() -> None:
    prepared = two_heads()
    rng = np.random.default_rng(5)
    samples = [{"x": rng.standard_normal((1, 32, 16, 16)).astype(np.float32)} for _ in range(4)]
    found = measure_tables(prepared, samples, _quiet)
    assert set(found.group_losses) == {"trunk", "boxes", "scores"}
    boxes, scores = (v.name or "" for v in prepared.model.graph.outputs)
    assert len(found.group_losses["trunk"]) == 64
    assert found.group_losses["boxes"][f"{scores}[3]"] == 0.0
    assert found.group_losses["boxes"][f"{boxes}[3]"] > 0.0


class JoinsInInt8(OpenvinoBackend):
    """A backend of the test's own: Concat runs in int8, under one scale."""

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        if candidate.operators == ("Concat",) and precision == "int8":
            return Verdict(True)
        return super()._legal(candidate, variant, precision, output, target)


def test_a_join_of_unlike_parts_is_shared_or_left_in_float_by_its_measured_loss() -> None:
    b = Build(seed=3)
    trunk = b.op("Relu", conv(b, b.x([1, 32, 16, 16]), 32, 32, name="trunk"))
    small = b.op("Mul", conv(b, trunk, 32, 32, name="scores"), b.w(1e-3))
    join = b.op("Concat", conv(b, trunk, 32, 32, name="boxes"), small, name="join", axis=1)
    model = b.y(conv(b, join, 64, 32, name="first"), conv(b, small, 32, 32, name="second")).model()
    prepared = prepare(model, TARGET, backend=JoinsInInt8())
    rng = np.random.default_rng(5)
    samples = [{"x": rng.standard_normal((1, 32, 16, 16)).astype(np.float32)} for _ in range(4)]
    found = measure_tables(prepared, samples, _quiet)
    (scale,) = found.scales
    assert len(scale.tensors) == 2
    assert "differ in range" in scale.reason
    assert scale.loss >= 0.0
    assert measure_tables(prepare(clone_model(model), TARGET), samples, _quiet).scales == ()
    dear = replace(found, scales=(replace(scale, loss=1e6),))
    plan, _ = int8_plan(prepared, dear, "int8", 1, 1e3)
    group = plan.group_of(scale.needs[0][0])
    assert group is not None
    assert group.precision != "int8"


def outlier(channels: int) -> tuple[Prepared, Samples]:
    """Return two products and samples whose channel 3 is 100 times the others: smoothing inserts a Mul."""
    b = Build(seed=1)
    first = b.op("MatMul", b.x([1, 8, channels]), b.w(b.rng.standard_normal((channels, 32)) * 0.2))
    y = b.op("MatMul", b.op("Relu", first), b.w(b.rng.standard_normal((32, 16)) * 0.2))
    rng = np.random.default_rng(2)
    samples = []
    for _ in range(24):
        x = rng.standard_normal((1, 8, channels)).astype(np.float32)
        x[..., 3] *= 100
        samples.append({"x": x})
    return prepare(b.y(y).model(), TARGET), samples


def test_a_repair_that_adds_operators_says_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, samples = outlier(32)
    repaired, log = repair_prepared(prepared, samples, _quiet)
    priced = [r for r in log.repairs if r.detail[-1].startswith("predicted time +")]
    assert any(row.kept for row in priced)
    assert len(tuple(repaired.model.graph)) > len(tuple(prepared.model.graph))
    monkeypatch.setattr("edgefuse.quant.repair.DB_A_PER_CENT", 1e3)
    monkeypatch.setattr("edgefuse.quant.repair.MOST_ASKED_DB", 1e3)
    declined, log = repair_prepared(prepared, samples, _quiet)
    priced = [r for r in log.repairs if r.detail[-1].startswith("predicted time +")]
    assert priced
    assert not any(row.kept for row in priced)
    assert any(row.gain_db is not None and row.gain_db > 0.1 for row in priced)
    assert len(tuple(declined.model.graph)) == len(tuple(prepared.model.graph))


def test_a_weight_that_two_readers_need_differently_is_copied() -> None:
    b = Build(seed=1)
    weight = b.rand(32, 32)
    first = b.op("Gemm", b.x([4, 32]), weight, name="first")
    prepared = prepare(
        b.y(b.op("Gemm", b.op("Relu", first), weight, name="second", transB=1)).model(), TARGET
    )
    before = model_to_bytes(prepared.model)
    rng = np.random.default_rng(5)
    samples = [{"x": rng.standard_normal((4, 32)).astype(np.float32)} for _ in range(6)]
    repaired, _ = repair_prepared(prepared, samples, _quiet)
    scheme = scheme_of(TARGET)
    names = [n.name or "" for n in prepared.model.graph if n.op_type in ("Gemm", "MatMul")]
    assert len(names) == 2
    assert not differing_readers(repaired.model, names, scheme)
    assert model_to_bytes(prepared.model) == before
