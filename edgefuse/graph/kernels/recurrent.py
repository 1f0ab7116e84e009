"""LSTM, GRU and RNN with every attribute: directions, layouts, lengths, clip, activations, peepholes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph.kernels.call import Array, Call, Kernel
from edgefuse.graph.kernels.elementwise import sigmoid, softplus

__all__ = ["KERNELS"]

Activation: TypeAlias = "Callable[[Array], Array]"
# name -> (function of x, alpha, beta; default alpha; default beta), after the operator pages of ONNX.
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float, float]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "sigmoid": (lambda x, a, b: sigmoid(x), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), float(np.float32(0.01)), 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), float(np.float32(0.2)), 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: softplus(x), 0.0, 0.0),
}
_TAKES_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
_TAKES_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _bound(function: Callable[[Array, float, float], Array], alpha: float, beta: float) -> Activation:
    return lambda x: function(x, alpha, beta).astype(x.dtype, copy=False)


def _activations(call: Call, defaults: tuple[str, ...], directions: int) -> list[Activation]:
    """Return the activation functions, `len(defaults)` for each direction."""
    names = list(call.attr("activations", ())) or list(defaults) * directions
    alphas, betas = list(call.attr("activation_alpha", ())), list(call.attr("activation_beta", ()))
    functions: list[Activation] = []
    for name in names:
        key = name.lower()
        if key not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{call.label}: unknown activation '{name}'", expected=", ".join(_ACTIVATIONS)
            )
        function, alpha, beta = _ACTIVATIONS[key]
        if key in _TAKES_ALPHA and alphas:
            alpha = alphas.pop(0)
        if key in _TAKES_BETA and betas:
            beta = betas.pop(0)
        functions.append(_bound(function, alpha, beta))
    if len(functions) == len(defaults):
        functions = functions * directions
    return functions


@dataclass(frozen=True, slots=True)
class _Run:
    """One direction's data: x [T, N, I], w [G*H, I], r [G*H, H], b [2*G*H], states [N, H], lengths [N]."""

    x: Array
    w: Array
    r: Array
    b: Array
    h: Array
    c: Array
    p: Array
    lengths: Array | None
    backward: bool
    functions: list[Activation]
    clip: float | None

    def clipped(self, value: Array) -> Array:
        return value if self.clip is None else np.clip(value, -self.clip, self.clip).astype(value.dtype)

    def steps(self) -> list[int]:
        order = list(range(len(self.x)))
        return order[::-1] if self.backward else order

    def keep(self, step: int, new: Array, old: Array) -> Array:
        """Return the new state, or the old one for samples whose sequence does not reach this step."""
        if self.lengths is None:
            return new
        return np.where((step < self.lengths)[:, None], new, old)

    def emit(self, step: int, value: Array) -> Array:
        return value if self.lengths is None else np.where((step < self.lengths)[:, None], value, 0)


def _lstm_run(call: Call, run: _Run) -> tuple[Array, Array, Array]:
    size = run.r.shape[-1]
    projected = run.x @ run.w.T + run.b[: 4 * size] + run.b[4 * size :]
    p_i, p_o, p_f = run.p[:size], run.p[size : 2 * size], run.p[2 * size :]
    f, g, h = run.functions
    out = np.zeros((*run.x.shape[:2], size), run.x.dtype)
    hidden, cell = run.h, run.c
    for step in run.steps():
        gates = projected[step] + hidden @ run.r.T
        i, o, forget, c = (gates[:, k * size : (k + 1) * size] for k in range(4))
        i = f(run.clipped(i + p_i * cell))
        forget = 1 - i if call.attr("input_forget", 0) else f(run.clipped(forget + p_f * cell))
        new_cell = forget * cell + i * g(run.clipped(c))
        # Engines clip what enters f and g, not the cell that enters h.
        new_hidden = f(run.clipped(o + p_o * new_cell)) * h(new_cell)
        cell, hidden = run.keep(step, new_cell, cell), run.keep(step, new_hidden, hidden)
        out[step] = run.emit(step, new_hidden)
    return out, hidden, cell


def _gru_run(call: Call, run: _Run) -> tuple[Array, Array, Array]:
    size = run.r.shape[-1]
    projected = run.x @ run.w.T + run.b[: 3 * size]
    r_gates, r_hidden = run.r[: 2 * size], run.r[2 * size :]
    b_gates, b_hidden = run.b[3 * size : 5 * size], run.b[5 * size :]
    f, g = run.functions
    out = np.zeros((*run.x.shape[:2], size), run.x.dtype)
    hidden = run.h
    for step in run.steps():
        gates = f(run.clipped(projected[step][:, : 2 * size] + hidden @ r_gates.T + b_gates))
        update, reset = gates[:, :size], gates[:, size:]
        if call.attr("linear_before_reset", 0):
            recurrent = reset * (hidden @ r_hidden.T + b_hidden)
        else:
            recurrent = (reset * hidden) @ r_hidden.T + b_hidden
        candidate = g(run.clipped(projected[step][:, 2 * size :] + recurrent))
        new_hidden = (1 - update) * candidate + update * hidden
        hidden = run.keep(step, new_hidden, hidden)
        out[step] = run.emit(step, new_hidden)
    return out, hidden, run.c


def _rnn_run(call: Call, run: _Run) -> tuple[Array, Array, Array]:
    size = run.r.shape[-1]
    projected = run.x @ run.w.T + run.b[:size] + run.b[size:]
    (f,) = run.functions
    out = np.zeros((*run.x.shape[:2], size), run.x.dtype)
    hidden = run.h
    for step in run.steps():
        new_hidden = f(run.clipped(projected[step] + hidden @ run.r.T))
        hidden = run.keep(step, new_hidden, hidden)
        out[step] = run.emit(step, new_hidden)
    return out, hidden, run.c


Runner: TypeAlias = "Callable[[Call, _Run], tuple[Array, Array, Array]]"


def _recurrent(runner: Runner, gates: int, defaults: tuple[str, ...]) -> Kernel:
    def kernel(call: Call) -> tuple[Array, ...]:
        x, w, r = call.array(0), call.array(1), call.array(2)
        batch_first = bool(call.attr("layout", 0))
        if batch_first:
            x = x.swapaxes(0, 1)
        directions, size, batch = w.shape[0], r.shape[-1], x.shape[1]

        def state(index: int) -> Array:
            value = call.optional(index)
            if value is None:
                return np.zeros((directions, batch, size), x.dtype)
            return value.swapaxes(0, 1) if batch_first else value

        b = call.optional(3)
        b = np.zeros((directions, 2 * gates * size), x.dtype) if b is None else b
        p = call.optional(7) if gates == 4 else None
        p = np.zeros((directions, 3 * size), x.dtype) if p is None else p
        h, c = state(5), state(6) if gates == 4 else state(5)
        functions = _activations(call, defaults, directions)
        results = []
        for d in range(directions):
            backward = d == 1 or call.attr("direction", "forward") == "reverse"
            mine = functions[d * len(defaults) : (d + 1) * len(defaults)]
            data = (x, w[d], r[d], b[d], h[d], c[d], p[d])
            run = _Run(*data, call.optional(4), backward, mine, call.attr("clip"))
            results.append(runner(call, run))
        y, y_h, y_c = (np.stack(part) for part in zip(*results, strict=True))
        # y is [D, T, N, H]; the standard wants [T, D, N, H], or [N, T, D, H] with layout 1.
        y = y.transpose(2, 1, 0, 3) if batch_first else y.transpose(1, 0, 2, 3)
        if batch_first:
            y_h, y_c = y_h.swapaxes(0, 1), y_c.swapaxes(0, 1)
        outputs = (y, y_h, y_c) if gates == 4 else (y, y_h)
        return tuple(out.astype(x.dtype, copy=False) for out in outputs)

    return kernel


KERNELS: dict[str, Kernel] = {
    "LSTM": _recurrent(_lstm_run, 4, ("Sigmoid", "Tanh", "Tanh")),
    "GRU": _recurrent(_gru_run, 3, ("Sigmoid", "Tanh")),
    "RNN": _recurrent(_rnn_run, 1, ("Tanh",)),
}
