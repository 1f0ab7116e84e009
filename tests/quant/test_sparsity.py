"""2:4 weights: the pattern holds along input channels, the larger stay, and what has no pattern is left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.graph import Model, attribute, constant
from edgefuse.quant.sparsity_2_4 import has_2_4, mask_2_4, sparsify_2_4, supports_2_4
from tests.passes.graphs import Build, conv


def _weight(model: Model, name: str) -> np.ndarray:
    array = constant(next(n for n in model.graph if n.name == name).inputs[1])
    assert array is not None
    return array


@given(st.integers(0, 999), st.integers(0, 2))
def test_the_two_largest_of_every_four_stay(seed: int, axis: int) -> None:
    array = np.random.default_rng(seed).standard_normal((4, 8, 12))
    mask = mask_2_4(np.abs(array), axis)
    kept = np.where(mask, array, 0)
    assert has_2_4(kept, axis)
    fours = np.moveaxis(np.abs(array), axis, -1).reshape(-1, 4)
    stays = np.moveaxis(mask, axis, -1).reshape(-1, 4)
    assert (stays.sum(1) == 2).all()
    lost = np.where(stays, -np.inf, fours).max(1)
    assert (np.where(stays, fours, np.inf).min(1) >= lost).all()


def test_the_pattern_is_seen_and_its_absence_too() -> None:
    assert has_2_4(np.array([[0, 1, 0, 2]]), 1)
    assert not has_2_4(np.array([[0, 1, 3, 2]]), 1)
    assert not has_2_4(np.zeros((3, 1)), 0)  # no fours


def test_layers_get_the_pattern_along_their_input_channels() -> None:
    b = Build(seed=2)
    value = b.op("Relu", conv(b, b.x([1, 3, 6, 6]), 3, 8, name="stem"))
    value = conv(b, value, 8, 8, groups=8, name="dw")
    value = conv(b, value, 8, 4, name="conv")
    value = b.op("Flatten", b.op("GlobalAveragePool", value))
    value = b.op("Gemm", value, b.rand(8, 4), transB=1, name="turned")
    value = b.op("Gemm", value, b.rand(8, 8), name="plain")
    model = b.y(b.op("MatMul", value, b.rand(8, 3), name="mm")).model()
    found = sparsify_2_4(model)
    axes = {"conv": 1, "turned": 1, "plain": 0, "mm": 0}
    assert {name: has_2_4(_weight(found.model, name), axis) for name, axis in axes.items()} == dict.fromkeys(
        axes, True
    )
    assert found.zeros == dict.fromkeys(axes, 0.5)
    assert "3 input channels" in found.refused["stem"]
    assert "grouped" in found.refused["dw"]
    assert (_weight(found.model, "stem") != 0).all()


def test_with_samples_the_weight_that_meets_more_signal_stays() -> None:
    b = Build(seed=2)
    model = b.y(b.op("MatMul", b.x([1, 4]), b.w([[1.0], [2.0], [3.0], [4.0]]), name="mm")).model()
    feeds = [{"x": np.array([[100.0, 1.0, 1.0, 1.0]], np.float32)}]
    assert (_weight(sparsify_2_4(model).model, "mm") != 0).reshape(-1).tolist() == [False, False, True, True]
    assert (_weight(sparsify_2_4(model, feeds).model, "mm") != 0).reshape(-1).tolist() == [
        True,
        False,
        False,
        True,
    ]


def test_a_transposed_convolution_is_left_and_says_so() -> None:
    b = Build(seed=2)
    model = b.y(b.op("ConvTranspose", b.x([1, 4, 3, 3]), b.rand(4, 4, 2, 2), name="up")).model()
    found = sparsify_2_4(model)
    assert found.refused == {"up": "a transposed convolution has no sparse kernel"}
    assert attribute(next(iter(found.model.graph)), "group", 1) == 1


@pytest.mark.parametrize(
    ("capability", "yes"),
    [("8.0", True), ("8.7", True), ("10.1", True), ("7.2", False), ("5.3", False), ("", False)],
)
def test_only_ampere_and_later_skip_zeros(capability: str, yes: bool) -> None:
    assert supports_2_4(capability) is yes
