"""The rewrites: equal to what they replace for any siblings and sizes, else left alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.errors import InputError
from edgefuse.fusion import Match, find_matches, rule_named
from edgefuse.fusion.examples import feeds_for, model_from_lines
from edgefuse.fusion.library import rules_from_text
from edgefuse.fusion.variants import names, rewrite
from edgefuse.graph import Model
from edgefuse.graph.reference import Reference, max_relative_error

pytestmark = pytest.mark.slow
TOLERANCE = 2e-6


def one_match(text: str, rule: str) -> tuple[Model, Match]:
    model = model_from_lines(text, {}, np.random.default_rng(3))
    return model, find_matches(model, [rule_named(rule)]).matches[0]


def rewritten(text: str, rule: str, variant: str) -> Model:
    """Return the rewritten model, checked against the original and for the operators that it must hold."""
    model, match = one_match(text, rule)
    changed = rewrite(variant, model, match)
    assert changed is not None
    feeds = feeds_for(model, np.random.default_rng(4))
    made, wanted = Reference(changed).run(feeds), Reference(model).run(feeds)
    assert list(made) == list(wanted)
    for name, array in wanted.items():
        assert max_relative_error(made[name], array) <= TOLERANCE
    return changed


def operators(model: Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


@given(
    channels=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    size=st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    biases=st.integers(0, 15),
)
@settings(max_examples=25)
def test_siblings_of_one_window(
    channels: list[int], size: int, stride: int, dilation: int, pads: list[int], biases: int
) -> None:
    lines = ["x: [2,3,7,6]"]
    for i, count in enumerate(channels):
        bias = f", $[{count}]" if biases >> i & 1 else ""
        lines.append(
            f"s{i} = Conv(x, $[{count},3,{size},{size}]{bias}, strides=[{stride},{stride}], "
            f"dilations=[{dilation},{dilation}], pads={pads})"
        )
    text = "\n".join([*lines, "-> " + ", ".join(f"s{i}" for i in range(len(channels)))])
    assert operators(rewritten(text, "conv-siblings", "merge_wide")) == {"Conv": 1, "Split": 1}


@given(
    sizes=st.lists(st.sampled_from([(1, 1), (3, 1), (1, 3), (3, 3), (5, 3)]), min_size=2, max_size=3),
    stride=st.integers(1, 2),
    slack=st.integers(0, 1),
)
@settings(max_examples=25)
def test_siblings_of_different_windows(sizes: list[tuple[int, int]], stride: int, slack: int) -> None:
    if len(set(sizes)) == 1:
        sizes = [*sizes, (5, 5)]
    lines = ["x: [1,3,9,8]"]
    for i, (high, wide) in enumerate(sizes):
        a, b = high // 2 + slack, wide // 2
        lines.append(
            f"s{i} = Conv(x, $[{i + 2},3,{high},{wide}], strides=[{stride},{stride}], pads=[{a},{b},{a},{b}])"
        )
    text = "\n".join([*lines, "-> " + ", ".join(f"s{i}" for i in range(len(sizes)))])
    assert operators(rewritten(text, "conv-siblings-padded", "merge_padded")) == {"Conv": 1, "Split": 1}


@given(
    columns=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    rank=st.integers(2, 4),
)
@settings(max_examples=15)
def test_sibling_products(columns: list[int], rank: int) -> None:
    shape = ",".join(["2"] * (rank - 1))
    lines = [f"x: [{shape},5]", *(f"s{i} = MatMul(x, $[5,{n}])" for i, n in enumerate(columns))]
    text = "\n".join([*lines, "-> " + ", ".join(f"s{i}" for i in range(len(columns)))])
    assert operators(rewritten(text, "matmul-siblings", "merge_columns")) == {"MatMul": 1, "Split": 1}


@given(turned=st.booleans(), biases=st.integers(0, 3), alpha=st.sampled_from([1.0, 0.5]))
@settings(max_examples=12)
def test_sibling_gemms(turned: bool, biases: int, alpha: float) -> None:
    lines = ["x: [3,5]"]
    for i, count in enumerate((4, 6)):
        weight = f"$[{count},5]" if turned else f"$[5,{count}]"
        bias = f", $[{count}]" if biases >> i & 1 else ""
        lines.append(f"s{i} = Gemm(x, {weight}{bias}, transB={int(turned)}, alpha={alpha}, beta=2.0)")
    changed = rewritten("\n".join([*lines, "-> s0, s1"]), "gemm-siblings", "merge_columns")
    assert operators(changed) == {"Gemm": 1, "Split": 1}


@given(
    batch=st.integers(1, 3), channels=st.integers(2, 5), size=st.tuples(st.integers(1, 5), st.integers(1, 5))
)
@settings(max_examples=12)
def test_a_pointwise_convolution_as_a_product(batch: int, channels: int, size: tuple[int, int]) -> None:
    text = (
        f"x: [{batch},{channels},{size[0] + 2},{size[1] + 2}]\n"
        f"d = Conv(x, $[{channels},1,3,3], group={channels})\na = Relu(d)\n"
        f"y = Conv(a, $[6,{channels},1,1], $[6])"
    )
    changed = rewritten(text, "depthwise-pointwise", "pointwise_as_matmul")
    assert operators(changed)["MatMul"] == 1
    assert operators(changed)["Conv"] == 1


def test_the_other_rewrites() -> None:
    swish = rewritten(
        "x: [2,3,4,4]\nc = Conv(x, $[5,3,1,1])\ny = HardSwish(c)", "conv-self-gated", "hardswish_as_product"
    )
    assert operators(swish) == {"Conv": 1, "Add": 1, "Clip": 1, "Mul": 2}
    mean = rewritten(
        "x: [2,3,4,4]\np = GlobalAveragePool(x)\ny = Flatten(p)", "global-pool-flatten", "global_mean"
    )
    assert operators(mean) == {"ReduceMean": 1, "Flatten": 1}


CANNOT = {
    "no HardSwish in it": ("x: [1,3,4,4]\nc = Conv(x, $[5,3,1,1])\ny = Swish(c)", "hardswish_as_product"),
    "a window of three": ("x: [1,3,4,4]\nc = Conv(x, $[5,3,3,3])\ny = Swish(c)", "pointwise_as_matmul"),
    "padding": ("x: [1,3,4,4]\nc = Conv(x, $[5,3,1,1], pads=[1,1,1,1])\ny = Swish(c)", "pointwise_as_matmul"),
    "a stride": ("x: [1,3,4,4]\nc = Conv(x, $[5,3,1,1], strides=[2,2])\ny = Swish(c)", "pointwise_as_matmul"),
    "groups": ("x: [1,4,4,4]\nc = Conv(x, $[4,2,1,1], group=2)\ny = Swish(c)", "pointwise_as_matmul"),
    "no siblings": ("x: [1,3,4,4]\nc = Conv(x, $[5,3,1,1])\ny = Swish(c)", "merge_wide"),
    "no pool": ("x: [1,3,4,4]\nc = Conv(x, $[5,3,1,1])\ny = Swish(c)", "global_mean"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_rewritten_is_left_alone(name: str) -> None:
    text, variant = CANNOT[name]
    model, match = one_match(text, "conv-self-gated")
    before = operators(model)
    assert rewrite(variant, model, match) is None
    assert operators(model) == before


SIBLINGS = """
- id: any-siblings
  kind: horizontal
  why: All of them, so that the rewrite itself must say no.
  pattern: "s* = Conv(x, $W, $b?)"
  accepted: ""
  refused: {graph: "", by: pattern}
"""


@pytest.mark.parametrize("variant", ["merge_wide", "merge_padded"])
@pytest.mark.parametrize(
    "second",
    [
        "Conv(x, $[4,2,1,1], group=2)",
        "Conv(x, $[4,4,1,1], strides=[2,2])",
        'Conv(x, $[4,4,1,1], auto_pad="SAME_UPPER")',
        "Conv(x, $[4,4,3,3])",
    ],
)
def test_siblings_that_are_not_alike(variant: str, second: str) -> None:
    text = f"x: [1,4,8,8]\na = Conv(x, $[3,4,1,1])\nb = {second}\n-> a, b"
    model = model_from_lines(text, {}, np.random.default_rng(3))
    match = find_matches(model, rules_from_text(SIBLINGS, "made")).matches[0]
    assert rewrite(variant, model, match) is None


def test_an_unknown_variant() -> None:
    model, match = one_match("x: [1,3,4,4]\nc = Conv(x, $[5,3,1,1])\ny = Swish(c)", "conv-self-gated")
    with pytest.raises(InputError, match="did you mean 'merge_wide'"):
        rewrite("merge_wild", model, match)
    assert "plain" not in names()
