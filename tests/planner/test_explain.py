"""Alternatives with their price, binding limits, staged baselines: on graphs, against plans made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from edgefuse.cost import CostModel
from edgefuse.errors import InputError
from edgefuse.graph import Model
from edgefuse.planner import BASELINES, MEMORY, SharedScale, baseline_plans, explain_choice, make_plan
from edgefuse.plans import CostTerm, Format
from edgefuse.report.explain import explanation_json
from tests.passes.graphs import Build
from tests.planner.test_solve import TARGET, _chain, _check, _request

pytestmark = pytest.mark.slow

INT8: dict[str, Any] = {"precisions": ("int8", "fp32")}


def _wide() -> Model:
    return _chain(3, residual=False, channels=64)


def test_each_alternative_is_priced_by_planning_again() -> None:
    request = _request(_wide(), **INT8, losses={f"conv{i}": 0.1 for i in range(3)}, budget=0.25)
    found = explain_choice(request, "conv1")
    assert found.group.nodes[0] in ("conv1", "conv0")
    assert all(a.extra_ms is None or a.extra_ms >= 0 for a in found.alternatives)
    other = "fp32" if found.group.precision == "int8" else "int8"
    ways = {(len(a.nodes), a.precision): a.extra_ms for a in found.alternatives}
    refused = {"conv1": "not wanted"}
    apart = make_plan(_request(_wide(), **INT8, losses=request.losses, budget=0.25, refused=refused))
    if other == "fp32":
        cheapest = min(e for (_, p), e in ways.items() if p == "fp32" and e is not None)
        assert cheapest == pytest.approx(
            apart.predicted_ms - found.plan.predicted_ms, abs=found.resolution_ms
        )
    assert explain_choice(request, "conv1", most=1).left_out == len(found.alternatives) - 1


def test_the_binding_limit_is_named_and_more_of_it_buys_time() -> None:
    losses = {f"conv{i}": 0.1 for i in range(3)}
    tight = explain_choice(_request(_wide(), **INT8, losses=losses, budget=0.25), "conv0", more=0.3)
    (limit,) = tight.limits
    free = make_plan(_request(_wide(), **INT8, losses=losses))
    assert limit.without_ms == pytest.approx(tight.plan.predicted_ms - free.predicted_ms, rel=1e-6)
    assert tight.more_ms == pytest.approx(limit.without_ms), "a third more is room for the third layer"
    body = explanation_json(tight)
    assert body["binding"] == ["all outputs"]
    assert "binding: all outputs, 0.2 of 0.25 used" in body["text"]
    loose = explanation_json(explain_choice(_request(_wide(), **INT8, losses=losses, budget=9.0), "conv0"))
    assert loose["binding"] == []
    assert "binding: no limit" in loose["text"]


def test_an_alternative_over_the_limits_says_so() -> None:
    request = _request(_wide(), **INT8, losses={"conv0": 1.0}, budget=0.5)
    body = explanation_json(explain_choice(request, "conv0"))
    assert any(not a["possible"] and a["precision"] == "int8" for a in body["alternatives"])
    assert "over the limits" in body["text"]


def test_nodes_are_found_by_any_of_their_names_or_refused() -> None:
    request = _request(_wide(), **INT8)
    tensor = next(n for n in request.model.graph if n.name == "relu1").outputs[0].name
    assert explain_choice(request, str(tensor)).group == explain_choice(request, "relu1").group
    with pytest.raises(InputError, match="no node 'convo1', did you mean 'conv"):
        explain_choice(request, "convo1")
    body = explanation_json(explain_choice(_request(_wide()), "relu1"))
    assert body["text"].startswith("relu1: group g001, Conv + Relu, fp32")
    assert "time alone decided" in body["text"]


def test_a_memory_limit_binds_and_is_reported() -> None:
    free = make_plan(_request(_wide()))
    map_bytes = 64 * 16 * 16 * 4
    held = explain_choice(_request(_wide(), **INT8, memory_limit_bytes=1.5 * map_bytes), "conv1")
    assert held.limits[-1].name == MEMORY
    assert held.limits[-1].used <= 1.5 * map_bytes
    assert held.plan.count("int8") > free.count("int8")


def test_baselines_are_plans_and_never_better_than_the_joint_one() -> None:
    model = _chain(3, residual=True, channels=48)
    request = _request(model, **INT8, losses={f"conv{i}": 0.1 * (i + 1) for i in range(3)}, budget=0.35)
    joint = make_plan(request)
    staged = baseline_plans(request)
    assert list(staged) == list(BASELINES) == ["fuse-first", "precision-first", "greedy"]
    for name, plan in staged.items():
        _check(plan, model)
        assert plan.budget_used <= 0.35 * (1 + 1e-6), name
        assert plan.predicted_ms >= joint.predicted_ms * (1 - 1e-3), name


class _DearChains(CostModel):
    """Float chains are nearly free and int8 ones are not: what fuse-first fuses is wrong for int8."""

    def group(self, candidate: Any, precision: Any, *rest: Any) -> tuple[CostTerm, ...]:
        """Return one term: int8 alone 1 ms, float 3 ms, a fused pair 2.9 in float and 9 in int8."""
        alone = len(candidate.nodes) == 1
        compute = candidate.anchor.op_type == "Conv"
        ms = (1.0 if precision == "int8" else 3.0) if compute and alone else 0.1
        if compute and not alone:
            ms = 9.0 if precision == "int8" else 2.9
        return (CostTerm("compute", ms, "estimate", "a test"),)


def test_fusing_first_can_be_wrong_and_the_joint_plan_is_not() -> None:
    request = _request(_chain(2, residual=False), **INT8)
    request = type(request)(
        **{f: getattr(request, f) for f in request.__slots__} | {"cost": _DearChains(TARGET)}
    )
    joint, staged = make_plan(request), baseline_plans(request)
    assert joint.count("int8") == 2
    assert staged["fuse-first"].count("int8") == 0
    assert staged["fuse-first"].predicted_ms > 1.5 * joint.predicted_ms
    assert staged["greedy"].predicted_ms > 1.5 * joint.predicted_ms
    assert staged["precision-first"].predicted_ms == pytest.approx(joint.predicted_ms, rel=1e-3)


class _TwoPlaces(CostModel):
    """A second engine that convolves ten times as fast, with a fixed price for each way there or back."""

    transfer = 0.001

    def group(
        self, candidate: Any, precision: Any, reads: str, output: Format, variant: str = "plain"
    ) -> Any:
        """Return the group's terms, a tenth of them in the other place."""
        share = 0.1 if output.place == "other" else 1.0
        terms = super().group(candidate, precision, reads, output, variant)
        return tuple(CostTerm(t.name, t.ms * share, t.provenance, t.source) for t in terms)

    def reformat(self, elements: int, source: Format, target: Format) -> CostTerm:
        """Return the price of a transfer."""
        return CostTerm("conversion", self.transfer, "estimate", "a test")


def _offers(candidate: Any, precision: Any) -> list[tuple[Format, Format]]:
    here, there = Format("float32"), Format("float32", place="other")
    return [(here, here), (there, there)] if candidate.anchor.op_type == "Conv" else [(here, here)]


@pytest.mark.parametrize(("transfer", "places"), [(1e-5, {"other"}), (1e3, {"main"})])
def test_a_second_place_is_used_where_transfers_allow(transfer: float, places: set[str]) -> None:
    cost = _TwoPlaces(TARGET)
    cost.transfer = transfer
    request = _request(_wide(), offers=_offers)
    request = type(request)(**{f: getattr(request, f) for f in request.__slots__} | {"cost": cost})
    plan = make_plan(request)
    assert {g.output.place for g in plan.groups if "Conv" in g.operators} == places
    assert bool(plan.conversions) == (places == {"other"})
    assert all(c.source.place != c.target.place for c in plan.conversions)


class _InPlace(CostModel):
    """A Concat written in place is free."""

    def group(
        self, candidate: Any, precision: Any, reads: str, output: Format, variant: str = "plain"
    ) -> Any:
        """Return no time for the variant in place."""
        if variant == "in-place":
            return (CostTerm("compute", 0.0, "estimate", "a test"),)
        return super().group(candidate, precision, reads, output, variant)


@pytest.mark.parametrize(("loss", "shared"), [(0.01, True), (0.9, False)])
def test_a_variant_that_needs_one_scale_shares_it_within_the_budget(loss: float, shared: bool) -> None:
    from dataclasses import replace

    from tests.planner.test_solve import Anything

    b = Build()
    x = b.x([1, 64, 16, 16])
    ways = [b.op("Conv", x, b.rand(64, 64, 1, 1), name=f"conv{i}") for i in range(2)]
    y = b.op("Concat", *ways, name="join", axis=1)
    b.y(b.op("Conv", y, b.rand(64, 128, 1, 1), name="last"))
    request = _request(b.model(), Anything(int8=("Conv", "Concat")), **INT8, budget=0.5)
    candidates = [
        replace(c, variants=("plain", "in-place")) if c.names == ("join",) else c for c in request.candidates
    ]
    scale = SharedScale(("a", "b"), (("join", "in-place"),), loss, "written in place")
    plan = make_plan(replace(request, candidates=candidates, scales=[scale], cost=_InPlace(TARGET)))
    assert [s.reason for s in plan.scale_groups] == (["written in place"] if shared else [])
    join = plan.group_of("join")
    assert join is not None
    assert (join.variant == "in-place" and join.precision == "int8") == shared
    assert plan.budget_used == (loss if shared else 0.0)
