"""Pad into the operator that pads anyway."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_node,
    attribute,
    constant,
    dims,
    input_value,
    remove_node,
    replace_value,
    scalar,
)
from edgefuse.passes.contract import PassResult

__all__ = ["fold_pads"]

# Operators that write nothing below zero: for their output a MaxPool's padding of 0 is as good as -inf.
_NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "Softmax", "Abs", "HardSigmoid", "Exp", "Softplus"})


def fold_pads(model: Model) -> PassResult:
    """Move constant padding of spatial dimensions into the Conv or pool that reads it, in place.

    Takes, where every reader of the Pad can take it: 1. zeros before a Conv with explicit or no padding.
    2. zeros before an AveragePool that counts its padding, or has none of its own (count_include_pad becomes
    1). 3. -inf before a MaxPool, and zeros where what is padded cannot be negative (after Relu, Sigmoid, Abs
    ...).
    Leaves: 4. other modes (reflect, edge, wrap), other values, negative padding, padding of batch or
    channels. 5. readers with auto_pad SAME (their padding follows from the padded size).  6. pools with
    ceil_mode (a window may not begin in padding, but may begin in padded data), with an indices output, or
    dilated, or whose padding would reach the size of the window.  7. a Pad that is a graph output or has a
    reader of another kind.
    Exact, but for the order in which a runtime adds.
    """
    folded = 0
    for node in reversed(list(model.graph)):  # of two Pads in a row the second one goes first
        pads = _foldable_pads(node)
        if pads is None:
            continue
        users = [(use.node, use.idx) for use in node.outputs[0].uses()]
        if not users or not all(i == 0 and _accepts(node, user, pads) for user, i in users):
            continue
        for user, _ in users:
            _fold(node, user, pads)
        remove_node(node)
        folded += 1
    notes = (f"{folded} Pads folded into their readers",) if folded else ()
    return PassResult("fold_pads", folded, notes)


def _foldable_pads(node: Node) -> np.ndarray | None:
    """Return int64 [2, spatial]: what the node adds before and after each spatial dimension, else None."""
    if node.op_type != "Pad" or node.domain or attribute(node, "mode", "constant") != "constant":
        return None
    shape, given = dims(node.inputs[0]), constant(input_value(node, 1))
    if shape is None or given is None or len(shape) < 3 or node.outputs[0].is_graph_output():
        return None
    rank = len(shape)
    axes_value = input_value(node, 3)
    axes = constant(axes_value)
    if axes_value is not None and axes is None:
        return None
    full = np.zeros((2, rank), np.int64)
    full[:, [int(a) % rank for a in axes] if axes is not None else range(rank)] = given.reshape(2, -1)
    if (full < 0).any() or full[:, :2].any():
        return None
    return full[:, 2:]


def _pad_number(node: Node) -> float | None:
    """Return what a Pad writes; None where it is computed at run time."""
    value = input_value(node, 2)
    return 0.0 if value is None else scalar(value)


def _pads_of(user: Node, count: int) -> np.ndarray | None:
    """Return int64 [2, count]: the reader's own padding; None where it follows from the input's size."""
    mode = attribute(user, "auto_pad", "NOTSET")
    if mode == "VALID":
        return np.zeros((2, count), np.int64)
    if mode not in ("NOTSET", ""):
        return None
    own = attribute(user, "pads")
    return np.zeros((2, count), np.int64) if own is None else np.array(own, np.int64).reshape(2, count)


def _accepts(pad: Node, user: Node, pads: np.ndarray) -> bool:
    if user.domain or user.graph is not pad.graph:
        return False
    own = _pads_of(user, pads.shape[1])
    if own is None:
        return False
    number = _pad_number(pad)
    if user.op_type == "Conv":
        return number == 0.0
    if user.op_type not in ("MaxPool", "AveragePool") or len(user.outputs) != 1:
        return False
    kernel = np.array(attribute(user, "kernel_shape", ()), np.int64)
    # a window that strides over the data (dilation) could read padding only
    if any(d != 1 for d in attribute(user, "dilations", ())):
        return False
    if attribute(user, "ceil_mode", 0) or kernel.size != pads.shape[1] or ((own + pads) >= kernel).any():
        return False
    if user.op_type == "AveragePool":
        return number == 0.0 and (not own.any() or attribute(user, "count_include_pad", 0) == 1)
    return number == -np.inf or (number == 0.0 and _is_not_negative(pad.inputs[0]))


def _is_not_negative(value: Value | None) -> bool:
    node = value.producer() if value is not None else None
    return node is not None and not node.domain and node.op_type in _NOT_NEGATIVE


def _fold(pad: Node, user: Node, pads: np.ndarray) -> None:
    own = _pads_of(user, pads.shape[1])
    changed: dict[str, Any] = {name: attribute(user, name) for name in user.attributes if name != "auto_pad"}
    changed["pads"] = tuple(int(p) for p in (pads if own is None else pads + own).reshape(-1))
    if user.op_type == "AveragePool":
        changed["count_include_pad"] = 1
    inputs = [pad.inputs[0], *user.inputs[1:]]
    made = add_node(
        user, user.op_type, inputs, changed, like=user.outputs[0], stem=user.name, sources=[pad, user]
    )
    replace_value(user.outputs[0], made.outputs[0])
    remove_node(user)
