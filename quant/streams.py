"""Tensors that must share one scale for each channel, and the weights that can take the scale in.

Multiply channel c of a tensor by 1/s_c, and everything that an operator like Relu, MaxPool or Add makes of it
is multiplied alike; all such tensors are one stream. Where every tensor of a stream is written by a layer
with constant weights (divide its output channels) and read by one (multiply its input channels), the
network's meaning does not change for any s > 0: Nagel et al. 2019, arXiv 1906.04721, eq. 5-7, over whole
streams.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgefuse.graph import Model, Node, Value, attribute, constant, dims, input_value, is_float, scalar

__all__ = ["Stream", "find_streams", "input_channels", "output_channels"]

# f(s * x) = s * f(x) for s > 0, channel by channel.
_HOMOGENEOUS = frozenset(
    """
    Relu LeakyRelu PRelu Abs Identity Dropout MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool
    """.split()
)
# Sums and choices of tensors of one shape.
_TOGETHER = frozenset(["Add", "Sum", "Sub", "Max", "Min", "Mean"])
_REDUCE = frozenset(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL1", "ReduceL2"])
_WEIGHTED = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])
_NORMS = frozenset(["LayerNormalization", "RMSNormalization", "BatchNormalization"])


@dataclass(slots=True)
class Stream:
    """One stream.

    tensors: (value, channel axis counted from 0).  channels: their number.  writers: nodes that can divide
    their output channels.  readers: nodes that can multiply their input channels.  constants: (node, input
    index) of per-channel addends on the way, which scale too.  through: the operators in between.
    clips: Clip nodes with lower bound 0 on the way; their upper bound holds for unscaled channels only.
    refused: why the stream cannot be scaled, "" where it can.
    """

    tensors: list[tuple[Value, int]] = field(default_factory=list)
    channels: int = 0
    writers: list[Node] = field(default_factory=list)
    readers: list[Node] = field(default_factory=list)
    constants: list[tuple[Node, int]] = field(default_factory=list)
    through: list[Node] = field(default_factory=list)
    clips: list[Node] = field(default_factory=list)
    refused: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tensors."""
        return tuple(value.name or "" for value, _ in self.tensors)


def find_streams(model: Model) -> list[Stream]:
    """Return every stream that a layer with constant weights writes, in graph order, refused ones too."""
    seen: set[int] = set()
    found = []
    for node in model.graph:
        if output_channels(node) is None or id(node.outputs[0]) in seen:
            continue
        stream = _Flood(model).fill(node)
        seen.update(id(value) for value, _ in stream.tensors)
        found.append(stream)
    return found


def output_channels(node: Node) -> tuple[int, int] | None:
    """Return (channels, axis of the output) where constants set each channel's scale, else None."""
    if node.domain or not node.outputs or not is_float(node.outputs[0]):
        return None
    shape = dims(node.outputs[0])
    if shape is None:
        return None
    if node.op_type in _NORMS:
        return _norm_channels(node, len(shape))
    weight = constant(input_value(node, 1))
    if node.op_type not in _WEIGHTED or weight is None or weight.ndim < 2:
        return None
    bias = input_value(node, 2)
    if bias is not None and constant(bias) is None:
        return None
    if node.op_type == "Conv":
        return weight.shape[0], 1
    if node.op_type == "ConvTranspose":
        return weight.shape[1] * int(attribute(node, "group", 1)), 1
    if node.op_type == "Gemm":
        return weight.shape[0 if attribute(node, "transB", 0) else 1], 1
    return weight.shape[-1], len(shape) - 1


def _norm_channels(node: Node, rank: int) -> tuple[int, int] | None:
    held = [constant(v) for v in node.inputs[1:3]]
    if any(array is None or array.ndim != 1 for array in held):
        return None
    assert held[0] is not None
    if node.op_type == "BatchNormalization":
        return held[0].size, 1
    if int(attribute(node, "axis", -1)) % rank != rank - 1 or len([v for v in node.outputs if v.uses()]) != 1:
        return None
    return held[0].size, rank - 1


def input_channels(node: Node) -> tuple[int, int] | None:
    """Return (channels, axis of input 0) where constant weights read each channel, else None."""
    value, weight = input_value(node, 0), constant(input_value(node, 1))
    if node.domain or node.op_type not in _WEIGHTED or weight is None or weight.ndim < 2:
        return None
    shape = dims(value)
    if shape is None:
        return None
    if node.op_type == "Conv":
        return weight.shape[1] * int(attribute(node, "group", 1)), 1
    if node.op_type == "ConvTranspose":
        return weight.shape[0], 1
    if node.op_type == "Gemm":
        if attribute(node, "transA", 0):
            return None
        return weight.shape[1 if attribute(node, "transB", 0) else 0], 1
    return weight.shape[-2], len(shape) - 1


class _Flood:
    """Fills one stream from a writer."""

    def __init__(self, model: Model) -> None:
        self._graph = model.graph
        self._stream = Stream()
        self._seen: dict[int, int] = {}
        self._todo: list[Value] = []

    def fill(self, writer: Node) -> Stream:
        known = output_channels(writer)
        assert known is not None
        self._stream.channels = known[0]
        self._reach(writer.outputs[0], known[1])
        while self._todo:
            value = self._todo.pop()
            self._written(value, self._seen[id(value)])
            self._read(value, self._seen[id(value)])
        return self._stream

    def _refuse(self, why: str) -> None:
        self._stream.refused = self._stream.refused or why

    def _reach(self, value: Value, axis: int) -> None:
        known = self._seen.get(id(value))
        if known is not None:
            if known != axis:
                self._refuse(f"{value.name!r} has its channels on two axes")
            return
        shape = dims(value)
        if shape is None or axis >= len(shape) or shape[axis] != self._stream.channels:
            self._refuse(f"{value.name!r} does not keep the channels")
            return
        self._seen[id(value)] = axis
        self._stream.tensors.append((value, axis))
        self._todo.append(value)
        if value.is_graph_output():
            self._refuse(f"{value.name!r} is an output of the model")

    def _written(self, value: Value, axis: int) -> None:
        producer = value.producer()
        if producer is None:
            self._refuse(f"{value.name!r} is an input of the model")
        elif output_channels(producer) == (self._stream.channels, axis) and value is producer.outputs[0]:
            self._stream.writers.append(producer)
        else:
            self._pass(producer)

    def _read(self, value: Value, axis: int) -> None:
        for use in tuple(value.uses()):
            node = use.node
            if node.graph is not self._graph:
                self._refuse(f"{value.name!r} is read inside a branch or loop")
            elif input_channels(node) == (self._stream.channels, axis) and use.idx == 0:
                if all(held is not node for held in self._stream.readers):
                    self._stream.readers.append(node)
                if any(v is value for v in node.inputs[1:]):
                    self._refuse(f"{node.name!r} reads {value.name!r} twice")
            else:
                self._pass(node)

    def _pass(self, node: Node) -> None:
        """Let the stream run through a node, in either direction."""
        if any(held is node for held in self._stream.through):
            return
        self._stream.through.append(node)
        why = self._through(node)
        if why:
            self._refuse(why)

    def _through(self, node: Node) -> str:
        where = f"{node.name!r} ({node.op_type})"
        if node.domain or node.graph is not self._graph:
            return f"{where} is no operator that scales pass through"
        inputs = [v for v in node.inputs if v is not None]
        running = [v for v in inputs if constant(v) is None]
        axis = next((self._seen[id(v)] for v in (*running, *node.outputs) if id(v) in self._seen), None)
        assert axis is not None
        if node.op_type in _TOGETHER:
            return self._sum(node, running, axis)
        if len(running) != 1 or len([v for v in node.outputs if v.uses() or v.is_graph_output()]) != 1:
            return f"{where} mixes the stream with another tensor"
        if node.op_type == "Clip" and scalar(input_value(node, 1)) == 0.0:
            if input_value(node, 2) is not None:
                self._stream.clips.append(node)
        elif node.op_type not in _HOMOGENEOUS and not self._keeps(node, running[0], axis):
            return f"{where} is no operator that scales pass through"
        elif node.op_type == "Transpose":
            return self._transpose(node, running[0], axis)
        self._reach(running[0], axis)
        self._reach(node.outputs[0], axis)
        return ""

    def _transpose(self, node: Node, value: Value, axis: int) -> str:
        shape = dims(value)
        if shape is None:
            return f"{node.name!r} (Transpose) has an unknown rank"
        order = tuple(attribute(node, "perm", tuple(range(len(shape)))[::-1]))
        forward = id(value) in self._seen
        before = axis if forward else order[axis]
        self._reach(value, before)
        self._reach(node.outputs[0], order.index(before))
        return ""

    def _sum(self, node: Node, running: list[Value], axis: int) -> str:
        shape = dims(node.outputs[0])
        for index, value in enumerate(node.inputs):
            array = constant(value)
            if array is None:
                if dims(value) is None or dims(value) != shape:
                    return f"{node.name!r} ({node.op_type}) broadcasts"
                continue
            assert shape is not None
            place = axis - (len(shape) - array.ndim)
            per_channel = place >= 0 and array.shape[place] == array.size == self._stream.channels
            if array.size != 1 and not per_channel:
                return f"{node.name!r} ({node.op_type}) adds more than one number a channel"
            self._stream.constants.append((node, index))
        for value in (*running, node.outputs[0]):
            self._reach(value, axis)
        return ""

    def _keeps(self, node: Node, value: Value, axis: int) -> bool:
        """Return whether an operator with more to check scales each channel with its input."""
        before, after = dims(value), dims(node.outputs[0])
        if before is None or after is None:
            return False
        if node.op_type in ("Mul", "Div"):
            return node.op_type == "Mul" or node.inputs[0] is value
        if node.op_type == "Transpose":
            return True
        if node.op_type in _REDUCE:
            axes = constant(input_value(node, 1))
            inner = axes is not None and all(int(a) % len(before) > axis for a in axes.reshape(-1))
            return inner and before[: axis + 1] == after[: axis + 1]
        if node.op_type in ("Flatten", "Reshape", "Squeeze", "Unsqueeze"):
            rest = (*before[axis + 1 :], *after[axis + 1 :])
            return before[: axis + 1] == after[: axis + 1] and all(d == 1 for d in rest)
        if node.op_type == "Pad":
            filled = constant(input_value(node, 2))
            zero = input_value(node, 2) is None or (filled is not None and not filled.any())
            return before[axis] == after[axis] and (zero or attribute(node, "mode", "constant") != "constant")
        if node.op_type == "Resize":
            return before[axis] == after[axis] and attribute(node, "coordinate_transformation_mode", "") != (
                "tf_crop_and_resize"
            )
        return False
