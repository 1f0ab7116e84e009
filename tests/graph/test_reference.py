"""The reference executor: names, precision, control flow, functions, memory, and the judges beside it."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgefuse.errors import InputError, UnsupportedError
from edgefuse.graph.reference import (
    Reference,
    evaluate_node,
    judge_session,
    max_relative_error,
    signal_to_noise_db,
)


def parsed(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def model_of(body: str, opset: int = 18, functions: str = "") -> ir.Model:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1]>\n'
    return parsed(header + body + functions)


CHAIN = "g (float[2,N] x) => (float[2,N] y, float[2,N] z) { a = Neg(x) b = Exp(a) y = Sqrt(b) z = Abs(a) }"


def test_outputs_come_in_graph_order_under_their_names() -> None:
    results = Reference(model_of(CHAIN)).run({"x": np.ones((2, 3), np.float32)})
    assert list(results) == ["y", "z"]
    np.testing.assert_allclose(results["y"], np.full((2, 3), np.exp(-0.5)), rtol=1e-15)


def test_fetch_names_inner_values_inputs_and_runs_only_what_they_need() -> None:
    model = model_of("g (float[2] x, float[3] unused) => (float[2] y) { a = Neg(x) y = MatMul(a, unused) }")
    feeds = {"x": np.ones(2, np.float32), "unused": np.ones(3, np.float32)}
    results = Reference(model).run(feeds, fetch=["a", "x"])
    assert list(results) == ["a", "x"]
    np.testing.assert_array_equal(results["a"], [-1, -1])
    with pytest.raises(InputError, match="MatMul"):
        Reference(model).run(feeds)


def test_unknown_and_missing_names_are_refused() -> None:
    reference = Reference(model_of(CHAIN))
    x = np.ones((2, 3), np.float32)
    with pytest.raises(InputError, match="no input 'X'"):
        reference.run({"X": x})
    with pytest.raises(InputError, match="input 'x' is missing"):
        reference.run({})
    with pytest.raises(InputError, match="no value 'bb', did you mean 'b'"):
        reference.run({"x": x}, fetch=["bb"])
    with pytest.raises(InputError, match="precision"):
        Reference(model_of(CHAIN), precision="float32")  # type: ignore[arg-type]


def test_feeds_of_wrong_type_or_shape_are_refused() -> None:
    reference = Reference(model_of(CHAIN))
    with pytest.raises(InputError, match="dtype") as caught:
        reference.run({"x": np.ones((2, 3), np.int64)})
    assert (caught.value.expected, caught.value.got) == ("float32", "int64")
    with pytest.raises(InputError, match="shape") as caught:
        reference.run({"x": np.ones((3, 3), np.float32)})
    assert (caught.value.expected, caught.value.got) == ("[2, N]", "[3, 3]")
    with pytest.raises(InputError, match="shape"):
        reference.run({"x": np.ones(2, np.float32)})


def test_initializer_is_the_default_of_an_input() -> None:
    model = model_of("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }")
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(Reference(model).run({"x": x})["y"], [1, 2])
    np.testing.assert_array_equal(Reference(model).run({"x": x, "w": 3 * x})["y"], [3, 3])


def test_float64_carries_what_the_inputs_hold() -> None:
    model = model_of("g (float[1] x) => (float[1] y) { c = Constant<value_float = 1.0>() y = Add(x, c) }")
    x = np.array([1e-12])
    wide = Reference(model).run({"x": x})["y"]
    assert wide.dtype == np.float64
    assert wide[0] == 1.0 + 1e-12
    narrow = Reference(model, precision="native").run({"x": x})["y"]
    assert narrow.dtype == np.float32
    assert narrow[0] == 1.0


def test_float64_takes_float16_weights_as_values_and_casts_change_nothing() -> None:
    weights = numpy_helper.from_array(np.array([0.1, 3e4], np.float16), "w")
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "wide"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT16),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2])
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    fed = np.array([1.0, 100.0], np.float32)
    wide = Reference(model).run({"x": fed})["y"]
    np.testing.assert_array_equal(wide, [float(np.float16(0.1)), 3e6])
    with np.errstate(over="ignore"):
        narrow = Reference(model, precision="native").run({"x": fed})["y"]
    assert narrow.dtype == np.float16
    assert np.isinf(narrow[1])


def test_integers_bools_and_strings_keep_their_dtype_in_float64() -> None:
    model = model_of(
        "g (float[3] x, string[3] s) => (int64[1] n, bool[3] p, string[3] t)"
        " { n = Shape(x) z = Constant<value_float = 0.0>() p = Greater(x, z) t = Identity(s) }"
    )
    words = np.array(["a", "ü", ""], object)
    results = Reference(model).run({"x": np.array([-1, 0, 1], np.float32), "s": words})
    assert [results[k].dtype for k in "npt"] == [np.int64, np.bool_, object]
    np.testing.assert_array_equal(results["p"], [False, False, True])
    assert list(results["t"]) == ["a", "ü", ""]


def test_dead_tensors_are_dropped_and_fetched_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgefuse.graph.kernels import elementwise

    alive: list[Any] = []
    seen: list[int] = []

    def tracked(call: Any) -> np.ndarray:
        seen.append(sum(reference() is not None for reference in alive))
        out = np.asarray(call.array(0) + 1.0)
        alive.append(weakref.ref(out))
        return out

    model = model_of("g (float[9] x) => (float[9] y) { " + " ".join(
        f"{out} = Neg({source})" for source, out in zip("xabcd", "abcdy", strict=True)) + " }")  # fmt: skip
    monkeypatch.setitem(elementwise.KERNELS, "Neg", tracked)
    from edgefuse.graph import kernels

    kernels.load_kernels.cache_clear()
    try:
        reference = Reference(model)
        reference.run({"x": np.zeros(9)})
        assert max(seen) == 1, "only the input of the running node may be alive"
        seen.clear()
        alive.clear()
        reference.run({"x": np.zeros(9)}, fetch=["a", "y"])
        assert max(seen) == 2
    finally:
        kernels.load_kernels.cache_clear()


@pytest.mark.parametrize(("condition", "expected"), [(True, 3.0), (False, -1.0)])
def test_if_reads_the_outer_scope(condition: bool, expected: float) -> None:
    model = model_of(
        "g (bool c, float[1] x) => (float[1] y) { two = Constant<value_floats = [2.0]>()"
        " y = If(c) <then_branch = t () => (float[1] p) { p = Add(x, two) },"
        " else_branch = e () => (float[1] q) { q = Sub(x, two) }> }"
    )
    results = Reference(model).run({"c": np.array(condition), "x": np.ones(1, np.float32)})
    assert results["y"][0] == expected


LOOP = (
    "g (int64 n, bool go, float[2] x) => (float[2] last, float[K,2] all) {"
    " last, all = Loop(n, go, x) <body = b (int64 i, bool cin, float[2] v) =>"
    " (bool cout, float[2] w, float[2] s) { limit = Constant<value_float = 20.0>() w = Add(v, v)"
    " m = ReduceMax<keepdims=0>(w) cout = Less(m, limit) s = Neg(w) }> }"
)


def test_loop_stops_at_its_count_and_at_its_condition() -> None:
    reference = Reference(model_of(LOOP))
    x = np.array([1.0, 2.0], np.float32)

    def run(count: int, go: bool = True) -> tuple[list[float], tuple[int, ...]]:
        results = reference.run({"n": np.array(count, np.int64), "go": np.array(go), "x": x})
        return results["last"].tolist(), results["all"].shape

    assert run(2) == ([4.0, 8.0], (2, 2))
    assert run(50) == ([16.0, 32.0], (4, 2))
    assert run(0) == ([1.0, 2.0], (0, 2))
    assert run(5, go=False) == ([1.0, 2.0], (0, 2))


def test_scan_runs_backwards_and_stacks_on_the_axis_asked_for() -> None:
    model = model_of(
        "g (float[1] start, float[1,4] xs) => (float[1] total, float[1,4] sums) {"
        " total, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],"
        " scan_input_directions = [1], scan_output_directions = [1],"
        " body = b (float[1] s, float[1] x) => (float[1] t, float[1] o) { t = Add(s, x) o = Identity(t) }>"
        " (start, xs) }"
    )
    xs = np.array([[1, 2, 3, 4]], np.float32)
    results = Reference(model).run({"start": np.zeros(1, np.float32), "xs": xs})
    assert results["total"].tolist() == [10.0]
    assert results["sums"].tolist() == [[10.0, 9.0, 7.0, 4.0]]


def test_local_functions_take_attributes_defaults_and_absent_inputs() -> None:
    functions = (
        '<domain: "local", opset_import: ["" : 18]> act <alpha: float = 0.5> (p, q) => (r)'
        " { m = LeakyRelu<alpha: float = @alpha>(p) r = Clip(m, q) }"
    )
    body = "g (float[2] x) => (float[2] y, float[2] z) { y = local.act(x) z = local.act<alpha = 0.25>(x) }"
    results = Reference(model_of(body, functions=functions)).run({"x": np.array([-4.0, 2.0], np.float32)})
    assert results["y"].tolist() == [-2.0, 2.0]
    assert results["z"].tolist() == [-1.0, 2.0]


def test_sequences_and_optionals_pass_through() -> None:
    model = model_of(
        "g (float[2] a, float[2] b) => (float[2] y, int64 n, bool has) {"
        " s = SequenceConstruct(a, b) i = Constant<value_int = -1>() y = SequenceAt(s, i)"
        " n = SequenceLength(s) o = Optional(s) has = OptionalHasElement(o) }"
    )
    results = Reference(model).run({"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)})
    assert results["y"].tolist() == [1.0, 1.0]
    assert (results["n"].item(), results["has"].item()) == (2, True)


def test_operators_that_the_wheel_rounds_stay_in_float64() -> None:
    node = helper.make_node("LinearAttention", ["q", "k", "v"], ["y", "s"], q_num_heads=1, kv_num_heads=1,
                            update_rule="linear")  # fmt: skip
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 2]) for n in "qkv"]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 2])]
    graph = helper.make_graph([node], "g", infos, outs)
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=11)
    )
    q, k, v = (np.random.default_rng(3).standard_normal((1, 3, 2)) for _ in range(3))
    state, expected = np.zeros((2, 2)), []
    for t in range(3):
        state = state + np.outer(k[0, t], v[0, t])
        expected.append(q[0, t] @ state / np.sqrt(2.0))
    y = Reference(model).run({"q": q, "k": k, "v": v})["y"]
    np.testing.assert_allclose(y[0], expected, rtol=1e-12)


def test_custom_operator_is_refused_with_node_operator_and_domain() -> None:
    node = ir.node("MagicNMS", [ir.Value(name="x")], domain="com.acme", name="magic")
    with pytest.raises(UnsupportedError) as caught:
        evaluate_node(node, [np.zeros(3)], 1)
    text = str(caught.value)
    assert "magic" in text
    assert "MagicNMS" in text
    assert "com.acme" in text


def test_evaluate_node_keeps_native_dtypes() -> None:
    node = ir.node("Add", [ir.Value(name="a"), ir.Value(name="b")])
    half = np.array([0.1], np.float16)
    assert evaluate_node(node, [half, half], 14)[0].dtype == np.float16
    assert evaluate_node(node, [half, half], 14, precision="float64")[0].dtype == np.float64
    integer = np.array([2**62], np.int64)
    assert evaluate_node(node, [integer, integer - 1], 14)[0][0] == 2**63 - 1


def test_evaluate_node_refuses_a_subgraph_that_reads_variables() -> None:
    model = model_of(
        "g (bool c, float[1] x) => (float[1] y) { y = If(c) <"
        " then_branch = t () => (float[1] p) { p = Neg(x) },"
        " else_branch = e () => (float[1] q) { q = Abs(x) }> }"
    )
    node = model.graph[0]
    with pytest.raises(InputError, match="'x'"):
        evaluate_node(node, [np.array(True)], 18)


def test_grouped_conv_transpose_with_output_padding_agrees_with_the_judge() -> None:
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((8, 6, 3, 3)).astype(np.float32), "w")
    b = numpy_helper.from_array(rng.standard_normal(12).astype(np.float32), "b")
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], kernel_shape=[3, 3], strides=[2, 2],
                            pads=[1] * 4, output_padding=[1, 1], group=2)  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 12, 16, 16])
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y], [w, b]),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)  # fmt: skip
    feeds = {"x": rng.uniform(-1, 1, (1, 8, 8, 8)).astype(np.float32)}
    ours = Reference(ir.from_proto(proto)).run(feeds)["y"]
    (judged,) = judge_session(proto.SerializeToString()).run(None, feeds)
    assert max_relative_error(judged, ours) < 1e-6


def test_judge_session_leaves_the_graph_alone() -> None:
    import onnxruntime

    options = judge_session(onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { a = Neg(x) y = Neg(a) }'
    ).SerializeToString()).get_session_options()  # fmt: skip
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.x64quantprecision") == "1"
    assert options.intra_op_num_threads == 1


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul"])
def test_judge_does_not_saturate_integer_products(op: str, constant: bool) -> None:
    a, b = np.full((2, 32), 255, np.uint8), np.full((32, 16), -128, np.int8)
    one = np.array(1.0, np.float32)
    if op == "MatMulInteger":
        fixed, order = {"za": np.array(5, np.uint8)}, ["a", "b", "za"]
    else:
        fixed = {"sa": one, "za": np.array(0, np.uint8), "sb": one, "zb": np.array(-1, np.int8)}
        fixed |= {"sy": np.array(1e4, np.float32), "zy": np.array(200, np.uint8)}
        order = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    fed = {"a": a} if constant else {"a": a, "b": b}
    fixed |= {"b": b} if constant else {}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in fed.items()
    ]
    kind = TensorProto.INT32 if op == "MatMulInteger" else TensorProto.UINT8
    graph = helper.make_graph(
        [helper.make_node(op, order, ["y"])], "g", infos, [helper.make_tensor_value_info("y", kind, [2, 16])],
        [numpy_helper.from_array(v, n) for n, v in fixed.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (judged,) = judge_session(proto.SerializeToString()).run(None, fed)
    # Summed in int32: 32 * (255 - 5) * -128, and 200 + 32 * 255 * -127 / 10000.
    assert (judged == (-1024000 if op == "MatMulInteger" else 96)).all()
    np.testing.assert_array_equal(Reference(ir.from_proto(proto)).run(fed)["y"], judged)


def test_judge_finds_integer_products_in_functions_and_by_path(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
        " g (uint8[2,32] a, int8[32,16] b) => (int32[2,16] y) { y = local.product(a, b) }"
        ' <domain: "local", opset_import: ["" : 17]> product (p, q) => (r) { r = MatMulInteger(p, q) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    fed = {"a": np.full((2, 32), 255, np.uint8), "b": np.full((32, 16), -128, np.int8)}
    (judged,) = judge_session(tmp_path / "m.onnx").run(None, fed)
    assert (judged == 32 * 255 * -128).all()


def test_max_relative_error() -> None:
    reference = np.array([1.0, -10.0, 0.0])
    assert max_relative_error(reference, reference) == 0.0
    assert max_relative_error(np.array([1.0, -10.0, 0.1]), reference) == pytest.approx(0.01)
    assert max_relative_error(np.zeros(0), np.zeros(0)) == 0.0
    assert max_relative_error(np.zeros(3), np.zeros(3)) == 0.0
    inf = float("inf")
    assert max_relative_error(np.ones(3), np.zeros(3)) == inf
    assert max_relative_error(np.ones(3), np.ones(4)) == inf
    holes = np.array([np.nan, np.inf, 1.0])
    assert max_relative_error(holes, holes) == 0.0
    assert max_relative_error(np.array([np.inf, np.nan, 1.0]), holes) == inf
    assert max_relative_error(np.array([np.nan, -np.inf, 1.0]), holes) == inf
    assert max_relative_error(np.array([1.0, np.inf, 1.0]), holes) == inf
    assert max_relative_error(np.array([np.nan]), np.array([1.0])) == inf
    assert max_relative_error(np.array(["a"], object), np.array(["b"], object)) == inf


def test_signal_to_noise_db() -> None:
    reference = np.array([3.0, 4.0])
    assert signal_to_noise_db(reference, reference) == float("inf")
    assert signal_to_noise_db(np.array([3.5, 4.0]), reference) == pytest.approx(20.0)
    assert signal_to_noise_db(np.array([np.nan, 4.0]), reference) == float("-inf")
    assert signal_to_noise_db(np.ones(2), np.zeros(2)) == float("-inf")
    assert signal_to_noise_db(np.ones(3), np.ones(2)) == float("-inf")
