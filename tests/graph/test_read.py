"""Files into canonical models: what is read, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgefuse.errors import InputError, UnsupportedError
from edgefuse.graph import (
    CANONICAL_OPSET,
    bind_dimensions,
    constant,
    dims,
    model_from_bytes,
    model_from_proto,
    model_to_bytes,
    model_to_proto,
    opset,
    read_model,
    source_name,
    static_shape,
    write_model,
)
from edgefuse.graph.reference import judge_session


def _info(name: str, shape: list[object], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    version: int = 17,
    ir: int = 8,
    **more: object,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    imports = [helper.make_opsetid("", version), *more.pop("imports", [])]  # type: ignore[misc]
    model = helper.make_model(graph, opset_imports=imports, **more)
    model.ir_version = ir
    return model


def _conv(version: int = 17, ir: int = 8) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[1, 1, 1, 1])
    return _model([node], [_info("x", [1, 3, 8, 8])], [_info("y", [1, 4, 8, 8])], {"w": weight}, version, ir)


@pytest.mark.parametrize("version", range(7, 29))
def test_every_opset_from_seven_to_the_newest_is_read(version: int) -> None:
    model = model_from_proto(_conv(version))
    assert opset(model) == max(version, CANONICAL_OPSET)
    x = np.ones((1, 3, 8, 8), np.float32)
    if version <= 24:
        before = judge_session(_conv(version).SerializeToString()).run(None, {"x": x})[0]
        np.testing.assert_array_equal(judge_session(model_to_bytes(model)).run(None, {"x": x})[0], before)


@pytest.mark.parametrize(("version", "word"), [(6, "operator set 6"), (99, "operator set 99")])
def test_an_opset_outside_is_refused_with_both_ends(version: int, word: str) -> None:
    with pytest.raises(InputError) as caught:
        model_from_proto(_conv(version))
    assert word in str(caught.value)
    assert "7 to" in str(caught.value)


def test_initializers_listed_as_inputs_are_constants() -> None:
    proto = _conv(9, ir=3)
    proto.graph.input.append(_info("w", [4, 3, 3, 3]))
    model = model_from_proto(proto)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert constant(next(iter(model.graph)).inputs[1]) is not None


def test_a_file_that_is_no_model_says_what_it_looks_like(tmp_path: Path) -> None:
    for data, told in (
        (b"", "empty"),
        (b"\x89PNG\r\n", "PNG"),
        (b"PK\x03\x04", "zip"),
        (b"version https://git-lfs", "LFS"),
    ):
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            read_model(path)
        assert told in str(caught.value)


def test_a_cut_file_is_refused_at_every_length() -> None:
    whole = _conv().SerializeToString()
    for length in (1, 10, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError):
            model_from_bytes(whole[:length])


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(InputError, match="No such file"):
        read_model("no-such-model.onnx")


def test_nan_in_a_weight_names_it_and_infinity_passes() -> None:
    proto = _conv()
    array = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    array[1, 2, 0, 1] = np.inf
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))
    model_from_proto(proto)
    array[1, 2, 0, 1] = np.nan
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))
    with pytest.raises(InputError) as caught:
        model_from_proto(proto)
    assert "'w'" in str(caught.value)
    assert "[1, 2, 0, 1]" in str(caught.value)


def _external(tmp_path: Path, location: str, length: int | None = None) -> Path:
    onnx.save(_conv(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
        if entry.key == "length" and length is not None:
            entry.value = str(length)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "m.onnx"


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    model = read_model(_external(tmp_path, "m.data"))
    x = np.ones((1, 3, 8, 8), np.float32)
    ours = judge_session(model_to_bytes(model)).run(None, {"x": x})[0]
    np.testing.assert_array_equal(ours, judge_session(_conv().SerializeToString()).run(None, {"x": x})[0])


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "a/../../m.data", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "m.data").write_bytes(b"x" * 1000)
    with pytest.raises(InputError, match="outside the model's folder"):
        read_model(_external(inner, location))


def test_external_data_through_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = _external(inner, "link.data")
    (tmp_path / "secret").write_bytes(b"x" * 1000)
    (inner / "link.data").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="outside"):
        read_model(path)


def test_external_data_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_model(_external(tmp_path, "other.data"))
    with pytest.raises(InputError, match="cut short"):
        read_model(_external(tmp_path, "m.data", length=10**9))


def test_an_unknown_domain_is_refused_only_where_it_is_used() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = _model(nodes, [_info("x", [2])], [_info("y", [2])], imports=[helper.make_opsetid("Paddle", 1)])
    assert "Paddle" not in model_from_proto(proto).graph.opset_imports
    proto.graph.node.append(helper.make_node("Magic", ["y"], ["z"], name="m", domain="com.acme"))
    proto.opset_import.append(helper.make_opsetid("com.acme", 1))
    with pytest.raises(UnsupportedError) as caught:
        model_from_proto(proto)
    assert "'m'" in str(caught.value)
    assert "com.acme" in str(caught.value)
    assert model_from_proto(proto, custom_domains=frozenset({"com.acme"}))


def test_names_are_made_unique_and_the_users_names_are_kept() -> None:
    nodes = [
        helper.make_node("Relu", ["input:0"], ["ö ut"], name="same"),
        helper.make_node("Abs", ["ö ut"], ["b"], name="same"),
        helper.make_node("Neg", ["b"], ["out put"], name=""),
    ]
    proto = _model(nodes, [_info("input:0", [2])], [_info("out put", [2]), _info("ö ut", [2])])
    model = model_from_proto(proto)
    assert [v.name for v in model.graph.inputs] == ["input:0"]
    assert [v.name for v in model.graph.outputs] == ["out put", "ö ut"]
    names = [n.name for n in model.graph]
    assert len(set(names)) == 3
    assert [source_name(n) for n in model.graph] == ["same", "same", "out put"]


def test_dynamic_sizes_and_their_symbols_are_kept_and_unknown_ones_get_their_own() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    shape: list[object] = ["N", 3, "?", "?", -1, None]
    model = model_from_proto(
        _model(nodes, [_info("x", shape)], [_info("y", ["N", 3, None, None, None, None])])
    )
    assert dims(model.graph.inputs[0]) == ("N", 3, "x_dim2", "x_dim3", "x_dim4", "x_dim5")


def test_functions_are_inlined() -> None:
    body = [helper.make_node("Add", ["a", "a"], ["t"]), helper.make_node("Relu", ["t"], ["r"])]
    function = helper.make_function("fn", "Twice", ["a"], ["r"], body, [helper.make_opsetid("", 18)])
    nodes = [
        helper.make_node("Twice", ["x"], ["y"], domain="fn"),
        helper.make_node("Twice", ["y"], ["z"], domain="fn"),
    ]
    proto = _model(
        nodes,
        [_info("x", [2])],
        [_info("z", [2])],
        version=18,
        imports=[helper.make_opsetid("fn", 1)],
        functions=[function],
    )
    model = model_from_proto(proto)
    assert [n.op_type for n in model.graph] == ["Add", "Relu", "Add", "Relu"]
    result = judge_session(model_to_bytes(model)).run(None, {"x": np.array([1, -1], np.float32)})[0]
    np.testing.assert_array_equal(result, [4, 0])


def test_constants_become_initializers_also_inside_branches() -> None:
    value = numpy_helper.from_array(np.array([2], np.float32))
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["k"], value=value), helper.make_node("Mul", ["x", "k"], ["o"])],
        "then",
        [],
        [_info("o", [1])],
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["p"])], "else", [], [_info("p", [1])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    proto = _model([node], [_info("x", [1]), _info("c", [], TensorProto.BOOL)], [_info("y", [1])])
    model = model_from_proto(proto)
    session = judge_session(model_to_bytes(model))
    for flag, expected in ((True, 6.0), (False, -3.0)):
        got = session.run(None, {"x": np.array([3], np.float32), "c": np.array(flag)})[0]
        assert got[0] == expected


def test_a_tensor_written_twice_or_never_is_refused() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"], name="again")]
    with pytest.raises(InputError, match="written twice"):
        model_from_proto(_model(nodes, [_info("x", [2])], [_info("y", [2])]))
    with pytest.raises(InputError, match="written by no node"):
        model_from_proto(_model(nodes[:1], [_info("x", [2])], [_info("z", [2])]))


def test_outputs_that_are_inputs_constants_or_double_get_a_node_of_their_own() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = _model(
        nodes,
        [_info("x", [2])],
        [_info("y", [2]), _info("x", [2]), _info("k", [1])],
        {"k": np.array([7], np.float32)},
    )
    model = model_from_proto(proto)
    assert [v.name for v in model.graph.inputs] == ["x"], "what is fed keeps its name"
    assert [v.name for v in model.graph.outputs] == ["y", "x__output", "k"]
    assert all(v.producer() is not None for v in model.graph.outputs)


def test_a_model_goes_to_bytes_and_back_unchanged(tmp_path: Path) -> None:
    model = model_from_proto(_conv())
    assert model_to_bytes(model) == model_to_bytes(model)
    write_model(model, tmp_path / "a.onnx")
    write_model(model, tmp_path / "b.onnx", external=True)
    x = np.ones((1, 3, 8, 8), np.float32)
    a, b = (
        judge_session(model_to_bytes(read_model(tmp_path / n))).run(None, {"x": x})[0]
        for n in ("a.onnx", "b.onnx")
    )
    np.testing.assert_array_equal(a, b)
    onnx.checker.check_model(model_to_proto(model))


def test_float16_models_keep_their_type() -> None:
    weight = np.ones((2, 2), np.float16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    kind = TensorProto.FLOAT16
    model = model_from_proto(
        _model(nodes, [_info("x", [1, 2], kind)], [_info("y", [1, 2], kind)], {"w": weight})
    )
    assert static_shape(model.graph.outputs[0]) == (1, 2)
    assert constant(next(iter(model.graph)).inputs[1]).dtype == np.float16  # type: ignore[union-attr]


def test_quantized_models_keep_their_quantizers() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    weights = {"s": np.array(0.02, np.float32), "z": np.array(110, np.uint8)}
    model = model_from_proto(_model(nodes, [_info("x", [4])], [_info("y", [4])], weights))
    assert [n.op_type for n in model.graph] == ["QuantizeLinear", "DequantizeLinear"]


def test_an_operator_that_onnx_does_not_know_is_named_with_the_nearest_one() -> None:
    nodes = [helper.make_node("Rellu", ["x"], ["y"], name="typo")]
    with pytest.raises(UnsupportedError, match=r"'typo'.*Rellu, did you mean 'Relu'"):
        model_from_proto(_model(nodes, [_info("x", [2])], [_info("y", [2])]))


def test_shapes_pass_operators_that_onnx_does_not_infer() -> None:
    nodes = [
        helper.make_node("GroupNormalization", ["x", "s", "b"], ["n"], num_groups=2),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    ones = np.ones(4, np.float32)
    proto = _model(nodes, [_info("x", ["N", 4, 8])], [_info("y", None)], {"s": ones, "b": ones}, version=21)  # type: ignore[arg-type]
    model = model_from_proto(proto)
    assert dims(model.graph.outputs[0]) == ("N", 4, 8)
    bind_dimensions(model, {"x": [2, 4, 8]})
    assert static_shape(model.graph.outputs[0]) == (2, 4, 8)
