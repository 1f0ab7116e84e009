"""Loop, Scan and If for a target of int32: right, or refused by node with the reason and what to do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from small_models import OLD_READER, lowered_equal

from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.graph import DataType, Model, all_nodes, constant, model_from_proto
from edgefuse.lowering import lower, lower_model

READER = {
    "opset": 13,
    "operators": OLD_READER,
    "static": True,
    "index_dtype": "int32",
    "retype": {"double": "float", "float16": "float", "uint8": "int32"},
}
X = np.float32([[0.5, 1.0, -2.0, 3.0]])
ROW = "float[1,4]"


def parsed(text: str) -> Model:
    return model_from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'))


def loop(inputs: str, values: str, call: str, inside: str = "t = Add(s, x) k = Identity(c)") -> Model:
    return parsed(
        f"({inputs}) => ({ROW} y) <bool go = {{1}}{values}> {{ y = Loop({call}) <body = b (int64 i, bool c,"
        f" {ROW} s) => (bool k, {ROW} t) {{ {inside} }}> }}"
    )


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_trip_count_of_run_time_keeps_int64_where_onnx_prescribes_it(turns: int) -> None:
    model = loop(f"{ROW} x, int64 n", "", "n, go, x")
    made, notes = lowered_equal(model, {"x": X, "n": np.array(turns)}, **READER)
    assert notes.input_casts == {"n": ("int64", "int32")}
    (node,) = (node for node in all_nodes(made) if node.op_type == "Loop")
    assert node.inputs[0] is not None
    assert node.inputs[0].dtype == DataType.INT64
    assert node.attributes["body"].as_graph().inputs[0].dtype == DataType.INT64


def test_the_number_of_the_turn_may_be_computed_with() -> None:
    inside = "j = Cast<to=1>(i) u = Mul(x, j) t = Add(s, u) k = Identity(c)"
    lowered_equal(loop(f"{ROW} x, int64 n", "", "n, go, x", inside), {"x": X, "n": np.array(4)}, **READER)


def test_a_largest_integer_as_trip_count_means_none_and_is_clamped() -> None:
    inside = "t = Add(s, x) r = ReduceSum<keepdims=0>(t) k = Less(r, top)"
    values = ", int64 far = {9223372036854775807}, float top = {20.0}"
    made, _ = lowered_equal(loop(f"{ROW} x", values, "far, go, x", inside), {"x": X}, **READER)
    (node,) = (node for node in all_nodes(made) if node.op_type == "Loop")
    turns = constant(node.inputs[0])
    assert turns is not None
    assert (turns.dtype, int(turns.reshape(()))) == (np.int64, 2**31 - 1)


def test_a_carried_int64_becomes_int32_and_comes_out_as_such() -> None:
    model = parsed(
        "(int64 n, int64[2] a) => (int64[2] y) <bool go = {1}> { y = Loop(n, go, a) <body = b (int64 i,"
        " bool c, int64[2] s) => (bool k, int64[2] t) { t = Add(s, a) k = Identity(c) }> }"
    )
    _, notes = lowered_equal(model, {"n": np.array(3), "a": np.array([1, -4])}, **READER)
    assert notes.output_casts == {"y": ("int64", "int32")}


@pytest.mark.parametrize("taken", [True, False])
def test_an_if_of_run_time_and_a_scan_are_right(taken: bool) -> None:
    model = parsed(
        f"({ROW} x, bool c) => ({ROW} y) {{ y = If(c) <then_branch = a () => ({ROW} o) {{ o = Relu(x) }},"
        f" else_branch = b () => ({ROW} p) {{ p = Neg(x) }}> }}"
    )
    lowered_equal(model, {"x": X, "c": np.array(taken)}, **READER)
    scan = parsed(
        "(float[3,4] x) => (float[4] y, float[3,4] z) <float[4] zero = {0.0,0.0,0.0,0.0}> { y, z = Scan"
        "<num_scan_inputs=1, body = b (float[4] s, float[4] e) => (float[4] t, float[4] o)"
        " { t = Add(s, e) o = Identity(t) }>(zero, x) }"
    )
    lowered_equal(scan, {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}, **READER)


def test_a_size_that_the_turns_decide_is_refused() -> None:
    model = parsed(
        f"({ROW} x, int64 n) => ({ROW} y, float[k,1,4] z) <bool go = {{1}}> {{ y, z = Loop(n, go, x) <"
        f"body = b (int64 i, bool c, {ROW} s) => (bool k, {ROW} t, {ROW} o) {{ t = Add(s, x) k = Identity(c)"
        f" o = Identity(t) }}> }}"
    )
    with pytest.raises(UnsupportedError, match=r"Loop.*the size of its result 'z'"):
        lower_model(model, **READER)


@pytest.mark.parametrize("with_body", [True, False])
def test_a_body_that_cannot_be_written_is_refused_and_not_our_bug(
    monkeypatch: pytest.MonkeyPatch, with_body: bool
) -> None:
    def fail(model: Model) -> None:
        raise InternalError("the checker says no")

    monkeypatch.setattr(lower, "check_model", fail)
    plain = parsed(f"({ROW} x) => ({ROW} y) {{ y = Relu(x) }}")
    model = loop(f"{ROW} x, int64 n", "", "n, go, x") if with_body else plain
    with pytest.raises(
        UnsupportedError if with_body else InternalError, match="the checker says no"
    ) as caught:
        lower_model(model, **READER)
    if with_body:
        assert "Loop" in caught.value.message
        assert "constant condition or trip count" in str(caught.value.hint)
