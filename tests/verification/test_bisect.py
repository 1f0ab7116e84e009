"""The bisection on made-up errors: which region, in how few measurements, and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.errors import UsageError
from edgefuse.plans import Format, Group, Plan
from edgefuse.verification import Bisection, OutputError, bisect_plan, plan_prefix


def plan(precisions: Sequence[str]) -> Plan:
    groups = tuple(
        Group(
            id=f"g{i}",
            nodes=(f"n{i}",),
            sources=(f"user{i}",),
            operators=("Conv",),
            writes=(f"t{i}",),
            rule="",
            variant="plain",
            precision=precision,  # type: ignore[arg-type]
            output=Format("int8"),
            cost=(),
            loss=0.0,
            compute_nodes=1,
            reason="-",
        )
        for i, precision in enumerate(precisions)
    )
    return Plan(model="", target="", requested="int8", groups=groups)


def row(relative: float, name: str = "y") -> OutputError:
    return OutputError(name, relative, relative, name, relative, 1)


def noise_of(losses: Sequence[float]) -> Callable[[Plan], list[OutputError]]:
    """Return a measure in which each group that is not float adds its noise power."""

    def measure(given: Plan) -> list[OutputError]:
        power = sum(
            loss for loss, group in zip(losses, given.groups, strict=True) if group.precision != "fp32"
        )
        return [row(math.sqrt(power))]

    return measure


def find(losses: Sequence[float], precisions: Sequence[str] | None = None) -> Bisection:
    return bisect_plan(plan(precisions or ["int8"] * len(losses)), noise_of(losses))


def test_the_region_with_the_loss_is_found_in_few_steps() -> None:
    losses = [1e-6] * 100
    losses[63] = 0.5
    found = find(losses)
    assert found.group is not None
    assert found.group.id == "g63"
    assert len(found.steps) <= 9
    assert found.before.sqnr_db > 40
    assert found.after.sqnr_db == pytest.approx(3.0, abs=0.1)
    text = "\n".join(found.lines())
    assert "region g63: user63 (Conv), int8" in text
    assert "keep user63 in float" in text


@given(st.integers(1, 40), st.data())
def test_it_is_the_first_where_more_groups_lose_more(count: int, data: st.DataObject) -> None:
    losses = data.draw(st.lists(st.sampled_from([0.0, 1e-3, 4e-3, 0.02]), min_size=count, max_size=count))
    kinds = data.draw(st.lists(st.sampled_from(["int8", "fp16", "fp32"]), min_size=count, max_size=count))
    total, wanted = 0.0, None
    for i, (loss, kind) in enumerate(zip(losses, kinds, strict=True)):
        total += loss if kind != "fp32" else 0.0
        if abs(total - 0.01) < 1e-9:
            return  # exactly 20 dB is on the limit, where rounding decides
        if wanted is None and total > 0.01:
            wanted = f"g{i}"
    found = find(losses, kinds)
    assert (found.group.id if found.group else None) == wanted


def test_error_that_gathers_blames_no_one() -> None:
    found = find([0.001] * 20)
    assert found.group is not None
    assert "no single region is to blame" in found.suggestion


def test_a_good_plan_has_nothing_to_find() -> None:
    found = find([1e-6] * 8)
    assert found.group is None
    assert len(found.steps) == 1
    assert "no output is below 20 dB" in found.lines()[0]
    assert found.as_json()["region"] is None


def test_a_float_plan_that_is_wrong_is_no_matter_of_precision() -> None:
    found = bisect_plan(plan(["int8"] * 4), lambda given: [row(0.9)])
    assert found.group is None
    assert "the fault is no precision's" in found.suggestion


def test_overflow_is_named() -> None:
    def measure(given: Plan) -> list[OutputError]:
        return [row(math.inf if given.groups[2].precision == "fp16" else 0.0)]

    found = bisect_plan(plan(["fp16"] * 5), measure)
    assert found.group is not None
    assert found.group.id == "g2"
    assert "overflows in fp16" in found.suggestion
    assert found.as_json()["after_db"] is None


def test_the_worst_channel_group_counts() -> None:
    def measure(given: Plan) -> list[OutputError]:
        bad = given.groups[1].precision == "int8"
        return [row(0.001, "boxes"), OutputError("scores", 0.01, 0.1, "scores[:, 4]", 1.0 if bad else 0.0, 6)]

    found = bisect_plan(plan(["int8"] * 3), measure)
    assert found.group is not None
    assert found.group.id == "g1"
    assert "'scores[:, 4]'" in found.after.output


def test_a_prefix_keeps_what_comes_first() -> None:
    cut = plan_prefix(plan(["int8", "fp16", "int8"]), 2)
    assert [group.precision for group in cut.groups] == ["int8", "fp16", "fp32"]
    assert cut.groups[0].output == Format("int8")
    assert cut.groups[2].output == Format("float32"), "a float group writes no integers"
    assert [group.nodes for group in cut.groups] == [("n0",), ("n1",), ("n2",)]


def test_progress_ends_at_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    losses = [1e-6] * 30
    losses[7] = 1.0
    bisect_plan(
        plan(["int8"] * 30), noise_of(losses), progress=lambda done, total: seen.append((done, total))
    )
    assert len({total for _, total in seen}) == 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(done <= total for done, total in seen)


@pytest.mark.parametrize("limit", [math.nan, math.inf])
def test_a_limit_is_a_number(limit: float) -> None:
    with pytest.raises(UsageError, match="limit of --bisect"):
        bisect_plan(plan(["int8"]), noise_of([0.5]), limit)
