"""Layers fitted again behind a compression: exact where possible, better everywhere; zeros that must stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from edgefuse.errors import UnsupportedError
from edgefuse.graph import Model, clone_model, constant, model_to_bytes
from edgefuse.quant.prune_channels import prune_channels
from edgefuse.quant.reconstruct import reconstruct
from edgefuse.quant.sparsity_2_4 import has_2_4, sparsify_2_4
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import outputs_of

Samples = list[dict[str, np.ndarray]]


def _samples(*shape: int, count: int = 12, seed: int = 1) -> Samples:
    rng = np.random.default_rng(seed)
    return [{"x": rng.uniform(-1, 1, shape).astype(np.float32)} for _ in range(count)]


def _error(model: Model, other: Model, samples: Sequence[dict[str, np.ndarray]]) -> float:
    pairs = list(zip(outputs_of(model, samples), outputs_of(other, samples), strict=True))
    error = sum(float(np.square(a[0] - b[0]).sum()) for a, b in pairs)
    return error / sum(float(np.square(a[0]).sum()) for a, _ in pairs)


def _redundant(kind: str = "Conv") -> Model:
    """Return two layers between which half of the channels are sums of the other half, so none is needed."""
    b = Build(seed=5)
    half = b.rng.standard_normal((4, 3, 1, 1))
    mix = b.rng.standard_normal((4, 4))
    w = np.concatenate([half * 3, np.einsum("ab,bcij->acij", mix, half) * 0.1])
    value = b.op("Conv", b.x([1, 3, 8, 8]), b.w(w), b.rand(8), name="one")
    if kind == "Conv":
        return b.y(conv(b, value, 8, 5, name="two", pads=[0] * 4)).model()
    value = b.op("Transpose", value, perm=[0, 2, 3, 1])
    value = b.op("Reshape", value, b.ints(64, 8))
    if kind == "Gemm":
        return b.y(
            b.op("Gemm", value, b.rand(5, 8), b.rand(5), transB=1, alpha=2.0, beta=0.5, name="two")
        ).model()
    return b.y(b.op("Add", b.op("MatMul", value, b.rand(8, 5), name="two"), b.rand(5), name="bias")).model()


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
def test_channels_that_others_can_stand_for_cost_nothing(kind: str) -> None:
    model, samples = _redundant(kind), _samples(1, 3, 8, 8)
    pruned = prune_channels(model, share=0.5, criterion="l2", multiple=1)
    assert pruned.removed == {"one": (4, 8)}
    before = _error(model, pruned.model, _samples(1, 3, 8, 8, seed=9))
    assert reconstruct(model, pruned.model, samples, pruned.kept, ridge=1e-12) == 1
    after = _error(model, pruned.model, _samples(1, 3, 8, 8, seed=9))
    assert before > 1e-4
    assert after < 1e-9
    onnx.checker.check_model(onnx.load_model_from_string(model_to_bytes(pruned.model)), full_check=True)


def test_the_mean_of_what_went_goes_into_the_next_bias() -> None:
    b = Build(seed=5)
    value = b.op("Conv", b.x([1, 3, 6, 6]), b.rand(8, 3, 1, 1), b.w(np.arange(8) + 5.0), name="one")
    model = b.y(conv(b, value, 8, 4, k=1, bias=False, name="two")).model()
    samples = _samples(1, 3, 6, 6)
    pruned = prune_channels(model, share=0.5, criterion="l1", multiple=1)
    kept_weight = constant(next(n for n in pruned.model.graph if n.name == "two").inputs[1])
    assert reconstruct(model, pruned.model, samples, pruned.kept, weights=False) == 1
    node = next(n for n in pruned.model.graph if n.name == "two")
    np.testing.assert_array_equal(constant(node.inputs[1]), kept_weight)
    pairs = zip(outputs_of(model, samples), outputs_of(pruned.model, samples), strict=True)
    error = np.mean([(a[0] - c[0]).mean(axis=(0, 2, 3)) for a, c in pairs], axis=0)
    assert np.abs(error).max() < 1e-5


@pytest.mark.parametrize("shape", ["strided", "dilated", "depthwise", "grouped", "residual"])
def test_held_out_error_falls_for_every_kind_of_layer(shape: str) -> None:
    b = Build(seed=6)
    stem = b.op("Relu", conv(b, b.x([1, 3, 10, 10]), 3, 16, name="stem"))
    if shape == "residual":
        inner = b.op("Relu", conv(b, stem, 16, 16, name="inner"))
        value = b.op("Add", conv(b, inner, 16, 16, name="branch"), stem)
    else:
        more: dict[str, dict[str, object]] = {
            "strided": {"strides": [2, 2]},
            "dilated": {"dilations": [2, 2], "pads": [2] * 4},
            "depthwise": {"groups": 16},
            "grouped": {"groups": 4},
        }
        value = conv(b, stem, 16, 16, name="mid", **more[shape])  # type: ignore[arg-type]
    model = b.y(conv(b, value, 16, 6, k=1, name="head")).model()
    samples, held = _samples(1, 3, 10, 10, count=24), _samples(1, 3, 10, 10, seed=9)
    pruned = prune_channels(model, share=0.4, criterion="deviation", samples=samples, multiple=1)
    plain = _error(model, pruned.model, held)
    biased = clone_model(pruned.model)
    reconstruct(model, biased, samples, pruned.kept, weights=False)
    reconstruct(model, pruned.model, samples, pruned.kept)
    assert _error(model, biased, held) < plain
    # A depthwise channel reads nothing that could stand for another; only its head is fitted.
    limit = 1.0 if shape == "depthwise" else 0.8
    assert _error(model, pruned.model, held) < limit * _error(model, biased, held)


def test_zeros_of_a_pattern_stay_zero() -> None:
    b = Build(seed=6)
    value = b.op("Relu", conv(b, b.x([1, 4, 6, 6]), 4, 8, name="one"))
    model = b.y(conv(b, value, 8, 4, name="two")).model()
    sparse = sparsify_2_4(model).model
    assert reconstruct(model, sparse, _samples(1, 4, 6, 6), {}, weights=False) == 2
    for node in sparse.graph:
        if node.op_type == "Conv":
            weight = constant(node.inputs[1])
            assert weight is not None
            assert has_2_4(weight, 1)


def test_an_unchanged_model_is_left_alone() -> None:
    model = _redundant()
    copy = clone_model(model)
    assert reconstruct(model, copy, _samples(1, 3, 8, 8), {}) == 0
    assert model_to_bytes(copy) == model_to_bytes(model)


def test_a_model_with_branches_is_refused() -> None:
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["v"], ["o"])],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("o", 1, [1, 4])],
    )
    b = Build(seed=6)
    b.nodes.append(onnx.helper.make_node("MatMul", [b.x([1, 4]), b.rand(4, 4)], ["v"], name="m"))
    b.nodes.append(
        onnx.helper.make_node(
            "If", [b.x([], "c", element=9)], ["y"], name="if", then_branch=body, else_branch=body
        )
    )
    model = b.y("y").model()
    with pytest.raises(UnsupportedError, match="body of its own"):
        reconstruct(model, clone_model(model), _samples(1, 4), {})
