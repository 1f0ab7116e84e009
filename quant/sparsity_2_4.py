"""2:4 sparsity: of every four neighbouring input channels at most two weights are not zero.

GPUs of compute capability 8.0 and above (Ampere) multiply such weights at up to twice the rate: NVIDIA,
"Accelerating Inference with Sparsity Using the Ampere Architecture and TensorRT" (2021), and the sparsity
section of the TensorRT developer guide: the four lie along the input channels, for each output channel and
each place of the kernel. Elsewhere the zeros save no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.graph import Model, Node, attribute, clone_model
from edgefuse.quant.calibrate import observe
from edgefuse.quant.prune_weights import Masked, set_weight, weighted_layers

__all__ = ["has_2_4", "mask_2_4", "sparsify_2_4", "supports_2_4"]

Feeds = Mapping[str, np.ndarray]


def supports_2_4(compute_capability: str) -> bool:
    """Return whether a GPU of this compute capability skips the zeros; "" is no such GPU.

    >>> supports_2_4("8.7"), supports_2_4("7.2"), supports_2_4("")
    (True, False, False)
    """
    major = compute_capability.split(".")[0]
    return major.isdigit() and int(major) >= 8


def mask_2_4(importance: np.ndarray, axis: int) -> np.ndarray:
    """Return bool, True for the two largest of every four neighbours along `axis` (ties: the earlier stays).

    importance: >= 0, any shape whose size along `axis` is a multiple of 4.

    >>> mask_2_4(np.array([[3.0, 1.0, 2.0, 0.0]]), axis=1)
    array([[ True, False,  True, False]])
    """
    last = np.moveaxis(importance, axis, -1)
    fours = last.reshape(*last.shape[:-1], -1, 4)
    order = np.argsort(-fours, axis=-1, kind="stable")
    mask = np.zeros(fours.shape, bool)
    np.put_along_axis(mask, order[..., :2], True, axis=-1)
    found: np.ndarray = np.moveaxis(mask.reshape(last.shape), -1, axis)
    return found


def has_2_4(weight: np.ndarray, axis: int) -> bool:
    """Return whether every four neighbours along `axis` hold at least two zeros."""
    if weight.shape[axis] % 4:
        return False
    last = np.moveaxis(weight, axis, -1)
    return bool(((last.reshape(*last.shape[:-1], -1, 4) != 0).sum(axis=-1) <= 2).all())


def sparsify_2_4(model: Model, samples: Sequence[Feeds] | None = None) -> Masked:
    """Return the model with 2:4 weights wherever the pattern is defined.

    samples: feeds by input name; then the weight that stays is the one with the larger |w| times root mean
    square of what it multiplies (Sun et al. 2023, arXiv 2306.11695, eq. 1), else the larger |w|.
    Left alone, with the reason: layers whose input channels are no multiple of 4, grouped convolutions,
    transposed convolutions.
    """
    copy = clone_model(model)
    layers, refused = [], {}
    for node, weight in weighted_layers(copy):
        axis = input_axis(node)
        why = _refusal(node, weight, axis)
        if why:
            refused[node.name or ""] = why
        else:
            layers.append((node, weight, axis))
    reads = _read_sizes(model, [node for node, _, _ in layers], samples) if samples else {}
    zeros = {}
    for node, weight, axis in layers:
        importance = np.abs(weight.astype(np.float64))
        size = reads.get(node.name or "")
        if size is not None:
            importance *= size.reshape([-1 if i == axis % weight.ndim else 1 for i in range(weight.ndim)])
        mask = mask_2_4(importance, axis)
        set_weight(copy, node, np.where(mask, weight, 0).astype(weight.dtype))
        zeros[node.name or ""] = float(1 - mask.mean())
    return Masked(copy, zeros, refused)


def input_axis(node: Node) -> int:
    """Return the axis of the weight along which input channels lie."""
    if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute(node, "transB", 0)):
        return 1
    return 0 if node.op_type != "MatMul" else -2


def _refusal(node: Node, weight: np.ndarray, axis: int) -> str:
    if node.op_type == "ConvTranspose":
        return "a transposed convolution has no sparse kernel"
    if int(attribute(node, "group", 1)) != 1:
        return "a grouped convolution has no sparse kernel"
    if weight.shape[axis] % 4:
        return f"its {weight.shape[axis]} input channels are no multiple of 4"
    return ""


class _Squares:
    def __init__(self, axis: int) -> None:
        self._axis = axis
        self.total = np.zeros(1)
        self.count = 0

    def update(self, array: np.ndarray) -> None:
        rows = np.moveaxis(array, self._axis, 0).reshape(array.shape[self._axis], -1)
        self.total = self.total + np.einsum("cn,cn->c", rows, rows, dtype=np.float64)
        self.count += rows.shape[1]


def _read_sizes(model: Model, nodes: Sequence[Node], samples: Sequence[Feeds]) -> dict[str, np.ndarray]:
    """Return the root mean square of each input channel, by node name."""
    sinks: dict[str, _Squares] = {}
    for node in nodes:
        value = node.inputs[0]
        if value is not None and value.const_value is None:
            axis = 1 if node.op_type == "Conv" else (0 if attribute(node, "transA", 0) else -1)
            sinks[value.name or ""] = _Squares(axis)
    observe(model, sinks, samples)
    found = {}
    for node in nodes:
        value = node.inputs[0]
        sink = sinks.get(value.name or "") if value is not None else None
        if sink is not None and sink.count:
            found[node.name or ""] = np.sqrt(sink.total / sink.count)
    return found
