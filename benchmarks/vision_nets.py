"""Networks over images, a block or two each, in the forms in which exporters write them.

Small in every number: what the rules of fusion are counted on is which operators stand beside which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.architectures import Lines
from edgefuse.graph import Model

__all__ = ["VISION_NETS"]

IMAGE = "x: [1,3,32,32]"


def _relu(g: Lines, x: str, channels: tuple[int, int], size: int = 1, stride: int = 1, group: int = 1) -> str:
    return g("Relu", g.conv(x, channels, size, stride, group))


def _swish(
    g: Lines, x: str, channels: tuple[int, int], size: int = 1, stride: int = 1, group: int = 1
) -> str:
    return g("Swish", g.conv(x, channels, size, stride, group))


def _written_silu(g: Lines, x: str) -> str:
    return g("Mul", x, g("Sigmoid", x))


def _excited(g: Lines, x: str, channels: int, gate: str = "Sigmoid") -> str:
    squeezed = _relu(g, g("GlobalAveragePool", x), (channels, 4))
    return g("Mul", x, g(gate, g.conv(squeezed, (4, channels))))


def _classified(g: Lines, x: str, channels: int) -> Model:
    flat = g("Flatten", g("GlobalAveragePool", x))
    return g.model(g("Gemm", flat, f"$[{channels},10]", "$[10]"))


def _upsampled(g: Lines, x: str) -> str:
    return g("Resize", x, "-", "[1.0,1.0,2.0,2.0]", mode="nearest")


def _pooled(g: Lines, x: str, operator: str = "MaxPool", size: int = 2) -> str:
    return g(operator, x, kernel_shape=[size, size], strides=[size, size])


def yolov8_head() -> Model:
    """Return a C2f stage and the head with its distribution of distances, boxes and classes in one list."""
    g = Lines("x: [1,8,8,8]")
    left, right = g.split(_swish(g, "x", (8, 16)), 2, 1)
    z = g("Add", right, _swish(g, _swish(g, right, (8, 8), 3), (8, 8), 3))
    p = _swish(g, g("Concat", left, right, z, axis=1), (24, 8))
    q = _swish(g, g("Concat", _upsampled(g, _swish(g, p, (8, 8), 3, 2)), p, axis=1), (16, 8))
    levels = []
    for level in (p, q):
        box = g.conv(_swish(g, _swish(g, level, (8, 8), 3), (8, 8), 3), (8, 16))
        cls = g.conv(_swish(g, _swish(g, level, (8, 8), 3), (8, 8), 3), (8, 5))
        levels.append(g("Reshape", g("Concat", box, cls, axis=1), "[1,21,64]"))
    g.lines.append(f"boxes, classes = Split({g('Concat', *levels, axis=2)}, [16,5], axis=1)")
    bins = g("Transpose", g("Reshape", "boxes", "[1,4,4,128]"), perm=[0, 2, 1, 3])
    distances = g("Reshape", g("Conv", g("Softmax", bins, axis=1), "$[1,4,1,1]"), "[1,4,128]")
    near, far = g.split(distances, 2, 1)
    first, second = g("Sub", "$[1,2,128]", near), g("Add", far, "$[1,2,128]")
    centre = g("Mul", g("Add", first, second), 0.5)
    found = g("Concat", centre, g("Sub", second, first), axis=1)
    return g.model(g("Concat", g("Mul", found, "$[1,128]"), g("Sigmoid", "classes"), axis=1))


def yolov5() -> Model:
    """Return YOLOv5's focus, written SiLU, parallel pools and decoding by anchors."""
    g = Lines(IMAGE)
    parts = [g("Slice", "x", f"[{i},{j}]", "[32,32]", "[2,3]", "[2,2]") for i in range(2) for j in range(2)]
    y = g.conv(g("Concat", *parts, axis=1), (12, 8), 3)
    y = _written_silu(g, y)
    pools = [g("MaxPool", y, kernel_shape=[s, s], pads=[s // 2] * 4, strides=[1, 1]) for s in (3, 5, 7)]
    y = _written_silu(g, g.conv(g("Concat", y, *pools, axis=1), (32, 8)))
    rows_out = g("Reshape", g("Transpose", g.conv(y, (8, 7)), perm=[0, 2, 3, 1]), "[1,256,7]")
    s = g("Sigmoid", rows_out)
    g.lines.append(f"place, size, rest = Split({s}, [2,2,3], axis=2)")
    centre = g("Mul", g("Add", g("Mul", "place", 2.0), "$[256,2]"), 8.0)
    wide = g("Mul", g("Pow", g("Mul", "size", 2.0), 2.0), "$+[2]")
    return g.model(g("Concat", centre, wide, "rest", axis=2))


def anchor_free_heads() -> Model:
    """Return SSD's and FCOS's heads: rows of boxes and scores of two levels, corners by distances."""
    g = Lines("x: [1,8,8,8]")
    scores, boxes = [], []
    level = "x"
    for side in (8, 4):
        level = level if side == 8 else _relu(g, level, (8, 8), 3, 2)
        turned = g("Transpose", g.conv(level, (8, 4), 3), perm=[0, 2, 3, 1])
        scores.append(g("Reshape", turned, f"[1,{side * side},4]"))
        turned = g("Transpose", g("Exp", g.conv(level, (8, 4), 3)), perm=[0, 2, 3, 1])
        boxes.append(g("Reshape", turned, f"[1,{side * side},4]"))
    near, far = g.split(g("Concat", *boxes, axis=1), 2, 2)
    corners = g("Concat", g("Sub", "$[80,2]", near), g("Add", far, "$[80,2]"), axis=2)
    return g.model(g("Softmax", g("Concat", *scores, axis=1), axis=-1), corners)


def shufflenet() -> Model:
    """Return two ShuffleNetV2 units and one of V1."""
    g = Lines("x: [1,16,8,8]")
    x = "x"
    for _ in range(2):
        left, right = g.split(x, 2, 1)
        y = _relu(g, right, (8, 8))
        y = _relu(g, g.conv(y, (8, 8), 3, 1, 8), (8, 8))
        joined = g("Reshape", g("Concat", left, y, axis=1), "[1,2,8,8,8]")
        x = g("Reshape", g("Transpose", joined, perm=[0, 2, 1, 3, 4]), "[1,16,8,8]")
    y = g("Reshape", _relu(g, x, (16, 16), 1, 1, 2), "[1,2,8,8,8]")
    y = g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3, 4]), "[1,16,8,8]")
    return _classified(g, g("Add", g.conv(g.conv(y, (16, 16), 3, 1, 16), (16, 16)), x), 16)


def unet() -> Model:
    """Return U-Net with transposed convolutions and joins, and a map of classes."""
    g = Lines(IMAGE)
    a = _relu(g, _relu(g, "x", (3, 8), 3), (8, 8), 3)
    b = _relu(g, _relu(g, _pooled(g, a), (8, 16), 3), (16, 16), 3)
    c = _relu(g, _pooled(g, b), (16, 32), 3)
    for skip, channels in ((b, 16), (a, 8)):
        up = g("ConvTranspose", c, f"$[{2 * channels},{channels},2,2]", f"$[{channels}]", strides=[2, 2])
        c = _relu(
            g, _relu(g, g("Concat", up, skip, axis=1), (2 * channels, channels), 3), (channels, channels), 3
        )
    return g.model(g("Softmax", g.conv(c, (8, 3)), axis=1))


def generator_net() -> Model:
    """Return a generator and a matting decoder: transposed convolutions with what joins their epilogue."""
    g = Lines("x: [1,8,4,4]", "skip: [1,4,16,16]")
    x = g("ConvTranspose", "x", "$[8,8,2,2]", strides=[2, 2])
    x = g("Relu", g("Add", g("Mul", x, "$+[8,1,1]"), "$[8,1,1]"))
    x = g("ConvTranspose", x, "$[8,4,2,2]", "$[4]", strides=[2, 2])
    x = g("Add", x, "skip")
    x = g("LeakyRelu", g("ConvTranspose", x, "$[4,4,2,2]", strides=[2, 2]), alpha=0.2)
    return g.model(g("Tanh", g.conv(x, (4, 3), 3)))


def diffusion_unet() -> Model:
    """Return blocks of a diffusion net: time as waves, group norm and Swish before convolutions."""
    g = Lines("x: [1,8,8,8]", "t: [1,1]")
    angle = g("Mul", "t", "$[4]")
    time = g("Concat", g("Sin", angle), g("Cos", angle), axis=-1)
    time = g("Gemm", g("Swish", g("Gemm", time, "$[8,16]", "$[16]")), "$[16,16]", "$[16]")
    shift, scale = (g("Unsqueeze", v, "[2,3]") for v in g.split(time, 2, 1))

    def norm(x: str) -> str:
        return g("GroupNormalization", x, "$[8]", "$[8]", num_groups=2)

    y = g.conv(g("Swish", norm("x")), (8, 8), 3)
    y = g("Add", g("Mul", norm(y), g("Add", scale, 1.0)), shift)
    y = g("Add", g.conv(g("Swish", y), (8, 8), 3), "x")
    y = g.conv(_upsampled(g, y), (8, 8), 3)
    by_reshape = g("InstanceNormalization", g("Reshape", y, "[1,2,-1]"), "[1.0,1.0]", "[0.0,0.0]")
    back = g("Reshape", by_reshape, "[1,8,16,16]")
    return g.model(g.conv(g("Swish", g("Add", g("Mul", back, "$[8,1,1]"), "$[8,1,1]")), (8, 3), 3))


def style_transfer() -> Model:
    """Return a net with reflected borders, instance norms and an adaptive one (AdaIN)."""
    g = Lines(IMAGE, "gamma: [1,8,1,1]", "beta: [1,8,1,1]")
    y = g("Pad", g("Div", g("Sub", "x", "$[3,1,1]"), "$+[3,1,1]"), "[0,0,1,1,0,0,1,1]", mode="reflect")
    y = g("Conv", y, "$[8,3,3,3]", "$[8]")
    y = g("Relu", g("InstanceNormalization", y, "$[8]", "$[8]"))
    z = g("InstanceNormalization", g.conv(y, (8, 8), 3), "$[8]", "$[8]")
    y = g("Add", g("Add", g("Mul", z, "gamma"), "beta"), y)
    y = _relu(g, _upsampled(g, y), (8, 8), 3)
    return g.model(g("Clip", g("Mul", g("Tanh", g.conv(y, (8, 3), 3)), 0.6), 0.0, 1.0))


def deeplab() -> Model:
    """Return DeepLab's pyramid of dilated convolutions with its image branch, and a map of classes."""
    g = Lines("x: [1,8,8,8]")
    branches = [g("Relu", g.conv("x", (8, 4)))]
    for d in (1, 2, 3):
        conv = g("Conv", "x", "$[4,8,3,3]", "$[4]", pads=[d] * 4, dilations=[d, d])
        branches.append(g("Relu", conv))
    image = g("Expand", _relu(g, g("GlobalAveragePool", "x"), (8, 4)), "[1,4,8,8]")
    y = _relu(g, g("Concat", *branches, image, axis=1), (20, 8))
    y = g("Resize", g.conv(y, (8, 5)), "-", "[1.0,1.0,2.0,2.0]", mode="linear")
    return g.model(g("ArgMax", y, axis=1))


def mobilenet_v3() -> Model:
    """Return blocks of MobileNetV3 and EfficientNet: HardSwish written out and whole, squeeze and excite."""
    g = Lines(IMAGE)
    y = g.conv("x", (3, 8), 3, 2)
    y = g("Div", g("Mul", y, g("Clip", g("Add", y, 3.0), 0.0, 6.0)), 6.0)
    z = g("HardSwish", g.conv(g("HardSwish", g.conv(y, (8, 16))), (16, 16), 3, 1, 16))
    y = g("Add", g.conv(_excited(g, z, 16, "HardSigmoid"), (16, 8)), y)
    z = _swish(g, _swish(g, y, (8, 16)), (16, 16), 5, 1, 16)
    flat = g("Flatten", g("GlobalAveragePool", z))
    gate = g("Sigmoid", g("Gemm", g("Relu", g("Gemm", flat, "$[16,4]", "$[4]")), "$[4,16]", "$[16]"))
    y = g("Add", g.conv(g("Mul", z, g("Reshape", gate, "[1,16,1,1]")), (16, 8)), y)
    z = _swish(g, y, (8, 16), 3)
    y = g("Add", g.conv(z, (16, 8)), y)
    z = g("LeakyRelu", g.conv(y, (8, 8), 3, 1, 8), alpha=0.1)
    soft = g("Div", g("Clip", g("Add", g.conv(z, (8, 8)), 3.0), 0.0, 6.0), 6.0)
    return _classified(g, g("Mul", z, soft), 8)


def densenet() -> Model:
    """Return a dense block before its norms are folded, and a transition."""
    g = Lines("x: [1,8,8,8]")
    parts = ["x"]
    for i in range(3):
        joined = g("Concat", *parts, axis=1) if i else "x"
        width = 8 + 4 * i
        y = g("Relu", g("Add", g("Mul", joined, f"$+[{width},1,1]"), f"$[{width},1,1]"))
        parts.append(g.conv(_relu(g, y, (width, 8)), (8, 4), 3))
    y = g("Relu", g("Concat", *parts, axis=1))
    return _classified(g, _pooled(g, g.conv(y, (20, 8)), "AveragePool"), 8)


def inception() -> Model:
    """Return an Inception block, its stem, and SqueezeNet's fire."""
    g = Lines(IMAGE)
    y = g(
        "Concat",
        _relu(g, "x", (3, 5), 3, 2),
        g("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        axis=1,
    )
    pool = g("AveragePool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    branches = [
        _relu(g, y, (8, 4)),
        _relu(g, _relu(g, y, (8, 4)), (4, 4), 3),
        _relu(g, y, (8, 4), 5),
        _relu(g, pool, (8, 4)),
    ]
    y = g("Concat", *branches, axis=1)
    fire = _relu(g, y, (16, 4))
    y = g("Concat", _relu(g, fire, (4, 8)), _relu(g, fire, (4, 8), 3), axis=1)
    return _classified(g, _pooled(g, g("Relu", y)), 16)


def ghostnet() -> Model:
    """Return GhostNet's modules and MixNet's depthwise siblings."""
    g = Lines("x: [1,8,8,8]")
    first = _relu(g, "x", (8, 8))
    y = g("Concat", first, _relu(g, first, (8, 8), 3, 1, 8), axis=1)
    first = g.conv(y, (16, 4))
    y = g("Add", g("Concat", first, g.conv(first, (4, 4), 3, 1, 4), axis=1), "x")
    mixed = g("Add", g.conv(y, (8, 8), 3, 1, 8), g.conv(y, (8, 8), 5, 1, 8))
    return _classified(g, g("HardSwish", mixed), 8)


def residual_variants() -> Model:
    """Return ResNet-18's and ResNet-D's blocks, RepVGG's branches, and an activation before the product."""
    g = Lines("x: [1,8,8,8]")
    y = g("Relu", g("Add", g.conv(_relu(g, "x", (8, 8), 3), (8, 8), 3), "x"))
    pooled = g.conv(_pooled(g, y, "AveragePool"), (8, 16))
    y = g("Relu", g("Add", g.conv(_relu(g, y, (8, 16), 3, 2), (16, 16), 3), pooled))
    y = g("Relu", g("Add", g.conv(y, (16, 16), 3), g.conv(y, (16, 16))))
    z = g("Relu", g("Add", g("Mul", y, "$+[16,1,1]"), "$[16,1,1]"))
    y = g("Add", g.conv(z, (16, 16), 3), y)
    y = g("Elu", g("Add", g.conv(y, (16, 8)), "$[8,1,1]"))
    y = g("PRelu", g("Add", g("Mul", g.conv(y, (8, 8)), "$+[8,1,1]"), "$[8,1,1]"), "$+[8,1,1]")
    return _classified(g, g("Mish", y), 8)


def super_resolution() -> Model:
    """Return EDSR's scaled residuals and three ways to enlarge the map."""
    g = Lines(IMAGE)
    x = g.conv("x", (3, 8), 3)
    for _ in range(2):
        y = g.conv(_relu(g, x, (8, 8), 3), (8, 8), 3)
        x = g("Add", g("Mul", y, 0.1), x)
    y = g("Reshape", g.conv(x, (8, 16), 3), "[1,4,2,2,32,32]")
    y = g("Reshape", g("Transpose", y, perm=[0, 1, 4, 2, 5, 3]), "[1,4,64,64]")
    y = g("DepthToSpace", g.conv(y, (4, 12), 3), blocksize=2, mode="CRD")
    low = g("Conv", g("SpaceToDepth", y, blocksize=2), "$[4,12,1,1]", "$[4]")
    passed = g("Reshape", low, "[1,4,32,2,32,2]")
    passed = g("Reshape", g("Transpose", passed, perm=[0, 3, 5, 1, 2, 4]), "[1,16,32,32]")
    return g.model(y, _upsampled(g, _relu(g, passed, (16, 4))))


def pyramid() -> Model:
    """Return a feature pyramid's sums, HRNet's exchange of three branches, and CBAM's two attentions."""
    g = Lines("x: [1,8,16,16]")
    a = _relu(g, "x", (8, 8), 3)
    b = _relu(g, a, (8, 8), 3, 2)
    c = _relu(g, b, (8, 8), 3, 2)
    p = g("Add", _upsampled(g, c), g.conv(b, (8, 8)))
    q = g("Add", _upsampled(g, g.conv(p, (8, 8))), a)
    branches = [g.conv(v, (8, 8), 3) for v in (q, a)]
    summed = g("Relu", g("Add", g("Add", branches[0], branches[1]), q))
    mean, most = g("GlobalAveragePool", summed), g("GlobalMaxPool", summed)
    gate = g(
        "Sigmoid", g("Add", g.conv(_relu(g, mean, (8, 4)), (4, 8)), g.conv(_relu(g, most, (8, 4)), (4, 8)))
    )
    y = g("Mul", summed, gate)
    both = g("Concat", g("ReduceMean", y, "[1]"), g("ReduceMax", y, "[1]"), axis=1)
    return g.model(g("Mul", y, g("Sigmoid", g.conv(both, (2, 1), 7))))


def convnext() -> Model:
    """Return ConvNeXt's blocks, the first and the second version, in an image stored channels-last."""
    g = Lines("x: [1,32,32,3]")
    y = g("Conv", g("Transpose", "x", perm=[0, 3, 1, 2]), "$[8,3,4,4]", "$[8]", strides=[4, 4])
    for second in (False, True):
        z = g("Transpose", g.conv(y, (8, 8), 7, 1, 8), perm=[0, 2, 3, 1])
        z = g("Gelu", g.linear(g.norm(z, 8), 8, 32))
        if second:
            length = g("ReduceL2", z, "[1,2]")
            ratio = g("Div", length, g("Add", g("ReduceMean", length, "[-1]"), 0.000001))
            scaled = g("Add", g("Mul", g("Mul", z, ratio), "$[32]"), "$[32]")
            z = g.linear(g("Add", scaled, z), 32, 8)
        else:
            z = g("Mul", g.linear(z, 32, 8), "$[8]")
        y = g("Add", g("Transpose", z, perm=[0, 3, 1, 2]), y)
    z = g.norm(g("Transpose", y, perm=[0, 2, 3, 1]), 8)
    z = g("Transpose", z, perm=[0, 3, 1, 2])
    return g.model(g("Transpose", g.conv(z, (8, 4)), perm=[0, 2, 3, 1]))


def vit_exported() -> Model:
    """Return ViT as timm writes it: class token, merged query, key and value by index, scaled layers."""
    g = Lines(IMAGE)
    patches = g("Conv", "x", "$[16,3,8,8]", "$[16]", strides=[8, 8])
    x = g("Transpose", g("Reshape", patches, "[1,16,16]"), perm=[0, 2, 1])
    x = g("Add", g("Concat", "$[1,1,16]", x, axis=1), "$[1,17,16]")
    for _ in range(2):
        merged = g("Reshape", g.linear(g.norm(x, 16), 16, 48), "[1,17,3,4,4]")
        turned = g("Transpose", merged, perm=[2, 0, 3, 1, 4])
        q, k, v = (g("Gather", turned, i, axis=0) for i in range(3))
        scores = g("MatMul", g("Mul", q, 0.5), g("Transpose", k, perm=[0, 1, 3, 2]))
        mixed = g("MatMul", g("Softmax", scores, axis=-1), v)
        joined = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), "[1,17,16]")
        x = g("Add", x, g("Mul", g.linear(joined, 16, 16), "$[16]"))
        x = g("Add", x, g.linear(g("Gelu", g.linear(g.norm(x, 16), 16, 64)), 64, 16))
    token = g("Gather", g.norm(x, 16), 0, axis=1)
    return g.model(g("Gemm", token, "$[16,10]", "$[10]"))


def swin() -> Model:
    """Return two Swin blocks (plain and shifted windows, with their tables) and a merging of patches."""
    g = Lines("x: [1,8,8,8]")
    x = "x"
    for shifted in (False, True):
        y = g.norm(x, 8)
        if shifted:
            y = g("Concat", g("Slice", y, "[2]", "[8]", "[1]"), g("Slice", y, "[0]", "[2]", "[1]"), axis=1)
        windows = g("Transpose", g("Reshape", y, "[1,2,4,2,4,8]"), perm=[0, 1, 3, 2, 4, 5])
        windows = g("Reshape", windows, "[4,16,8]")
        q, k, v = (
            g("Transpose", g("Reshape", g.linear(windows, 8, 8), "[4,16,2,4]"), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        scores = g("MatMul", g("Mul", q, 0.5), g("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g("Add", scores, "$[1,2,16,16]")
        if shifted:
            masked = g("Add", g("Reshape", scores, "[1,4,2,16,16]"), "$[1,4,1,16,16]")
            scores = g("Reshape", masked, "[4,2,16,16]")
        mixed = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        y = g.linear(g("Reshape", mixed, "[4,16,8]"), 8, 8)
        back = g("Transpose", g("Reshape", y, "[1,2,2,4,4,8]"), perm=[0, 1, 3, 2, 4, 5])
        x = g("Add", g("Reshape", back, "[1,8,8,8]"), x)
    quarters = [g("Slice", x, f"[{i},{j}]", "[8,8]", "[1,2]", "[2,2]") for i in range(2) for j in range(2)]
    merged = g.norm(g("Concat", *quarters, axis=-1), 32)
    pooled = g("ReduceMean", g("MatMul", merged, "$[32,16]"), "[1,2]", keepdims=0)
    return g.model(g("Gemm", pooled, "$[16,10]", "$[10]"))


def light_transformers() -> Model:
    """Return a diffusion transformer's modulated block, efficient attention and a patch norm (PVT)."""
    g = Lines(IMAGE, "t: [1,16]")
    patches = g("Conv", "x", "$[16,3,8,8]", "$[16]", strides=[8, 8])
    x = g.norm(g("Transpose", g("Reshape", patches, "[1,16,16]"), perm=[0, 2, 1]), 16)
    shift, scale, gate = (g("Unsqueeze", v, "[1]") for v in g.split(g("Gemm", "t", "$[16,48]"), 3, 1))
    n = g("Add", g("Mul", g.norm(x, 16), g("Add", scale, 1.0)), shift)
    q, k, v = (g("MatMul", n, "$[16,16]") for _ in range(3))
    context = g("MatMul", g("Transpose", g("Softmax", k, axis=1), perm=[0, 2, 1]), v)
    y = g("MatMul", g("Softmax", q, axis=-1), context)
    x = g("Add", g("Mul", y, gate), x)
    wide = g.split(g.linear(x, 16, 64), 2, -1)
    x = g("Add", g.linear(g("Mul", g("Gelu", wide[0]), wide[1]), 32, 16), x)
    hidden = g("Tanh", g("Gemm", g("ReduceMean", x, "[1]", keepdims=0), "$[16,16]", "$[16]"))
    return g.model(g("Add", g("Gemm", hidden, "$[16,16]", "$[16]"), hidden))


def integer_resnet() -> Model:
    """Return a residual block with Q/DQ pairs, one DQ a reader, and a float head."""
    g = Lines("x: [1,8,8,8]")

    def real(q: str, scale: float = 0.1) -> str:
        return g("DequantizeLinear", q, scale)

    def rounded(x: str, scale: float = 0.1) -> str:
        return g("QuantizeLinear", x, scale)

    def conv(q: str, size: int) -> str:
        weight = real(rounded(f"$[8,8,{size},{size}]", 0.02), 0.02)
        return g("Conv", real(q), weight, "$[8]", pads=[size // 2] * 4)

    x = rounded("x")
    y = rounded(g("Relu", conv(x, 3)))
    y = rounded(g("Relu", g("Add", conv(y, 3), real(x))))
    y = rounded(_pooled(g, real(y)))
    z = rounded(g("Add", real(rounded(conv(y, 1))), real(y)))
    z = rounded(g("Swish", real(z)))
    y = rounded(g("Concat", real(z), real(rounded(conv(y, 3))), axis=1), 0.2)
    y = rounded(g("Reshape", real(y, 0.2), "[1,256]"), 0.2)
    y = rounded(g("Relu", g("Gemm", real(y, 0.2), "$[256,8]", "$[8]")))
    scores = g("MatMul", real(rounded(real(y), 0.2), 0.2), "$[8,4]")
    return g.model(scores, g("MatMul", g("Tanh", scores), real(rounded("$[4,4]", 0.02), 0.02)))


VISION_NETS: Mapping[str, Callable[[], Model]] = {
    function.__name__: function
    for function in (
        yolov8_head,
        yolov5,
        anchor_free_heads,
        shufflenet,
        unet,
        generator_net,
        diffusion_unet,
        style_transfer,
        deeplab,
        mobilenet_v3,
        densenet,
        inception,
        ghostnet,
        residual_variants,
        super_resolution,
        pyramid,
        convnext,
        vit_exported,
        swin,
        light_transformers,
        integer_resnet,
    )
}
