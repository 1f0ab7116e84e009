"""FLOPs and MACs of the operators that multiply tensors, resample, transform or have a body."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from edgefuse.analysis.flops import Shapes, UnknownCostError, constant_number, node_cost
from edgefuse.graph import Graph, Node, attribute, input_value

__all__ = ["CONTRACTIONS", "Work"]

# (flops, macs); flops include 2 x macs.
Work: TypeAlias = tuple[int, int]


def _products(macs: int, more: int = 0) -> Work:
    return 2 * macs + more, macs


def _conv(node: Node, shapes: Shapes) -> Work:
    """Each output element is a sum over its group's input channels and the kernel: weight [O, I/g, k...]."""
    output = shapes.elements(node.outputs[0])
    weight = shapes.of(input_value(node, 1))
    bias = output if input_value(node, 2) is not None and node.op_type == "Conv" else 0
    return _products(output * math.prod(weight[1:]), bias)


def _qlinear_conv(node: Node, shapes: Shapes) -> Work:
    """Inputs are x, its scale and zero point, then the weight at index 3; the bias is at index 8."""
    output = shapes.elements(node.outputs[0])
    bias = output if input_value(node, 8) is not None else 0
    # Requantization: scale, round, add the zero point, clip at two ends.
    return _products(output * math.prod(shapes.of(input_value(node, 3))[1:]), bias + 5 * output)


def _conv_transpose(node: Node, shapes: Shapes) -> Work:
    """Each input element spreads over its group's output channels and the kernel: weight [I, O/g, k...]."""
    spread = math.prod(shapes.of(input_value(node, 1))[1:])
    bias = shapes.elements(node.outputs[0]) if input_value(node, 2) is not None else 0
    return _products(shapes.elements(input_value(node, 0)) * spread, bias)


def _deform_conv(node: Node, shapes: Shapes) -> Work:
    """A convolution whose every tap is first interpolated from 4 neighbours (4 MACs), and masked (1)."""
    output = shapes.of(node.outputs[0])
    weight = shapes.of(input_value(node, 1))
    macs = math.prod(output) * math.prod(weight[1:])
    channels = shapes.of(input_value(node, 0))[1]
    taps = output[0] * math.prod(output[2:]) * channels * math.prod(weight[2:])
    mask = taps if input_value(node, 4) is not None else 0
    bias = math.prod(output) if input_value(node, 3) is not None else 0
    return _products(macs + 4 * taps, mask + bias)


def _causal_conv(node: Node, shapes: Shapes) -> Work:
    """A depthwise 1-D convolution: weight [C, 1, k]."""
    output = shapes.elements(node.outputs[0])
    bias = output if input_value(node, 2) is not None else 0
    activation = 5 * output if attribute(node, "activation", "none") in ("silu", "swish") else 0
    return _products(output * shapes.of(input_value(node, 1))[-1], bias + activation)


def _gemm(node: Node, shapes: Shapes) -> Work:
    inner = shapes.of(input_value(node, 0))[0 if attribute(node, "transA", 0) else 1]
    output = shapes.elements(node.outputs[0])
    return _products(output * inner, output if input_value(node, 2) is not None else 0)


def _matmul(node: Node, shapes: Shapes) -> Work:
    return _products(shapes.elements(node.outputs[0]) * shapes.of(input_value(node, 0))[-1])


def _qlinear_matmul(node: Node, shapes: Shapes) -> Work:
    output = shapes.elements(node.outputs[0])
    return _products(output * shapes.of(input_value(node, 0))[-1], 5 * output)


def _einsum(node: Node, shapes: Shapes) -> Work:
    """A product over all labels for each further operand; one operand is a sum over its elements."""
    equation = str(attribute(node, "equation", "")).replace(" ", "").split("->")[0]
    sizes: dict[str, int] = {}
    for term, value in zip(equation.split(","), node.inputs, strict=True):
        shape = shapes.of(value)
        if "..." in term:
            # The dots stand for what the letters leave; broadcast sizes are aligned from the right.
            before, after = term.split("...")
            count = len(shape) - len(before) - len(after)
            labels = [*before, *(f".{count - k}" for k in range(count)), *after]
        else:
            labels = list(term)
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    volume = math.prod(sizes.values())
    if len(node.inputs) < 2:
        return volume, 0
    return _products(volume * (len(node.inputs) - 1))


# Gates, and elementwise FLOPs an element of the hidden state: activations (sigmoid 4, tanh 1) and the update.
_RECURRENT = {"RNN": (1, 1), "GRU": (3, 14), "LSTM": (4, 18)}


def _recurrent(node: Node, shapes: Shapes) -> Work:
    """X is [T, N, I] (or [N, T, I]), W is [D, G*H, I], R is [D, G*H, H]."""
    gates, elementwise = _RECURRENT[node.op_type]
    length, batch, inputs = shapes.of(input_value(node, 0))
    directions, rows, _ = shapes.of(input_value(node, 1))
    hidden = rows // gates
    steps = length * batch * directions
    bias = 2 * rows * steps if input_value(node, 3) is not None else 0
    # The two partial products of every gate are added.
    return _products(steps * rows * (inputs + hidden), bias + steps * (rows + elementwise * hidden))


def _attention(node: Node, shapes: Shapes) -> Work:
    """Q K^T, softmax and the product with V; grouped heads repeat K and V."""
    query, key, value = (shapes.of(input_value(node, index)) for index in range(3))
    if len(query) == 4:
        batch, heads, rows, depth = query
        past_axis, value_depth = 2, value[3]
    else:
        batch, rows, width = query
        heads = int(attribute(node, "q_num_heads", 0))
        kv_heads = int(attribute(node, "kv_num_heads", 0))
        if heads < 1 or kv_heads < 1:
            raise UnknownCostError("Attention with 3-D inputs does not say how many heads it has")
        depth, value_depth, past_axis = width // heads, value[2] // kv_heads, 1
    past = input_value(node, 4)
    columns = key[past_axis] + (shapes.of(past)[2] if past is not None else 0)
    scores = batch * heads * rows * columns
    mask = scores if input_value(node, 3) is not None else 0
    return _products(scores * (depth + value_depth), 6 * scores + mask)


def _linear_attention(node: Node, shapes: Shapes) -> Work:
    """The recurrent form: an outer product into the state and a product with it, for each token and head."""
    batch, tokens, width = shapes.of(input_value(node, 0))
    heads, kv_heads = int(attribute(node, "q_num_heads", 0)), int(attribute(node, "kv_num_heads", 0))
    if heads < 1 or kv_heads < 1:
        raise UnknownCostError("LinearAttention does not say how many heads it has")
    state = (width // heads) * (shapes.of(input_value(node, 2))[2] // kv_heads)
    rule = str(attribute(node, "update_rule", "gated_delta"))
    macs = heads * state + kv_heads * state * (2 if "delta" in rule else 1)
    return _products(batch * tokens * macs, batch * tokens * kv_heads * state * ("gated" in rule))


def _resize(node: Node, shapes: Shapes) -> Work:
    """nearest copies; linear weighs 2 neighbours an axis that changes, cubic 4 (a MAC each)."""
    taps = {"linear": 2, "bilinear": 2, "cubic": 4}.get(str(attribute(node, "mode", "nearest")), 0)
    if not taps:
        return 0, 0
    source, output = shapes.of(input_value(node, 0)), shapes.of(node.outputs[0])
    axes = sum(a != b for a, b in zip(source, output, strict=True))
    return _products(math.prod(output) * taps**axes if axes else 0)


def _roi_align(node: Node, shapes: Shapes) -> Work:
    """Each output element is the mean of ratio x ratio samples of 4 neighbours."""
    ratio = int(attribute(node, "sampling_ratio", 0))
    if ratio < 1:
        raise UnknownCostError("RoiAlign with sampling_ratio 0 samples by the size of each box")
    output = shapes.elements(node.outputs[0])
    return _products(output * ratio * ratio * 4, output)


def _lrn(node: Node, shapes: Shapes) -> Work:
    """Square, sum over `size` channels, scale and add, power, divide."""
    return (int(attribute(node, "size", 1)) + 5) * shapes.elements(input_value(node, 0)), 0


def _det(node: Node, shapes: Shapes) -> Work:
    """LU decomposition: n^3 / 3 MACs a matrix."""
    shape = shapes.of(input_value(node, 0))
    return _products(math.prod(shape[:-2]) * shape[-1] ** 3 // 3)


def _fourier_flops(length: int) -> int:
    # The usual count of a radix-2 transform of n complex points (Cooley-Tukey): 5 n log2 n.
    return math.ceil(5 * length * math.log2(max(length, 2)))


def _dft(node: Node, shapes: Shapes) -> Work:
    output = shapes.of(node.outputs[0])
    axis = constant_number(node, 2)
    axis = int(attribute(node, "axis", 1)) if axis is None else axis
    length = max(output[axis], shapes.of(input_value(node, 0))[axis])
    return math.prod(output[:-1]) // max(output[axis], 1) * _fourier_flops(length), 0


def _stft(node: Node, shapes: Shapes) -> Work:
    batch, frames, bins = shapes.of(node.outputs[0])[:3]
    window = input_value(node, 2)
    length = constant_number(node, 3) or (shapes.elements(window) if window is not None else 2 * (bins - 1))
    return batch * frames * (_fourier_flops(length) + (length if window is not None else 0)), 0


def _if(node: Node, shapes: Shapes) -> Work:
    """The dearer branch: which one runs is known on the device only."""
    branches = [attribute(node, name) for name in ("then_branch", "else_branch")]
    return max(_body(graph, shapes) for graph in branches if graph is not None)


def _loop(node: Node, shapes: Shapes) -> Work:
    trips = constant_number(node, 0)
    if trips is None:
        raise UnknownCostError("how often Loop runs is not a constant")
    return _times(_body(attribute(node, "body"), shapes), trips)


def _scan(node: Node, shapes: Shapes) -> Work:
    scanned = int(attribute(node, "num_scan_inputs", 1))
    axes = attribute(node, "scan_input_axes", (0,) * scanned)
    trips = shapes.of(node.inputs[len(node.inputs) - scanned])[axes[0]]
    return _times(_body(attribute(node, "body"), shapes), trips)


def _sequence_map(node: Node, shapes: Shapes) -> Work:
    raise UnknownCostError("how many elements SequenceMap runs on is known on the device only")


def _body(graph: Graph, shapes: Shapes) -> Work:
    costs = [node_cost(node, shapes.binding) for node in graph]
    for cost in costs:
        if cost.unknown:
            raise UnknownCostError(f"in the body: {cost.unknown}")
    return sum(cost.flops for cost in costs), sum(cost.macs for cost in costs)


def _times(work: Work, count: int) -> Work:
    return work[0] * count, work[1] * count


CONTRACTIONS: Mapping[str, Callable[[Node, Shapes], Work]] = {
    "Attention": _attention,
    "CausalConvWithState": _causal_conv,
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _conv_transpose,
    "DFT": _dft,
    "DeformConv": _deform_conv,
    "Det": _det,
    "Einsum": _einsum,
    "GRU": _recurrent,
    "Gemm": _gemm,
    "If": _if,
    "LRN": _lrn,
    "LSTM": _recurrent,
    "LinearAttention": _linear_attention,
    "Loop": _loop,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "RNN": _recurrent,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "STFT": _stft,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
    "Upsample": _resize,
}
