"""Which payload runs first, and which is not shipped: decided from figures given here, not from a clock."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.backend import GroupReadback, Lowered, Readback
from edgefuse.benchmark import Race
from edgefuse.compose.decisions import (
    COST_BAND,
    FASTER_BY,
    choose_order,
    loses_in_half,
    require_float_accuracy,
    require_int8_kernels,
)
from edgefuse.compose.options import BuildOptions
from edgefuse.compose.payloads import Built
from edgefuse.errors import UnsupportedError
from edgefuse.plans import CostTerm, Format, Group, Plan, Precision
from edgefuse.quantized import Quantized
from edgefuse.verification import Comparison, OutputError, RegionReport
from edgefuse.verification.regions import Region


def _group(number: int, precision: Precision = "fp32", compute_nodes: int = 2) -> Group:
    return Group(
        id=f"g{number:03d}",
        nodes=(f"conv{number}", f"relu{number}"),
        sources=(f"conv{number}", f"relu{number}"),
        operators=("Conv", "Relu"),
        writes=(f"y{number}",),
        rule="vertical",
        variant="plain",
        precision=precision,
        output=Format("float32"),
        cost=(CostTerm("compute", 1.0, "estimate", "a test"),),
        loss=0.0,
        compute_nodes=compute_nodes,
        reason="given",
    )


def _built(name: str, predicted_ms: float = 1.0, groups: tuple[Group, ...] = ()) -> Built:
    plan = Plan(model="0" * 64, target="t@r", requested="auto", groups=groups, predicted_ms=predicted_ms)
    return Built(name, plan, Quantized(), Lowered({"model": b""}, "model"))


def _race(int8_ms: float, float_ms: float, rounds: int = 6) -> Race:
    cpu = {"int8": [[int8_ms, int8_ms]] * rounds, "float": [[float_ms, float_ms]] * rounds}
    return Race(timings={}, cpu_s=cpu, rounds=rounds, seed=0)


def _ids(payloads: list[Built]) -> list[str]:
    return [built.id for built in payloads]


@given(st.floats(0.01, 10.0), st.floats(0.01, 10.0))
def test_measured_int8_is_shipped_only_where_it_saves_two_percent(int8_ms: float, float_ms: float) -> None:
    order, note = choose_order(_built("float"), _built("int8"), "auto", _race(int8_ms, float_ms))
    if int8_ms / float_ms <= 1 - FASTER_BY:
        assert (_ids(order), note) == (["int8", "float"], "")
    else:
        assert _ids(order) == ["float"]
        assert f"{int8_ms / float_ms:.2f} of the float time" in note


def test_both_sides_of_the_two_percent() -> None:
    assert _ids(choose_order(_built("float"), _built("int8"), "auto", _race(0.98, 1.0))[0])[0] == "int8"
    order, note = choose_order(_built("float"), _built("int8"), "auto", _race(0.981, 1.0))
    assert _ids(order) == ["float"]
    assert note == "int8 is not shipped: it took 0.98 of the float time here, and must save 2%"


@pytest.mark.parametrize("race", [None, _race(3.0, 1.0)])
def test_int8_that_was_asked_for_goes_first_whatever_it_costs(race: Race | None) -> None:
    order, note = choose_order(_built("float"), _built("int8", predicted_ms=5.0), "int8", race)
    assert (_ids(order), note) == (["int8", "float"], "")


@pytest.mark.parametrize(
    ("predicted", "first"), [(0.3, "int8"), (0.5, "int8"), (0.51, "float"), (2.0, "float")]
)
def test_where_the_target_is_not_here_both_are_shipped_and_a_clear_prediction_decides(
    predicted: float, first: str
) -> None:
    order, note = choose_order(_built("float"), _built("int8", predicted_ms=predicted), "auto", None)
    assert sorted(_ids(order)) == ["float", "int8"]
    assert order[0].id == first
    assert ("time both on the device" in note) == (first == "float")
    assert COST_BAND == 0.5


def _readback(*rows: GroupReadback) -> Readback:
    return Readback(kernels=(), groups=rows)


def _row(group: str, confirmed: bool, why: str = "", fallen: bool = False) -> GroupReadback:
    return GroupReadback(group, confirmed, "kernel", "f32", 1.0, why, fallen)


def test_planned_int8_that_ran_in_float_is_refused_and_named() -> None:
    built = _built("int8", groups=(_group(0, "int8"), _group(1, "int8"), _group(2)))
    built.readback = _readback(
        _row("g000", True), _row("g001", False, "ran f32 (brgconv_avx2)", fallen=True), _row("g002", True)
    )
    with pytest.raises(UnsupportedError) as caught:
        require_int8_kernels(built)
    assert "1 groups planned in int8 ran in float, first conv1 + relu1" in str(caught.value)
    assert "brgconv_avx2" in str(caught.value)


def test_a_split_fusion_and_a_float_group_are_no_reason_to_refuse() -> None:
    built = _built("int8", groups=(_group(0, "int8"), _group(1)))
    built.readback = _readback(
        _row("g000", False, "planned int8, split into Convolution + Relu"),
        _row("g001", False, "planned elsewhere"),
    )
    require_int8_kernels(built)
    assert built.honoured == 0.0


def _compared(drop: float, **changes: Any) -> Built:
    built = _built("float")
    found = Comparison("top1", "share", 1.0 - drop, 1.0, drop, 10, "", ())
    built.accuracy = replace(found, **changes)
    return built


def _judged(drop: float, passes: bool | None) -> Built:
    """Return a payload with such a drop whose level 1 passed, failed, or was not run."""
    built = _compared(drop)
    if passes is not None:
        why = "" if passes else "off by 1"
        built.regions = RegionReport((Region("g000", ("conv0",), ("Conv",), "fp32", (), why),), 2, "a test")
    return built


@pytest.mark.parametrize("drop", [-0.5, 0.0, 0.0009, 0.02])
def test_a_float_payload_within_the_budget_needs_no_word(drop: float) -> None:
    assert require_float_accuracy(_compared(drop), max(drop, 0.0), "", False) == ""


@pytest.mark.parametrize("drop", [0.02, 1.0, math.inf])
def test_a_float_payload_over_the_budget_is_refused_on_data(drop: float) -> None:
    with pytest.raises(UnsupportedError) as caught:
        require_float_accuracy(_judged(drop, passes=True), 0.01, "", False)
    assert "the float payload loses" in str(caught.value)


@pytest.mark.parametrize("drop", [0.02, 1.0])
def test_a_finite_loss_on_made_up_inputs_is_a_note_where_level_one_passed(drop: float) -> None:
    note = require_float_accuracy(_judged(drop, passes=True), 0.01, "", True)
    assert "give data with --eval" in note
    assert "every region alone is right" in note


@pytest.mark.parametrize("passes", [False, None])
def test_made_up_inputs_excuse_no_loss_that_level_one_does_not_clear(passes: bool | None) -> None:
    with pytest.raises(UnsupportedError) as caught:
        require_float_accuracy(_judged(0.02, passes), 0.01, "", True)
    assert "on made-up inputs" in caught.value.message
    assert "--eval" in str(caught.value.hint)
    assert require_float_accuracy(_judged(0.009, passes), 0.01, "", True) == ""


@pytest.mark.parametrize("drop", [math.inf, math.nan])
def test_a_loss_without_end_is_refused_whatever_the_inputs(drop: float) -> None:
    built = _judged(drop, passes=True)
    row = OutputError("boxes", math.inf, math.inf, "boxes", math.inf, 1, "shape [1, 1] for [1, 0]")
    built.accuracy = replace(built.accuracy, outputs=(row,))
    with pytest.raises(UnsupportedError) as caught:
        require_float_accuracy(built, 0.01, "", True)
    assert caught.value.got == "worst: boxes, shape [1, 1] for [1, 0]"
    built.plan = _built("float", groups=(_group(0, "fp16"),)).plan
    assert loses_in_half(built, BuildOptions(), True)


@pytest.mark.parametrize(
    ("precision", "doubtful", "passes", "wide"),
    [
        ("auto", False, True, True),
        ("auto", True, True, False),
        ("auto", True, False, True),
        ("auto", True, None, True),
        ("fp16", True, False, False),
    ],
)
def test_float16_over_the_budget_becomes_fp32_unless_made_up_data_are_all_that_speaks_against_it(
    precision: str, doubtful: bool, passes: bool | None, wide: bool
) -> None:
    built = _judged(0.02, passes)
    built.plan = _built("float", groups=(_group(0, "fp16"),)).plan
    assert loses_in_half(built, BuildOptions(precision=precision), doubtful) is wide
    built.plan = _built("float", groups=(_group(0),)).plan
    assert not loses_in_half(built, BuildOptions(precision=precision), doubtful)


def test_a_budget_of_nothing_still_lets_sums_round() -> None:
    assert require_float_accuracy(_compared(1e-4), 0.0, "", False) == ""


def test_nan_of_the_model_itself_is_said_and_not_held_against_the_payload() -> None:
    note = require_float_accuracy(_compared(1.0), 0.01, "NaN on 2 of 4 samples (output 'y')", False)
    assert note.startswith("the model itself gives NaN on 2 of 4 samples")
