"""The kernels of the reference executor against plain loops written from the operator pages."""

from __future__ import annotations

from itertools import product
from math import erf, sqrt
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.errors import InputError, UnsupportedError
from edgefuse.graph.reference import evaluate_node

RNG = np.random.default_rng(20)


def run(op: str, *inputs: Any, opset: int = 22, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    values = [None if x is None else ir.Value(name=f"i{k}") for k, x in enumerate(inputs)]
    node = ir.node(op, values, attributes, num_outputs=outputs, name=f"the_{op}")
    return evaluate_node(node, inputs, opset)[:outputs]


def one(op: str, *inputs: Any, **options: Any) -> np.ndarray:
    return run(op, *inputs, **options)[0]


def conv_by_loops(
    x: np.ndarray, w: np.ndarray, strides: Any, pads: Any, dilations: Any, group: int
) -> np.ndarray:
    """2-D convolution, one multiplication at a time; reading outside the input gives zero."""
    (batch, _, height, width), (filters, share, kh, kw) = x.shape, w.shape
    oh = (height + pads[0] + pads[2] - (kh - 1) * dilations[0] - 1) // strides[0] + 1
    ow = (width + pads[1] + pads[3] - (kw - 1) * dilations[1] - 1) // strides[1] + 1
    y = np.zeros((batch, filters, oh, ow))
    for n, m, i, j in product(range(batch), range(filters), range(oh), range(ow)):
        base = m // (filters // group) * share
        for c, a, b in product(range(share), range(kh), range(kw)):
            r = i * strides[0] - pads[0] + a * dilations[0]
            s = j * strides[1] - pads[1] + b * dilations[1]
            if 0 <= r < height and 0 <= s < width:
                y[n, m, i, j] += x[n, base + c, r, s] * w[m, c, a, b]
    return y


pairs = st.tuples(st.integers(1, 2), st.integers(1, 2))


@given(
    group=st.sampled_from([1, 2, 3]),
    share=st.integers(1, 2),
    multiplier=st.integers(1, 2),
    size=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=pairs,
    dilations=pairs,
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    batch=st.integers(1, 2),
)
@settings(max_examples=60)
def test_conv_equals_loops(
    group: int,
    share: int,
    multiplier: int,
    size: Any,
    kernel: Any,
    strides: Any,
    dilations: Any,
    pads: Any,
    batch: int,
) -> None:
    if any(
        (k - 1) * d + 1 > n + a + b
        for k, d, n, a, b in zip(kernel, dilations, size, pads, pads[2:], strict=False)
    ):
        return
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, group * share, *size))
    w = rng.standard_normal((group * multiplier, share, *kernel))
    y = one(
        "Conv", x, w, strides=list(strides), pads=list(pads), dilations=list(dilations), group=group,
        kernel_shape=list(kernel),
    )  # fmt: skip
    np.testing.assert_allclose(
        y, conv_by_loops(x, w, strides, pads, dilations, group), rtol=1e-12, atol=1e-12
    )


def test_conv_cuts_large_columns_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgefuse.graph.kernels import convolution

    x, w = RNG.standard_normal((1, 4, 9, 7)), RNG.standard_normal((5, 4, 3, 3))
    whole = one("Conv", x, w, pads=[1, 1, 1, 1])
    monkeypatch.setattr(convolution, "_COLUMN_VALUES", 4 * 9 * 7 * 2)
    np.testing.assert_allclose(one("Conv", x, w, pads=[1, 1, 1, 1]), whole, rtol=1e-13)


def test_conv_float16_accumulates_in_float32() -> None:
    x, w = np.full((1, 4096, 1, 1), 0.1, np.float16), np.ones((1, 4096, 1, 1), np.float16)
    y = one("Conv", x, w)
    assert y.dtype == np.float16
    # A float16 sum would stop growing at 256: 0.1 is less than half a step there.
    assert abs(float(y[0, 0, 0, 0]) - 4096 * float(np.float16(0.1))) < 0.3


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_same_padding_puts_the_odd_cell_where_it_says(auto: str) -> None:
    x, w = np.arange(4.0).reshape(1, 1, 1, 4), np.ones((1, 1, 1, 2))
    y = one("Conv", x, w, auto_pad=auto)
    expected = [1, 3, 5, 3] if auto == "SAME_UPPER" else [0, 1, 3, 5]
    np.testing.assert_array_equal(y.reshape(-1), expected)


def transposed_by_loops(
    x: np.ndarray, w: np.ndarray, strides: Any, pads: Any, extra: Any, group: int
) -> np.ndarray:
    (batch, channels, height, width), (_, share, kh, kw) = x.shape, w.shape
    oh = strides[0] * (height - 1) + extra[0] + kh - pads[0] - pads[2]
    ow = strides[1] * (width - 1) + extra[1] + kw - pads[1] - pads[3]
    y = np.zeros((batch, group * share, oh, ow))
    for n, c, i, j in product(range(batch), range(channels), range(height), range(width)):
        for m, a, b in product(range(share), range(kh), range(kw)):
            r, s = i * strides[0] + a - pads[0], j * strides[1] + b - pads[1]
            if 0 <= r < oh and 0 <= s < ow:
                y[n, c // (channels // group) * share + m, r, s] += x[n, c, i, j] * w[c, m, a, b]
    return y


@pytest.mark.parametrize(
    ("group", "strides", "pads", "extra"),
    [
        (
            2,
            (2, 2),
            (1, 1, 1, 1),
            (1, 1),
        ),  # the field's case: group 2, output_padding, more outputs than rows
        (1, (1, 1), (0, 0, 0, 0), (0, 0)),
        (4, (3, 2), (0, 1, 2, 0), (2, 0)),
        (2, (3, 3), (0, 0, 0, 0), (2, 2)),  # output_padding adds cells that no product reaches
    ],
)
def test_conv_transpose_equals_loops(group: int, strides: Any, pads: Any, extra: Any) -> None:
    x, w = RNG.standard_normal((2, 4, 3, 4)), RNG.standard_normal((4, 3, 3, 2))
    bias = RNG.standard_normal(3 * group)
    y = one(
        "ConvTranspose", x, w, bias, group=group, strides=list(strides), pads=list(pads),
        output_padding=list(extra), kernel_shape=[3, 2],
    )  # fmt: skip
    expected = transposed_by_loops(x, w, strides, pads, extra, group) + bias.reshape(1, -1, 1, 1)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_conv_transpose_output_shape_splits_the_cut() -> None:
    x, w = np.ones((1, 1, 1, 3)), np.ones((1, 1, 1, 3))
    # Full result 1 2 3 2 1; three are wanted, so two are cut: one on each side.
    y = one("ConvTranspose", x, w, output_shape=[1, 3])
    np.testing.assert_array_equal(y.reshape(-1), [2, 3, 2])


def pool_by_loops(
    x: np.ndarray, k: int, s: int, pads: Any, ceil: bool, with_pad: bool, kind: str
) -> np.ndarray:
    begin, end = pads
    size = x.shape[-1]
    count = (size + begin + end - k) / s + 1
    outputs = int(np.ceil(count) if ceil else np.floor(count))
    if ceil and (outputs - 1) * s >= size + begin:
        outputs -= 1
    y = np.zeros((*x.shape[:-1], outputs))
    for o in range(outputs):
        cells = [p for p in range(o * s - begin, o * s - begin + k) if 0 <= p < size]
        padded = [p for p in range(o * s - begin, o * s - begin + k) if -begin <= p < size + end]
        window = x[..., cells]
        y[..., o] = window.max(-1) if kind == "max" else window.sum(-1) / len(padded if with_pad else cells)
    return y


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("with_pad", [False, True])
@pytest.mark.parametrize(
    ("size", "k", "s", "pads"), [(7, 3, 2, (1, 1)), (8, 3, 2, (0, 0)), (6, 2, 3, (1, 0)), (5, 4, 3, (2, 1))]
)
def test_average_pool_equals_loops(ceil: bool, with_pad: bool, size: int, k: int, s: int, pads: Any) -> None:
    x = RNG.standard_normal((2, 3, size))
    y = one(
        "AveragePool", x, kernel_shape=[k], strides=[s], pads=list(pads), ceil_mode=int(ceil),
        count_include_pad=int(with_pad),
    )  # fmt: skip
    np.testing.assert_allclose(y, pool_by_loops(x, k, s, pads, ceil, with_pad, "avg"), rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "k", "s", "pads"), [(7, 3, 2, (1, 1)), (8, 3, 2, (0, 0)), (5, 4, 3, (2, 1))]
)
def test_max_pool_equals_loops_and_indices_point_at_the_maxima(size: int, k: int, s: int, pads: Any) -> None:
    x = RNG.standard_normal((2, 3, size)) - 5.0
    y, index = run("MaxPool", x, kernel_shape=[k], strides=[s], pads=list(pads), ceil_mode=1, outputs=2)
    np.testing.assert_array_equal(y, pool_by_loops(x, k, s, pads, True, False, "max"))
    np.testing.assert_array_equal(x.reshape(-1)[index], y)


def test_max_pool_of_uint8_pads_with_the_lowest_value() -> None:
    x = np.zeros((1, 1, 2, 2), np.uint8)
    y = one("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    assert y.dtype == np.uint8
    assert (y == 0).all()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_before_opset_13_flattens_to_two_dimensions(axis: int) -> None:
    x = RNG.standard_normal((2, 3, 4))
    rows = int(np.prod(x.shape[: axis % 3]))
    e = np.exp(x.reshape(rows, -1))
    expected = (e / e.sum(1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(one("Softmax", x, opset=12, axis=axis), expected, rtol=1e-13)
    np.testing.assert_allclose(one("LogSoftmax", x, opset=12, axis=axis), np.log(expected), rtol=1e-12)


def test_softmax_from_opset_13_works_on_one_axis_and_defaults_to_the_last() -> None:
    x = RNG.standard_normal((2, 3, 4))
    np.testing.assert_allclose(one("Softmax", x, opset=13).sum(-1), np.ones((2, 3)), rtol=1e-13)
    np.testing.assert_allclose(one("Softmax", x, opset=12).reshape(2, -1).sum(1), np.ones(2), rtol=1e-13)


def test_hardmax_before_opset_13_marks_one_cell_a_row() -> None:
    y = one("Hardmax", RNG.standard_normal((2, 3, 4)), opset=11, axis=1)
    np.testing.assert_array_equal(y.reshape(2, -1).sum(1), [1, 1])


def test_attributes_became_inputs_and_mean_the_same() -> None:
    x = RNG.standard_normal((2, 4, 1, 3)).astype(np.float32)
    ints = lambda *v: np.array(v, np.int64)  # noqa: E731
    f32 = np.float32
    twins = [
        (one("Clip", x, opset=6, min=-0.5, max=0.25), one("Clip", x, f32(-0.5), f32(0.25), opset=13)),
        (one("Squeeze", x, opset=11, axes=[2]), one("Squeeze", x, ints(2), opset=13)),
        (one("Unsqueeze", x, opset=11, axes=[0, 3]), one("Unsqueeze", x, ints(0, 3), opset=13)),
        (
            one("ReduceSum", x, opset=11, axes=[1], keepdims=0),
            one("ReduceSum", x, ints(1), opset=13, keepdims=0),
        ),
        (one("ReduceMean", x, opset=13, axes=[1, 3]), one("ReduceMean", x, ints(1, 3), opset=18)),
        (one("Split", x, opset=11, axis=1, split=[1, 3]), one("Split", x, ints(1, 3), opset=13, axis=1)),
        (
            one("Pad", x, opset=2, pads=[0, 1, 0, 0, 0, 0, 0, 2], value=3.0),
            one("Pad", x, ints(0, 1, 0, 0, 0, 0, 0, 2), f32(3.0), opset=11),
        ),
        (
            one("Slice", x, opset=9, starts=[1], ends=[9], axes=[1]),
            one("Slice", x, ints(1), ints(9), ints(1), opset=11),
        ),
        (
            one("Upsample", x, opset=7, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"),
            one("Upsample", x, np.array([1, 1, 2, 2], f32), opset=9, mode="nearest"),
        ),
        (one("TopK", x, opset=9, k=2, axis=1), one("TopK", x, ints(2), opset=11, axis=1)),
        (run("Dropout", x, opset=7, ratio=0.5)[0], x),
    ]
    for old, new in twins:
        np.testing.assert_array_equal(old, new)


def test_clip_with_one_bound_and_crossed_bounds() -> None:
    x = np.array([-3.0, 0.0, 3.0])
    np.testing.assert_array_equal(one("Clip", x, None, np.array(1.0)), [-3, 0, 1])
    np.testing.assert_array_equal(one("Clip", x, np.array(2.0), np.array(1.0)), [1, 1, 1])


def test_batch_normalization_old_forms() -> None:
    x = RNG.standard_normal((2, 3, 4))
    scale, bias, mean = (RNG.standard_normal(3) for _ in range(3))
    var = RNG.uniform(0.5, 2.0, 3)
    column = lambda v: v.reshape(1, 3, 1)  # noqa: E731
    expected = (x - column(mean)) / np.sqrt(column(var) + np.float64(np.float32(1e-5))) * column(scale)
    expected = expected + column(bias)
    for opset in (7, 9, 14, 15):
        np.testing.assert_allclose(
            one("BatchNormalization", x, scale, bias, mean, var, opset=opset), expected, rtol=1e-12
        )
    whole = [np.broadcast_to(column(v), (1, 3, 4))[0] for v in (scale, bias, mean, var)]
    flat = one("BatchNormalization", x, *whole, opset=7, spatial=0)
    np.testing.assert_allclose(flat, expected, rtol=1e-12)


def test_pad_cuts_where_negative_and_reflects() -> None:
    x = np.arange(6.0).reshape(1, 6)
    pads = np.array([0, -1, 0, 2], np.int64)
    np.testing.assert_array_equal(one("Pad", x, pads, opset=18), [[1, 2, 3, 4, 5, 0, 0]])
    np.testing.assert_array_equal(one("Pad", x, pads, opset=18, mode="reflect"), [[1, 2, 3, 4, 5, 4, 3]])
    np.testing.assert_array_equal(
        one("Pad", x, np.array([1, 1], np.int64), None, np.array([1], np.int64), opset=18, mode="edge"),
        [[0, 0, 1, 2, 3, 4, 5, 5]],
    )


def test_resize_modes_by_hand() -> None:
    x = np.array([[[10.0, 20.0]]])
    scales = np.array([1, 1, 2], np.float32)

    def resized(mode: str, transform: str, **more: Any) -> list[float]:
        y = one("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=transform, **more)
        return [round(float(v), 10) for v in y.reshape(-1)]

    assert resized("linear", "half_pixel") == [10, 12.5, 17.5, 20]
    assert resized("linear", "asymmetric") == [10, 15, 20, 20]
    assert resized("linear", "align_corners") == [10, round(10 + 10 / 3, 10), round(10 + 20 / 3, 10), 20]
    assert resized("nearest", "half_pixel") == [10, 10, 20, 20]
    assert resized("nearest", "asymmetric", nearest_mode="ceil") == [10, 20, 20, 20]
    assert resized("nearest", "asymmetric", nearest_mode="round_prefer_floor") == [10, 10, 20, 20]
    assert resized("nearest", "asymmetric", nearest_mode="round_prefer_ceil") == [10, 20, 20, 20]


def test_resize_takes_its_size_in_float32_as_engines_do() -> None:
    # float32(0.7) is below 0.7: in float64 the size would be floor(6.9999999) = 6.
    y = one("Resize", np.zeros((1, 10)), None, np.array([1.0, 0.7], np.float32))
    assert y.shape == (1, 7)


def test_resize_cubic_keeps_a_straight_line() -> None:
    x = np.arange(12.0).reshape(1, 1, 12)
    y = one("Resize", x, None, np.array([1, 1, 3], np.float32), mode="cubic", cubic_coeff_a=-0.5)
    inner = y[0, 0, 6:-6]
    np.testing.assert_allclose(inner, (np.arange(36)[6:-6] + 0.5) / 3 - 0.5, rtol=1e-12)


@pytest.mark.parametrize("old", ["Upsample", "Resize"])
def test_upsample_and_resize_10_are_asymmetric(old: str) -> None:
    x = np.array([[[[0.0, 3.0, 6.0]]]])
    y = one(old, x, np.array([1, 1, 1, 3], np.float32), opset=9 if old == "Upsample" else 10, mode="linear")
    np.testing.assert_allclose(y.reshape(-1), [0, 1, 2, 3, 4, 5, 6, 6, 6], rtol=1e-12)


def test_grid_sample_identity_grid_gives_the_image_back_in_float64() -> None:
    x = RNG.standard_normal((1, 2, 4, 5))
    theta = np.array([[[1.0, 0, 0], [0, 1, 0]]])
    for corners in (0, 1):
        grid = one("AffineGrid", theta, np.array([1, 2, 4, 5], np.int64), align_corners=corners)
        y = one("GridSample", x, grid, align_corners=corners, mode="linear", padding_mode="border")
        np.testing.assert_allclose(y, x, rtol=1e-12)


def test_roi_align_default_changed_with_opset_16() -> None:
    x = np.arange(16.0).reshape(1, 1, 4, 4)
    rois, batch = np.array([[0.0, 0.0, 3.0, 3.0]]), np.zeros(1, np.int64)
    attributes = {"output_height": 1, "output_width": 1, "sampling_ratio": 1}
    old = one("RoiAlign", x, rois, batch, opset=10, **attributes)
    new = one("RoiAlign", x, rois, batch, opset=16, **attributes)
    # One sample in the middle of the region: (1.5, 1.5), and half a pixel less from opset 16 on.
    np.testing.assert_allclose([old.item(), new.item()], [7.5, 5.0])


def lstm_by_loops(
    x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, lengths: Any, backward: bool
) -> Any:
    steps, batch, _ = x.shape
    size = r.shape[-1]
    y = np.zeros((steps, batch, size))
    last_h, last_c = np.zeros((batch, size)), np.zeros((batch, size))
    for n in range(batch):
        h, c = np.zeros(size), np.zeros(size)
        order = range(lengths[n])
        for t in reversed(order) if backward else order:
            z = w @ x[t, n] + r @ h + b[: 4 * size] + b[4 * size :]
            i, o, f = (1 / (1 + np.exp(-z[k * size : (k + 1) * size])) for k in range(3))
            c = f * c + i * np.tanh(z[3 * size :])
            h = o * np.tanh(c)
            y[t, n] = h
        last_h[n], last_c[n] = h, c
    return y, last_h, last_c


@pytest.mark.parametrize("layout", [0, 1])
def test_lstm_both_ways_with_lengths_equals_loops(layout: int) -> None:
    steps, batch, width, size = 5, 3, 2, 4
    lengths = np.array([5, 2, 4], np.int32)
    x = RNG.standard_normal((steps, batch, width))
    w, r = RNG.standard_normal((2, 4 * size, width)), RNG.standard_normal((2, 4 * size, size))
    b = RNG.standard_normal((2, 8 * size))
    fed = x.swapaxes(0, 1) if layout else x
    y, h, c = run(
        "LSTM", fed, w, r, b, lengths, hidden_size=size, direction="bidirectional", layout=layout, outputs=3
    )  # fmt: skip
    for d in (0, 1):
        want_y, want_h, want_c = lstm_by_loops(x, w[d], r[d], b[d], lengths, backward=d == 1)
        got_y = y[:, :, d].swapaxes(0, 1) if layout else y[:, d]
        got_h, got_c = (h[:, d], c[:, d]) if layout else (h[d], c[d])
        np.testing.assert_allclose(got_y, want_y, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(got_h, want_h, rtol=1e-11)
        np.testing.assert_allclose(got_c, want_c, rtol=1e-11)


def test_recurrent_attributes_that_the_wheel_ignores() -> None:
    x, w, r = RNG.standard_normal((3, 1, 2)), RNG.standard_normal((1, 4, 2)), RNG.standard_normal((1, 4, 4))
    relu = one("RNN", x, w, r, hidden_size=4, activations=["Relu"])
    h = np.zeros((1, 4))
    for t in range(3):
        h = np.maximum(x[t] @ w[0].T + h @ r[0].T, 0)
        np.testing.assert_allclose(relu[t, 0], h, rtol=1e-12)
    clipped = one("RNN", x, w, r, hidden_size=4, clip=0.1)
    assert np.abs(clipped).max() <= np.tanh(np.float64(np.float32(0.1))) + 1e-15
    with pytest.raises(UnsupportedError, match="Sine"):
        run("RNN", x, w, r, hidden_size=4, activations=["Sine"])


def test_attention_like_graph_of_primitives() -> None:
    q, k, v = (RNG.standard_normal((2, 3, 4)) for _ in range(3))
    weights = one("Softmax", one("MatMul", q, one("Transpose", k, perm=[0, 2, 1])) / 2.0)
    expected = np.zeros_like(q)
    for n, i in product(range(2), range(3)):
        scores = np.array([np.exp(q[n, i] @ k[n, j] / 2.0) for j in range(3)])
        expected[n, i] = sum(s * v[n, j] for j, s in enumerate(scores / scores.sum()))
    np.testing.assert_allclose(one("MatMul", weights, v), expected, rtol=1e-12)


def test_erf_and_gelu_to_the_last_bits() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [0.0, -0.0, 1e-300, np.inf, -np.inf]])
    exact = np.array([erf(v) for v in x])
    np.testing.assert_allclose(one("Erf", x), exact, rtol=4e-16, atol=0)
    finite = x[np.isfinite(x)]
    gelu = np.array([0.5 * v * (1 + erf(v / sqrt(2))) for v in finite])
    np.testing.assert_allclose(one("Gelu", finite), gelu, rtol=1e-13, atol=1e-15)
    assert np.isnan(one("Erf", np.array([np.nan]))).all()


def test_parametric_activations_use_the_float32_of_the_attribute_and_no_less() -> None:
    x = np.linspace(-2, 2, 9)
    f = lambda v: float(np.float32(v))  # noqa: E731
    below = np.expm1(np.minimum(x, 0))
    rows = {
        "LeakyRelu": (np.where(x < 0, f(0.1) * x, x), {"alpha": 0.1}),
        "Elu": (np.where(x < 0, f(0.7) * below, x), {"alpha": 0.7}),
        "Selu": (np.where(x > 0, f(1.1) * x, f(1.1) * f(1.7) * below), {"alpha": 1.7, "gamma": 1.1}),
        "HardSigmoid": (np.clip(f(0.3) * x + f(0.4), 0, 1), {"alpha": 0.3, "beta": 0.4}),
        "HardSwish": (x * np.clip(x / 6 + 0.5, 0, 1), {}),
        "Sigmoid": (1 / (1 + np.exp(-x)), {}),
        "Softplus": (np.log1p(np.exp(x)), {}),
    }
    for op, (expected, attributes) in rows.items():
        np.testing.assert_allclose(one(op, x, **attributes), expected, rtol=1e-14, atol=1e-15, err_msg=op)


def test_integers_divide_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    np.testing.assert_array_equal(one("Div", a, b), [3, -3, -3, 3])


def test_quantize_rounds_half_to_even_and_saturates_with_zero_point_110() -> None:
    x, scale, zero = np.array([0.01, 0.03, -2.2, 9.0, -9.0]), np.array(0.02), np.uint8(110)
    q = one("QuantizeLinear", x, scale, np.asarray(zero))
    np.testing.assert_array_equal(q, [110, 112, 0, 255, 0])
    back = one("DequantizeLinear", q, scale, np.asarray(zero))
    np.testing.assert_allclose(back, (q.astype(float) - 110) * 0.02, rtol=1e-15)


def test_scatter_is_the_old_name_of_scatter_elements() -> None:
    x, index, updates = np.zeros((3, 3)), np.array([[1, 0, 2]]), np.array([[1.0, 2.0, 3.0]])
    old = one("Scatter", x, index, updates, opset=9)
    np.testing.assert_array_equal(old, one("ScatterElements", x, index, updates))
    np.testing.assert_array_equal(old, [[0, 2, 0], [1, 0, 0], [0, 0, 3]])


def test_non_max_suppression_keeps_the_first_of_equal_scores() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.05, 1, 1.05], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[0.9, 0.9, 0.5]]], np.float32)
    limit, overlap = np.array([9], np.int64), np.array([0.5], np.float32)
    y = one("NonMaxSuppression", boxes, scores, limit, overlap, np.array([0.1], np.float32))
    np.testing.assert_array_equal(y, [[0, 0, 0], [0, 0, 2]])
    assert one("NonMaxSuppression", boxes, scores).shape == (0, 3)


def test_wrong_inputs_are_reported_with_node_and_shapes() -> None:
    with pytest.raises(InputError, match=r"node 'the_MatMul' \(MatMul\)") as caught:
        run("MatMul", np.zeros((2, 3)), np.zeros((2, 3)))
    assert "float64[2, 3]" in str(caught.value)
    with pytest.raises(InputError, match="input 1 is missing"):
        run("Conv", np.zeros((1, 1, 3)))


def test_missing_kernel_names_node_operator_and_opset() -> None:
    with pytest.raises(UnsupportedError, match=r"node 'the_MaxRoiPool' \(MaxRoiPool\)") as caught:
        run("MaxRoiPool", np.zeros((1, 1, 4, 4)), np.zeros((1, 5)), pooled_shape=[1, 1])
    assert "opset 22" in str(caught.value)
    assert caught.value.hint
