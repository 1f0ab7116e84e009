"""Unstructured pruning: single weights become zero. The graph keeps its size; a packed file gets smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgefuse.errors import UsageError
from edgefuse.graph import Model, Node, add_constant, clone_model, constant, input_value, is_float

__all__ = ["Masked", "prune_weights", "set_weight", "weighted_layers"]

_LAYERS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])


@dataclass(frozen=True, slots=True)
class Masked:
    """A model with weights set to zero.

    model: a new one; the input is untouched.  zeros: node name -> part of its weights that is zero now, in
    [0, 1].  refused: node name -> why it was left as it was.
    """

    model: Model
    zeros: Mapping[str, float]
    refused: Mapping[str, str]


def weighted_layers(model: Model) -> list[tuple[Node, np.ndarray]]:
    """Return the convolutions and matrix products with constant float weights, in graph order."""
    found = []
    for node in model.graph:
        weight = constant(input_value(node, 1))
        if node.op_type in _LAYERS and not node.domain and weight is not None and weight.ndim >= 2:
            if is_float(node.inputs[1]):
                found.append((node, weight))
    return found


def prune_weights(
    model: Model,
    *,
    share: float | None = None,
    threshold: float | None = None,
    scope: Literal["layer", "model"] = "layer",
) -> Masked:
    """Return the model with its smallest weights set to zero.

    share: of the weights that go, in (0, 1); of each layer, or with scope "model" of all layers together,
    each weight then being compared relative to its layer's root mean square.  threshold: instead, |w| below
    this part of the layer's root mean square goes.  A weight that two layers share is copied.
    Raises UsageError for anything but one of share in (0, 1) and threshold > 0.
    """
    right = (threshold is not None and threshold > 0) if share is None else 0 < share < 1
    if not right or (share is not None and threshold is not None):
        raise UsageError(
            "weight pruning needs a share between 0 and 1 or a threshold > 0",
            got=f"share {share}, threshold {threshold}",
        )
    copy = clone_model(model)
    layers = weighted_layers(copy)
    sizes = [_relative(weight) for _, weight in layers]
    if threshold is not None:
        masks = [size >= threshold for size in sizes]
    elif scope == "model" and sizes:
        flat = _largest(np.concatenate([size.reshape(-1) for size in sizes]), share or 0.0)
        parts = np.split(flat, np.cumsum([size.size for size in sizes])[:-1])
        masks = [part.reshape(size.shape) for part, size in zip(parts, sizes, strict=True)]
    else:
        masks = [_largest(size, share or 0.0) for size in sizes]
    zeros = {}
    for (node, weight), mask in zip(layers, masks, strict=True):
        set_weight(copy, node, np.where(mask, weight, 0).astype(weight.dtype))
        zeros[node.name or ""] = float(1 - mask.mean())
    return Masked(copy, zeros, {})


def _relative(weight: np.ndarray) -> np.ndarray:
    exact = np.abs(weight.astype(np.float64))
    scale = float(np.sqrt(np.square(exact).mean())) or 1.0
    found: np.ndarray = exact / scale
    return found


def _largest(size: np.ndarray, share: float) -> np.ndarray:
    """Return where the weights stay: all but the smallest `share`; equal ones go in memory order."""
    gone = int(size.size * share + 1e-9)
    mask = np.ones(size.size, bool)
    mask[np.argsort(size.reshape(-1), kind="stable")[:gone]] = False
    return mask.reshape(size.shape)


def set_weight(model: Model, node: Node, array: np.ndarray) -> None:
    """Let the node read `array` as its weight; another reader of the old one keeps it."""
    old = node.inputs[1]
    assert old is not None
    node.replace_input_with(1, add_constant(model.graph, array, old.name or "weight"))
    if not old.uses() and old.is_initializer():
        model.graph.initializers.pop(old.name or "", None)
