"""Models that no build can promise anything about: random draws, sequences, made-up sizes, endless loops."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgefuse.compose.accuracy import session_call
from edgefuse.compose.interface import check_operators
from edgefuse.compose.prepare import find_target, prepare
from edgefuse.compose.regions import Planned, check_regions
from edgefuse.compose.sessions import require_end, sample_hint
from edgefuse.errors import InputError, UnsupportedError
from edgefuse.graph import Model, model_from_proto
from edgefuse.graph.reference import EndlessLoopError
from edgefuse.plans import Format, Group, Plan
from edgefuse.quantized import Quantized

NANO = find_target("jetson-nano")


def parsed(text: str, version: int = 18) -> Model:
    return model_from_proto(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {version}]> g {text}')
    )


DRAWS = {
    "RandomNormal": "(float[2] x) => (float[2] y) { r = RandomNormal<shape=[2]>() y = Add(x, r) }",
    "RandomUniformLike": "(float[2] x) => (float[2] y) { y = RandomUniformLike<seed=1.0>(x) }",
    "Multinomial": "(float[1,2] x) => (int32[1,3] y) { y = Multinomial<sample_size=3>(x) }",
    "Bernoulli": "(float[2] x) => (float[2] y) { y = Bernoulli(x) }",
    "Dropout": "(float[2] x) => (float[2] y) <bool on = {1}, float r = {0.5}> { y = Dropout(x, r, on) }",
}


@pytest.mark.parametrize("kind", DRAWS)
def test_random_numbers_are_refused_by_node(kind: str) -> None:
    name = "r" if kind == "RandomNormal" else "y"
    with pytest.raises(UnsupportedError, match="differs from call to call") as caught:
        check_operators(parsed(DRAWS[kind]), "m.onnx")
    assert caught.value.message.startswith(f"node '{name}' ({kind}) dr")


def test_random_numbers_in_a_branch_are_found() -> None:
    model = parsed(
        "(bool c, float[2] x) => (float[2] y) { y = If(c) <"
        " then_branch = a () => (float[2] o) { o = RandomUniformLike(x) },"
        " else_branch = b () => (float[2] p) { p = Neg(x) }> }"
    )
    with pytest.raises(UnsupportedError, match="RandomUniformLike"):
        check_operators(model, "m.onnx")


@pytest.mark.parametrize(
    "inputs",
    ["x", "x, r", "x, r, off", "x, none, on"],
)
def test_a_dropout_that_drops_nothing_is_let_pass(inputs: str) -> None:
    values = "bool off = {0}, bool on = {1}, float r = {0.5}, float none = {0.0}"
    check_operators(parsed(f"(float[2] x) => (float[2] y) <{values}> {{ y = Dropout({inputs}) }}"), "m")


def test_a_dropout_that_is_told_at_run_time_is_refused() -> None:
    model = parsed("(float[2] x, bool t) => (float[2] y) <float r = {0.5}> { y = Dropout(x, r, t) }")
    with pytest.raises(UnsupportedError, match="where 't' says so at run time"):
        check_operators(model, "m.onnx")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(seq(float[1,4]) x) => (float[1,n] y) { y = ConcatFromSequence<axis=1>(x) }", "input 'x' is a seq"),
        ("(float[1,4] x) => (seq(float[1,1]) y) { y = SplitToSequence<axis=1>(x) }", "output 'y' is a seq"),
        ("(optional(float[4]) x) => (float[4] y) { y = OptionalGetElement(x) }", "input 'x' is an optional"),
    ],
)
def test_values_that_are_no_tensors_are_named(text: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^m.onnx: {words}") as caught:
        check_operators(parsed(text), "m.onnx")
    assert caught.value.expected == "a tensor"


def test_sequences_inside_are_refused_by_node() -> None:
    model = parsed(
        "(float[1,4] x) => (float[1,8] y) { q = SequenceConstruct(x, x) y = ConcatFromSequence<axis=1>(q) }"
    )
    with pytest.raises(UnsupportedError, match=r"\(SequenceConstruct\): it works on a sequence") as caught:
        check_operators(model, "m.onnx")
    assert caught.value.got == "SequenceConstruct of 'x', 'x'"


def test_an_input_that_is_a_size_asks_for_real_data() -> None:
    reshape = parsed("(float[1,4] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }")
    run = session_call(reshape)
    x = np.ones((1, 4), np.float32)
    assert run({"x": x, "s": np.array([2, 2])})["y"].shape == (2, 2)
    with pytest.raises(InputError, match="cannot run on a sample") as caught:
        run({"x": x, "s": np.array([1, 1])})
    assert str(caught.value.hint).startswith("where 's' holds a size")
    assert "--calib or --eval" in str(caught.value.hint)
    assert "'x'" not in str(caught.value.hint)
    plain = sample_hint(parsed("(float[1,4] x) => (float[1,4] y) { y = Relu(x) }"))
    assert "holds a size" not in plain


WHILE = (
    "(float[2] x) => (float[2] y) <bool go = {1}, float top = {10.0}, int64 far = {9223372036854775807},"
    " int64 five = {5}> { y = Loop(TURNS, go, x) <body = b (int64 i, bool c, float[2] s) =>"
    " (bool more, float[2] t) { t = Add(s, x) r = ReduceSum<keepdims=0>(t) more = Less(r, top) }> }"
)


@pytest.mark.parametrize("turns", ["", "far"])
def test_a_loop_that_never_ends_is_refused_before_the_judge_runs_it(
    turns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgefuse.graph.kernels.control.MOST_TURNS", 300)
    run = session_call(parsed(WHILE.replace("TURNS", turns)))
    assert run({"x": np.ones(2, np.float32)})["y"].tolist() == [5.0, 5.0]
    with pytest.raises(EndlessLoopError, match="still holds after 300 turns") as caught:
        run({"x": np.zeros(2, np.float32)})
    assert "--calib" in str(caught.value.hint)


def test_a_loop_with_a_number_of_turns_costs_no_second_run() -> None:
    model = parsed(WHILE.replace("TURNS", "five"))
    assert require_end(model) is None
    assert session_call(model)({"x": np.zeros(2, np.float32)})["y"].tolist() == [0.0, 0.0]


def test_what_else_is_wrong_is_left_to_the_judge() -> None:
    check = require_end(parsed(WHILE.replace("TURNS", "")))
    assert check is not None
    check({"x": np.ones(3, np.int32)})
    check({})


def _regions(model: Model) -> Planned:
    """Return the model with each of its nodes as a group of its own, in float."""
    prepared = prepare(model, NANO)
    groups = tuple(
        Group(
            id=f"g{i}",
            nodes=(str(node.name),),
            sources=(str(node.name),),
            operators=(node.op_type,),
            writes=(),
            rule="",
            variant="plain",
            precision="fp32",
            output=Format(),
            cost=(),
            loss=0.0,
            compute_nodes=1,
            reason="-",
        )
        for i, node in enumerate(prepared.model.graph)
    )
    plan = Plan(model="", target="", requested="auto", groups=groups)
    return Planned(prepared.model, plan, Quantized(), None, NANO, prepared.backend, False)


def test_level_one_takes_inputs_without_an_axis() -> None:
    work = _regions(parsed("(float[2] x, float s) => (float[2] y) { r = Sqrt(s) y = Mul(x, r) }"))
    found = check_regions(work, [{"x": np.ones(2, np.float32), "s": np.array(4.0, np.float32)}])
    assert found.ok
    assert {region.operators for region in found.regions} == {("Sqrt",), ("Mul",)}
