"""The planner against brute force, and its promises: cover, formats, budget, determinism."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.backend import Backend, Candidate, Lowered, Probe, Readback, Verdict
from edgefuse.cost import CostModel
from edgefuse.device import Target, resolve_target
from edgefuse.errors import UnsupportedError
from edgefuse.fusion import vertical_candidates
from edgefuse.graph import Model
from edgefuse.planner import PlanRequest, make_columns, make_plan
from edgefuse.planner.columns import READS, Column, external_inputs
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quantized import Quantized
from tests.passes.graphs import Build

TARGET = resolve_target("x86-avx2")


class Anything(Backend):
    """A backend of the test's own: what it allows is given."""

    family = "openvino"

    def __init__(self, int8: Sequence[str] = ("Conv",), forbidden: Mapping[str, str] | None = None) -> None:
        self.int8 = int8
        self.forbidden = dict(forbidden or {})

    def probe(self) -> Probe:
        return Probe(False, install="nothing")

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        for operator in candidate.operators:
            if operator in self.forbidden:
                return Verdict(False, self.forbidden[operator])
        if precision == "int8" and candidate.anchor.op_type not in self.int8:
            return Verdict(False, "float only")
        return Verdict(True)

    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        raise AssertionError("not asked for here")

    def _readback(self, engine: Any, plan: Plan) -> Readback:
        raise AssertionError("not asked for here")


def _chain(convs: int = 3, residual: bool = True, channels: int = 8) -> Model:
    b = Build()
    x = b.x([1, channels, 16, 16])
    for i in range(convs):
        y = b.op(
            "Conv", x, b.rand(channels, channels, 3, 3), b.rand(channels), name=f"conv{i}", pads=[1, 1, 1, 1]
        )
        y = b.op("Relu", y, name=f"relu{i}")
        x = b.op("Add", y, x, name=f"add{i}") if residual and i else y
    b.y(b.op("GlobalAveragePool", x, name="gap"))
    return b.model()


def _request(model: Model, backend: Backend | None = None, **more: Any) -> PlanRequest:
    return PlanRequest(
        model=model,
        target=TARGET,
        backend=backend or Anything(),
        cost=CostModel(TARGET),
        candidates=vertical_candidates(model),
        **more,
    )


def _check(plan: Plan, model: Model) -> None:
    """Assert that every node is covered once and that every reader finds its format."""
    names = [name for group in plan.groups for name in group.nodes]
    assert sorted(names) == sorted(n.name or "" for n in model.graph)
    written = {(v.name, "float32") for v in model.graph.inputs}
    written |= {(t, g.output.dtype) for g in plan.groups for t in g.writes}
    written |= {(c.tensor, c.target.dtype) for c in plan.conversions}
    nodes = {n.name: n for n in model.graph}
    for group in plan.groups:
        candidate = Candidate(tuple(nodes[n] for n in group.nodes), nodes[group.nodes[0]], group.rule, ())
        for value in external_inputs(candidate):
            assert (value.name, READS[group.precision]) in written, (group.id, value.name)
    for conversion in plan.conversions:
        assert (conversion.tensor, conversion.source.dtype) in written
    for output in model.graph.outputs:
        assert (output.name, "float32") in written


def _brute_force(request: PlanRequest) -> float:
    """Return the cheapest cost over all covers, by trying them all."""
    columns, _ = make_columns(request)
    names = [n.name or "" for n in request.model.graph]
    best = np.inf

    def extend(done: frozenset[str], taken: tuple[Column, ...]) -> None:
        nonlocal best
        missing = next((n for n in names if n not in done), None)
        if missing is None:
            best = min(best, _price(request, taken))
            return
        for column in columns:
            held = frozenset(column.candidate.names)
            if missing in held and not held & done:
                extend(done | held, (*taken, column))

    extend(frozenset(), ())
    return float(best)


def _price(request: PlanRequest, taken: Sequence[Column]) -> float:
    if request.budget is not None and sum(c.loss for c in taken) > request.budget * (1 + 1e-6):
        return float(np.inf)
    if request.group_budget is not None:
        int8 = [n for c in taken if c.precision == "int8" for n in c.candidate.names]
        for group in ("boxes", "scores"):
            used = sum(request.group_losses.get(name, {}).get(group, 0.0) for name in int8)
            if used > request.group_budget * (1 + 1e-6):
                return float(np.inf)
    written = {v.name or "": "float32" for v in request.model.graph.inputs}
    sizes = {v.name or "": v for v in request.model.graph.inputs}
    for column in taken:
        for value in column.candidate.outputs:
            written[value.name or ""] = column.output.dtype
            sizes[value.name or ""] = value
    needs = {(v.name or "", "float32") for v in request.model.graph.outputs}
    for column in taken:
        needs |= {(v.name or "", READS[column.precision]) for v in external_inputs(column.candidate)}
    total = sum(c.ms for c in taken)
    for tensor, dtype in needs:
        if written[tensor] != dtype:
            shape = sizes[tensor].shape
            count = int(np.prod([int(d) for d in shape or ()]))  # type: ignore[arg-type]
            total += request.cost.conversion(count, written[tensor], dtype).ms
    return total


@pytest.mark.parametrize("precisions", [("fp32",), ("int8", "fp32")])
@pytest.mark.parametrize("residual", [False, True])
def test_the_plan_is_as_cheap_as_brute_force(precisions: tuple[Precision, ...], residual: bool) -> None:
    model = _chain(2, residual)
    request = _request(model, precisions=precisions)
    plan = make_plan(request)
    _check(plan, model)
    assert plan.status == "optimal"
    assert plan.predicted_ms == pytest.approx(_brute_force(request), rel=1e-4)


@settings(max_examples=25)
@given(
    losses=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
    budget=st.floats(0.0, 2.0),
    residual=st.booleans(),
)
def test_the_budget_is_kept_and_used_as_brute_force_does(
    losses: list[float], budget: float, residual: bool
) -> None:
    model = _chain(2, residual)
    table = {f"conv{i}": loss for i, loss in enumerate(losses)}
    names = {n.name for n in model.graph}
    table = {k: v for k, v in table.items() if k in names}
    request = _request(model, precisions=("int8", "fp32"), losses=table, budget=budget)
    plan = make_plan(request)
    _check(plan, model)
    assert plan.budget_used <= budget * (1 + 1e-6)
    assert plan.predicted_ms == pytest.approx(_brute_force(request), rel=1e-4, abs=1e-9)


@settings(max_examples=25)
@given(
    boxes=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    scores=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    budget=st.floats(0.0, 2.0),
)
def test_each_output_channel_group_keeps_its_budget_as_brute_force_does(
    boxes: list[float], scores: list[float], budget: float
) -> None:
    model = _chain(2, residual=True)
    table = {f"conv{i}": {"boxes": boxes[i], "scores": scores[i]} for i in range(2)}
    request = _request(model, precisions=("int8", "fp32"), group_losses=table, group_budget=budget)
    plan = make_plan(request)
    _check(plan, model)
    int8 = [name for g in plan.groups if g.precision == "int8" for name in g.nodes]
    for group in ("boxes", "scores"):
        assert sum(table.get(name, {}).get(group, 0.0) for name in int8) <= budget * (1 + 1e-6)
    assert plan.predicted_ms == pytest.approx(_brute_force(request), rel=1e-4, abs=1e-9)


def test_a_group_that_the_sum_hides_still_binds() -> None:
    """Scores lost by conv1: a hundredth of the sum over all groups, and all of their own."""
    model = _chain(2, residual=False, channels=64)
    table = {"conv0": {"boxes": 0.02, "scores": 0.0}, "conv1": {"boxes": 0.0, "scores": 0.9}}
    common = {"precisions": ("int8", "fp32"), "losses": {"conv0": 0.01, "conv1": 0.01}, "budget": 0.05}
    assert make_plan(_request(model, **common)).count("int8") == 2
    plan = make_plan(_request(model, group_losses=table, group_budget=0.1, **common))
    assert [g.nodes[0] for g in plan.groups if g.precision == "int8"] == ["conv0"]


def test_int8_pays_for_its_conversions() -> None:
    tiny = _chain(1, residual=False, channels=2)
    plan = make_plan(_request(tiny, precisions=("int8", "fp32")))
    assert plan.count("int8") == 0, "two channels do not pay for quantizing and back"
    wide = _chain(3, residual=False, channels=64)
    assert make_plan(_request(wide, precisions=("int8", "fp32"))).count("int8") == 3


def test_int8_between_int8_is_written_as_int8() -> None:
    plan = make_plan(_request(_chain(3, residual=False, channels=64), precisions=("int8", "fp32")))
    int8 = [g for g in plan.groups if g.precision == "int8"]
    assert [g.output.dtype for g in int8] == ["int8", "int8", "float32"]
    assert [c.tensor for c in plan.conversions] == ["x"]


def test_prefer_int8_takes_what_is_slower_but_never_what_is_over_the_budget() -> None:
    model = _chain(2, residual=False, channels=2)
    losses = {"conv0": 0.1, "conv1": 0.3}
    common = {"precisions": ("int8", "fp32"), "losses": losses, "prefer_int8": True}
    assert make_plan(_request(model, **common)).count("int8") == 2
    within = make_plan(_request(model, budget=0.2, **common))
    assert [g.nodes[0] for g in within.groups if g.precision == "int8"] == ["conv0"]


def test_prefer_int8_spends_the_budget_on_work_and_not_on_numbers_of_layers() -> None:
    b = Build()
    value = b.x([1, 16, 16, 16])
    for i, kernel in enumerate((1, 1, 3)):
        value = b.op("Conv", value, b.rand(16, 16, kernel, kernel), name=f"conv{i}", pads=[kernel // 2] * 4)
    losses = {"conv0": 0.1, "conv1": 0.1, "conv2": 0.2}
    plan = make_plan(
        _request(
            b.y(value).model(), precisions=("int8", "fp32"), losses=losses, prefer_int8=True, budget=0.25
        )
    )
    assert [g.nodes[0] for g in plan.groups if g.precision == "int8"] == ["conv2"]


def test_a_refused_node_stays_float_and_says_why() -> None:
    model = _chain(2, residual=False, channels=64)
    plan = make_plan(
        _request(model, precisions=("int8", "fp32"), refused={"conv1": "measured slower on this device"})
    )
    group = plan.group_of("conv1")
    assert group is not None
    assert group.precision == "fp32"
    assert "measured slower on this device" in group.reason
    assert any("measured slower" in r.reason and "conv1" in r.nodes for r in plan.rejected)


def test_what_nothing_can_run_is_named() -> None:
    with pytest.raises(UnsupportedError, match="'gap'"):
        make_plan(_request(_chain(1), Anything(forbidden={"GlobalAveragePool": "not here"})))


def test_a_chain_is_not_fused_over_an_output_or_a_second_reader() -> None:
    b = Build()
    x = b.x([1, 4, 8, 8])
    c = b.op("Conv", x, b.rand(4, 4, 1, 1), name="conv", out="pre")
    r = b.op("Relu", c, name="relu")
    b.y(c)
    b.y(r)
    plan = make_plan(_request(b.model()))
    assert [g.nodes for g in plan.groups] == [("conv",), ("relu",)]
    b = Build()
    x = b.x([1, 4, 8, 8])
    c = b.op("Conv", x, b.rand(4, 4, 1, 1), name="conv")
    b.y(b.op("Add", b.op("Relu", c, name="relu"), c, name="add"))
    plan = make_plan(_request(b.model()))
    assert ("conv",) in [g.nodes for g in plan.groups]


def test_a_broadcast_up_ends_a_chain() -> None:
    b = Build()
    x, z = b.x([1, 4, 1, 1]), b.x([1, 4, 8, 8], name="z")
    c = b.op("Conv", x, b.rand(4, 4, 1, 1), name="conv")
    b.y(b.op("Add", c, z, name="grow"))
    assert [g.nodes for g in make_plan(_request(b.model())).groups] == [("conv",), ("grow",)]


def test_every_group_and_term_says_why_and_from_where() -> None:
    plan = make_plan(_request(_chain(3), precisions=("int8", "fp32")))
    for group in plan.groups:
        assert group.reason
        assert all(term.provenance == "estimate" and term.source for term in group.cost)
        assert group.predicted_ms > 0


def test_json_round_trip_and_digest() -> None:
    plan = make_plan(_request(_chain(3), precisions=("int8", "fp32")))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest
    assert json.loads(plan.to_json())["groups"][0]["id"] == "g000"


_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.planner.test_solve import _chain, _request
from edgefuse.planner import make_plan
print(make_plan(_request(_chain(4), precisions=("int8", "fp32"))).digest)
"""


@pytest.mark.slow
def test_the_same_plan_in_every_process(repository: object) -> None:
    digests = set()
    for seed in ("0", "1", "77"):
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", _PROGRAM.format(root=str(repository))],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(result.stdout.strip())
    assert len(digests) == 1, "stdout holds the digest alone: the solver must print nothing"
    assert len(next(iter(digests))) == 64


def test_candidates_cover_each_node_alone() -> None:
    model = _chain(3)
    alone = [c.names[0] for c in vertical_candidates(model) if len(c.nodes) == 1]
    assert alone == [n.name for n in model.graph]
    for candidate in vertical_candidates(model):
        for a, b in itertools.pairwise(candidate.nodes):
            assert b in [use.node for use in a.outputs[0].uses()]
