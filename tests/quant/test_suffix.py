"""A sweep over a network that is cut in parts says what a sweep over the whole network says."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.graph import Model, has_subgraphs, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant import Range
from edgefuse.quant import sensitivity as swept
from edgefuse.quant.suffix import cut_before, cut_points
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import SEVEN
from tests.quant.test_equalize import samples_of

NAMES = [f"c{i}" for i in range(12)]


def branched() -> Model:
    """Return twelve convolutions; long branches, an early output that is read later too, a second output."""
    b = Build(seed=4)
    first = value = b.x([1, 6, 8, 8])
    early = ""
    for i in range(12):
        value = b.op("Relu", conv(b, value, 6, 6, name=f"c{i}"))
        if i == 2:
            early = value
        if i % 4 == 3:
            value = b.op("Add", value, early)
    return b.y(early, b.op("Add", value, first), b.op("GlobalAveragePool", value)).model()


def ranges_of(model: Model) -> dict[str, Range]:
    return {v.name or "": Range(-3.0, 3.0) for n in model.graph for v in n.inputs if v is not None}


def test_cuts_are_even_and_cross_little() -> None:
    cuts = cut_points(branched(), NAMES)
    assert cuts[0] == 0
    assert cuts == sorted(set(cuts))
    assert len(cuts) == 4
    assert cut_points(branched(), NAMES[:5]) == [0], "a few probes do not pay for a cut"


def test_a_cut_network_gives_the_losses_of_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = branched()
    before = model_to_bytes(model)
    samples = samples_of(model, 3)
    seen: list[int] = []
    parts = swept.measure_all_losses(model, NAMES, ranges_of(model), SEVEN, samples, seen.append)
    assert model_to_bytes(model) == before
    assert seen == list(range(1, 13))
    monkeypatch.setattr(swept, "cut_points", lambda model, probed: [0])
    whole = swept.measure_all_losses(model, NAMES, ranges_of(model), SEVEN, samples)
    assert parts.total == pytest.approx(whole.total, rel=1e-4)
    assert set(parts.total) == set(NAMES)
    for name in NAMES:
        assert parts.groups[name] == pytest.approx(whole.groups[name], rel=1e-3, abs=1e-12)
    early = next(v.name for v in model.graph.outputs)
    assert parts.groups["c5"][f"{early}[0]"] == 0.0, "an output before the node does not change"
    assert parts.groups["c1"][f"{early}[0]"] > 0.0


def test_the_suffix_computes_what_the_network_computes() -> None:
    model = branched()
    (sample,) = samples_of(model, 1)
    names = [v.name or "" for v in model.graph.outputs]
    wanted = dict(zip(names, judge_session(model_to_bytes(model)).run(names, sample), strict=True))
    place = next(i for i, node in enumerate(model.graph) if node.name == "c6")
    suffix = cut_before(model, place)
    assert suffix.outputs == (names[1], names[2])
    assert "x" in suffix.reads
    inner = cut_before(model, 0).model
    values = {v.name: v for node in inner.graph for v in node.outputs}
    across = [name for name in suffix.reads if name != "x"]
    inner.graph.outputs.extend(values[name] for name in across if name not in names)
    held = dict(zip(across, judge_session(model_to_bytes(inner)).run(across, sample), strict=True))
    found = judge_session(model_to_bytes(suffix.model)).run(
        list(suffix.outputs), suffix.feeds({**sample, **held})
    )
    for name, array in zip(suffix.outputs, found, strict=True):
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)
    with pytest.raises(KeyError):
        suffix.feeds(sample)


def test_a_network_with_a_branch_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgefuse.quant.suffix.has_subgraphs", lambda node: node.name == "c3")
    assert not any(has_subgraphs(node) for node in branched().graph)
    assert cut_points(branched(), NAMES) == [0]
