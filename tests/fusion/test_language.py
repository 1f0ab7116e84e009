"""The rule language: what a pattern and a condition may say, and what is refused when it is read."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import InputError, UsageError
from edgefuse.fusion import load_rules, rule_named, rules_from_text
from edgefuse.fusion.conditions import compile_condition, compile_expression
from edgefuse.fusion.examples import draw_sizes, model_from_lines
from edgefuse.fusion.pattern import parse_pattern

RULE = """
- id: one
  kind: vertical
  why: Because it can be done at once.
  pattern: |
    c = Conv(x, $W, $b?)
    y = Relu(c)
  where: ["rank(c) == 4"]
  accepted: |
    x: [N,2,H,W]
    c = Conv(x, $[2,2,1,1])
    y = Relu(c)
  refused: {graph: "x: [N,2]\\ny = Relu(x)", by: pattern}
"""


def test_a_rule_is_read() -> None:
    (rule,) = rules_from_text(RULE, "made")
    assert (rule.id, rule.family, rule.text.variants) == ("one", "made", ("plain",))
    assert rule.pattern.outputs == ("y",)
    assert rule.pattern.names == {"x", "W", "b", "c", "y"}


BROKEN = {
    "an unknown key": ("  why:", "  wyh:", "did you mean 'why'"),
    "an unknown key of refused": ("by: pattern", "bye: pattern", "unknown key 'bye'"),
    "an unknown kind": ("kind: vertical", "kind: sideways", "sideways"),
    "a missing key": ("  kind: vertical\n", "", "kind"),
    "a line that is none": ("y = Relu(c)", "Relu(c)", "cannot read the line"),
    "an argument that is none": ("Relu(c)", "Relu(c + 1)", "cannot read the argument"),
    "an unknown class": ("Relu(c)", "@activations(c)", "did you mean 'activation'"),
    "a name defined twice": ("y = Relu(c)", "c = Relu(c)", "defined twice"),
    "a name that the pattern has not": ("rank(c)", "rank(d)", "the pattern has no 'd'"),
    "an unknown function": ("rank(c)", "rnk(c)", "did you mean 'rank'"),
    "an attribute of an object": ("rank(c) == 4", "c.name == 'x'", "Attribute is not part of the language"),
    "a comprehension": ("rank(c) == 4", "[i for i in (1,)]", "not part of the language"),
    "a lambda": ("rank(c) == 4", "(lambda: 1)()", "no function"),
    "a keyword": ("rank(c) == 4", "rank(value=c)", "plain arguments"),
    "too many arguments": ("rank(c) == 4", "rank(c, 1)", "arguments"),
    "a condition that is no expression": ("rank(c) == 4", "rank(c) =", "is not an expression"),
    "same() without siblings": ("rank(c) == 4", "same(rank(c))", "needs a line of siblings"),
    "a reason that is no condition": ("by: pattern", "by: rank(c) == 5", "none of its conditions"),
    "parts that share nothing": ("y = Relu(c)", "y = Relu(z)", "shares no tensor"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_said_with_the_rule(name: str) -> None:
    old, new, said = BROKEN[name]
    assert old in RULE
    with pytest.raises(InputError, match=r"made\.yaml, rule one") as caught:
        rules_from_text(RULE.replace(old, new, 1), "made")
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["[: a", "one: two", "- 3"])
def test_a_file_that_holds_no_rules(text: str) -> None:
    with pytest.raises(InputError, match=r"made\.yaml"):
        rules_from_text(text, "made")


def test_an_identifier_twice() -> None:
    with pytest.raises(InputError, match="twice"):
        rules_from_text(RULE + RULE, "made")


def test_rules_by_name() -> None:
    assert rule_named("conv-residual").family == "convolution"
    with pytest.raises(UsageError, match="did you mean 'conv-residual'"):
        rule_named("conv-residul")
    assert len({rule.id for rule in load_rules()}) == len(load_rules())


def test_optional_nodes_make_alternatives() -> None:
    pattern = parse_pattern("c = Conv(x, $W)\nm? = Mul(c, $S)\ny = Relu(m)", (), "made")
    assert [len(lines) for lines in pattern.alternatives] == [3, 2]
    assert pattern.aliases == ({}, {"m": "c"})
    assert not pattern.open
    assert parse_pattern("a = Relu(x)\ny = chain*(a)", (), "made").open


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * A + 1", 7),
        ("A // 2", 1),
        ("-A", -3),
        ("(A, 4)[1]", 4),
        ("1 < A < 4", True),
        ("A in (1, 2) or not A == 4", True),
        ("(1, 2, 3)[1:3] == (2, 3)", True),
        ("2 ** 0.5 < 1.5", True),
    ],
)
def test_expressions(text: str, value: object) -> None:
    assert compile_expression(text, ["A"], "made")({"A": 3}) == value


@pytest.mark.parametrize("text", ["2 ** A", "9 ** 99", "f'{A}'", "A if A else 1", "print(A)", "A @ A", "{}"])
def test_expressions_that_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        compile_expression(text, ["A"], "made")


def test_what_is_not_known_refuses() -> None:
    condition = compile_condition("dim(c, 2) % 8 == 0 or rank(c) == 4", ["c"], "made")
    model = model_from_lines("c: [1,4,8,8]\ny = Relu(c)", {}, np.random.default_rng(0))
    assert condition.holds({"c": model.graph.inputs[0]})
    model.graph.inputs[0].shape = None
    assert not condition.holds({"c": model.graph.inputs[0]})
    assert not condition.holds({"c": None})


@pytest.mark.parametrize(
    "text",
    [
        "per_channel(c, 1, c)",
        "dim(c, 1) == 4",
        "shape(c)[2] == 4",
        "abs_close(attr(c, 'alpha'), 1)",
        "rank(c) % 0 == 0",
    ],
)
def test_a_question_that_has_no_answer_refuses(text: str) -> None:
    condition = compile_condition(text, ["c"], "made")
    model = model_from_lines("x: []\nc = Relu(x)", {}, np.random.default_rng(0))
    assert not condition.holds({"c": model.graph.outputs[0]})


def test_examples_draw_their_sizes() -> None:
    text = "x: [N,2*C,H]\ny = Reshape(x, [N,-1])"
    sizes = draw_sizes(text, {"C": (9, 9)}, np.random.default_rng(0))
    assert sizes["C"] == 9
    assert set(sizes) == {"N", "C", "H"}
    model = model_from_lines(text, sizes, np.random.default_rng(0))
    assert list(model.graph.outputs[0].shape or ()) == [sizes["N"], 18 * sizes["H"]]


@pytest.mark.parametrize("line", ["y = Relu(z)", "y == Relu(x)", "-> q", "y = Relu(x[0])"])
def test_examples_that_cannot_be_read(line: str) -> None:
    with pytest.raises(InputError):
        model_from_lines(f"x: [1]\n{line}", {}, np.random.default_rng(0))
