"""Costs of single nodes against formulas written out by hand."""

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgefuse.analysis import OpCost, foldable_values, node_cost
from edgefuse.analysis.contractions import CONTRACTIONS
from edgefuse.analysis.flops import operator_table
from edgefuse.graph import Model, model_from_proto

FLOAT = TensorProto.FLOAT


def model_of(
    op_type: str,
    inputs: list[list[int | str] | np.ndarray | None],
    output: list[int | str] | None = None,
    *,
    outputs: int = 1,
    kind: int = FLOAT,
    domain: str = "",
    opset: int = 24,
    **attributes: Any,
) -> Model:
    """A model of one node: a list is the shape of a graph input, an array is an initializer."""
    names, graph_inputs, weights = [], [], []
    for index, given in enumerate(inputs):
        name = "" if given is None else f"in{index}"
        names.append(name)
        if isinstance(given, np.ndarray):
            weights.append(numpy_helper.from_array(given, name))
        elif given is not None:
            graph_inputs.append(helper.make_tensor_value_info(name, kind, given))
    results = [f"out{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, results, name="n", domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(results[0], kind, output)]
    infos += [helper.make_tensor_value_info(name, kind, None) for name in results[1:]]
    graph = helper.make_graph([node], "g", graph_inputs, infos, weights)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model_from_proto(proto, custom_domains=frozenset([domain])) if domain else model_from_proto(proto)


def cost_of(*arguments: Any, **options: Any) -> OpCost:
    binding = options.pop("binding", None)
    model = model_of(*arguments, **options)
    (node,) = list(model.graph)
    return node_cost(node, binding, foldable_values(model))


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def work(cost: OpCost) -> tuple[int, int]:
    assert cost.unknown == ""
    return cost.flops, cost.macs


def test_conv_by_hand() -> None:
    cost = cost_of("Conv", [[2, 6, 10, 12], zeros(8, 3, 3, 5), zeros(8)], pads=[1, 2, 1, 2], group=2)
    output = 2 * 8 * 10 * 12
    macs = output * 3 * 3 * 5
    assert work(cost) == (2 * macs + output, macs)
    assert cost.parameters == 8 * 3 * 3 * 5 + 8
    assert cost.weight_bytes == 4 * cost.parameters
    assert (cost.read_bytes, cost.write_bytes) == (4 * 2 * 6 * 10 * 12, 4 * output)
    assert cost.float_elements * 4 == cost.float_bytes == cost.traffic_bytes
    assert cost.intensity == pytest.approx(cost.flops / cost.traffic_bytes)


def test_conv_without_bias_and_strided_depthwise() -> None:
    cost = cost_of("Conv", [[1, 16, 9, 9], zeros(16, 1, 3, 3)], strides=[2, 2], group=16)
    macs = 16 * 4 * 4 * 9
    assert work(cost) == (2 * macs, macs)


def test_conv_transpose_counts_what_each_input_spreads() -> None:
    cost = cost_of("ConvTranspose", [[1, 4, 5, 5], zeros(4, 3, 2, 2), zeros(6)], strides=[2, 2], group=2)
    macs = 4 * 5 * 5 * 3 * 2 * 2
    assert work(cost) == (2 * macs + 6 * 10 * 10, macs)


@pytest.mark.parametrize(
    ("first", "second", "attributes", "macs"),
    [
        ([3, 5], zeros(5, 7), {}, 3 * 5 * 7),
        ([5, 3], zeros(5, 7), {"transA": 1}, 3 * 5 * 7),
        ([3, 5], zeros(7, 5), {"transB": 1}, 3 * 5 * 7),
    ],
)
def test_gemm(first: list[int], second: np.ndarray, attributes: dict[str, int], macs: int) -> None:
    assert work(cost_of("Gemm", [first, second], **attributes)) == (2 * macs, macs)
    assert work(cost_of("Gemm", [first, second, zeros(7)], **attributes)) == (2 * macs + 21, macs)


def test_matmul_broadcasts_batches() -> None:
    macs = 4 * 2 * 3 * 5 * 7
    cost = cost_of("MatMul", [[4, 1, 3, 5], [2, 5, 7]])
    assert work(cost) == (2 * macs, macs)
    assert cost.read_bytes == 4 * (4 * 3 * 5 + 2 * 5 * 7)
    assert cost.parameters == 0
    assert work(cost_of("MatMul", [[5], zeros(5, 7)])) == (70, 35)


@pytest.mark.parametrize(
    ("equation", "shapes", "macs"),
    [
        ("bij,bjk->bik", [[2, 3, 4], [2, 4, 5]], 2 * 3 * 4 * 5),
        ("...ij,...jk->...ik", [[6, 2, 3, 4], [1, 2, 4, 5]], 6 * 2 * 3 * 4 * 5),
        ("i,j", [[3], [4]], 12),
        ("ij,jk,kl->il", [[2, 3], [3, 4], [4, 5]], 2 * 2 * 3 * 4 * 5),
    ],
)
def test_einsum(equation: str, shapes: list[list[int]], macs: int) -> None:
    assert work(cost_of("Einsum", shapes, equation=equation)) == (2 * macs, macs)


def test_einsum_of_one_operand_only_adds() -> None:
    assert work(cost_of("Einsum", [[3, 4]], equation="ij->i")) == (12, 0)


@pytest.mark.parametrize(
    ("op_type", "gates", "elementwise"), [("RNN", 1, 1), ("GRU", 3, 14), ("LSTM", 4, 18)]
)
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent(op_type: str, gates: int, elementwise: int, directions: int) -> None:
    length, batch, inputs, hidden = 7, 2, 5, 3
    cost = cost_of(
        op_type,
        [
            [length, batch, inputs],
            zeros(directions, gates * hidden, inputs),
            zeros(directions, gates * hidden, hidden),
            zeros(directions, 2 * gates * hidden),
        ],
        hidden_size=hidden,
        direction="bidirectional" if directions == 2 else "forward",
    )
    steps = length * batch * directions
    macs = steps * gates * hidden * (inputs + hidden)
    assert work(cost) == (2 * macs + steps * hidden * (3 * gates + elementwise), macs)


@pytest.mark.parametrize("packed", [False, True])
def test_attention(packed: bool) -> None:
    batch, heads, kv_heads, rows, columns, depth, value = 2, 4, 2, 3, 5, 8, 6
    if packed:
        shapes = [
            [batch, rows, heads * depth],
            [batch, columns, kv_heads * depth],
            [batch, columns, kv_heads * value],
        ]
        options = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    else:
        shapes = [
            [batch, heads, rows, depth],
            [batch, kv_heads, columns, depth],
            [batch, kv_heads, columns, value],
        ]
        options = {}
    scores = batch * heads * rows * columns
    macs = scores * (depth + value)
    assert work(cost_of("Attention", shapes, **options)) == (2 * macs + 6 * scores, macs)


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "flops"),
    [
        ("Relu", [2, 3], {}, 6),
        ("Sigmoid", [2, 3], {}, 24),
        ("Softmax", [2, 3], {}, 30),
        ("ReduceMean", [2, 3], {}, 6),
        ("ReduceL2", [2, 3], {}, 12),
        ("GlobalAveragePool", [1, 3, 4, 4], {}, 48),
        ("MaxPool", [1, 3, 4, 4], {"kernel_shape": [2, 2], "strides": [2, 2]}, 3 * 2 * 2 * 4),
        ("AveragePool", [1, 3, 4, 4], {"kernel_shape": [3, 3]}, 3 * 2 * 2 * 9),
        ("LRN", [1, 3, 4, 4], {"size": 5}, 48 * 10),
        ("Det", [2, 3, 3], {}, 2 * (2 * 27 // 3)),
        ("Transpose", [2, 3], {"perm": [1, 0]}, 0),
    ],
)
def test_one_input_operators(op_type: str, shape: list[int], attributes: dict[str, Any], flops: int) -> None:
    cost = cost_of(op_type, [shape], **attributes)
    assert cost.flops == flops
    assert cost.unknown == ""
    assert cost.read_bytes == 4 * math.prod(shape)
    assert cost.parameters == cost.weight_bytes == 0


def test_variadic_operators_count_each_further_input() -> None:
    assert cost_of("Sum", [[2, 3], [2, 3], [2, 3]]).flops == 12
    assert cost_of("Max", [[2, 3]]).flops == 0
    assert cost_of("Concat", [[2, 3], [2, 4]], axis=1).flops == 0


@pytest.mark.parametrize(("mode", "macs"), [("nearest", 0), ("linear", 4 * 64 * 3), ("cubic", 16 * 64 * 3)])
def test_resize_counts_neighbours_of_the_axes_that_change(mode: str, macs: int) -> None:
    sizes = np.array([1, 3, 8, 8], np.int64)
    cost = cost_of("Resize", [[1, 3, 4, 4], None, None, sizes], mode=mode)
    assert work(cost) == (2 * macs, macs)
    assert cost.parameters == 0


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Reshape", [[2, 3], np.array([3, 2], np.int64)]),
        ("Flatten", [[2, 3]]),
        ("Unsqueeze", [[2, 3], np.array([0], np.int64)]),
        ("Identity", [[2, 3]]),
    ],
)
def test_views_are_free(op_type: str, inputs: list[Any]) -> None:
    assert cost_of(op_type, inputs) == OpCost()


def test_gather_reads_the_rows_it_takes() -> None:
    rows = ",".join(["1"] * 80)
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (int64[3] i) => (float[3,8] y) <float[10,8] w = {ROWS}> { y = Gather(w, i) }"""
    (node,) = list(model_from_proto(onnx.parser.parse_model(text.replace("ROWS", rows))).graph)
    cost = node_cost(node)
    assert (cost.flops, cost.parameters) == (0, 80)
    assert cost.weight_bytes == cost.write_bytes == 3 * 8 * 4
    assert cost.read_bytes == 3 * 8


def test_work_on_constants_is_free_unless_it_is_the_result() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}>
        { a = Exp(w)  y = Add(x, a)  z = Exp(w) }"""
    model = model_from_proto(onnx.parser.parse_model(text))
    inner, add, result = (node_cost(node, None, foldable_values(model)) for node in model.graph)
    assert inner == OpCost()
    assert (add.parameters, add.weight_bytes) == (2, 8)
    assert (result.flops, result.write_bytes) == (2, 8)


def test_shape_like_constants_are_no_parameters() -> None:
    assert cost_of("Clip", [[2, 3], np.array(0.0, np.float32), np.array(6.0, np.float32)]).parameters == 0
    assert cost_of("Pad", [[2, 3], np.array([0, 1, 0, 1], np.int64)]).parameters == 0
    assert cost_of("PRelu", [[2, 3], zeros(3)]).parameters == 3
    assert cost_of("BatchNormalization", [[2, 3], zeros(3), zeros(3), zeros(3), zeros(3)]).parameters == 12


def test_bytes_follow_the_type_and_the_precision() -> None:
    cost = cost_of("Add", [[2, 3], [2, 3]], kind=TensorProto.FLOAT16)
    assert (cost.read_bytes, cost.write_bytes) == (24, 12)
    assert cost.traffic_at("fp32") == 72
    assert cost.traffic_at("fp16") == 36
    assert cost.traffic_at("int8") == 18
    whole = cost_of("Add", [[2, 3], [2, 3]], kind=TensorProto.INT64)
    assert whole.traffic_at("int8") == whole.traffic_bytes == 144
    assert cost_of("Add", [[2, 3], [2, 3]]).traffic_at("fp16") == 36


def test_a_tensor_read_twice_by_one_node_moves_once() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[4] x) => (float[4] y) { y = Mul(x, x) }""")
    (node,) = list(model_from_proto(proto).graph)
    assert node_cost(node).read_bytes == 16


def test_integers_behind_a_constant_dequantize_are_what_is_stored() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,4] x) => (float[1,8] y)
        <int8[4,8] w = {ONES}, float s = {0.5}, int8 z = {0}>
        { d = DequantizeLinear(w, s, z)  y = MatMul(x, d) }""".replace("ONES", ",".join(["1"] * 32))
    )
    model = model_from_proto(proto)
    constants = foldable_values(model)
    costs = {node.op_type: node_cost(node, None, constants) for node in model.graph}
    assert costs["DequantizeLinear"] == OpCost()
    assert costs["MatMul"].weight_bytes == costs["MatMul"].parameters == 32


def test_symbolic_dimensions_are_reported_or_bound_never_guessed() -> None:
    model = model_of("Relu", [["batch", 3]])
    (node,) = list(model.graph)
    unknown = node_cost(node)
    assert unknown.unknown == "dimension batch of out0 is not a number"
    assert (unknown.flops, unknown.traffic_bytes) == (0, 0)
    assert node_cost(node, {"batch": 5}).flops == 15
    assert "batch" in node_cost(node, {"bach": 5}).unknown


@pytest.mark.parametrize(
    ("op_type", "inputs", "words"),
    [
        ("Unique", [[4]], "depends on the values"),
        ("NonMaxSuppression", [[1, 4, 4], [1, 2, 4]], "depends on the values"),
        ("RoiAlign", [[1, 3, 8, 8], zeros(2, 4), np.zeros(2, np.int64)], "sampling_ratio 0"),
    ],
)
def test_what_shapes_do_not_say_is_unknown(op_type: str, inputs: list[Any], words: str) -> None:
    assert words in cost_of(op_type, inputs).unknown


def test_custom_operator_is_unknown() -> None:
    cost = cost_of("Own", [[2, 3]], [2, 3], domain="my.domain")
    assert cost.unknown == "my.domain.Own is a custom operator"


BODIES = """<ir_version: 10, opset_import: ["": 21]>
    g (bool c, float[4] x, int64 n) => (float[4] y, float[4] z, float[4] u)
    <int64 three = {3}, bool go = {1}>
    {
      y = If(c) <
        then_branch = t () => (float[4] a) { a = Relu(x) },
        else_branch = e () => (float[4] b) { m = Mul(x, x)  b = Add(m, x) }
      >
      z = Loop(three, go, x) <
        body = l (int64 i, bool k, float[4] s) => (bool k2, float[4] s2) { k2 = Identity(k)  s2 = Add(s, x) }
      >
      u = Loop(n, go, x) <
        body = l2 (int64 i3, bool k3, float[4] s3) => (bool k4, float[4] s4) {
          k4 = Identity(k3)
          s4 = Add(s3, x)
        }
      >
    }"""


def test_bodies() -> None:
    model = model_from_proto(onnx.parser.parse_model(BODIES))
    branch, counted, free = (node_cost(node) for node in model.graph)
    assert branch.flops == 8  # the dearer branch: Mul and Add
    assert counted.flops == 3 * 4
    assert free.unknown == "how often Loop runs is not a constant"


def test_every_operator_of_onnx_is_described_once() -> None:
    table = operator_table()
    groups = [
        table.view,
        table.data_dependent,
        table.per_output_element,
        table.per_output_element_and_further_input,
        table.per_input_element,
        table.per_window_element,
        CONTRACTIONS,
    ]
    described = [op for group in groups for op in group]
    assert len(described) == len(set(described))
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert known - set(described) == set()
    assert set(described) - known == set()
    for subset in (table.alias, table.elementwise, table.first_input_is_data, table.reads_what_it_writes):
        assert set(subset) <= known
    assert table.alias <= table.view
    assert not table.elementwise & table.view
