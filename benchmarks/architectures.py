"""Well-known networks as graphs with random weights: what fusion rules and planners are counted on.

Widths are parameters, since matching does not depend on them; depths are those of the papers. Each function
returns a canonical model of one image or one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edgefuse.fusion.examples import model_from_lines
from edgefuse.graph import Model

__all__ = ["ARCHITECTURES", "Lines", "bert", "mobilenet_v2", "resnet", "vit", "yolo"]


class Lines:
    """SSA lines under construction; every method returns the name of what it wrote."""

    def __init__(self, *inputs: str) -> None:
        self.lines = list(inputs)
        self.count = 0

    def op(self, text: str) -> str:
        """Write one node given as text."""
        self.count += 1
        self.lines.append(f"v{self.count} = {text}")
        return f"v{self.count}"

    def __call__(self, operator: str, *arguments: object, **attributes: object) -> str:
        """Write one node; lists and numbers are written as they are, text attributes in quotes."""
        parts = [str(a) for a in arguments]
        for name, value in attributes.items():
            plain = not isinstance(value, str) or value.startswith("[")
            parts.append(f"{name}={value}" if plain else f'{name}="{value}"')
        return self.op(f"{operator}({', '.join(parts)})")

    def split(self, x: str, count: int, axis: int) -> list[str]:
        """Write a Split into equal parts and return their names."""
        self.count += 1
        names = [f"v{self.count}_{i}" for i in range(count)]
        self.lines.append(f"{', '.join(names)} = Split({x}, axis={axis}, num_outputs={count})")
        return names

    def conv(self, x: str, channels: tuple[int, int], size: int = 1, stride: int = 1, group: int = 1) -> str:
        """Write a convolution with bias that keeps the map's size at stride 1."""
        before, after = channels
        pad = size // 2
        weight = f"$[{after},{before // group},{size},{size}]"
        return self.op(
            f"Conv({x}, {weight}, $[{after}], strides=[{stride},{stride}], pads=[{pad},{pad},{pad},{pad}], "
            f"group={group})"
        )

    def relu6(self, x: str) -> str:
        """Write a Relu6."""
        return self.op(f"Clip({x}, 0.0, 6.0)")

    def linear(self, x: str, before: int, after: int) -> str:
        """Write a product over the last axis and its bias."""
        return self.op(f"Add({self.op(f'MatMul({x}, $[{before},{after}])')}, $[{after}])")

    def norm(self, x: str, width: int) -> str:
        """Write a LayerNormalization of the last axis."""
        return self.op(f"LayerNormalization({x}, $[{width}], $[{width}], axis=-1)")

    def model(self, *outputs: str, seed: int = 0) -> Model:
        """Return the model with these outputs."""
        text = "\n".join([*self.lines, "-> " + ", ".join(outputs)])
        return model_from_lines(text, {}, np.random.default_rng(seed), "architecture")


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 8) -> Model:
    """Return ResNet with bottleneck blocks (ResNet-50 by default) on a 64x64 image."""
    g = Lines("x: [1,3,64,64]")
    stem = g.op(f"Relu({g.conv('x', (3, width), 7, 2)})")
    x = g.op(f"MaxPool({stem}, kernel_shape=[3,3], strides=[2,2])")
    channels = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            y = g.op(f"Relu({g.conv(x, (channels, inner))})")
            y = g.op(f"Relu({g.conv(y, (inner, inner), 3, stride)})")
            y = g.conv(y, (inner, inner * 4))
            short = g.conv(x, (channels, inner * 4), 1, stride) if block == 0 else x
            x = g.op(f"Relu({g.op(f'Add({y}, {short})')})")
            channels = inner * 4
    x = g.op(f"Flatten({g.op(f'GlobalAveragePool({x})')})")
    return g.model(g.op(f"Gemm({x}, $[10,{channels}], $[10], transB=1)"))


def mobilenet_v2(repeat: int = 1, width: int = 8) -> Model:
    """Return MobileNetV2 (its 17 inverted residuals, `repeat` times as deep) on a 64x64 image."""
    g = Lines("x: [1,3,64,64]")
    x, channels = g.relu6(g.conv("x", (3, width), 3, 2)), width
    settings = (
        (1, 1, 1, 1),
        (6, 2, 2, 2),
        (6, 2, 3, 2),
        (6, 4, 4, 2),
        (6, 6, 3, 1),
        (6, 8, 3, 2),
        (6, 16, 1, 1),
    )
    for expand, scale, count, first in settings:
        for block in range(count * repeat):
            stride, inner = (first if block == 0 else 1), channels * expand
            y = g.relu6(g.conv(x, (channels, inner))) if expand > 1 else x
            y = g.relu6(g.conv(y, (inner, inner), 3, stride, inner))
            y = g.conv(y, (inner, width * scale))
            x = g.op(f"Add({x}, {y})") if stride == 1 and channels == width * scale else y
            channels = width * scale
    x = g.relu6(g.conv(x, (channels, width * 32)))
    x = g.op(f"Flatten({g.op(f'GlobalAveragePool({x})')})")
    return g.model(g.op(f"Gemm({x}, $[10,{width * 32}], $[10], transB=1)"))


def _attention(g: Lines, x: str, width: int, heads: int, length: int) -> str:
    def split(name: str, order: str) -> str:
        shaped = g.op(f"Reshape({name}, [1,{length},{heads},{width // heads}])")
        return g.op(f"Transpose({shaped}, perm=[{order}])")

    q, k, v = (g.linear(x, width, width) for _ in range(3))
    scores = g.op(f"MatMul({split(q, '0,2,1,3')}, {split(k, '0,2,3,1')})")
    weights = g.op(f"Softmax({g.op(f'Div({scores}, {float(np.sqrt(width // heads))})')}, axis=-1)")
    mixed = g.op(f"MatMul({weights}, {split(v, '0,2,1,3')})")
    joined = g.op(f"Reshape({g.op(f'Transpose({mixed}, perm=[0,2,1,3])')}, [1,{length},{width}])")
    return g.linear(joined, width, width)


def bert(layers: int = 12, width: int = 16, heads: int = 4, length: int = 8) -> Model:
    """Return a BERT encoder (post-norm, GELU) without its embedding table."""
    g = Lines(f"x: [1,{length},{width}]")
    x = g.norm("x", width)
    for _ in range(layers):
        x = g.norm(g.op(f"Add({_attention(g, x, width, heads, length)}, {x})"), width)
        y = g.linear(g.op(f"Gelu({g.linear(x, width, 4 * width)})"), 4 * width, width)
        x = g.norm(g.op(f"Add({y}, {x})"), width)
    return g.model(x)


def vit(layers: int = 12, width: int = 16, heads: int = 4) -> Model:
    """Return a ViT (pre-norm) of 16 patches."""
    g = Lines("x: [1,3,64,64]")
    patches = g.op(f"Conv(x, $[{width},3,16,16], $[{width}], strides=[16,16])")
    x = g.op(f"Transpose({g.op(f'Reshape({patches}, [1,{width},16])')}, perm=[0,2,1])")
    x = g.op(f"Add({x}, $[1,16,{width}])")
    for _ in range(layers):
        x = g.op(f"Add({x}, {_attention(g, g.norm(x, width), width, heads, 16)})")
        y = g.op(f"Gelu({g.linear(g.norm(x, width), width, 4 * width)})")
        x = g.op(f"Add({x}, {g.linear(y, 4 * width, width)})")
    return g.model(g.norm(x, width))


def yolo(width: int = 8, depth: int = 2) -> Model:
    """Return a detector like YOLOv8: C2f stages, SPPF, a top-down path and two heads, on a 64x64 image."""
    g = Lines("x: [1,3,64,64]")

    def block(x: str, before: int, after: int, size: int = 1, stride: int = 1) -> str:
        return g.op(f"Swish({g.conv(x, (before, after), size, stride)})")

    def c2f(x: str, before: int, after: int, shortcut: bool) -> str:
        half = after // 2
        y = block(x, before, after)
        g.lines.append(f"s{g.count}a, s{g.count}b = Split({y}, axis=1, num_outputs=2)")
        parts = [f"s{g.count}a", f"s{g.count}b"]
        for _ in range(depth):
            z = block(block(parts[-1], half, half, 3), half, half, 3)
            parts.append(g.op(f"Add({parts[-1]}, {z})") if shortcut else z)
        return block(g.op(f"Concat({', '.join(parts)}, axis=1)"), half * len(parts), after)

    x = block(block("x", 3, width, 3, 2), width, 2 * width, 3, 2)
    p3 = c2f(
        block(c2f(x, 2 * width, 2 * width, True), 2 * width, 4 * width, 3, 2), 4 * width, 4 * width, True
    )
    p4 = c2f(block(p3, 4 * width, 8 * width, 3, 2), 8 * width, 8 * width, True)
    y = block(p4, 8 * width, 4 * width)
    pooled = [y]
    for _ in range(3):
        pooled.append(g.op(f"MaxPool({pooled[-1]}, kernel_shape=[5,5], strides=[1,1], pads=[2,2,2,2])"))
    y = block(g.op(f"Concat({', '.join(pooled)}, axis=1)"), 16 * width, 8 * width)
    up = g.op(f'Resize({y}, -, [1.0,1.0,2.0,2.0], mode="nearest")')
    n3 = c2f(g.op(f"Concat({up}, {p3}, axis=1)"), 12 * width, 4 * width, False)
    heads = []
    for level, channels in ((n3, 4 * width), (y, 8 * width)):
        box = g.conv(block(block(level, channels, width, 3), width, width, 3), (width, 64))
        score = g.conv(block(block(level, channels, width, 3), width, width, 3), (width, 4))
        heads += [box, g.op(f"Sigmoid({score})")]
    return g.model(*heads)


ARCHITECTURES: Mapping[str, Callable[[], Model]] = {
    "resnet50": resnet,
    "mobilenet_v2": mobilenet_v2,
    "bert_base": bert,
    "vit": vit,
    "yolo": yolo,
}
