"""Requests in words, and the composition: each step goes on only from what the judge took."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import UsageError
from edgefuse.graph import Model, model_to_bytes
from edgefuse.quant.compress import Compressed, Request, compress, compression_requests, parse_prune
from tests.passes.graphs import Build, conv


class _Judge:
    def __init__(self, take: set[str], refuse: str = "") -> None:
        self.take, self.refuse = take, refuse
        self.seen: list[tuple[Compressed, str]] = []

    def refuses(self, request: Request) -> str:
        return "not here" if request.kind == self.refuse else ""

    def takes(self, step: Compressed, why_not: str) -> bool:
        self.seen.append((step, why_not))
        return not why_not and step.request.kind in self.take

    def sized(self, model: Model) -> Model:
        return model


def _model() -> Model:
    b = Build(seed=7)
    value = b.op("Relu", conv(b, b.x([1, 4, 8, 8]), 4, 16, name="one"))
    value = b.op("Relu", conv(b, value, 16, 64, k=1, name="two"))
    return b.y(conv(b, value, 64, 4, k=1, name="three")).model()


def _samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(6)]


ALL = compression_requests("channels=50%,weights=50%", 0.5, "2:4")


def test_requests_stand_in_the_order_in_which_they_are_done() -> None:
    assert [r.kind for r in ALL] == ["channels", "low-rank", "weights", "sparsity"]
    assert compression_requests(None, None, None) == ()


def test_words_say_what_they_mean() -> None:
    one, two = parse_prune("channels=12.5%:model:l1, weights=.5")
    assert (one.share, one.threshold, one.criterion, one.scope) == (0.125, None, "l1", "model")
    assert (two.kind, two.share, two.threshold) == ("weights", None, 0.5)


@pytest.mark.parametrize(
    "text", ["", "channels", "channels=", "channels=-3%", "channels=3%,", "weights=3%:l2", "a=1"]
)
def test_words_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_prune(text)


def test_what_is_declined_leaves_the_model_and_the_next_step_starts_from_it() -> None:
    model, samples = _model(), _samples()
    judge = _Judge({"low-rank"})
    made = compress(model, ALL, judge, samples)
    steps = {step.request.kind: step for step, _ in judge.seen}
    assert set(steps) == {r.kind for r in ALL}
    assert "removed" in next(iter(steps["channels"].changed.values()))
    assert made is steps["low-rank"].model
    assert {n.name for n in made.graph} == {n.name for n in steps["weights"].model.graph}
    whole, smaller = steps["low-rank"].figures(model)["macs"]
    assert smaller < whole


def test_nothing_taken_gives_back_the_same_model() -> None:
    model = _model()
    before = model_to_bytes(model)
    assert compress(model, ALL, _Judge(set()), _samples()) is model
    assert model_to_bytes(model) == before


def test_a_refused_request_is_not_tried_and_one_without_effect_is_never_taken() -> None:
    b = Build(seed=7)
    model = b.y(b.op("Relu", b.x([1, 4]))).model()
    judge = _Judge({r.kind for r in ALL}, refuse="sparsity")
    assert compress(model, ALL, judge) is model
    assert [why for _, why in judge.seen] == ["nothing in the model could be changed"] * 3 + ["not here"]


def test_everything_taken_keeps_names_and_says_what_was_done() -> None:
    model = _model()
    judge = _Judge({r.kind for r in ALL})
    made = compress(model, ALL, judge, _samples())
    assert [v.name for v in made.graph.outputs] == [v.name for v in model.graph.outputs]
    for step, why in judge.seen:
        assert why == ""
        assert step.changed
        assert step.fitted > 0
    assert "single zeros save no time" in judge.seen[2][0].notes[-1]
