"""Which channels of a graph can only be removed together: one unit each, followed through every operator.

Each channel of each tensor that a convolution or matrix product writes gets a number; operators join numbers
(an Add joins channel c of one branch with channel c of the other, a depthwise convolution its input with its
output), and those that are joined are one unit. Whatever is not understood pins the units that it reads: they
stay, and the reason names the node. Every constant whose length follows channels is listed beside them, so
that removal needs to know no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgefuse.fusion import POINTWISE
from edgefuse.graph import Model, Node, Value, attribute, constant, dims, input_value, source_name
from edgefuse.quant.flattened_axis import flattened_axis

__all__ = ["ChannelUnits", "Channels", "find_units"]

_SAME = POINTWISE | {"Cast", "Dropout", "Identity", "Where"}
_POOLS = frozenset(["AveragePool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "LpPool", "MaxPool"])
_REDUCE = frozenset(
    ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]
)
_ALONG = frozenset(["Hardmax", "LogSoftmax", "LpNormalization", "Softmax"])
_WHOLE = "mixes channels in a way that is not followed"


@dataclass(frozen=True, slots=True)
class Channels:
    """The channel axis of a tensor (from 0), and the unit of each position on it, int64 [size]."""

    axis: int
    units: np.ndarray


@dataclass(slots=True)
class ChannelUnits:
    """What `find_units` found.

    values: by tensor name.  pinned: unit -> why it must stay.  layer: unit -> node that writes it first; the
    units of one node are what a share is taken of.  writers, readers: (node, unit of each output / input
    channel) of convolutions and matrix products.  slices: (node, input, axis of the constant, units): a
    constant that loses what its units lose.  counts: (node, input, position, units): a number in a constant
    that is how many of the units stay.  groups: (node, units): `group` of a depthwise convolution likewise.
    """

    values: dict[str, Channels] = field(default_factory=dict)
    pinned: dict[int, str] = field(default_factory=dict)
    layer: dict[int, str] = field(default_factory=dict)
    writers: list[tuple[Node, np.ndarray]] = field(default_factory=list)
    readers: list[tuple[Node, np.ndarray]] = field(default_factory=list)
    slices: list[tuple[Node, int, int, np.ndarray]] = field(default_factory=list)
    counts: list[tuple[Node, int, int, np.ndarray]] = field(default_factory=list)
    groups: list[tuple[Node, np.ndarray]] = field(default_factory=list)


def find_units(model: Model) -> ChannelUnits:
    """Return the units of the model's channels, with every pin and every constant that follows them.

    Followed: Conv (grouped and depthwise too), ConvTranspose, Gemm, MatMul with constant weights, BatchNorm,
    InstanceNorm, pointwise operators, pooling, Add and Mul of branches, reductions over other axes, Concat,
    Split, Slice, Pad, Resize, Transpose, Flatten, Reshape that keeps or flattens channels, Squeeze,
    Unsqueeze.
    """
    return _Finder(model).run()


class _Finder:
    def __init__(self, model: Model) -> None:
        self._graph = model.graph
        self._found = ChannelUnits()
        self._values: dict[int, Channels] = {}
        self._names: dict[int, str] = {}
        self._parent: list[int] = []
        self._maker: list[str] = []
        self._pins: list[tuple[np.ndarray, str]] = []
        self._ways: dict[str, Callable[[Node], None]] = {
            "Conv": self._conv,
            "ConvTranspose": self._conv_transpose,
            "Gemm": self._gemm,
            "MatMul": self._matmul,
            "BatchNormalization": self._per_channel,
            "InstanceNormalization": self._per_channel,
            "LayerNormalization": self._norm,
            "RMSNormalization": self._norm,
            "Transpose": self._transpose,
            "Concat": self._concat,
            "Split": self._split,
            "Slice": self._slice,
            "Pad": self._pad,
            "Resize": self._resize,
            "Flatten": self._reshape,
            "Reshape": self._reshape,
            "Squeeze": self._squeeze,
            "Unsqueeze": self._squeeze,
            **dict.fromkeys(_SAME, self._pointwise),
            **dict.fromkeys(_POOLS, self._pool),
            **dict.fromkeys(_REDUCE, self._reduce),
            **dict.fromkeys(_ALONG, self._along),
        }

    def run(self) -> ChannelUnits:
        for node in self._graph:
            way = self._ways.get(node.op_type, self._unknown)
            (self._unknown if node.domain not in ("", "ai.onnx") else way)(node)
        for node in self._graph:
            for value in node.outputs:
                self._check_uses(value)
        return self._resolved()

    # Numbers and pins.

    def _fresh(self, count: int, node: Node) -> np.ndarray:
        first = len(self._parent)
        self._parent.extend(range(first, first + count))
        self._maker.extend([node.name or ""] * count)
        return np.arange(first, first + count)

    def _find(self, unit: int) -> int:
        parent = self._parent
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = parent[unit]
        return unit

    def _join(self, one: np.ndarray, two: np.ndarray) -> None:
        for a, b in zip(one.tolist(), two.tolist(), strict=True):
            low, high = sorted((self._find(a), self._find(b)))
            self._parent[high] = low

    def _pin(self, units: np.ndarray, node: Node, why: str) -> None:
        self._pins.append((units, f"{source_name(node)} ({node.op_type}) {why}"))

    def _give(self, value: Value, axis: int, units: np.ndarray) -> None:
        shape = dims(value)
        assert shape is not None
        assert shape[axis] == len(units), (value.name, shape, axis, len(units))
        self._values[id(value)] = Channels(axis, units)
        self._names[id(value)] = value.name or ""

    def _of(self, value: Value | None) -> Channels | None:
        return None if value is None else self._values.get(id(value))

    def _pin_reads(self, node: Node, why: str) -> None:
        for value in node.inputs:
            held = self._of(value)
            if held is not None:
                self._pin(held.units, node, why)

    def _unknown(self, node: Node) -> None:
        self._pin_reads(node, _WHOLE)

    def _check_uses(self, value: Value) -> None:
        held = self._of(value)
        producer = value.producer()
        if held is None or producer is None:
            return
        if value.is_graph_output():
            self._pin(held.units, producer, f"writes {value.name!r}, an output of the model")
        for use in tuple(value.uses()):
            if use.node.graph is not self._graph:
                self._pin(held.units, use.node, "reads them inside a branch or loop")

    def _resolved(self) -> ChannelUnits:
        found = self._found
        roots = np.array([self._find(i) for i in range(len(self._parent))], dtype=np.int64)
        for key, held in self._values.items():
            found.values[self._names[key]] = Channels(held.axis, roots[held.units])
        for units, why in self._pins:
            for root in np.unique(roots[units]).tolist():
                found.pinned.setdefault(root, why)
        found.layer = {root: self._maker[root] for root in np.unique(roots).tolist()}
        found.writers = [(n, roots[u]) for n, u in found.writers]
        found.readers = [(n, roots[u]) for n, u in found.readers]
        found.slices = [(n, i, a, roots[u]) for n, i, a, u in found.slices]
        found.counts = [(n, i, a, roots[u]) for n, i, a, u in found.counts]
        found.groups = [(n, roots[u]) for n, u in found.groups]
        return found

    # Layers with weights.

    def _written(self, node: Node, units: np.ndarray, axis: int, bias: int | None) -> None:
        """Give the output its units; a bias at input `bias` follows them."""
        value = node.outputs[0]
        shape = dims(value)
        if shape is None or shape[axis] != len(units):
            self._pin(units, node, "has an output of unknown size")
            return
        self._give(value, axis % len(shape), units)
        self._found.writers.append((node, units))
        held = input_value(node, bias) if bias is not None else None
        if held is None:
            return
        array = constant(held)
        if array is None:
            self._pin(units, node, "has a computed bias")
        elif array.size != 1 and array.shape[-1] == len(units):
            self._found.slices.append((node, 2, array.ndim - 1, units))

    def _product(self, node: Node, into: int, out: int, axis: int, bias: int | None) -> None:
        """Take a layer whose 2-D (or conv) weight holds inputs on axis `into` and outputs on axis `out`."""
        weight, value = constant(node.inputs[1]), node.inputs[0]
        assert weight is not None
        read = self._of(value)
        shape = dims(value)
        if read is not None and shape is not None:
            if read.axis != axis % len(shape):
                self._pin(read.units, node, "reads them as rows")
            else:
                self._found.slices.append((node, 1, into, read.units))
                self._found.readers.append((node, read.units))
        units = self._fresh(weight.shape[out], node)
        self._found.slices.append((node, 1, out, units))
        self._written(node, units, axis, bias)

    def _conv(self, node: Node) -> None:
        weight, read = constant(node.inputs[1]), self._of(node.inputs[0])
        groups = int(attribute(node, "group", 1))
        if weight is None or weight.ndim < 3:
            self._unknown(node)
        elif groups == 1:
            self._product(node, 1, 0, 1, 2)
        elif read is None or read.axis != 1:
            self._pin_reads(node, "reads them as positions")
            units = self._fresh(weight.shape[0], node)
            self._pin(units, node, "is grouped and reads channels that are not followed")
            self._written(node, units, 1, 2)
        elif weight.shape[1] == 1:
            # Multiplier m: outputs c*m .. c*m + m-1 read input c, and go with it.
            units = np.repeat(read.units, weight.shape[0] // groups)
            self._found.slices.append((node, 1, 0, units))
            self._found.groups.append((node, read.units))
            self._found.readers.append((node, read.units))
            self._written(node, units, 1, 2)
        else:
            self._grouped(node, weight, read.units, groups)

    def _grouped(self, node: Node, weight: np.ndarray, read: np.ndarray, groups: int) -> None:
        """Join equal places of all groups: each group must lose as many."""
        units = self._fresh(weight.shape[0], node)
        for held in (read, units):
            rows = held.reshape(groups, -1)
            for row in rows[1:]:
                self._join(rows[0], row)
        self._found.slices.append((node, 1, 0, units))
        self._found.slices.append((node, 1, 1, read.reshape(groups, -1)[0]))
        self._found.readers.append((node, read))
        self._written(node, units, 1, 2)

    def _conv_transpose(self, node: Node) -> None:
        weight = constant(node.inputs[1])
        if weight is None or int(attribute(node, "group", 1)) != 1:
            self._unknown(node)
        else:
            self._product(node, 0, 1, 1, 2)

    def _gemm(self, node: Node) -> None:
        weight = constant(node.inputs[1])
        if weight is None or weight.ndim != 2 or attribute(node, "transA", 0):
            self._unknown(node)
            return
        turned = bool(attribute(node, "transB", 0))
        self._product(node, 1 if turned else 0, 0 if turned else 1, 1, 2)

    def _matmul(self, node: Node) -> None:
        weight = constant(node.inputs[1])
        if weight is None or weight.ndim != 2:
            self._unknown(node)
        else:
            self._product(node, 0, 1, -1, None)

    def _per_channel(self, node: Node) -> None:
        read = self._of(node.inputs[0])
        if read is None:
            self._pin_reads(node, _WHOLE)
            return
        arrays = [constant(v) for v in node.inputs[1:]]
        if read.axis != 1 or any(a is None or a.size != len(read.units) for a in arrays):
            self._unknown(node)
            return
        for index in range(1, len(node.inputs)):
            self._found.slices.append((node, index, 0, read.units))
        self._give(node.outputs[0], 1, read.units)

    # Operators without weights.

    def _pointwise(self, node: Node) -> None:
        """Join operands of one channel axis; constants of that length follow."""
        out = dims(node.outputs[0])
        running = [(v, self._of(v)) for v in node.inputs if v is not None and constant(v) is None]
        tracked = [(v, h) for v, h in running if h is not None]
        if not tracked:
            return
        places = {h.axis - len(dims(v) or ()) for v, h in tracked}
        if out is None or len(places) != 1:
            self._pin_reads(node, "joins tensors whose channels lie on different axes")
            return
        place = places.pop()
        size = out[place]
        if not isinstance(size, int):
            self._pin_reads(node, "has an output of unknown size")
            return
        wide = [h.units for _, h in tracked if len(h.units) == size]
        for value, held in running:
            self._check_operand(node, value, held, place, wide)
        if not wide:
            return
        for units in wide[1:]:
            self._join(wide[0], units)
        for index, operand in enumerate(node.inputs):
            array = constant(operand)
            if array is not None and array.ndim >= -place and array.shape[place] == size and size > 1:
                self._found.slices.append((node, index, array.ndim + place, wide[0]))
        self._give(node.outputs[0], len(out) + place, wide[0])

    def _check_operand(
        self, node: Node, value: Value, held: Channels | None, place: int, wide: Sequence[np.ndarray]
    ) -> None:
        """Pin where an operand is stretched along channels, or carries channels that are not followed."""
        shape = dims(value)
        if held is not None:
            if not any(held.units is units for units in wide):
                self._pin(held.units, node, "stretches it over all channels")
        elif shape is None or (len(shape) >= -place and shape[place] != 1):
            for units in wide:
                self._pin(units, node, f"joins them with {value.name!r}, whose channels are not followed")

    def _pass(self, node: Node, axis: int | None = None) -> None:
        """Give the first output the units of the first input."""
        read = self._of(node.inputs[0])
        if read is not None:
            self._give(node.outputs[0], read.axis if axis is None else axis, read.units)

    def _pool(self, node: Node) -> None:
        read = self._of(node.inputs[0])
        indices = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
        if read is not None and (read.axis != 1 or indices):
            self._unknown(node)
        else:
            self._pass(node)

    def _reduce(self, node: Node) -> None:
        read, axes = self._of(node.inputs[0]), constant(input_value(node, 1))
        shape = dims(node.inputs[0])
        if read is None:
            return
        over = None if axes is None or shape is None else {int(a) % len(shape) for a in axes.reshape(-1)}
        if not over or read.axis in over:
            self._pin(read.units, node, "sums or compares over channels")
            return
        gone = 0 if attribute(node, "keepdims", 1) else sum(a < read.axis for a in over)
        self._pass(node, read.axis - gone)

    def _along(self, node: Node) -> None:
        read, shape = self._of(node.inputs[0]), dims(node.inputs[0])
        if read is None:
            return
        if shape is None or int(attribute(node, "axis", -1)) % len(shape) == read.axis:
            self._pin(read.units, node, "normalises over channels")
        else:
            self._pass(node)

    def _norm(self, node: Node) -> None:
        read, shape = self._of(node.inputs[0]), dims(node.inputs[0])
        if read is None:
            return
        if shape is None or read.axis >= int(attribute(node, "axis", -1)) % len(shape):
            self._pin(read.units, node, "normalises over channels")
        else:
            self._pass(node)

    # Operators that move data.

    def _transpose(self, node: Node) -> None:
        read, shape = self._of(node.inputs[0]), dims(node.inputs[0])
        if read is None:
            return
        order = tuple(attribute(node, "perm", tuple(range(len(shape or ())))[::-1]))
        self._pass(node, order.index(read.axis))

    def _concat(self, node: Node) -> None:
        shape = dims(node.outputs[0])
        held = [self._of(v) for v in node.inputs]
        axes = {h.axis for h in held if h is not None}
        if not axes:
            return
        if shape is None or len(axes) != 1:
            self._pin_reads(node, "joins tensors whose channels lie on different axes")
            return
        (axis,) = axes
        if int(attribute(node, "axis", 0)) % len(shape) != axis:
            self._stacked(node, held, axis)
            return
        parts = []
        for value, known in zip(node.inputs, held, strict=True):
            size = (dims(value) or {axis: None})[axis]
            if known is None and isinstance(size, int):
                units = self._fresh(size, node)
                self._pin(
                    units, node, f"joins them with {value.name if value else ''!r}, which is not followed"
                )
                parts.append(units)
            elif known is not None:
                parts.append(known.units)
        if len(parts) != len(held) or sum(map(len, parts)) != shape[axis]:
            self._unknown(node)
            return
        self._give(node.outputs[0], axis, np.concatenate(parts))

    def _stacked(self, node: Node, held: Sequence[Channels | None], axis: int) -> None:
        """Concat along another axis: every part keeps the same channels."""
        known = [h.units for h in held if h is not None]
        if len(known) != len(held):
            self._pin_reads(node, "joins them with a tensor whose channels are not followed")
        for units in known[1:]:
            self._join(known[0], units)
        self._give(node.outputs[0], axis, known[0])

    def _split(self, node: Node) -> None:
        read, shape = self._of(node.inputs[0]), dims(node.inputs[0])
        if read is None:
            return
        shapes = [dims(v) for v in node.outputs]
        sizes = [None if found is None else found[read.axis] for found in shapes]
        if shape is None or not all(isinstance(s, int) for s in sizes):
            self._unknown(node)
        elif int(attribute(node, "axis", 0)) % len(shape) != read.axis:
            for value in node.outputs:
                self._give(value, read.axis, read.units)
        elif constant(input_value(node, 1)) is None:
            self._pin(read.units, node, "splits them into equal parts")
        else:
            start = 0
            for position, (value, size) in enumerate(zip(node.outputs, sizes, strict=True)):
                assert isinstance(size, int)
                part = read.units[start : start + size]
                self._give(value, read.axis, part)
                self._found.counts.append((node, 1, position, part))
                start += size

    def _slice(self, node: Node) -> None:
        read, shape = self._of(node.inputs[0]), dims(node.inputs[0])
        if read is None:
            return
        held = [constant(input_value(node, i)) for i in range(1, 5)]
        if shape is None or held[0] is None or held[1] is None:
            self._unknown(node)
            return
        axes = [int(a) % len(shape) for a in (held[2] if held[2] is not None else range(held[0].size))]
        if read.axis not in axes:
            self._pass(node)
            return
        place = axes.index(read.axis)
        step = 1 if held[3] is None else int(held[3][place])
        start, end, _ = slice(int(held[0][place]), int(held[1][place])).indices(len(read.units))
        if step != 1 or start >= end:
            self._pin(read.units, node, "takes channels by steps")
            return
        self._found.counts.append((node, 1, place, read.units[:start]))
        self._found.counts.append((node, 2, place, read.units[:end]))
        self._give(node.outputs[0], read.axis, read.units[start:end])

    def _pad(self, node: Node) -> None:
        read, pads, shape = self._of(node.inputs[0]), constant(input_value(node, 1)), dims(node.inputs[0])
        if read is None:
            return
        axes = constant(input_value(node, 3))
        known = pads is not None and shape is not None
        over = [int(a) % len(shape or ()) for a in (range(len(shape or ())) if axes is None else axes)]
        padded = {
            a for i, a in enumerate(over) if known and pads is not None and pads.reshape(2, -1)[:, i].any()
        }
        if not known or read.axis in padded:
            self._pin(read.units, node, "adds channels")
        else:
            self._pass(node)

    def _resize(self, node: Node) -> None:
        read, shape = self._of(node.inputs[0]), dims(node.inputs[0])
        if read is None:
            return
        after = dims(node.outputs[0])
        scales, sizes = constant(input_value(node, 2)), constant(input_value(node, 3))
        if shape is None or after is None or after[read.axis] != shape[read.axis]:
            self._unknown(node)
            return
        axes = attribute(node, "axes", tuple(range(len(shape))))
        if read.axis in [a % len(shape) for a in axes]:
            place = [a % len(shape) for a in axes].index(read.axis)
            if sizes is not None and sizes.size:
                self._found.counts.append((node, 3, place, read.units))
            elif scales is None or not scales.size or float(scales[place]) != 1.0:
                self._unknown(node)
                return
        self._pass(node)

    def _squeeze(self, node: Node) -> None:
        read, axes = self._of(node.inputs[0]), constant(input_value(node, 1))
        before, after = dims(node.inputs[0]), dims(node.outputs[0])
        if read is None:
            return
        if before is None or after is None or axes is None:
            self._unknown(node)
            return
        longer = after if node.op_type == "Unsqueeze" else before
        touched = {int(a) % len(longer) for a in axes.reshape(-1)}
        if node.op_type == "Squeeze":
            if read.axis in touched:
                self._unknown(node)
                return
            self._pass(node, read.axis - sum(a < read.axis for a in touched))
            return
        left = [a for a in range(len(longer)) if a not in touched]
        self._pass(node, left[read.axis])

    def _reshape(self, node: Node) -> None:
        """Follow channels that stay an axis or are flattened with neighbours: [p, C, m] -> p * C * m."""
        read = self._of(node.inputs[0])
        before, after = dims(node.inputs[0]), dims(node.outputs[0])
        if read is None:
            return
        place = None if before is None or after is None else flattened_axis(before, after, read.axis)
        written = constant(input_value(node, 1))
        number = None
        if place is not None and node.op_type == "Reshape":
            number = None if written is None else int(written.reshape(-1)[place[0]])
            if number is None or (number == 0 and place[0] != read.axis):
                place = None
        if place is None:
            self._pin(read.units, node, "takes the channel axis apart")
            return
        axis, tiles, repeats = place
        units = np.tile(np.repeat(read.units, repeats), tiles)
        self._give(node.outputs[0], axis, units)
        if number is not None and number > 0:
            self._found.counts.append((node, 1, axis, units))
