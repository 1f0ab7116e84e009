"""Which groups OpenVINO runs as one kernel, and in which precision: rules.yaml, asked by the planner."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import yaml

from edgefuse.backend import YES, Candidate, Verdict
from edgefuse.device import Target
from edgefuse.graph import Node, Value, constant, dims, input_value
from edgefuse.plans import Format, Precision

__all__ = ["judge"]


@functools.cache
def rules() -> dict[str, Any]:
    """Return rules.yaml as plain data."""
    text = resources.files("edgefuse.targets.openvino").joinpath("rules.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def judge(candidate: Candidate, precision: Precision, output: Format, target: Target) -> Verdict:
    """Return whether the group runs as one kernel in `precision`, or the reason why not."""
    fused = _one_kernel(candidate)
    if not fused.ok:
        return fused
    support = target.support(candidate.anchor.op_type, precision)
    if not support.allowed:
        return Verdict(False, support.reason)
    if precision == "int8":
        return _int8(candidate, target)
    if output.dtype == "int8" and candidate.anchor.op_type not in rules()["int8"]["anchors"]:
        return Verdict(False, rules()["int8"]["reason"])
    return YES


def _one_kernel(candidate: Candidate) -> Verdict:
    if len(candidate.nodes) == 1:
        return YES
    anchor = rules()["anchors"].get(candidate.anchor.op_type)
    if anchor is None:
        outside = [n.op_type for n in candidate.nodes if n.op_type not in rules()["pointwise"]]
        if outside:
            return Verdict(False, f"{outside[0]} is not part of OpenVINO's generated kernels")
        return YES
    folded = True  # so far everything goes into the weights
    for previous, node in zip(candidate.nodes, candidate.nodes[1:], strict=False):
        if node.op_type not in anchor["epilogue"]:
            return Verdict(False, f"{candidate.anchor.op_type} takes no {node.op_type} into its kernel")
        if previous.op_type in rules()["last"]:
            return Verdict(False, f"after {previous.op_type} nothing joins the kernel")
        other = _other_input(node, previous.outputs[0])
        if other is not None and constant(other) is None:
            if node.op_type != anchor.get("residual"):
                return Verdict(False, f"{candidate.anchor.op_type} takes {node.op_type} only with a constant")
            if not folded:
                return Verdict(False, "after an activation, or another sum, a sum is a kernel of its own")
            apart = _sum_apart(candidate.anchor, node, other)
            if apart:
                return Verdict(False, apart)
        folded = folded and node.op_type in anchor.get("before_residual", ())
    return YES


def _sum_apart(anchor: Node, node: Node, other: Value) -> str:
    """Return why the sum with the other branch is not done in place, or ""."""
    if dims(other) != dims(node.outputs[0]):
        return "a sum that broadcasts is a kernel of its own"
    if other.is_graph_input() and anchor.inputs[0] is other:
        return "a sum with the graph input that the convolution reads is not done in place"
    return ""


def _other_input(node: Node, through: Value) -> Value | None:
    others = [v for v in node.inputs if v is not None and v is not through]
    running = [v for v in others if constant(v) is None]
    return running[0] if running else (others[0] if others else None)


def _int8(candidate: Candidate, target: Target) -> Verdict:
    anchor = candidate.anchor
    if anchor.op_type not in rules()["int8"]["anchors"]:
        return Verdict(False, rules()["int8"]["reason"])
    weight = constant(input_value(anchor, 1))
    if weight is None:
        return Verdict(False, "int8 needs constant weights; both operands are computed")
    if weight.dtype.kind != "f":
        return Verdict(False, f"the weights are {weight.dtype}, not float")
    if anchor.op_type == "Conv" and weight.ndim not in rules()["int8"]["conv_ranks"]:
        return Verdict(False, f"no int8 kernel for a convolution of rank {weight.ndim}")
    if anchor.op_type != "Conv" and weight.ndim != 2:
        return Verdict(False, f"no int8 kernel for a matrix product with weights of rank {weight.ndim}")
    producer = anchor.inputs[0].producer() if anchor.inputs[0] is not None else None
    if producer is not None:
        source = target.support(producer.op_type, "int8")
        if source.level == "float-output":
            return Verdict(False, source.reason)
    return _int8_sum(candidate)


def _int8_sum(candidate: Candidate) -> Verdict:
    for previous, node in zip(candidate.nodes, candidate.nodes[1:], strict=False):
        other = _other_input(node, previous.outputs[0])
        if other is not None and constant(other) is None:
            return Verdict(False, rules()["int8"]["sum_reason"])
    return YES
