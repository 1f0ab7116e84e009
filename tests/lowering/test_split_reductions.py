"""Sums over many elements in two stages: the same meaning, a smaller error, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from edgefuse.graph import Model, clone_model, model_from_proto, model_to_bytes
from edgefuse.graph.reference import Reference, judge_session
from edgefuse.lowering.float16_range import float16_fault
from edgefuse.lowering.split_reductions import LONG, long_reductions, split_reduction, summed_elements
from edgefuse.verification.accumulation import sum_in_order


def model(body: str, shape: str, rank: int, **constants: np.ndarray) -> Model:
    out = ",".join("abcd"[:rank])
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[{shape}] x) => (float[{out}] y) {{ {body} }}'
    )
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, k) for k, a in constants.items())
    return model_from_proto(proto)


ALIKE: dict[str, Callable[[], tuple[Model, tuple[int, ...]]]] = {
    "sum over the last axis": lambda: (
        model("y = ReduceSum<keepdims=0>(x, a)", "2,600", 1, a=np.int64([-1])),
        (2, 600),
    ),
    "mean in the middle, kept": lambda: (
        model("y = ReduceMean<keepdims=1>(x, a)", "2,90,3", 3, a=np.int64([1])),
        (2, 90, 3),
    ),
    "mean over two axes": lambda: (
        model("y = ReduceMean<keepdims=0>(x, a)", "2,3,20,7", 2, a=np.int64([2, 3])),
        (2, 3, 20, 7),
    ),
    "sum over axes that are apart": lambda: (
        model("y = ReduceSum<keepdims=1>(x, a)", "8,3,11", 3, a=np.int64([0, 2])),
        (8, 3, 11),
    ),
    "sum over everything": lambda: (model("y = ReduceSum<keepdims=0>(x)", "4,25", 0), (4, 25)),
    "axes of which one is 1": lambda: (
        model("y = ReduceMean<keepdims=0>(x, a)", "2,1,100", 1, a=np.int64([1, 2])),
        (2, 1, 100),
    ),
    "global average pool": lambda: (model("y = GlobalAveragePool(x)", "1,3,9,14", 4), (1, 3, 9, 14)),
    "layer norm": lambda: (
        model(
            "y = LayerNormalization<axis=-1>(x, s, t)",
            "3,120",
            2,
            s=np.linspace(0.5, 2, 120, dtype=np.float32),
            t=np.linspace(-1, 1, 120, dtype=np.float32),
        ),
        (3, 120),
    ),
    "layer norm over two axes": lambda: (
        model(
            "y = LayerNormalization<axis=1, epsilon=0.1>(x, s)", "2,10,12", 3, s=np.ones((10, 12), np.float32)
        ),
        (2, 10, 12),
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_the_meaning_stays(case: str) -> None:
    given, shape = ALIKE[case]()
    made = clone_model(given)
    (found,) = long_reductions(made, 64)
    assert split_reduction(made, found)
    assert not any(node.op_type in ("LayerNormalization", "GlobalAveragePool") for node in made.graph)
    assert max(summed_elements(node) for node in made.graph) < found.elements
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 1
    wanted, got = (Reference(m).run({"x": x})["y"] for m in (given, made))
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    judged = judge_session(model_to_bytes(made)).run(None, {"x": x})[0]
    np.testing.assert_allclose(judged, wanted, rtol=1e-5, atol=1e-6)


LEFT = {
    "a prime length": model("y = ReduceSum<keepdims=0>(x, a)", "2,601", 1, a=np.int64([1])),
    "a mean that is read": model(
        "n, m = LayerNormalization(x, s) y = Add(n, m)", "3,120", 2, s=np.ones(120, np.float32)
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_cannot_be_split_is_left_alone(case: str) -> None:
    made = clone_model(LEFT[case])
    (found,) = long_reductions(made, 64)
    before = [node.op_type for node in made.graph]
    assert not split_reduction(made, found)
    assert [node.op_type for node in made.graph] == before


NOT_FOUND = {
    "short": model("y = ReduceSum<keepdims=0>(x, a)", "2,63", 1, a=np.int64([1])),
    "an open size": model("y = ReduceSum<keepdims=0>(x, a)", "2,n", 1, a=np.int64([1])),
    "nothing to reduce": model("y = ReduceSum<noop_with_empty_axes=1>(x)", "2,600", 2),
    "a maximum": model("y = ReduceMax<keepdims=0>(x, a)", "2,600", 1, a=np.int64([1])),
}


@pytest.mark.parametrize("case", NOT_FOUND)
def test_what_is_no_long_sum_is_not_found(case: str) -> None:
    assert long_reductions(NOT_FOUND[case], 64) == []


def test_integers_are_not_touched() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (int64[2,600] x) => (int64[2] y) '
        "{ a = Constant<value_ints=[1]>() y = ReduceSum<keepdims=0>(x, a) }"
    )
    assert long_reductions(model_from_proto(proto), 64) == []


def test_the_error_of_two_stages_is_ten_times_smaller() -> None:
    """The graph's two stages, added with one accumulator each, beside the one long sum."""
    made = model("y = ReduceSum<keepdims=0>(x, a)", "1,65536", 1, a=np.int64([1]))
    (found,) = long_reductions(made)
    assert split_reduction(made, found)
    stages = [summed_elements(node) for node in made.graph if node.op_type == "ReduceSum"]
    assert stages == [256, 256]
    x = (np.random.default_rng(0).random((1, 65536)) * 0.9).astype(np.float16)
    exact = x.astype(np.float64).sum()
    plain = abs(float(sum_in_order(x, "plain", np.float16)[0]) - exact)
    inner = sum_in_order(x.reshape(1, 256, 256), "plain", np.float16)
    staged = abs(float(sum_in_order(inner, "plain", np.float16)[0]) - exact)
    assert plain >= 10 * staged


@pytest.mark.parametrize(("side", "fault"), [(127, False), (128, True)])
def test_float16_is_not_left_to_a_long_mean(side: int, fault: bool) -> None:
    made = model("y = GlobalAveragePool(x)", f"1,2,{side},{side}", 4)
    why = float16_fault(next(iter(made.graph)))
    assert bool(why) is fault
    assert LONG == 128 * 128
    if fault:
        assert "adds up 16384 elements" in why
