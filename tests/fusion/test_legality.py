"""What backends say to candidates that are no chains: a yes only to what was seen as one kernel."""

from __future__ import annotations

import pytest

from benchmarks.architectures import bert, mobilenet_v2
from edgefuse.backend import Candidate, load_backend
from edgefuse.device import resolve_target
from edgefuse.fusion import ANCHORS, POINTWISE, fusion_candidates
from edgefuse.plans import Format

pytestmark = pytest.mark.slow
CANDIDATES = [c for m in (mobilenet_v2(width=2), bert(1)) for c in fusion_candidates(m) if len(c.nodes) > 1]
DEVICES = ("jetson-orin-nano", "x86-avx2")


def products(candidate: Candidate) -> int:
    return sum(node.op_type in ANCHORS for node in candidate.nodes)


@pytest.mark.parametrize("device", DEVICES)
def test_one_product_and_what_follows_it(device: str) -> None:
    target = resolve_target(device)
    backend = load_backend(target.family)
    said = {True: 0, False: 0}
    for candidate in CANDIDATES:
        verdict = backend.legal(candidate, "plain", "fp32", Format(), target)
        said[verdict.ok] += 1
        assert verdict.ok or len(verdict.reason) > 10
        if verdict.ok:
            assert products(candidate) <= 1
            assert {node.op_type for node in candidate.nodes} <= ANCHORS | POINTWISE
            assert not products(candidate) or candidate.nodes[0].op_type in ANCHORS
    assert min(said.values()) > 10


@pytest.mark.parametrize("device", DEVICES)
def test_a_rewrite_that_no_lowering_writes_is_refused(device: str) -> None:
    target = resolve_target(device)
    backend = load_backend(target.family)
    offered = [(c, variant) for c in CANDIDATES for variant in c.variants if variant != "plain"]
    assert offered
    for candidate, variant in offered:
        verdict = backend.legal(candidate, variant, "fp32", Format(), target)
        assert not verdict.ok
        assert variant in verdict.reason
