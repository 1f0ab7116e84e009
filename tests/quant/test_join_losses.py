"""What a Concat's parts lose under one scale, measured at the outputs."""

from __future__ import annotations

import pytest

from edgefuse.graph import Model, model_to_bytes
from edgefuse.quant import Range, collect_ranges
from edgefuse.quant.join_losses import join_parts, measure_join_losses
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import EIGHT
from tests.quant.test_equalize import samples_of


def joined(ratio: float) -> Model:
    """Return a Concat of two convolutions' outputs, the first `ratio` times the second."""
    b = Build(seed=3)
    x = b.x([1, 4, 8, 8])
    boxes = b.op("Mul", conv(b, x, 4, 4, name="c0"), b.w(ratio), out="boxes")
    scores = b.op("Sigmoid", conv(b, x, 4, 2, name="c1"), out="scores")
    return b.y(b.op("Concat", boxes, scores, name="join", axis=1)).model()


def test_scores_beside_boxes_lose_what_one_scale_takes() -> None:
    model = joined(640.0)
    before = model_to_bytes(model)
    samples = samples_of(model, 3)
    ranges = collect_ranges(model, ["boxes", "scores"], samples)
    found = measure_join_losses(model, ["join"], ranges, EIGHT, samples)
    assert model_to_bytes(model) == before
    output = model.graph.outputs[0].name
    groups = [found.groups["join"][f"{output}[{channel}]"] for channel in range(6)]
    assert max(groups[:4]) < 1e-4, "boxes hardly notice"
    assert min(groups[4:]) > 0.05, "scores are gone"
    assert found.total["join"] < 1e-4, "which the sum over the output hides"


def test_even_parts_lose_little_and_nothing_is_negative() -> None:
    model = joined(1.0)
    samples = samples_of(model, 3)
    ranges = collect_ranges(model, ["boxes", "scores"], samples)
    found = measure_join_losses(model, ["join"], ranges, EIGHT, samples)
    assert min(found.groups["join"].values()) >= 0.0
    assert max(found.groups["join"].values()) < 1e-2


@pytest.mark.parametrize("ranges", [{}, {"boxes": Range(0, 1)}])
def test_parts_without_a_range_are_not_judged(ranges: dict[str, Range]) -> None:
    model = joined(2.0)
    assert measure_join_losses(model, ["join"], ranges, EIGHT, samples_of(model, 2)).total == {}


def test_constants_and_repeats_are_no_parts() -> None:
    b = Build(seed=3)
    x = b.x([1, 4, 8, 8])
    model = b.y(b.op("Concat", x, b.rand(1, 2, 8, 8), x, name="join", axis=1)).model()
    (node,) = model.graph
    assert join_parts(node) == ("x",)
    found = measure_join_losses(model, ["join"], {"x": Range(0, 1)}, EIGHT, samples_of(model, 2))
    assert found.total == {}
