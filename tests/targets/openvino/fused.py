"""Tiny models in which one group stands alone, planned by hand, and what OpenVINO made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgefuse.backend import Candidate, Verdict, load_backend
from edgefuse.device import resolve_target
from edgefuse.fusion import compute_nodes, vertical_candidates
from edgefuse.graph import Model, Node, constant, infer_shapes, is_float, model_from_proto, static_shape
from edgefuse.plans import Format, Group, Plan, Precision
from edgefuse.quant import collect_ranges, quantize_plan, scheme_of
from edgefuse.quantized import Quantized
from edgefuse.runtime.engine import open_engine

CHANNELS = 32
ANCHORS = {
    "conv3x3": "Conv",
    "conv1x1": "Conv",
    "depthwise": "Conv",
    "conv_without_bias": "Conv",
    "transposed": "ConvTranspose",
    "gemm": "Gemm",
    "matmul": "MatMul",
}
# What an epilogue reads beside the running tensor: a scalar, one number a channel, or the other branch.
BINARY = {"Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub"}
ATTRIBUTES = {"LeakyRelu": {"alpha": 0.1}}


@dataclass(frozen=True)
class Found:
    """One group: what legality says, whether readback confirms it, and in the runtime's words why not."""

    label: str
    verdict: Verdict
    confirmed: bool
    why: str


class Branches:
    """One model of many branches, each its own input, anchor, epilogue and output."""

    def __init__(self, anchor: str, tail: bool) -> None:
        self.anchor = anchor
        self.tail = tail  # a second anchor reads the group, so that it may write int8
        self.flat = anchor in ("gemm", "matmul")
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.groups: dict[str, tuple[str, ...]] = {}

    def const(self, *shape: int, low: float = 0.5, high: float = 1.5) -> str:
        name = f"c{len(self.constants)}"
        array = self.rng.uniform(low, high, shape).astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def input(self, shape: Sequence[int]) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, list(inputs), [name], name=f"n{len(self.nodes)}", **attributes)
        )
        return name

    def anchored(self, kind: str, x: str) -> str:
        c = CHANNELS
        if kind not in ANCHORS:  # a pointwise operator
            return self.op(kind, x, *self.other(kind, "scalar" if kind in BINARY else "", []))
        bias = self.const(c, low=1.0)
        if kind == "transposed":
            return self.op(
                "ConvTranspose", x, self.const(c, c, 2, 2, low=-0.02, high=0.04), bias, strides=[2, 2]
            )
        if kind == "gemm":
            return self.op("Gemm", x, self.const(c, c, low=-0.02, high=0.05), bias)
        if kind == "matmul":
            return self.op("MatMul", x, self.const(c, c, low=-0.02, high=0.05))
        size = 1 if kind == "conv1x1" else 3
        width, groups = (1, c) if kind == "depthwise" else (c, 1)
        weight = self.const(c, width, size, size, low=-0.01, high=0.02)
        rest = [] if kind == "conv_without_bias" else [bias]
        return self.op("Conv", x, weight, *rest, group=groups, pads=[size // 2] * 4)

    def add(self, label: str, epilogue: Sequence[tuple[str, str]]) -> None:
        """Add a branch: anchor, then each (operator, form), form "" | "scalar" | "channel" | "branch"."""
        shape = [48, CHANNELS] if self.flat else [1, CHANNELS, 14, 14]
        first = len(self.nodes)
        running = self.anchored(self.anchor, self.input(shape))
        members = [self.nodes[first].name]
        wide = [1, CHANNELS, 28, 28] if self.anchor == "transposed" else shape
        for kind, form in epilogue:
            other = self.other(kind, form, wide)
            running = self.op(kind, running, *other, **ATTRIBUTES.get(kind, {}))
            members.append(self.nodes[-1].name)
        if self.tail:
            running = self.anchored("matmul" if self.flat else "conv1x1", running)
        running = self.op("Softmax", running, axis=-1)  # its output is float, and nothing fuses with it
        self.outputs.append(helper.make_tensor_value_info(running, TensorProto.FLOAT, None))
        self.groups[label] = tuple(members)

    def other(self, kind: str, form: str, shape: Sequence[int]) -> list[str]:
        if kind == "Clip":
            return [self.const(low=0.1, high=0.2), self.const(low=3.0, high=4.0)]
        if form == "branch":
            return [self.op("Relu", self.input(shape))]
        if form == "scalar":
            return [self.const()]
        if form == "channel":
            return [self.const(CHANNELS) if self.flat else self.const(CHANNELS, 1, 1)]
        return []

    def model(self) -> Model:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        made = model_from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)]))
        infer_shapes(made)
        return made


def read_back(branches: Branches, precision: Precision, output: str = "float32") -> list[Found]:
    """Return what became of each branch's group, all in one compiled model."""
    model = branches.model()
    backend, target = load_backend("openvino"), resolve_target("x86-avx2")
    candidates = {c.names: c for c in vertical_candidates(model)}
    planned = {label: candidates[names] for label, names in branches.groups.items()}
    plan = plan_of(model, planned, precision, output)
    feeds = {
        v.name or "": np.random.default_rng(i).uniform(0.2, 2.0, static_shape(v)).astype("f4")
        for i, v in enumerate(model.graph.inputs)
    }
    quantized = Quantized()
    if precision == "int8":
        reads = [
            v.name or ""
            for n in model.graph
            for v in n.inputs
            if v is not None and is_float(v) and constant(v) is None
        ]
        quantized = quantize_plan(model, plan, collect_ranges(model, reads, [feeds]), scheme_of(target))
    lowered = backend.lower(model, plan, quantized, target)
    engine = open_engine("openvino", lowered.files, lowered.entry, {**lowered.options, "threads": 1})
    rows = {row.group: row for row in backend.readback(engine, plan).groups}
    engine.close()
    return [
        Found(
            label,
            backend.legal(candidate, "plain", precision, Format(output), target),
            rows[label].confirmed,
            rows[label].why,
        )
        for label, candidate in planned.items()
    ]


def plan_of(model: Model, planned: dict[str, Candidate], precision: Precision, output: str) -> Plan:
    """Return a plan of these groups; every other node is alone, anchors in the same precision."""
    heads = {candidate.names[0]: (label, candidate) for label, candidate in planned.items()}
    inside = {name for candidate in planned.values() for name in candidate.names}
    groups = []
    for node in model.graph:
        if node.name in heads:
            label, candidate = heads[node.name or ""]
            groups.append(group(label, candidate.nodes, precision, output))
        elif node.name not in inside:
            wanted = precision if node.op_type in ("Conv", "MatMul", "Gemm") else "fp32"
            groups.append(group(f"alone-{node.name}", (node,), wanted, "float32"))
    return Plan(model="", target="x86-avx2", requested=precision, groups=tuple(groups))


def group(label: str, nodes: Sequence[Node], precision: Precision, output: str) -> Group:
    names = tuple(node.name or "" for node in nodes)
    fields: dict[str, Any] = {"writes": tuple(v.name or "" for v in nodes[-1].outputs)}
    return Group(
        id=label,
        nodes=names,
        sources=names,
        operators=tuple(node.op_type for node in nodes),
        rule="test",
        variant="plain",
        precision=precision,
        output=Format(output),
        cost=(),
        loss=0.0,
        compute_nodes=compute_nodes(nodes),
        reason="",
        **fields,
    )
