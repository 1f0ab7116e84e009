"""Models as quantization-aware training leaves them: Q/DQ pairs with ranges of their own, integer weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgefuse.graph import Model
from edgefuse.graph.reference import Reference
from tests.passes.graphs import Build

Feeds = dict[str, np.ndarray]

LIMITS = {np.dtype(np.uint8): (0, 255), np.dtype(np.int8): (-128, 127)}


@dataclass
class Trained:
    """Builds the same network twice: first in float to see its ranges, then with Q/DQ.

    symmetric: zero point 0 in the middle, int8.  kind: of the activations.  limit: largest weight integer.
    per_tensor: one scale for each weight.
    """

    seed: int = 0
    symmetric: bool = False
    kind: Any = np.uint8
    limit: int = 127
    per_tensor: bool = False
    opset: int = 21
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    grids: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.b = Build(opset=self.opset, seed=self.seed)
        self.seen: list[str] = []

    def q(self, x: str, scale: float | None = None) -> str:
        """Return x behind a pair; its range is the one that the float network showed."""
        name = f"t{len(self.seen)}"
        self.seen.append(x)
        if name not in self.ranges:
            return x
        low, high = self.ranges[name]
        low, high = min(low, 0.0), max(high, 0.0)
        first, last = LIMITS[np.dtype(self.kind)]
        scale = max(-low, high) / 127 if self.symmetric else (high - low) / 255
        zero = 0 if self.symmetric else int(np.clip(np.rint(first - low / scale), first, last))
        self.grids[x] = (float(np.float32(scale)), zero)
        return pair(self.b, x, scale, zero, self.kind)

    def weight(self, *shape: int, axis: int = 0) -> tuple[str, np.ndarray]:
        """Return a weight and its scales."""
        real = self.b.rng.uniform(-1, 1, shape) * self.b.rng.uniform(0.2, 1.5, shape[axis]).reshape(
            [-1 if i == axis else 1 for i in range(len(shape))]
        )
        real /= np.sqrt(np.prod(shape) / shape[axis])
        others = tuple(i for i in range(len(shape)) if i != axis)
        scale = (np.abs(real).max() if self.per_tensor else np.abs(real).max(axis=others)) / self.limit
        scale = np.asarray(scale, np.float32)
        if not self.ranges:
            return self.b.w(real), scale
        spread = (
            scale if scale.ndim == 0 else scale.reshape([-1 if i == axis else 1 for i in range(real.ndim)])
        )
        integers = np.clip(np.rint(real / spread), -self.limit, self.limit)
        values = self.b.w(integers, dtype=np.int8)
        attributes = {} if scale.ndim == 0 else {"axis": axis}
        zero = self.b.w(np.zeros(scale.shape), dtype=np.int8)
        return self.b.op("DequantizeLinear", values, self.b.w(scale), zero, **attributes), scale

    def bias(self, read: str, scale: np.ndarray, channels: int) -> str:
        """Return a bias, int32 with the scale of the products once ranges are known."""
        real = self.b.rng.uniform(-0.5, 0.5, channels)
        if not self.ranges:
            return self.b.w(real)
        step = np.broadcast_to(np.float32(self.grids[read][0]) * scale, channels).astype(np.float32)
        integers = np.rint(real / step)
        return self.b.op("DequantizeLinear", self.b.w(integers, dtype=np.int32), self.b.w(step), axis=0)

    def conv(self, x: str, c_in: int, c_out: int, k: int = 3, groups: int = 1, relu: str = "") -> str:
        """Return Conv of x (behind a pair of its own), then `relu`."""
        read = self.q(x)
        weight, scale = self.weight(c_out, c_in // groups, k, k)
        bias = self.bias(x, scale, c_out)
        y = self.b.op("Conv", read, weight, bias, group=groups, pads=[k // 2] * 4)
        if relu == "Clip":
            return self.b.op("Clip", y, self.b.w(0.0), self.b.w(6.0))
        return self.b.op(relu, y) if relu else y


def pair(b: Build, x: str, scale: float, zero: int, kind: Any) -> str:
    """Return x behind QuantizeLinear and DequantizeLinear."""
    parts = [b.w(np.float32(scale)), b.w(zero, dtype=kind)]
    return b.op("DequantizeLinear", b.op("QuantizeLinear", x, *parts), *parts)


def residual_network(t: Trained) -> tuple[str, str]:
    """Write a small network, a pair in every usual place; return (output, tensor before its last pair)."""
    x = t.b.x([1, 4, 10, 10])
    a = t.conv(x, 4, 8, relu="Relu")
    d = t.conv(a, 8, 8, groups=8, relu="Clip")
    p = t.conv(d, 8, 8, k=1)
    s = t.b.op("Add", t.q(p), t.q(a))
    g = t.b.op("GlobalAveragePool", t.q(s))
    f = t.b.op("Reshape", t.q(g), t.b.ints(1, 8))
    read = t.seen[-1]
    weight, scale = t.weight(8, 5, axis=1)
    m = t.b.op("MatMul", f, weight)
    y = t.b.op("Add", m, t.bias(read, scale, 5))
    return t.q(y), y


def trained(samples: list[Feeds], **options: Any) -> tuple[Model, dict[str, tuple[float, int]], str]:
    """Return (model with Q/DQ, the grid of each quantized tensor by name, tensor of the last pair)."""
    plain = Trained(**options)
    out, _ = residual_network(plain)
    names = list(dict.fromkeys(plain.seen))
    reference = Reference(plain.b.y(out).model())
    found: dict[str, list[float]] = {name: [] for name in names}
    for feeds in samples:
        for name, array in reference.run(feeds, [n for n in names if n != "x"]).items():
            found[name] += [float(array.min()), float(array.max())]
        found["x"] += [float(feeds["x"].min()), float(feeds["x"].max())]
    ranges = {f"t{i}": (min(found[name]), max(found[name])) for i, name in enumerate(plain.seen)}
    final = Trained(**options, ranges=ranges)
    out, last = residual_network(final)
    return final.b.y(out).model(), final.grids, last


def random_samples(count: int = 6, seed: int = 3) -> list[Feeds]:
    """Return inputs of the network."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(0.2, 1.0, (1, 4, 10, 10)).astype(np.float32)} for _ in range(count)]
