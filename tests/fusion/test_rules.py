"""Every rule of the library: its example is taken and proven, its counter-example refused for its reason."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import InternalError
from edgefuse.fusion import load_rules, rules_from_text
from edgefuse.fusion.examples import draw_sizes, model_from_lines
from edgefuse.fusion.match import find_matches
from edgefuse.fusion.proof import prove, refusals_of
from edgefuse.fusion.variants import names

pytestmark = pytest.mark.slow  # 2 s together
RULES = {rule.id: rule for rule in load_rules()}


@pytest.mark.parametrize("name", RULES)
def test_fused_and_unfused_agree_on_random_shapes(name: str) -> None:
    rule = RULES[name]
    forms = set()
    for seed in range(3):
        proof = prove(rule, seed)
        assert proof.nodes >= 2
        assert proof.errors["one unit"] == 0.0
        forms |= set(proof.errors)
    wanted = {"one unit", *(["means"] if rule.text.means else []), *rule.text.variants} - {"plain"}
    assert forms == wanted, "a variant that is offered and never written proves nothing"


@pytest.mark.parametrize("name", RULES)
def test_the_counter_example_is_refused_for_its_reason(name: str) -> None:
    rule = RULES[name]
    for seed in range(2):
        assert rule.text.refused.by in refusals_of(rule, seed)


@pytest.mark.parametrize("name", RULES)
def test_the_words_of_a_rule(name: str) -> None:
    text = RULES[name].text
    assert name == name.lower()
    assert text.why.endswith((".", "!"))
    assert len(text.why) > 30
    assert text.accepted.strip() != text.refused.graph.strip()


def test_every_rewrite_is_offered_by_some_rule() -> None:
    offered = {variant for rule in RULES.values() for variant in rule.text.variants} - {"plain"}
    assert offered == set(names())


def test_no_two_rules_take_the_same_nodes_of_an_example() -> None:
    """The examples themselves are a corpus: all rules against every example."""
    clashes = []
    for rule in RULES.values():
        random = np.random.default_rng(1)
        sizes = draw_sizes(rule.text.accepted, rule.text.sizes, random)
        model = model_from_lines(rule.text.accepted, sizes, random)
        seen: dict[tuple[str, ...], str] = {}
        for match in find_matches(model).matches:
            key = tuple(node.name or "" for node in match.nodes)
            if key in seen:
                clashes.append((seen[key], match.rule.id, key))
            seen[key] = match.rule.id
    assert not clashes


WRONG = """
- id: wrong
  kind: composite
  why: Says that it is a Gelu and is a Swish.
  pattern: |
    s = Sigmoid(x)
    y = Mul(x, s)
  means: y = Gelu(x)
  accepted: |
    x: [N,4]
    s = Sigmoid(x)
    y = Mul(x, s)
  refused: {graph: "x: [N,4]\\ny = Relu(x)", by: pattern}
"""


def test_a_rule_that_says_something_false_is_caught() -> None:
    with pytest.raises(InternalError, match="'means'"):
        prove(rules_from_text(WRONG, "made")[0], 0)


def test_a_rule_whose_example_is_no_match_is_caught() -> None:
    broken = WRONG.replace("    s = Sigmoid(x)\n    y = Mul(x, s)\n  refused", "    y = Relu(x)\n  refused")
    with pytest.raises(InternalError, match="no match"):
        prove(rules_from_text(broken, "made")[0], 0)
