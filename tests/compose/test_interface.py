"""What a model must offer to become an artifact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from tiny_models import conv_net, one_node

from edgefuse.compose.interface import check_labels, check_memory, check_shapes, check_tensors
from edgefuse.compose.prepare import load_model
from edgefuse.compose.sessions import open_session
from edgefuse.errors import InputError, UnsupportedError, UsageError
from edgefuse.runtime.tensors import TensorInfo


@pytest.mark.parametrize("size", [0, -1, 2**31, 10**20, 1.0, True, "3", None])
def test_sizes_that_no_runtime_can_count(size: object) -> None:
    with pytest.raises(UsageError, match="the shape of input 'x' cannot be"):
        check_shapes({"x": [1, size]})  # type: ignore[list-item]


def test_sizes_of_any_whole_number_type() -> None:
    check_shapes({"x": [1, 2**31 - 1, np.int64(3)], "y": []})  # type: ignore[list-item]


def test_inputs_without_rank_or_elements_are_refused_and_a_shape_helps(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no element"):
        load_model(str(one_node(tmp_path / "zero.onnx", "Relu", [0, 4])), {})
    ranked = one_node(tmp_path / "rank.onnx", "Relu", None, out=[])
    with pytest.raises(InputError, match="has no shape"):
        load_model(str(ranked), {})
    model = load_model(str(ranked), {"x": (2, 3)})
    assert [int(d) for d in model.graph.inputs[0].shape or ()] == [2, 3]


def test_dtypes_that_an_artifact_cannot_name(tmp_path: Path) -> None:
    good = [TensorInfo("x", "float32", (1,))]
    check_tensors(good, good)
    for bad, word in (("object", "text"), ("bfloat16", "bfloat16"), ("complex64", "complex64")):
        for sides in (([TensorInfo("z", bad, (1,))], good), (good, [TensorInfo("z", bad, (1,))])):
            with pytest.raises(UnsupportedError, match="'z' is of a type") as caught:
                check_tensors(*sides)
            assert caught.value.got == word


@pytest.mark.parametrize(
    ("info", "word"),
    [
        (TensorInfo("", "float32", (1,)), "a name that an artifact cannot hold"),
        (TensorInfo("n" * 501, "float32", (1,)), "501 characters"),
        (TensorInfo("y", "float32", (1, 0)), "holds no element"),
        (TensorInfo("y", "float32", (1,) * 33), "32 axes"),
        (TensorInfo("y", "float32", ("s" * 201,)), "symbols of 200 characters"),
    ],
)
def test_tensors_that_the_manifest_would_refuse_after_all_the_work(info: TensorInfo, word: str) -> None:
    good = [TensorInfo("n" * 500, "float32", ("s" * 200,) * 32)]
    check_tensors(good, good)
    with pytest.raises(UnsupportedError) as caught:
        check_tensors(good, [info])
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "fits"), [((1, 3), True), ((1, 4), False), (("n", "c"), True), ((1, 4, 2), True), ((4,), True)]
)
def test_labels_are_counted_where_the_output_is_a_classifier(
    shape: tuple[int | str, ...], fits: bool
) -> None:
    outputs = [TensorInfo("y", "float32", shape)]
    check_labels(None, outputs)
    check_labels(["a", "b", "c"], [*outputs, *outputs])
    if fits:
        check_labels(["a", "b", "c"], outputs)
    else:
        with pytest.raises(InputError, match="has 4 classes"):
            check_labels(["a", "b", "c"], outputs)


def test_labels_that_are_no_names() -> None:
    with pytest.raises(InputError, match="one has 1001 characters"):
        check_labels(["a", "b" * 1001], [TensorInfo("y", "float32", (1, 2))])


def test_a_sample_larger_than_the_memory_is_refused() -> None:
    check_memory([TensorInfo("x", "float32", (1, 3, 4096, 4096))])
    with pytest.raises(InputError, match="larger than the memory"):
        check_memory([TensorInfo("x", "uint8", (2**31 - 1, 2**20))])


def test_a_model_that_contradicts_itself_is_the_users_error(tmp_path: Path) -> None:
    path = one_node(tmp_path / "m.onnx", "MatMul", [1, 4], np.ones((5, 3), np.float32), out=[1, 3])
    with pytest.raises(InputError, match="refuses the model") as caught:
        open_session(load_model(str(path), {}))
    assert "Incompatible dimensions" in str(caught.value)
    assert open_session(load_model(str(conv_net(tmp_path / "good.onnx")), {})) is not None


def test_a_type_that_the_judge_lacks_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = one_node(tmp_path / "m.onnx", "Erf", [1, 4], element=TensorProto.BFLOAT16)
    with pytest.raises(InputError, match="ONNX Runtime, the judge of every build, refuses the model"):
        open_session(load_model(str(path), {}))
