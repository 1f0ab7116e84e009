"""Level 1: models cut between groups, the error of each region alone, and what makes a region fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from edgefuse.errors import InputError, InternalError
from edgefuse.graph import Model, clone_model, model_from_proto, model_to_bytes
from edgefuse.graph.reference import Reference, judge_session
from edgefuse.plans import Format, Group, Plan
from edgefuse.verification import (
    Call,
    Cut,
    OutputError,
    RegionLimits,
    RegionReport,
    boundary_tensors,
    cut_between_groups,
    judge_regions,
    measure_regions,
)
from tests.passes.graphs import Build

Array = np.ndarray[Any, Any]


def net() -> Model:
    """Return conv -> relu -> conv, with a branch from the first conv to an Add at the end."""
    b = Build(seed=3)
    x = b.x([1, 2, 6, 6])
    first = b.op("Conv", x, b.rand(4, 2, 3, 3), pads=[1] * 4, name="c1", out="a")
    active = b.op("Relu", first, name="r1", out="b")
    second = b.op("Conv", active, b.rand(4, 4, 1, 1), name="c2", out="c")
    b.y(b.op("Add", second, first, name="sum", out="y"))
    return b.model()


def plan_of(*groups: tuple[str, Sequence[str]]) -> Plan:
    rows = tuple(
        Group(
            id=f"g{i}",
            nodes=tuple(nodes),
            sources=tuple(nodes),
            operators=("Op",) * len(nodes),
            writes=(),
            rule="",
            variant="plain",
            precision=precision,  # type: ignore[arg-type]
            output=Format(),
            cost=(),
            loss=0.0,
            compute_nodes=len(nodes),
            reason="-",
        )
        for i, (precision, nodes) in enumerate(groups)
    )
    return Plan(model="", target="", requested="auto", groups=rows)


PLAN = plan_of(("fp32", ["c1", "r1"]), ("int8", ["c2"]), ("fp32", ["sum"]))
SAMPLES = [{"x": np.random.default_rng(i).standard_normal((1, 2, 6, 6)).astype(np.float32)} for i in range(2)]


def session(model: Model) -> Call:
    made = judge_session(model_to_bytes(model))
    names = [value.name or "" for value in model.graph.outputs]
    known = {value.name for value in model.graph.inputs}
    return lambda feeds: dict(
        zip(names, made.run(names, {n: a for n, a in feeds.items() if n in known}), strict=True)
    )


def exact(cut: Cut) -> Call:
    known = {value.name for value in cut.model.graph.inputs}
    reference = Reference(cut.model)
    return lambda feeds: reference.run({n: a for n, a in feeds.items() if n in known})


def spoiled(cut: Cut, tensor: str, change: Any) -> Call:
    inner = session(cut.model)

    def call(feeds: dict[str, Array]) -> dict[str, Array]:
        outputs = dict(inner(feeds))
        outputs[cut.writes[tensor]] = change(outputs[cut.writes[tensor]])
        return outputs

    return call


def report(candidate: Any = None, plan: Plan = PLAN, limits: RegionLimits | None = None) -> RegionReport:
    model = net()
    cut = cut_between_groups(model, plan)
    run = session(cut.model) if candidate is None else candidate(cut)
    errors, count = measure_regions(
        cut, session(boundary_tensors(model, cut.between)), exact(cut), run, SAMPLES
    )
    return judge_regions(plan, cut, errors, ["y"], samples=count, by="a test", limits=limits)


def test_a_cut_names_what_passes_between_groups() -> None:
    model = net()
    cut = cut_between_groups(model, PLAN)
    assert cut.between == ("a", "b", "c")
    assert set(cut.writes) == {"a", "b", "c", "y"}, "a is read by another group although its own reads it too"
    assert cut.writers == {"a": "g0", "b": "g0", "c": "g1", "y": "g2"}
    assert [v.name for v in cut.model.graph.inputs] == ["x", "a", "b", "c"]
    assert [n.name for n in cut.model.graph] == [n.name for n in model.graph]
    assert [v.name for v in model.graph.outputs] == ["y"], "the model itself is not changed"


def test_one_group_leaves_nothing_between() -> None:
    cut = cut_between_groups(net(), plan_of(("fp32", ["c1", "r1", "c2", "sum"])))
    assert cut.between == ()
    assert set(cut.writes) == {"y"}


def test_integers_stay_connected() -> None:
    b = Build()
    x = b.x([1, 4, 5])
    shape = b.op("Shape", b.op("Relu", x, name="act", out="a"), name="shape", out="s")
    b.y(b.op("Reshape", "a", b.op("Gather", shape, b.ints(0, 2, 1), name="pick"), name="re", out="y"))
    plan = plan_of(("fp32", ["act"]), ("fp32", ["shape", "pick"]), ("fp32", ["re"]))
    cut = cut_between_groups(b.model(), plan)
    assert cut.between == ("a",)
    feeds = {"x": np.zeros((1, 4, 5), np.float32), "a": np.ones((1, 4, 5), np.float32)}
    outputs = exact(cut)(feeds)
    assert outputs[cut.writes["y"]].shape == (1, 5, 4)
    assert (outputs[cut.writes["y"]] == 1).all(), "the reader takes what it is given, not what is computed"


def test_float_regions_agree_and_say_so() -> None:
    found = report()
    assert found.ok
    assert found.samples == 2
    assert all(region.max_relative_error < 1e-6 for region in found.regions)
    assert "2 fp32 regions" in found.lines()[0]
    assert found.as_json()["regions"][1]["precision"] == "int8"


def test_the_region_that_is_wrong_fails_and_not_the_one_behind_it() -> None:
    found = report(lambda cut: spoiled(cut, "c", lambda array: array * 0.5))
    assert [region.group for region in found.failing] == ["g1"]
    assert found.failing[0].sqnr_db == pytest.approx(6.02, abs=0.01)
    assert "6.0 dB in int8 (at least 15)" in found.failing[0].why
    assert "FAILED g1 c2 (Op)" in "\n".join(found.lines())


@pytest.mark.parametrize(("change", "ok"), [(1 + 5e-6, True), (1 + 5e-5, False)])
def test_float_fusions_are_held_to_1e_5(change: float, ok: bool) -> None:
    found = report(lambda cut: spoiled(cut, "b", lambda array: array * np.float32(change)))
    assert found.ok is ok
    if not ok:
        assert "'b' is off by 5e-05" in found.failing[0].why


def test_limits_can_be_set() -> None:
    def half(cut: Cut) -> Call:
        return spoiled(cut, "c", lambda array: array * 0.5)

    assert report(half, limits=RegionLimits(int8_db=6.0)).ok
    assert not report(half, limits=RegionLimits(int8_db=7.0)).ok


def test_float16_is_held_to_40_db() -> None:
    plan = plan_of(("fp16", ["c1", "r1"]), ("fp16", ["c2"]), ("fp16", ["sum"]))

    def rounded(cut: Cut) -> Call:
        return spoiled(cut, "c", lambda array: array.astype(np.float16).astype(np.float32))

    assert report(rounded, plan).ok
    found = report(lambda cut: spoiled(cut, "c", lambda array: array * 0.98), plan)
    assert found.failing[0].why == "'c' has 34.0 dB in fp16 (at least 40)"


def test_a_lost_channel_of_an_output_fails_though_the_whole_is_fine() -> None:
    plan = plan_of(("fp32", ["c1", "r1"]), ("fp32", ["c2"]), ("int8", ["sum"]))

    def lose_one(array: Array) -> Array:
        changed = array.copy()
        quiet = int(np.abs(array).sum(axis=(0, 2, 3)).argmin())
        changed[:, quiet] *= -1.0
        return changed

    found = report(lambda cut: spoiled(cut, "y", lose_one), plan, RegionLimits(int8_db=-10.0))
    assert [region.group for region in found.failing] == ["g2"]
    assert "for each channel of an output" in found.failing[0].why
    inner = report(lambda cut: spoiled(cut, "c", lose_one), PLAN, RegionLimits(int8_db=-10.0))
    assert inner.ok, "inside, a channel that is small beside the others is only told"


def test_nan_of_a_region_fails_it() -> None:
    found = report(lambda cut: spoiled(cut, "b", lambda array: np.full_like(array, np.nan)))
    assert "NaN" in found.failing[0].why
    assert found.as_json()["regions"][0]["max_relative_error"] is None
    assert math.isinf(found.failing[0].max_relative_error)


def test_a_candidate_without_an_output_is_our_bug() -> None:
    def without(cut: Cut) -> Call:
        inner = session(cut.model)
        return lambda feeds: {n: a for n, a in inner(feeds).items() if n != cut.writes["b"]}

    with pytest.raises(InternalError, match="gives no"):
        report(without)


def test_no_samples_is_an_input_error() -> None:
    cut = cut_between_groups(net(), PLAN)
    nothing = session(clone_model(cut.model))
    with pytest.raises(InputError, match="nothing to judge"):
        measure_regions(cut, nothing, nothing, nothing, [])


@pytest.mark.parametrize(("element", "passes"), [("float16", True), ("float", False)])
def test_a_region_that_writes_float16_by_the_models_own_word_is_held_to_float16(
    element: str, passes: bool
) -> None:
    text = "g (float[4] x) => (float[4] y) { a = Relu(x) h = Cast<to=TYPE>(a) y = Cast<to=1>(h) }"
    text = text.replace("TYPE", "10" if element == "float16" else "1")
    model = model_from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))
    names = [str(node.name) for node in model.graph]
    plan = plan_of(("fp32", names[:1]), ("fp32", names[1:2]), ("fp32", names[2:]))
    cut = cut_between_groups(model, plan)
    rows = {name: OutputError(name, 1e-4, 1e-4, name, 1e-4, 1) for name in cut.writers}
    good = {name: OutputError(name, 0.0, 0.0, name, 0.0, 1) for name in cut.writers}
    found = judge_regions(plan, cut, {**good, "h": rows["h"]}, ["y"], samples=1, by="a test")
    assert found.ok is passes
    other = judge_regions(plan, cut, {**good, "a": rows["a"]}, ["y"], samples=1, by="a test")
    assert [region.group for region in other.failing] == ["g0"], "a float32 tensor keeps its own limit"
