"""The rules on whole networks: no two name the same nodes, each match is legal, the work stays bounded."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.architectures import mobilenet_v2, yolo
from benchmarks.corpus import GENERATED
from benchmarks.matching import rule_table
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
    "yolo": {"conv-self-gated", "conv-activation-residual", "conv-squashing", "pool-cascade-concat"},
    "llama": {"grouped-query-attention", "rotary-position", "swiglu-by-sigmoid", "written-rmsnorm"},
    "gemma": {"soft-capped-attention", "rotary-by-split", "merged-gated-projection", "head-norm"},
    "decoding_step": {"decode-attention", "cache-append-scores", "swiglu-block"},
    "bert_exported": {"masked-attention", "embedding-types-norm", "mask-from-ids", "pooler"},
    "gpt2": {"causal-attention", "merged-qkv-split", "written-gelu-tanh"},
    "translator": {"cross-attention", "position-biased-attention", "where-masked-attention"},
    "recurrent_text": {"lstm-cell", "recurrent-gates", "gru-blend", "additive-attention"},
    "yolov8_head": {"distribution-focal-loss-head", "distances-to-box", "csp-bottleneck", "split-activation"},
    "shufflenet": {"concat-shuffle", "channel-shuffle", "shuffle-split"},
    "unet": {"deconv-concat", "concat-spatial-conv"},
    "deeplab": {"conv-siblings-dilated", "pool-context", "segmentation-argmax"},
    "mobilenet_v3": {"squeeze-excite", "mobile-tail", "fused-mobile-block", "squeeze-excite-by-gemm"},
    "swin": {"shifted-window-attention", "window-partition", "cyclic-shift", "patch-merging"},
    "vit_exported": {"qkv-by-index", "class-token-position", "projection-layer-scale-residual"},
    "integer_resnet": {"integer-product-activation", "integer-product-sum", "integer-table", "requantize"},
}


def clashes(model: Model) -> set[tuple[str, ...]]:
    named = defaultdict(list)
    for match in find_matches(model).matches:
        named[tuple(node.name for node in match.nodes)].append(match.rule.id)
    return {tuple(rules) for rules in named.values() if len(rules) > 1}


@pytest.mark.parametrize("name", GENERATED)
def test_rules_on_a_network(name: str) -> None:
    model = GENERATED[name]()
    found = find_matches(model)
    assert {match.rule.id for match in found.matches} >= EXPECTED.get(name, set())
    assert found.matches
    assert not clashes(model)
    nodes = len(list(model.graph))
    assert found.steps <= 30 * nodes, "each node is tried by the few rules that its neighbours allow"
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


def test_at_least_two_hundred_rules_and_half_of_them_fire() -> None:
    fired = {match.rule.id for make in GENERATED.values() for match in find_matches(make()).matches}
    assert len(load_rules()) >= 200
    assert len(fired) >= 200


def test_the_table_names_every_rule_and_where_it_fires() -> None:
    table = rule_table({"gpt2": GENERATED["gpt2"]()})
    for rule in load_rules():
        assert f"| {rule.id} |" in table
    assert "| causal-attention | composite |" in table
    assert table.count("gpt2 2") >= 5
    committed = (Path(__file__).parents[2] / "docs" / "fusion-rules.md").read_text(encoding="utf-8")
    missing = [rule.id for rule in load_rules() if f"| {rule.id} | {rule.text.kind} |" not in committed]
    assert not missing, "make it anew: python -m benchmarks.matching --table docs/fusion-rules.md"
