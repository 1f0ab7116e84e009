"""Softmax and its kin, BatchNormalization in every form, Layer, Group, Instance, RMS, Lp and local norms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgefuse.graph.kernels.call import Array, Call, Kernel

__all__ = ["KERNELS", "softmax"]


def _wide(x: Array) -> Array:
    """Return x in the type that statistics are taken in: at least float32 (the standard's stash_type)."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def softmax(x: Array, axis: int) -> Array:
    """Return exp(x) / sum exp(x) along one axis, without overflow, in the dtype of x."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _hardmax(x: Array, axis: int) -> Array:
    first = np.expand_dims(np.argmax(x, axis=axis), axis)
    index = np.arange(x.shape[axis]).reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
    return np.asarray((index == first).astype(x.dtype))


def _over_axis(function: Callable[[Array, int], Array]) -> Kernel:
    def kernel(call: Call) -> Array:
        x = call.array(0)
        if x.size == 0:
            return x
        if call.opset >= 13:
            return function(x, int(call.attr("axis", -1))).astype(x.dtype, copy=False)
        # Before opset 13 the input is flattened to 2-D at `axis`, and the rows are normalised whole.
        axis = int(call.attr("axis", 1)) % max(x.ndim, 1)
        rows = int(np.prod(x.shape[:axis]))
        flat = function(x.reshape(rows, -1), 1)
        return np.asarray(flat.reshape(x.shape).astype(x.dtype, copy=False))

    return kernel


def _per_channel(value: Array, x: Array) -> Array:
    return _wide(value).reshape(-1, *(1,) * (x.ndim - 2))


def _batch_normalization(call: Call) -> tuple[Array, ...]:
    x = call.array(0)
    scale, bias, mean, var = (call.array(k) for k in range(1, 5))
    epsilon = call.attr("epsilon", float(np.float32(1e-5)))
    wide = _wide(x)
    if call.opset >= 14 and call.attr("training_mode", 0):
        momentum = call.attr("momentum", float(np.float32(0.9)))
        axes = tuple(a for a in range(x.ndim) if a != 1)
        now_mean, now_var = wide.mean(axis=axes), wide.var(axis=axes)
        running = [
            (old * momentum + now * (1 - momentum)).astype(old.dtype)
            for old, now in ((mean, now_mean), (var, now_var))
        ]
        mean, var = now_mean, now_var
    else:
        running = [mean, var]
    if call.opset < 9 and not call.attr("spatial", 1):
        # One mean and scale for each activation, not for each channel.
        y = (wide - mean) / np.sqrt(var + epsilon) * scale + bias
    else:
        factor = _per_channel(scale, x) / np.sqrt(_per_channel(var, x) + epsilon)
        y = (wide - _per_channel(mean, x)) * factor + _per_channel(bias, x)
    return (y.astype(x.dtype, copy=False), *running)


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Return (x - mean) / std, mean and 1 / std over `axes` (kept with size 1)."""
    mean = x.mean(axis=axes, keepdims=True)
    centered = x - mean
    inverse = 1 / np.sqrt(np.square(centered).mean(axis=axes, keepdims=True) + epsilon)
    return np.asarray(centered * inverse), mean, np.asarray(inverse)


def _instance_normalization(call: Call) -> Array:
    x = call.array(0)
    y, _, _ = _standardized(_wide(x), tuple(range(2, x.ndim)), call.attr("epsilon", float(np.float32(1e-5))))
    y = y * _per_channel(call.array(1), x) + _per_channel(call.array(2), x)
    return y.astype(x.dtype, copy=False)


def _layer_normalization(call: Call) -> tuple[Array, ...]:
    x = call.array(0)
    axes = tuple(range(int(call.attr("axis", -1)) % x.ndim, x.ndim))
    y, mean, inverse = _standardized(_wide(x), axes, call.attr("epsilon", float(np.float32(1e-5))))
    # The scale is applied in the type of x, as the function body of the standard does.
    y = y.astype(x.dtype, copy=False) * call.array(1)
    if (bias := call.optional(2)) is not None:
        y = y + bias
    return y.astype(x.dtype, copy=False), mean, inverse


def _rms_normalization(call: Call) -> Array:
    x = call.array(0)
    axes = tuple(range(int(call.attr("axis", -1)) % x.ndim, x.ndim))
    wide = _wide(x)
    mean_square = np.square(wide).mean(axis=axes, keepdims=True)
    y = wide / np.sqrt(mean_square + call.attr("epsilon", float(np.float32(1e-5))))
    return np.asarray((y.astype(x.dtype, copy=False) * call.array(1)).astype(call.array(1).dtype, copy=False))


def _group_normalization(call: Call) -> Array:
    x, scale, bias = call.array(0), call.array(1), call.array(2)
    groups, channels = int(call.attributes["num_groups"]), x.shape[1]
    grouped = _wide(x).reshape(x.shape[0], groups, -1)
    y = _standardized(grouped, (2,), call.attr("epsilon", float(np.float32(1e-5))))[0].reshape(x.shape)
    if call.opset < 21:
        # Opset 18 has one scale for each group.
        scale, bias = (np.repeat(value, channels // groups) for value in (scale, bias))
    y = y.astype(x.dtype, copy=False)
    shape = (-1, *(1,) * (x.ndim - 2))
    return np.asarray((y * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype, copy=False))


def _lrn(call: Call) -> Array:
    x = call.array(0)
    size = int(call.attributes["size"])
    alpha, beta = call.attr("alpha", float(np.float32(1e-4))), call.attr("beta", 0.75)
    before = (size - 1) // 2
    squares = np.square(_wide(x))
    padded = np.pad(squares, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    total = np.zeros_like(squares)
    for offset in range(size):
        total += padded[:, offset : offset + x.shape[1]]
    y = x / (call.attr("bias", 1.0) + alpha / size * total) ** beta
    return np.asarray(y).astype(x.dtype, copy=False)


def _lp_normalization(call: Call) -> Array:
    x, axis = call.array(0), int(call.attr("axis", -1))
    p = int(call.attr("p", 2))
    wide = _wide(x)
    norm = (
        np.abs(wide).sum(axis, keepdims=True) if p == 1 else np.sqrt(np.square(wide).sum(axis, keepdims=True))
    )
    return np.where(norm == 0, 0, wide / norm).astype(x.dtype)


def _mean_variance_normalization(call: Call) -> Array:
    x = call.array(0)
    axes = tuple(call.ints("axes", (0, 2, 3)))
    wide = _wide(x)
    centered = wide - wide.mean(axis=axes, keepdims=True)
    # The 1e-9 is added to the deviation, not to the variance (the standard's function body).
    deviation = np.sqrt(np.square(centered).mean(axis=axes, keepdims=True))
    return np.asarray((centered / (deviation + 1e-9)).astype(x.dtype, copy=False))


KERNELS: dict[str, Kernel] = {
    "Softmax": _over_axis(softmax),
    "LogSoftmax": _over_axis(_log_softmax),
    "Hardmax": _over_axis(_hardmax),
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "GroupNormalization": _group_normalization,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
}
