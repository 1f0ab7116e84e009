"""The rules on whole networks: no two name the same nodes, each match is legal, the work stays bounded."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.architectures import ARCHITECTURES, mobilenet_v2, yolo
from edgefuse.fusion import find_matches, fusion_candidates, load_rules
from edgefuse.fusion.examples import feeds_for
from edgefuse.fusion.proof import prove_match
from edgefuse.graph import Model, read_model

pytestmark = pytest.mark.slow

# What must fire where: what the architecture is known for.
EXPECTED = {
    "resnet50": {"conv-saturating", "conv-residual-activation"},
    "mobilenet_v2": {"depthwise-saturating", "pointwise-depthwise", "depthwise-pointwise", "conv-residual"},
    "bert_base": {"matmul-bias-activation", "matmul-bias-residual-norm", "matmul-siblings"},
    "vit": {"matmul-bias-residual", "residual-norm", "norm-matmul"},
    "yolo": {"conv-self-gated", "conv-activation-residual", "conv-squashing"},
}


def clashes(model: Model) -> set[tuple[str, ...]]:
    named = defaultdict(list)
    for match in find_matches(model).matches:
        named[tuple(node.name for node in match.nodes)].append(match.rule.id)
    return {tuple(rules) for rules in named.values() if len(rules) > 1}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rules_on_a_network(name: str) -> None:
    model = ARCHITECTURES[name]()
    found = find_matches(model)
    assert {match.rule.id for match in found.matches} >= EXPECTED[name]
    assert not clashes(model)
    nodes = len(list(model.graph))
    assert found.steps <= nodes * len(load_rules())
    candidates = fusion_candidates(model)
    assert len(candidates) <= 8 * nodes


@pytest.mark.shared
def test_no_two_rules_name_the_same_nodes_of_a_trained_network(zoo_dir: Path) -> None:
    small = [path for path in sorted(zoo_dir.glob("*.onnx")) if path.stat().st_size < 10 << 20]
    assert len(small) >= 3
    for path in small:
        assert not clashes(read_model(path)), path.name


def test_matches_of_whole_networks_stand_alone() -> None:
    for model in (mobilenet_v2(width=2), yolo(width=2, depth=1)):
        feeds = feeds_for(model, np.random.default_rng(0))
        first = {}
        for match in find_matches(model).matches:
            first.setdefault(match.rule.id, match)
        assert len(first) >= 5
        for match in first.values():
            errors = prove_match(model, match, feeds)
            assert errors["one unit"] == 0.0
