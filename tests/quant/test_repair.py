"""Repairs stay only where they gain on samples that they have not seen."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.graph import Model, clone_model, model_from_proto, model_to_bytes
from edgefuse.passes import canonicalize
from edgefuse.quant import Scheme, repair_after, repair_before, simulated_graph
from edgefuse.quant.repair import Repair, RepairLog, joined
from edgefuse.quant.trials import Trials, split_samples
from edgefuse.quantized import Quantized
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import (
    EIGHT,
    SEVEN,
    SYMMETRIC,
    decibels,
    outputs_of,
    plan_of,
    quantized_of,
)
from tests.quant.test_equalize import depthwise, same, samples_of
from tests.quant.test_smooth import normed, outliers

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

Samples = list[dict[str, np.ndarray]]


def _repaired_db(model: Model, samples: Samples, held: Samples, scheme: Scheme, names: list[str]) -> float:
    """Return decibels on unseen samples after both stages."""
    repaired, _ = repair_before(model, samples, scheme, names)
    plan = plan_of(repaired, [(name,) for name in names])
    quantized, _ = repair_after(
        repaired, plan, quantized_of(repaired, plan, samples, scheme), samples, scheme
    )
    return decibels(repaired, plan, quantized, held)


@pytest.mark.parametrize("scheme", [SEVEN, EIGHT, SYMMETRIC], ids=["7", "8", "symmetric"])
def test_a_depthwise_layer_over_three_decades_is_equalized(scheme: Scheme) -> None:
    model = depthwise()
    samples, held = samples_of(model, 18), samples_of(depthwise(), 30)[18:]
    before = model_to_bytes(model)
    repaired, log = repair_before(model, samples, scheme, ["c0", "c1"])
    assert model_to_bytes(model) == before
    assert log.kept()[0].startswith("equalize")
    assert log.after_db > log.before_db + 10
    same(model, repaired, 1e-5)
    assert _repaired_db(model, samples, held, scheme, ["c0", "c1"]) > 30


def test_an_outlier_channel_is_smoothed() -> None:
    b = Build(seed=2)
    first = b.op("MatMul", b.x([1, 8, 32]), b.rand(32, 32), name="c0")
    model = b.y(b.op("MatMul", b.op("Relu", first), b.rand(32, 16), name="c1")).model()
    _, log = repair_before(model, outliers(48), EIGHT, ["c0", "c1"])
    assert "smooth_by_mul" in log.kept()
    _, free = repair_before(normed(), outliers(12, factor=1.0), EIGHT, ["q", "k"])
    assert "smooth" in free.kept()


def test_a_net_with_nothing_to_repair_comes_back_as_it_was() -> None:
    b = Build(seed=1)
    model = b.y(conv(b, b.x([1, 4, 6, 6]), 4, 4, name="c0")).model()
    repaired, log = repair_before(model, samples_of(model, 6), SEVEN, ["c0"])
    assert repaired is model
    assert log.kept() == ()
    assert log.repairs
    assert log.after_db == log.before_db > 20


def test_a_repair_that_costs_is_left_out_with_its_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    model = depthwise()

    def spoil(copy: Model, samples: Samples) -> list[str]:
        from edgefuse.quant.channel_scaling import scale_stream
        from edgefuse.quant.streams import find_streams

        scale_stream(copy, find_streams(copy)[0], np.logspace(0, 3, 16))
        return ["spoiled"]

    monkeypatch.setattr("edgefuse.quant.repair._changes", lambda scheme, int8: [("spoil", spoil)])
    even = clone_model(model)
    from edgefuse.quant.equalize import equalize

    equalize(even, samples_of(model), EIGHT, frozenset({"c0", "c1"}))
    repaired, log = repair_before(even, samples_of(model, 9), EIGHT, ["c0", "c1"])
    assert repaired is even
    assert log.repairs[0].gain_db is not None
    assert log.repairs[0].gain_db < 0
    assert not log.repairs[0].kept


def test_after_planning_biases_and_rounding_are_logged_with_their_gains() -> None:
    b = Build(seed=3)
    value = b.x([1, 8, 8, 8])
    for i in range(4):
        value = b.op("Relu", conv(b, value, 8, 8, name=f"c{i}"))
    model = b.y(b.op("ReduceMean", value, b.ints(2, 3))).model()
    samples, held = samples_of(model, 18), samples_of(model, 30)[18:]
    plan = plan_of(model)
    plain = quantized_of(model, plan, samples)
    found, log = repair_after(model, plan, plain, samples, SEVEN)
    assert [r.name for r in log.repairs] == ["bias_correct", "adaround"]
    assert "bias_correct" in log.kept()
    assert found.biases
    assert decibels(model, plan, found, held) > decibels(model, plan, plain, held) + 3
    only, short = repair_after(model, plan, plain, samples, SEVEN, rounding=False)
    assert [r.name for r in short.repairs] == ["bias_correct"]
    for key, weight in only.weights.items():
        np.testing.assert_array_equal(weight.values, plain.weights[key].values)


def test_nothing_quantized_and_no_float_output_leave_nothing_to_do() -> None:
    b = Build(seed=3)
    x = b.x([1, 4, 4, 4])
    index = b.op("ArgMax", conv(b, x, 4, 4, name="c0"), axis=1)
    model = b.y(index, element=7).model()
    samples = samples_of(model)
    assert repair_before(model, samples, SEVEN, ["c0"]) == (model, RepairLog())
    float_model = depthwise()
    empty = Quantized()
    assert (
        repair_after(float_model, plan_of(float_model, []), empty, samples_of(float_model), SEVEN)[0] is empty
    )


def test_samples_fall_into_two_parts_without_a_common_one() -> None:
    samples = [{"x": np.array([i])} for i in range(100)]
    split = split_samples(samples)
    numbers = [[int(s["x"][0]) for s in part] for part in (split.fit, split.held_out)]
    assert len(numbers[1]) == 16
    assert sorted(numbers[0] + numbers[1]) == list(range(100))
    assert [int(s["x"][0]) for s in split.fit[:3]] == numbers[0][:3]
    assert [int(s["x"][0]) for s in split.some(4)] == [numbers[0][i] for i in (10, 31, 52, 73)]
    assert split.some(100) is split.fit
    few = split_samples(samples[:4])
    assert (len(few.fit), len(few.held_out)) == (3, 1)
    one = split_samples(samples[:1])
    assert one.fit is one.held_out


def test_trials_measure_each_output_alike() -> None:
    b = Build(seed=3)
    x = b.x([1, 4, 4, 4])
    model = b.y(b.op("Mul", conv(b, x, 4, 4, name="c0"), b.w(1e6)), conv(b, x, 4, 4, name="c1")).model()
    samples = samples_of(model)
    plan = plan_of(model)
    q = quantized_of(model, plan, samples)
    singles = [decibels(model, plan, q, samples, output=i) for i in (0, 1)]
    together = Trials(model, samples).decibels(model, plan, q)
    assert together == pytest.approx(-10 * math.log10(sum(10 ** (-db / 10) for db in singles) / 2), abs=1e-3)


def test_the_log_is_plain_json() -> None:
    first = RepairLog((Repair("a", True, 1.23456, ("line",)), Repair("b", False, None)), -math.inf, 3.0)
    second = RepairLog((Repair("c", False, math.inf),), 3.0, 4.0)
    both = joined(first, second)
    text = json.dumps(both.as_json(), allow_nan=False)
    assert [r["gain_db"] for r in json.loads(text)["tried"]] == [1.235, None, None]
    assert both.kept() == ("a",)
    assert first.as_json()["before_db"] is None


@pytest.mark.shared
@pytest.mark.parametrize("scheme", [SEVEN, EIGHT, SYMMETRIC], ids=["7", "8", "symmetric"])
@pytest.mark.parametrize("case", ["c01", "c03", "c05", "c13", "c18", "c23", "c48"])
def test_field_failures_hold_25_db_in_every_channel_group(
    case: str, scheme: Scheme, shared_dir: Path
) -> None:
    cases = _cases(shared_dir)
    proto, feed = cases.build(case)
    model = model_from_proto(proto)
    canonicalize(model)
    rng = np.random.default_rng(7)
    samples, held = ([feed(rng) for _ in range(count)] for count in (100, 16))
    plan = plan_of(model)
    names = [g.nodes[0] for g in plan.groups if g.precision == "int8"]
    repaired, _ = repair_before(model, samples, scheme, names)
    plan = plan_of(repaired)
    quantized = quantized_of(repaired, plan, samples, scheme)
    quantized, _ = repair_after(repaired, plan, quantized, samples, scheme)
    clean = outputs_of(model, held)
    noisy = outputs_of(simulated_graph(repaired, plan, quantized), held)
    halves = [slice(0, 4), slice(4, None)] if case == "c05" else [slice(None)]  # boxes and scores
    for part in halves:
        pairs = [(c[0][:, part], n[0][:, part]) for c, n in zip(clean, noisy, strict=True)]
        error = sum(float(np.square(n - c).sum()) for c, n in pairs)
        power = sum(float(np.square(c).sum()) for c, _ in pairs)
        assert 10 * math.log10(power / error) >= 25


def _cases(folder: Path) -> Any:
    path = folder / "cases" / "cases.py"
    spec = importlib.util.spec_from_file_location("field_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
