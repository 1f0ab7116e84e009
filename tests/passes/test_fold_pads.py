"""fold_pads: padding moves into the operator behind it where that means the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from edgefuse.graph import attribute
from edgefuse.passes.fold_pads import fold_pads
from tests.passes.graphs import Build, apply, conv, ops
from tests.passes.random_graphs import ModelCase, random_models

SPATIAL = (0, 0, 1, 2, 0, 0, 2, 0)


def padded(
    b: Build, x: str, pads: tuple[int, ...] = SPATIAL, value: float | None = None, **attrs: Any
) -> str:
    more = [] if value is None else [b.w(value)]
    return b.op("Pad", x, b.ints(*pads), *more, **attrs)


def pool(kind: str, own: int = 0, value: float | None = None, before: str = "Neg", **attrs: Any) -> Build:
    b = Build()
    x = padded(b, b.op(before, b.x([1, 2, 6, 6])), value=value)
    return b.y(b.op(kind, x, kernel_shape=[3, 3], pads=[own] * 4, **attrs))


@pytest.mark.parametrize("value", [None, 0.0])
def test_zeros_before_a_convolution(value: float | None) -> None:
    b = Build()
    x = padded(b, b.x([1, 2, 5, 5]), value=value)
    b.y(conv(b, x, 2, 4, pads=[1, 0, 0, 1], strides=[2, 1], groups=2))
    model = b.model()
    assert apply(fold_pads, model).changed == 1
    assert ops(model) == {"Conv": 1}
    assert attribute(next(iter(model.graph)), "pads") == (2, 2, 2, 1)


def test_padding_with_axes_and_of_one_dimension() -> None:
    b = Build()
    x = b.op("Pad", b.x([1, 2, 7]), b.ints(3, 1), "", b.ints(-1))
    b.y(b.op("Conv", x, b.rand(2, 2, 3), auto_pad="VALID"))
    model = b.model()
    assert apply(fold_pads, model).changed == 1
    assert attribute(next(iter(model.graph)), "pads") == (3, 1)
    assert "auto_pad" not in next(iter(model.graph)).attributes


def test_two_pads_in_a_row_and_two_readers() -> None:
    b = Build()
    x = padded(b, padded(b, b.x([1, 2, 5, 5])))
    b.y(conv(b, x, 2, 2), conv(b, x, 2, 3, k=1))
    model = b.model()
    assert apply(fold_pads, model).changed == 2
    assert ops(model) == {"Conv": 2}


@pytest.mark.parametrize(
    ("pads", "value", "attrs"),
    [
        ((0, 1, 1, 1, 0, 0, 1, 1), None, {}),
        ((1, 0, 1, 1, 0, 0, 1, 1), None, {}),
        ((0, 0, -1, 1, 0, 0, 1, 1), None, {}),
        (SPATIAL, 1.0, {}),
        (SPATIAL, -np.inf, {}),
        (SPATIAL, None, {"mode": "reflect"}),
        (SPATIAL, None, {"mode": "edge"}),
        (SPATIAL, None, {"mode": "wrap"}),
    ],
)
def test_other_padding_before_a_convolution_stays(
    pads: Any, value: float | None, attrs: dict[str, Any]
) -> None:
    b = Build()
    x = padded(b, b.x([1, 2, 5, 5]), pads, value, **attrs)
    b.y(conv(b, x, 2 + pads[1], 2))
    if value == -np.inf:
        assert not fold_pads(b.model())
        return
    assert not apply(fold_pads, b.model())


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_convolution_that_pads_by_itself_keeps_its_pad(mode: str) -> None:
    b = Build()
    b.y(b.op("Conv", padded(b, b.x([1, 2, 6, 6])), b.rand(2, 2, 3, 3), auto_pad=mode, strides=[2, 2]))
    assert not apply(fold_pads, b.model())


def test_a_pad_that_is_read_elsewhere_or_is_an_output_stays() -> None:
    for outer in ("reader", "output"):
        b = Build()
        x = padded(b, b.x([1, 2, 5, 5]))
        b.y(conv(b, x, 2, 2), b.op("Neg", x) if outer == "reader" else x)
        assert not apply(fold_pads, b.model())


def test_a_pad_of_the_weights_stays() -> None:
    b = Build()
    w = padded(b, b.x([2, 2, 1, 1], name="w"), (0, 0, 1, 1, 0, 0, 1, 1))
    b.y(b.op("Conv", b.x([1, 2, 5, 5]), w, pads=[1] * 4))
    assert not apply(fold_pads, b.model())


@pytest.mark.parametrize(
    "build",
    [
        pool("AveragePool"),
        pool("AveragePool", count_include_pad=1),
        pool("MaxPool", before="Relu"),
        pool("MaxPool", before="Sigmoid"),
    ],
)
def test_pools_that_take_zeros(build: Build) -> None:
    model = build.model()
    assert apply(fold_pads, model).changed == 1
    assert "Pad" not in ops(model)


def test_a_max_pool_takes_minus_infinity() -> None:
    model = pool("MaxPool", value=-np.inf).model()
    assert apply(fold_pads, model).changed == 1


@pytest.mark.parametrize(
    "build",
    [
        pool("AveragePool", own=1),
        pool("AveragePool", own=1, count_include_pad=1),  # 1 + 2 reaches the window of 3
        pool("AveragePool", ceil_mode=1, strides=[2, 2]),
        pool("AveragePool", value=1.0),
        pool("AveragePool", dilations=[2, 2]),
        pool("MaxPool"),
        pool("MaxPool", before="Relu", ceil_mode=1, strides=[2, 2]),
        pool("MaxPool", before="Relu", own=1),
        pool("LpPool", before="Relu"),
    ],
)
def test_pools_that_keep_their_pad(build: Build) -> None:
    assert not apply(fold_pads, build.model())


def test_a_max_pool_with_indices_keeps_its_pad() -> None:
    b = Build()
    x = padded(b, b.op("Relu", b.x([1, 2, 6, 6])))
    b.nodes.append(helper.make_node("MaxPool", [x], ["y", "indices"], kernel_shape=[3, 3]))
    b.y("y").y("indices", element=7)
    assert not fold_pads(b.model())


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from(["Conv", "AveragePool", "MaxPool"]),
    st.integers(1, 3),
)
def test_any_padding_keeps_the_meaning(pads: list[int], own: list[int], kind: str, kernel: int) -> None:
    b = Build()
    x = padded(b, b.op("Relu", b.x([1, 2, 5, 6])), (0, 0, *pads[:2], 0, 0, *pads[2:]))
    if kind == "Conv":
        b.y(conv(b, x, 2, 2, k=kernel, pads=own))
    else:
        own = [min(p, kernel - 1) for p in own]
        b.y(b.op(kind, x, kernel_shape=[kernel, kernel], pads=own))
    apply(fold_pads, b.model())


@settings(max_examples=30)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(fold_pads)
