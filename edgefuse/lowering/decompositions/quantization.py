"""Quantized operators by float arithmetic, with the same rounding and the same limits.

Where a target has no integer arithmetic, a model that is already quantized keeps its meaning: the tensor
between QuantizeLinear and DequantizeLinear becomes whole numbers in a float tensor.
"""

from __future__ import annotations

import numpy as np

from edgefuse.graph import DataType, Node, Value, attribute, constant, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition
from edgefuse.lowering.reader import refusal

_RANGES = {
    DataType.INT8: (-128, 127),
    DataType.UINT8: (0, 255),
    DataType.INT16: (-32768, 32767),
    DataType.UINT16: (0, 65535),
    DataType.INT4: (-8, 7),
    DataType.UINT4: (0, 15),
}


def _along_axis(node: Node, make: Builder, parameter: Value, x: Value) -> Value:
    """Return a scale or zero point shaped to broadcast against `x` along the node's axis."""
    if attribute(node, "block_size", 0):
        raise refusal(node, "it is quantized in blocks")
    if parameter.shape is None or len(parameter.shape) == 0:
        return parameter
    rank = make.rank(x)
    axis = attribute(node, "axis", 1) % rank if rank else 0
    shape = [1] * rank
    if rank:
        shape[axis] = -1
    array = constant(parameter)
    if array is not None:
        return make.constant(array.reshape(shape) if array.size > 1 else array.reshape(()))
    return make.op("Reshape", parameter, make.integers(*shape), dtype=make.dtype(parameter))


def _quantize(node: Node, make: Builder) -> list[Value]:
    """clip(round_half_even(x / scale) + zero_point), carried in float and cast to the integer type."""
    x = make.input(0)
    zero = input_value(node, 2)
    named = attribute(node, "output_dtype", 0)
    to = zero.dtype if zero is not None else (DataType(named) if named else DataType.UINT8)
    if to not in _RANGES or to is None:
        raise refusal(node, f"it quantizes to {to.name if to is not None else 'an unknown type'}")
    low, high = _RANGES[to]
    scale = _along_axis(node, make, make.input(1), x)
    x = make.cast(x, DataType.FLOAT)
    scaled = make.op("Div", x, make.cast(scale, DataType.FLOAT), like=x)
    whole = make.op("Round", scaled, like=x)
    if zero is not None and not _all_zero(zero):
        offset = make.cast(_along_axis(node, make, zero, x), DataType.FLOAT)
        whole = make.op("Add", whole, offset, like=x)
    bounds = (make.constant(np.float32(low)), make.constant(np.float32(high)))
    return [make.op("Cast", make.op("Clip", whole, *bounds, like=x), like=node.outputs[0], to=int(to))]


def _all_zero(value: Value) -> bool:
    array = constant(value)
    return array is not None and not array.any()


def _whole_float(make: Builder, q: Value) -> Value:
    """Return the integers `q` as floats; a cast that a quantizer of ours just made is stepped over."""
    producer = q.producer()
    if producer is not None and producer.op_type == "Cast" and producer.inputs[0] is not None:
        source = producer.inputs[0]
        before = source.producer()
        # Clip to the integer type's own range after Round: the cast changes no value.
        if before is not None and before.op_type == "Clip" and _is_rounded(before.inputs[0]):
            return source
    return make.cast(q, DataType.FLOAT)


def _is_rounded(value: Value | None) -> bool:
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Add":
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    return producer is not None and producer.op_type == "Round"


def _dequantize(node: Node, make: Builder) -> list[Value]:
    """(q - zero_point) * scale."""
    q = make.input(0)
    scale = _along_axis(node, make, make.input(1), q)
    result = _whole_float(make, q)
    zero = input_value(node, 2)
    if zero is not None and not _all_zero(zero):
        offset = make.cast(_along_axis(node, make, zero, q), DataType.FLOAT)
        result = make.op("Sub", result, offset, like=node.outputs[0])
    result = make.op("Mul", result, make.cast(scale, DataType.FLOAT), like=node.outputs[0])
    return [make.cast(result, make.dtype(make.input(1)))]


def _dequantized(make: Builder, q: Value, scale: Value, zero: Value, axis: int | None) -> Value:
    # a scalar scale leaves the axis unread
    return make.op("DequantizeLinear", q, scale, zero, dtype=DataType.FLOAT, axis=axis or 0)


def _qlinear_conv(node: Node, make: Builder) -> list[Value]:
    """Dequantize both, convolve in float, add the bias at its scale, quantize."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (make.input(i) for i in range(8))
    per_channel = 0 if w_scale.shape is not None and len(w_scale.shape) == 1 else None
    left = _dequantized(make, x, x_scale, x_zero, None)
    right = _dequantized(make, w, w_scale, w_zero, per_channel)
    inputs = [left, right]
    bias = input_value(node, 8)
    if bias is not None:
        step = make.op("Mul", x_scale, w_scale, dtype=DataType.FLOAT)
        inputs.append(make.op("Mul", make.cast(bias, DataType.FLOAT), step, dtype=DataType.FLOAT))
    kept = {name: attribute(node, name) for name in node.attributes}
    wide = make.op("Conv", *inputs, dtype=DataType.FLOAT, **kept)
    wide.shape = node.outputs[0].shape
    return [make.op("QuantizeLinear", wide, y_scale, y_zero, like=node.outputs[0])]


def _qlinear_matmul(node: Node, make: Builder) -> list[Value]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (make.input(i) for i in range(8))
    left = _dequantized(make, a, a_scale, a_zero, None)
    columns = make.rank(b) - 1 if b_scale.shape is not None and len(b_scale.shape) == 1 else None
    right = _dequantized(make, b, b_scale, b_zero, columns)
    wide = make.op("MatMul", left, right, dtype=DataType.FLOAT)
    wide.shape = node.outputs[0].shape
    return [make.op("QuantizeLinear", wide, y_scale, y_zero, like=node.outputs[0])]


def _integer_product(node: Node, make: Builder) -> list[Value]:
    """MatMulInteger, ConvInteger in float32: exact while the sums stay below 2^24."""
    sides = []
    for index in (0, 1):
        side = make.cast(make.input(index), DataType.FLOAT)
        zero = input_value(node, index + 2)
        if zero is not None and not _all_zero(zero):
            if zero.shape is not None and len(zero.shape) > 0 and index == 1:
                raise refusal(node, "its zero points are per channel")
            side = make.op("Sub", side, make.cast(zero, DataType.FLOAT), like=side)
        sides.append(side)
    kept = {name: attribute(node, name) for name in node.attributes}
    wide = make.op(node.op_type.removesuffix("Integer"), *sides, dtype=DataType.FLOAT, **kept)
    wide.shape = node.outputs[0].shape
    return [make.op("Cast", wide, like=node.outputs[0], to=int(DataType.INT32))]


DECOMPOSITIONS = (
    Decomposition("QuantizeLinear", ("Div", "Round", "Add", "Clip", "Cast"), _quantize),
    Decomposition("DequantizeLinear", ("Cast", "Sub", "Mul"), _dequantize),
    Decomposition("QLinearConv", ("DequantizeLinear", "Mul", "Conv", "QuantizeLinear"), _qlinear_conv),
    Decomposition("QLinearMatMul", ("DequantizeLinear", "MatMul", "QuantizeLinear"), _qlinear_matmul),
    Decomposition("MatMulInteger", ("Cast", "Sub", "MatMul"), _integer_product),
    Decomposition("ConvInteger", ("Cast", "Sub", "Conv"), _integer_product),
)
