"""Small graphs for the tests of the numeric passes, and the check that a pass keeps their meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgefuse.graph import Model, all_nodes, clone_model, model_from_proto, model_to_proto
from edgefuse.graph.reference import Reference, max_relative_error
from edgefuse.passes.contract import Pass, PassResult

ELEMENT = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}


class Build:
    """Builds one ONNX graph: `x`, `w`, `op`, `y`, then `model()`."""

    def __init__(self, opset: int = 24, seed: int = 0, dtype: Any = np.float32) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.dtype = np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def x(self, shape: Sequence[int | str] | None, name: str = "x", element: int | None = None) -> str:
        kind = ELEMENT[self.dtype] if element is None else element
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def w(self, array: Any, name: str | None = None, dtype: Any = None) -> str:
        name = name or self.name("w")
        held = np.array(array, dtype=self.dtype if dtype is None else dtype)
        self.constants.append(numpy_helper.from_array(held, name))
        return name

    def rand(self, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        return self.w(self.rng.uniform(low, high, shape))

    def ints(self, *numbers: int) -> str:
        return self.w(np.array(numbers), dtype=np.int64)

    def op(
        self, kind: str, *inputs: str, name: str | None = None, out: str | None = None, **attrs: Any
    ) -> str:
        result = out or self.name(kind.lower())
        self.nodes.append(
            helper.make_node(kind, list(inputs), [result], name=name or self.name("n_"), **attrs)
        )
        return result

    def bn(self, x: str, channels: int, name: str | None = None, **attrs: Any) -> str:
        parts = [
            self.rand(channels, low=0.5, high=2.0),
            self.rand(channels),
            self.rand(channels),
            self.rand(channels, low=0.3, high=2.0),
        ]
        return self.op("BatchNormalization", x, *parts, name=name, **attrs)

    def y(self, *names: str, element: int | None = None, shape: Sequence[int] | None = None) -> Build:
        kind = ELEMENT[self.dtype] if element is None else element
        self.outputs.extend(helper.make_tensor_value_info(n, kind, shape) for n in names)
        return self

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def model(self) -> Model:
        return model_from_proto(self.proto())


def conv(
    b: Build, x: str, c_in: int, c_out: int, k: int = 3, groups: int = 1, bias: bool = True, **attrs: Any
) -> str:
    """Add a 2-D Conv with random weights; pads keep the size unless given."""
    parts = [b.rand(c_out, c_in // groups, k, k)] + ([b.rand(c_out)] if bias else [])
    attrs.setdefault("pads", [k // 2] * 4)
    return b.op("Conv", x, *parts, group=groups, **attrs)


def spelled_product(b: Build, draw: st.DrawFn, factors: Sequence[str], coefficient: float = 1.0) -> str:
    """Multiply the factors and the coefficient in a drawn order, association and spelling of the constant."""
    parts = list(factors)
    if coefficient != 1.0:
        parts.append("")
    parts = list(draw(st.permutations(parts)))
    while len(parts) > 1:
        index = draw(st.integers(0, len(parts) - 2))
        left, right = parts[index], parts[index + 1]
        if left and right:
            made = b.op("Mul", left, right)
        else:
            value = left or right
            divide = draw(st.booleans())
            shape = draw(st.sampled_from([(), (1,)]))
            number = b.w(np.full(shape, 1 / coefficient if divide else coefficient))
            pair = [value, number] if divide else draw(st.permutations([value, number]))
            made = b.op("Div" if divide else "Mul", *pair)
        parts[index : index + 2] = [made]
    return parts[0]


def spelled_sum(b: Build, draw: st.DrawFn, value: str, number: float) -> str:
    """Add a number to a value: Add in either order, or Sub of its negative."""
    if draw(st.booleans()):
        return b.op("Sub", value, b.w(-number))
    kind = draw(st.sampled_from(["Add", "Sum"]))
    return b.op(kind, *draw(st.permutations([value, b.w(number)])))


def spelled_clip(b: Build, draw: st.DrawFn, value: str, low: float, high: float) -> str:
    """Clip a value: Clip, Min(Max), Max(Min), or Min(Relu) where low is 0."""
    form = draw(st.sampled_from(["clip", "minmax", "maxmin", "relu"]))
    if form == "clip":
        return b.op("Clip", value, b.w(low), b.w(high))
    if form == "maxmin":
        return b.op("Max", b.w(low), b.op("Min", b.w(high), value))
    raised = b.op("Relu", value) if form == "relu" and low == 0 else b.op("Max", value, b.w(low))
    return b.op("Min", *draw(st.permutations([raised, b.w(high)])))


def ops(model: Model) -> Counter[str]:
    """Return how many nodes of each operator the model holds."""
    return Counter(node.op_type for node in all_nodes(model))


def feeds(model: Model, seed: int = 1, scale: float = 2.0, **symbols: int) -> dict[str, np.ndarray]:
    """Return random inputs; symbolic dimensions are taken from `symbols` (2 where not given)."""
    rng = np.random.default_rng(seed)
    made = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        shape = [d if isinstance(d, int) else symbols.get(str(d.value), 2) for d in value.shape]
        kind = value.dtype.numpy()
        if np.issubdtype(kind, np.integer):
            made[value.name or ""] = rng.integers(0, 255, shape).astype(kind)
        else:
            made[value.name or ""] = rng.uniform(-scale, scale, shape).astype(kind)
    return made


def interface(model: Model) -> list[tuple[Any, ...]]:
    return [(v.name, v.dtype) for v in (*model.graph.inputs, *model.graph.outputs)]


def apply(run: Pass, model: Model, tolerance: float = 1e-9, scale: float = 2.0, **symbols: int) -> PassResult:
    """Run a pass in place; assert that meaning and interface are kept, onnx accepts it, a rerun does nothing.

    Meaning: equal to `tolerance` (relative to the largest value of each output) in the float64 executor.
    """
    before = clone_model(model)
    result = run(model)
    assert interface(model) == interface(before)
    onnx.checker.check_model(model_to_proto(model), full_check=True)
    data = feeds(model, scale=scale, **symbols)
    expected, got = Reference(before).run(data), Reference(model).run(data)
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert max_relative_error(got[name], array) <= tolerance, name
    if not result:
        assert ops(model) == ops(before)
    kept = ops(model)
    again = run(model)
    assert not again, f"{again} changes again"
    assert ops(model) == kept
    return result


def dead_constants(model: Model) -> list[str]:
    """Return the names of initializers that nothing reads."""
    return [n for n, v in model.graph.initializers.items() if not v.uses() and not v.is_graph_output()]
