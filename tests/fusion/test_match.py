"""The matcher: every match once, refusals with their reason, work in proportion to the graph."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.fusion import Matches, fusion_candidates, rules_from_text, vertical_candidates
from edgefuse.fusion.examples import model_from_lines
from edgefuse.fusion.grow import MAX_NODES, grown_groups
from edgefuse.fusion.index import GraphIndex
from edgefuse.fusion.match import find_matches
from edgefuse.fusion.outline import outline
from edgefuse.graph import Model


def model_of(text: str) -> Model:
    return model_from_lines(text, {}, np.random.default_rng(0))


def matches_of(pattern: str, graph: str, where: str = "[]", outputs: str = "[]") -> Matches:
    lines = "\n".join(f"    {line.strip()}" for line in pattern.strip().splitlines())
    text = (
        f"- id: made\n  kind: vertical\n  why: w\n  pattern: |\n{lines}\n"
        f"  where: {where}\n  outputs: {outputs}\n"
        "  accepted: ''\n  refused: {graph: '', by: pattern}\n"
    )
    return find_matches(model_of(graph), rules_from_text(text, "made"))


def groups(found: Matches) -> list[str]:
    return [
        " ".join((node.name or "").removesuffix("_node") for node in match.nodes) for match in found.matches
    ]


def test_operands_in_any_order() -> None:
    graph = "a: [4]\nb: [4]\nc = Exp(a)\ny = Add(b, c)"
    assert groups(matches_of("e = Exp(x)\ny = Add(e, r)", graph)) == ["c y"]
    assert groups(matches_of("e = Exp(x)\ny = Sub(e, r)", graph.replace("Add", "Sub"))) == []


def test_commuting_operators_of_any_arity() -> None:
    graph = "a: [4]\nb: [4]\nc: [4]\ne = Exp(b)\ny = Sum(a, c, e)"
    assert groups(matches_of("e = Exp(x)\ny = Sum(e, p, q)", graph)) == ["e y"]
    assert groups(matches_of("e = Exp(x)\ny = Sum(e, ...)", graph)) == ["e y"]
    assert groups(matches_of("e = Exp(x)\ny = Sum(e, p)", graph)) == []


def test_one_name_is_one_tensor() -> None:
    pattern = "s = Sigmoid(x)\ny = Mul(x, s)"
    assert groups(matches_of(pattern, "x: [4]\ns = Sigmoid(x)\ny = Mul(s, x)")) == ["s y"]
    assert groups(matches_of(pattern, "x: [4]\nz: [4]\ns = Sigmoid(x)\ny = Mul(s, z)")) == []


def test_constants_are_told_from_tensors() -> None:
    constant, computed = "x: [4]\ny = Exp(x)\nz = Mul(y, $[4])", "x: [4]\ny = Exp(x)\nz = Mul(y, x)"
    assert groups(matches_of("e = Exp(x)\ny = Mul(e, $S)", constant)) == ["y z"]
    assert groups(matches_of("e = Exp(x)\ny = Mul(e, $S)", computed)) == []
    assert groups(matches_of("e = Exp(x)\ny = Mul(e, r)", constant)) == []
    assert groups(matches_of("e = Exp(x)\ny = Mul(e, _)", constant)) == ["y z"]


def test_optional_nodes_and_chains() -> None:
    graph = "x: [4]\na = Relu(x)\nb = Mul(a, 2.0)\nc = Exp(b)\nd = Tanh(c)"
    assert groups(matches_of("a = Relu(x)\nm? = Mul(a, $S)\ny = Exp(m)", graph)) == ["a b c"]
    short = graph.replace("b = Mul(a, 2.0)\n", "").replace("Exp(b)", "Exp(a)")
    assert groups(matches_of("a = Relu(x)\nm? = Mul(a, $S)\ny = Exp(m)", short)) == ["a c"]
    assert groups(matches_of("a = Relu(x)\ny = chain*(a)", graph)) == ["a", "a b", "a b c", "a b c d"]
    assert groups(matches_of("a = Relu(x)\nb = chain*(a)\ny = Tanh(b)", graph)) == ["a b c d"]
    assert groups(matches_of("a = Relu(x)\nb = chain+(a)\ny = Exp(b)", graph)) == ["a b c"]


def test_overlapping_matches_are_all_found() -> None:
    graph = "x: [4]\na = Add(x, x)\nb = Add(a, x)\nc = Add(b, x)"
    assert groups(matches_of("p = Add(x, q)\ny = Add(p, r)", graph)) == ["a b", "b c"]


REFUSED = {
    "a reader outside": ("x: [4]\na = Relu(x)\ny = Exp(a)\nz = Neg(a)\n-> y, z", "[]", "read outside"),
    "a graph output inside": ("x: [4]\na = Relu(x)\ny = Exp(a)\n-> y, a", "[]", "read outside"),
    "a condition": (
        "x: [4]\na = Relu(x)\ny = Exp(a)",
        "['rank(a) == 1', 'dim(a, 0) == 5']",
        "dim(a, 0) == 5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_refused(name: str) -> None:
    graph, where, by = REFUSED[name]
    found = matches_of("a = Relu(x)\ny = Exp(a)", graph, where)
    assert not found.matches
    assert [(refused.nodes, refused.by) for refused in found.refused] == [(("a_node", "y_node"), by)]


def test_a_group_that_would_wait_for_itself() -> None:
    pattern, outputs = "a = Relu(x)\ny = Add(a, z)", "[a, y]"
    through = "x: [4]\na = Relu(x)\nz = Exp(a)\ny = Add(a, z)\n-> y"
    beside = "x: [4]\nz: [4]\na = Relu(x)\ny = Add(a, z)\nw = Exp(a)\n-> y, w"
    assert [r.by for r in matches_of(pattern, through, outputs=outputs).refused] == ["not convex"]
    assert groups(matches_of(pattern, beside, outputs=outputs)) == ["a y"]


def test_siblings_are_one_match_for_each_class() -> None:
    graph = "x: [1,2,4,4]\n" + "\n".join(
        f"c{i} = Conv(x, $[2,2,{k},{k}])" for i, k in enumerate((1, 3, 1, 3, 1, 2))
    )
    graph += "\n-> c0, c1, c2, c3, c4, c5"
    found = matches_of("s* = Conv(x, $W, ...)", graph, "['same(window(s))']")
    assert groups(found) == ["c0 c2 c4", "c1 c3"]
    assert [r.by for r in found.refused] == ["same(window(s))"]


def test_siblings_cost_steps_in_proportion() -> None:
    def steps(count: int) -> int:
        names = [f"c{i}" for i in range(count)]
        lines = [f"{name} = Conv(x, $[2,2,1,1])" for name in names]
        graph = "\n".join(["x: [1,2,4,4]", *lines, "-> " + ", ".join(names)])
        found = matches_of("s* = Conv(x, $W, ...)", graph)
        assert len(found.matches) == 1
        return found.steps

    assert steps(80) <= 2.1 * steps(40)


def test_work_grows_with_the_graph() -> None:
    def steps(count: int) -> int:
        lines = ["x: [1,4,8,8]", "v0 = Relu(x)"]
        for i in range(count):
            lines += [f"c{i} = Conv(v{i}, $[4,4,1,1])", f"s{i} = Add(c{i}, v{i})", f"v{i + 1} = Relu(s{i})"]
        found = find_matches(model_of("\n".join(lines)))
        assert len(found.matches) >= count
        return found.steps

    assert steps(40) <= 2.2 * steps(20)
    assert steps(20) <= 20 * 3 * 60  # nodes, and what all rules together try at one of them


def test_the_same_twice() -> None:
    graph = "x: [1,4,8,8]\nc = Conv(x, $[4,4,1,1])\ns = Sigmoid(c)\nm = Mul(c, s)\ny = Add(m, x)"
    first, second = (find_matches(model_of(graph)) for _ in range(2))
    assert groups(first) == groups(second)
    assert first.refused == second.refused
    assert first.steps == second.steps


LAYERNORM = """
x: [2,8]
u = ReduceMean(x, [-1])
d = Sub(x, u)
p = Mul(d, d)
v = ReduceMean(p, [-1])
e = Add(v, 0.001)
q = Sqrt(e)
n = Div(d, q)
z = Exp(n)
"""


def test_groups_grow_until_one_tensor_leaves() -> None:
    model = model_of("x: [2,8]\na = Exp(x)\nb = Neg(a)\nc = Abs(a)\nd = Mul(b, c)\ne = Relu(d)")
    index = GraphIndex(model)
    assert [sorted(g) for g in grown_groups(index)] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    index = GraphIndex(model_of(LAYERNORM))
    assert [1, 2, 3, 4, 5, 6] in [sorted(g) for g in grown_groups(index)]


@pytest.mark.parametrize(
    "graph",
    [
        "x: [2,8]\na = Exp(x)\nb = Neg(a)\nc = Abs(a)\n-> b, c",
        "x: [2,8]\na = Exp(x)\nb = Neg(a)\nc = Transpose(a)\nd = MatMul(b, c)",
        "x: [2,8]\na = Exp(x)\nb = Neg(a)\nc = Abs(a)\nd = Mul(b, c)\n-> d, a",
    ],
)
def test_what_does_not_come_together_is_no_group(graph: str) -> None:
    assert grown_groups(GraphIndex(model_of(graph))) == []


def test_growing_is_bounded() -> None:
    lines = ["x: [4]", "a = Exp(x)", "v0 = Neg(a)"]
    lines += [f"v{i + 1} = Tanh(v{i})" for i in range(MAX_NODES)]
    model = model_of("\n".join([*lines, f"y = Add(a, v{MAX_NODES})"]))
    assert grown_groups(GraphIndex(model)) == []


def test_candidates_hold_each_set_once_and_all_chains() -> None:
    model = model_of("x: [1,4,8,8]\nc = Conv(x, $[4,4,1,1])\na = Relu(c)\nb = Mul(a, 2.0)\ny = Add(b, x)")
    found = fusion_candidates(model)
    sets = [candidate.names for candidate in found]
    assert len(set(sets)) == len(sets)
    assert {candidate.names for candidate in vertical_candidates(model)} <= set(sets)
    assert {c.rule for c in found if len(c.nodes) == 2} >= {"conv-saturating"}


def test_the_graph_around_a_group_sees_its_outputs_only() -> None:
    model = model_of("x: [4]\na = Exp(x)\nb = Neg(a)\ny = Add(a, b)")
    with pytest.raises(ValueError, match="'a' is read outside"):
        outline(model, {"a_node", "b_node"}, ["b"])
    group, around = outline(model, {"a_node", "b_node"}, ["a", "b"])
    assert [v.name for v in group.graph.inputs] == ["x"]
    assert [v.name for v in around.graph.inputs] == ["x", "a", "b"]
    assert [node.op_type for node in around.graph] == ["Add"]
