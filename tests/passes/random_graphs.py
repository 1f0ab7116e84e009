"""Small random ONNX models for property tests of the passes (hypothesis strategies).

Each drawn model is valid ONNX of opset 17, computes finite numbers, and holds what passes trip over: shared
tensors and weights, values that are graph outputs and read inside too, idle operators, constants computed
from constants, chains of Reshape and Transpose, Pads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgefuse.graph import Model, clone_model, model_from_proto, model_to_proto
from edgefuse.graph.reference import Reference, max_relative_error
from edgefuse.passes.contract import Pass, PassResult

__all__ = ["ModelCase", "random_models"]

OPSET = 17


@dataclass
class ModelCase:
    """A model, one input for it, and what it was drawn from."""

    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]

    def check(self, run: Pass, tolerance: float = 1e-9) -> PassResult:
        """Run a pass; assert that meaning and interface are kept and a second run finds nothing."""
        model = model_from_proto(self.proto)
        before = clone_model(model)
        result = run(model)
        assert _interface(model) == _interface(before)
        onnx.checker.check_model(model_to_proto(model), full_check=True)
        expected, got = Reference(before).run(self.feeds), Reference(model).run(self.feeds)
        assert list(got) == list(expected)
        for name, array in expected.items():
            assert got[name].dtype == array.dtype
            assert max_relative_error(got[name], array) <= tolerance, name
        again = run(model)
        assert not again, f"{again} changes again"
        return result

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # what hypothesis prints of a failing case
        printer.text(repr(self))

    def __repr__(self) -> str:
        nodes = "\n".join(
            f"  {n.output} = {n.op_type}({', '.join(n.input)})"
            + "".join(f" {a.name}={helper.get_attribute_value(a)}" for a in n.attribute if a.type != 5)
            for n in self.proto.graph.node
        )
        constants = {i.name: list(i.dims) for i in self.proto.graph.initializer}
        shapes = {name: array.shape for name, array in self.feeds.items()}
        outputs = [o.name for o in self.proto.graph.output]
        return f"ModelCase(inputs={shapes}, constants={constants},\n{nodes}\n  -> {outputs})"


def _interface(model: Model) -> list[tuple[Any, ...]]:
    inputs = [(v.name, v.dtype, v.shape) for v in model.graph.inputs]
    return inputs + [(v.name, v.dtype) for v in model.graph.outputs]


@dataclass
class _Builder:
    draw: Callable[[st.SearchStrategy[Any]], Any]
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # float tensors one may read
    weights: dict[tuple[int, ...], str] = field(default_factory=dict)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def constant(self, array: np.ndarray) -> str:
        name = self.name("c")
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, shape: tuple[int, ...]) -> str:
        """Return a float constant; sometimes one that another node reads, sometimes an equal copy of it."""
        fate = self.draw(st.sampled_from(["new", "new", "shared", "copied"]))
        if shape in self.weights and fate == "shared":
            return self.weights[shape]
        if shape in self.weights and fate == "copied":
            held = next(c for c in self.constants if c.name == self.weights[shape])
            return self.constant(numpy_helper.to_array(held))
        array = self.rng.uniform(-1, 1, shape).astype(np.float32)
        name = self.constant(array)
        self.weights[shape] = name
        return name

    def add(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = self.name(op_type.lower())
        node_name = "" if self.draw(st.integers(0, 4)) == 0 else self.draw(st.sampled_from(["n", name]))
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=node_name, **attributes))
        self.shapes[name] = shape
        return name

    def any_value(self) -> str:
        return str(self.draw(st.sampled_from(list(self.shapes))))

    def ranked(self, rank: int) -> str | None:
        found = [n for n, s in self.shapes.items() if len(s) == rank]
        return str(self.draw(st.sampled_from(found))) if found else None


def _unary(b: _Builder) -> None:
    x = b.any_value()
    op = b.draw(
        st.sampled_from(["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish", "Softplus", "Identity"])
    )
    b.add(op, [x], b.shapes[x])


def _idle(b: _Builder) -> None:
    x = b.any_value()
    shape = b.shapes[x]
    kind = b.draw(st.sampled_from(["dropout", "cast", "add0", "mul1", "pad0", "concat1", "slice", "expand"]))
    if kind == "dropout":
        b.add("Dropout", [x], shape)
    elif kind == "cast":
        b.add("Cast", [x], shape, to=TensorProto.FLOAT)
    elif kind == "add0":
        b.add("Add", [x, b.constant(np.zeros((1,) * len(shape), np.float32))], shape)
    elif kind == "mul1":
        b.add("Mul", [b.constant(np.float32(1)), x], shape)
    elif kind == "pad0":
        b.add("Pad", [x, b.constant(np.zeros(2 * len(shape), np.int64))], shape)
    elif kind == "concat1":
        b.add("Concat", [x], shape, axis=0)
    elif kind == "slice":
        ends = b.draw(st.sampled_from([2**63 - 1, 2**31 - 1, shape[0]]))
        b.add(
            "Slice",
            [x, b.constant(np.array([0])), b.constant(np.array([ends])), b.constant(np.array([0]))],
            shape,
        )
    else:
        b.add("Expand", [x, b.constant(np.array(shape, np.int64))], shape)


def _binary(b: _Builder) -> None:
    x = b.any_value()
    op = b.draw(st.sampled_from(["Add", "Sub", "Mul", "Max"]))
    same = [n for n, s in b.shapes.items() if s == b.shapes[x]]
    y = b.draw(st.sampled_from(same))
    b.add(op, [x, y], b.shapes[x])


def _with_constant(b: _Builder) -> None:
    x = b.any_value()
    shape = b.shapes[x]
    forms = [(), (1,), shape, shape[-1:], (1,) * len(shape)]
    if len(shape) > 2:
        forms += [(shape[1],) + (1,) * (len(shape) - 2), (1, shape[1]) + (1,) * (len(shape) - 2)]
    form = b.draw(st.sampled_from(forms))
    op = b.draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
    if op == "Div":
        w = b.constant(b.rng.uniform(0.5, 2, form).astype(np.float32))
    else:
        w = b.weight(form)
    swap = op in ("Add", "Mul", "Sub") and b.draw(st.booleans())
    b.add(op, [w, x] if swap else [x, w], shape)


def _reshape(b: _Builder) -> None:
    x = b.any_value()
    shape = b.shapes[x]
    total = int(np.prod(shape))
    kind = b.draw(st.sampled_from(["merge", "split", "flatten", "squeeze", "unsqueeze", "minus", "computed"]))
    if kind == "merge" and len(shape) > 1:
        k = b.draw(st.integers(0, len(shape) - 2))
        target = (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :])
        b.add("Reshape", [x, b.constant(np.array(target, np.int64))], target)
    elif kind == "split" and len(shape) < 5:
        k = b.draw(st.integers(0, len(shape) - 1))
        f = b.draw(st.sampled_from([d for d in range(1, shape[k] + 1) if shape[k] % d == 0]))
        target = (*shape[:k], f, shape[k] // f, *shape[k + 1 :])
        zeros = [0 if i < k and b.draw(st.booleans()) else d for i, d in enumerate(target)]
        b.add("Reshape", [x, b.constant(np.array(zeros, np.int64))], target)
    elif kind == "flatten":
        axis = b.draw(st.integers(-len(shape), len(shape)))
        cut = axis + len(shape) if axis < 0 else axis
        b.add("Flatten", [x], (int(np.prod(shape[:cut])), int(np.prod(shape[cut:]))), axis=axis)
    elif kind == "squeeze" and 1 in shape:
        ones = [i for i, d in enumerate(shape) if d == 1]
        named = b.draw(st.booleans())
        inputs = [x, b.constant(np.array(ones[:1], np.int64))] if named else [x]
        kept = tuple(d for i, d in enumerate(shape) if i not in (ones[:1] if named else ones))
        b.add("Squeeze", inputs, kept)
    elif kind == "unsqueeze" and len(shape) < 5:
        axis = b.draw(st.integers(0, len(shape)))
        b.add("Unsqueeze", [x, b.constant(np.array([axis], np.int64))], (*shape[:axis], 1, *shape[axis:]))
    elif kind == "minus":
        b.add(
            "Reshape",
            [x, b.constant(np.array([-1, shape[-1]] if shape else [-1], np.int64))],
            (total // shape[-1], shape[-1]) if shape else (1,),
        )
    elif kind == "computed" and len(shape) >= 2:
        _computed_reshape(b, x)


def _computed_reshape(b: _Builder, x: str) -> None:
    """Merge all but the first dimension, the first one read off at run time."""
    shape = b.shapes[x]
    size, first, target = b.name("shape"), b.name("first"), b.name("target")
    b.nodes.append(helper.make_node("Shape", [x], [size]))
    b.nodes.append(helper.make_node("Gather", [size, b.constant(np.array([0]))], [first], axis=0))
    rest = int(np.prod(shape[1:]))
    b.nodes.append(helper.make_node("Concat", [first, b.constant(np.array([rest]))], [target], axis=0))
    b.add("Reshape", [x, target], (shape[0], rest))


def _transpose(b: _Builder) -> None:
    x = b.any_value()
    shape = b.shapes[x]
    if not shape:
        return  # onnx cannot write an empty permutation
    perm = b.draw(st.permutations(range(len(shape))))
    y = b.add("Transpose", [x], tuple(shape[p] for p in perm), perm=list(perm))
    kind = b.draw(st.sampled_from(["alone", "back", "around"]))
    if kind == "around":
        op = b.draw(st.sampled_from(["Relu", "Tanh"]))
        y = b.add(op, [y], b.shapes[y])
        if b.draw(st.booleans()):
            y = b.add("Mul", [y, b.weight(b.shapes[y][-1:])], b.shapes[y])
    if kind != "alone":
        b.add("Transpose", [y], shape, perm=[int(i) for i in np.argsort(perm)])


def _conv(b: _Builder) -> None:
    x = b.ranked(4)
    if x is None or min(b.shapes[x][2:]) < 1 or max(b.shapes[x]) > 64:
        return
    if b.draw(st.integers(0, 2)) == 0:
        x = _padded(b, x)
    n, c, h, w = b.shapes[x]
    group = b.draw(st.sampled_from([g for g in (1, 2, 3, c) if c % g == 0]))
    out = group * b.draw(st.integers(1, 2))
    k = b.draw(st.integers(1, min(3, h, w)))
    pad = b.draw(st.integers(0, 1))
    inputs = [x, b.weight((out, c // group, k, k))]
    if b.draw(st.booleans()):
        inputs.append(b.weight((out,)))
    shape = (n, out, h + 2 * pad - k + 1, w + 2 * pad - k + 1)
    y = b.add("Conv", inputs, shape, kernel_shape=[k, k], pads=[pad] * 4, group=group)
    if b.draw(st.booleans()):
        _batch_norm(b, y)


def _batch_norm(b: _Builder, x: str) -> None:
    c = b.shapes[x][1]
    positive = [b.constant(b.rng.uniform(0.5, 2, c).astype(np.float32)) for _ in range(2)]
    b.add("BatchNormalization", [x, positive[0], b.weight((c,)), b.weight((c,)), positive[1]], b.shapes[x])


def _padded(b: _Builder, x: str) -> str:
    n, c, h, w = b.shapes[x]
    p = [b.draw(st.integers(0, 2)) for _ in range(4)]
    pads = np.array([0, 0, p[0], p[1], 0, 0, p[2], p[3]], np.int64)
    inputs = [x, b.constant(pads)]
    mode = b.draw(st.sampled_from(["constant", "constant", "constant", "edge"]))
    if mode == "constant" and b.draw(st.booleans()):
        inputs.append(b.constant(np.float32(b.draw(st.sampled_from([0.0, 0.0, 1.0])))))
    return b.add("Pad", inputs, (n, c, h + p[0] + p[2], w + p[1] + p[3]), mode=mode)


def _pool(b: _Builder) -> None:
    x = b.ranked(4)
    if x is None or min(b.shapes[x][2:]) < 2:
        return
    if b.draw(st.booleans()):
        x = _padded(b, x)
    n, c, h, w = b.shapes[x]
    op = b.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    more = {"count_include_pad": b.draw(st.integers(0, 1))} if op == "AveragePool" else {}
    k = b.draw(st.integers(1, 3))
    if min(h, w) < k:
        return
    pad = b.draw(st.integers(0, k - 1)) if k > 1 else 0
    shape = (n, c, h + 2 * pad - k + 1, w + 2 * pad - k + 1)
    b.add(op, [x], shape, kernel_shape=[k, k], pads=[pad] * 4, **more)


def _gemm(b: _Builder) -> None:
    x = b.ranked(2)
    if x is None or b.shapes[x][1] > 64:
        return
    rows, inner = b.shapes[x]
    cols = b.draw(st.integers(1, 4))
    if b.draw(st.booleans()):
        b.add("MatMul", [x, b.weight((inner, cols))], (rows, cols))
        return
    flipped = b.draw(st.booleans())
    inputs = [x, b.weight((cols, inner) if flipped else (inner, cols))]
    if b.draw(st.booleans()):
        inputs.append(b.weight(b.draw(st.sampled_from([(cols,), (1, cols), (1,)]))))
    alpha = b.draw(st.sampled_from([1.0, 0.5]))
    b.add("Gemm", inputs, (rows, cols), transB=int(flipped), alpha=alpha)


def _split_concat(b: _Builder) -> None:
    x = b.any_value()
    shape = b.shapes[x]
    if not shape:
        return
    axis = b.draw(st.integers(0, len(shape) - 1))
    if shape[axis] < 2:
        b.add("Concat", [x, x], (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), axis=axis)
        return
    first = b.draw(st.integers(1, shape[axis] - 1))
    names = [b.name("split"), b.name("split")]
    sizes = b.constant(np.array([first, shape[axis] - first], np.int64))
    b.nodes.append(helper.make_node("Split", [x, sizes], names, axis=axis))
    for name, size in zip(names, (first, shape[axis] - first), strict=True):
        b.shapes[name] = (*shape[:axis], size, *shape[axis + 1 :])
    b.add("Concat", names[::-1] if b.draw(st.booleans()) else names, shape, axis=axis)


def _reduce(b: _Builder) -> None:
    x = b.any_value()
    shape = b.shapes[x]
    if not shape:
        return
    axis = b.draw(st.integers(0, len(shape) - 1))
    keep = b.draw(st.integers(0, 1))
    kept = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
    b.add(b.draw(st.sampled_from(["ReduceMean", "ReduceMax"])), [x], kept, axes=[axis], keepdims=keep)


def _twice(b: _Builder) -> None:
    """Compute something that is there already a second time."""
    if not b.nodes:
        return
    node = b.draw(st.sampled_from(b.nodes))
    if len(node.output) != 1 or node.output[0] not in b.shapes:
        return
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[0] = b.name("again")
    b.nodes.append(copy)
    b.shapes[copy.output[0]] = b.shapes[node.output[0]]


def _folded(b: _Builder) -> None:
    """Add something that is computed from constants only."""
    x = b.any_value()
    shape = b.shapes[x]
    made, sqrt = b.name("filled"), b.name("root")
    filling = numpy_helper.from_array(np.array([2.25], np.float32))
    b.nodes.append(
        helper.make_node("ConstantOfShape", [b.constant(np.array(shape, np.int64))], [made], value=filling)
    )
    b.nodes.append(helper.make_node("Sqrt", [made], [sqrt]))
    b.add("Mul", [x, sqrt], shape)


_STEPS = (
    *[_unary, _idle, _binary, _with_constant, _transpose] * 2,
    *[_reshape, _conv] * 3,
    *[_pool, _gemm, _split_concat, _reduce, _folded, _twice, _twice],
)


@st.composite
def random_models(draw: Any, most_steps: int = 10, dynamic_batch: bool | None = None) -> ModelCase:
    """Draw a model of up to `most_steps` steps with one or two float inputs of rank 2 to 4.

    dynamic_batch: whether the first dimension of the first input is symbolic in the file; None draws it.
    One to four outputs, those that nobody reads and some that others read; dead nodes occur.
    """
    b = _Builder(draw, np.random.default_rng(draw(st.integers(0, 2**16))))
    inputs: dict[str, tuple[int, ...]] = {}
    for index in range(draw(st.integers(1, 2))):
        rank = draw(st.sampled_from([4, 4, 3, 2]))
        inputs[f"in {index}:0"] = tuple(
            draw(st.integers(1, 4)) if i < 2 else draw(st.integers(2, 6)) for i in range(rank)
        )
    b.shapes.update(inputs)
    for _ in range(draw(st.integers(1, most_steps))):
        draw(st.sampled_from(_STEPS))(b)
    computed = [n for n in b.shapes if n not in inputs] or [
        b.add("Relu", [next(iter(inputs))], inputs["in 0:0"])
    ]
    unread = [n for n in computed if not any(n in node.input for node in b.nodes)]
    outputs = dict.fromkeys(draw(st.lists(st.sampled_from(computed), max_size=2)))
    outputs |= dict.fromkeys(unread[: draw(st.integers(1, 2))])
    dynamic = draw(st.booleans()) if dynamic_batch is None else dynamic_batch
    proto = _model(b, inputs, list(outputs) or [computed[-1]], dynamic)
    feeds = {name: b.rng.uniform(-2, 2, shape).astype(np.float32) for name, shape in inputs.items()}
    return ModelCase(proto, feeds)


def _model(
    b: _Builder, inputs: dict[str, tuple[int, ...]], outputs: list[str], dynamic: bool
) -> onnx.ModelProto:
    def info(name: str, shape: tuple[Any, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    declared = {
        n: ("N", *s[1:]) if dynamic and n == "in 0:0" and len(inputs) == 1 else s for n, s in inputs.items()
    }
    graph = helper.make_graph(
        b.nodes,
        "random",
        [info(n, s) for n, s in declared.items()],
        [info(n, (None,) * len(b.shapes[n])) for n in outputs],
        b.constants,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    proto.ir_version = 8
    return proto
