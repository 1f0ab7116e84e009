"""Low-rank factorisation: one large layer becomes two thin ones, where that saves time.

W [outputs, inputs] of a Gemm, a MatMul or a 1x1 convolution becomes U [outputs, r] times V [r, inputs].
Without data: the truncated singular value decomposition, the nearest matrix of rank r. With data: the
factors that change what the layer *writes* least, U being the r main directions of its outputs (Zhang et al.
2015, arXiv 1505.06798, eq. 2-4: minimise E|y - y'|^2 over rank r; U = eigenvectors of Cov(y), V = U^T W).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.analysis import node_cost
from edgefuse.errors import UsageError
from edgefuse.graph import (
    Model,
    Node,
    Shape,
    Value,
    add_constant,
    add_node,
    attribute,
    clone_model,
    constant,
    dims,
    input_value,
    remove_node,
)
from edgefuse.quant.calibrate import observe

__all__ = ["Factored", "factorize", "low_rank", "rank_of"]

Feeds = Mapping[str, np.ndarray]
# (nodes that run one after the other) -> predicted milliseconds.
Price = Callable[[Sequence[Node]], float]

MULTIPLE = 8
# Part of the mean variance that every direction of a layer's inputs is taken to have: a few samples span few
# directions, and what they did not show is no reason to drop the rest of the weight.
UNSEEN = 1e-2


@dataclass(frozen=True, slots=True)
class Factored:
    """A model with factored layers.

    model: a new one; the input is untouched.  ranks: node name -> (rank, full rank).  refused: node name ->
    why the layer stays whole.
    """

    model: Model
    ranks: Mapping[str, tuple[int, int]]
    refused: Mapping[str, str]


def low_rank(
    model: Model,
    share: float,
    *,
    samples: Sequence[Feeds] | None = None,
    price: Price | None = None,
    multiple: int = MULTIPLE,
    sized: Model | None = None,
) -> Factored:
    """Return the model with every layer factored for which that saves time.

    share: of the full rank that stays, in (0, 1); rounded up to a multiple of `multiple`.
    samples: feeds by input name, for factors that keep the outputs.  price: predicted ms of nodes; a layer is
    factored only if that lowers both the FLOPs and the price (None: the FLOPs decide).  sized: the same nodes
    with every size a number, on which both are counted (None: the model itself).
    The second factor keeps the name of the node and of its output. Raises UsageError for another share.
    """
    if not 0 < share < 1:
        raise UsageError("the rank that stays must be a share between 0 and 1", got=str(share))
    ranks, refused = _choose(sized or model, share, price, multiple)
    copy = clone_model(model)
    for node in list(copy.graph):
        if node.name in ranks:
            matrix = _matrix(node)
            assert matrix is not None
            _take_place(node, _thin_pair(copy, node, matrix.shape[1], ranks[node.name][0]))
    _fill(model, copy, ranks, _moments(model, ranks, samples) if samples and ranks else {})
    return Factored(copy, ranks, refused)


def _choose(
    model: Model, share: float, price: Price | None, multiple: int
) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return (node name -> (rank, full rank), node name -> why it stays whole); `model` is left as it is."""
    trial = clone_model(model)
    ranks: dict[str, tuple[int, int]] = {}
    refused: dict[str, str] = {}
    for node in [n for n in trial.graph if n.op_type in ("Conv", "Gemm", "MatMul")]:
        matrix, name = _matrix(node), node.name or ""
        if matrix is None:
            refused[name] = "it is no matrix product with constant weights"
            continue
        rank = rank_of(matrix.shape, share, multiple)
        why = _refusal(node, _thin_pair(trial, node, matrix.shape[1], rank), price)
        if why:
            refused[name] = why
        else:
            ranks[name] = (rank, min(matrix.shape))
    return ranks, refused


def rank_of(shape: tuple[int, ...], share: float, multiple: int = MULTIPLE) -> int:
    """Return the rank that stays of a matrix: a share of the full one, rounded up to a multiple.

    >>> rank_of((96, 16), 0.5), rank_of((1000, 1280), 0.5), rank_of((5, 3), 0.5)
    (8, 504, 3)
    """
    full = min(shape)
    rank = max(int(np.ceil(full * share - 1e-9)), 1)
    return min(-(-rank // multiple) * multiple, full)


def factorize(
    matrix: np.ndarray, rank: int, moments: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (U [outputs, rank], V [rank, inputs], shift [outputs]) so that U V x + shift is near W x.

    matrix: float64 W [outputs, inputs].  moments: (mean [inputs], covariance [inputs, inputs]) of x; None is
    x without mean whose directions all count the same: the singular value decomposition, shift 0.
    """
    if moments is None:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        root = np.sqrt(values[:rank])
        return left[:, :rank] * root, root[:, None] * right[:rank], np.zeros(matrix.shape[0])
    mean, covariance = moments
    _, directions = np.linalg.eigh(matrix @ covariance @ matrix.T)
    u = directions[:, ::-1][:, :rank]
    v = u.T @ matrix
    written = matrix @ mean
    return u, v, written - u @ (v @ mean)


def _matrix(node: Node) -> np.ndarray | None:
    """Return the weight as float64 [outputs, inputs], or None where the layer is no such product."""
    weight = constant(input_value(node, 1))
    value = input_value(node, 0)
    if node.domain or weight is None or value is None or constant(value) is not None or dims(value) is None:
        return None
    exact = weight.astype(np.float64)
    if node.op_type == "Conv":
        one = weight.ndim >= 3 and all(d == 1 for d in weight.shape[2:]) and attribute(node, "group", 1) == 1
        return exact.reshape(weight.shape[:2]) if one else None
    if weight.ndim != 2 or attribute(node, "transA", 0):
        return None
    if node.op_type == "Gemm":
        exact = exact * float(attribute(node, "alpha", 1.0))
    found: np.ndarray = exact if attribute(node, "transB", 0) else exact.T
    return found


def _thin_pair(model: Model, node: Node, inputs: int, rank: int) -> tuple[Node, Node]:
    """Return two new nodes before `node` that have the shapes of the factors; their weights are zeros."""
    outputs = dims(node.outputs[0])
    assert outputs is not None
    weight = constant(node.inputs[1])
    assert weight is not None
    count = outputs[1 if node.op_type == "Conv" else -1]
    assert isinstance(count, int)
    rest = [1] * (weight.ndim - 2)
    conv = node.op_type == "Conv"
    shapes = ([rank, inputs, *rest], [count, rank, *rest]) if conv else ([inputs, rank], [rank, count])
    held = [
        add_constant(model.graph, np.zeros(shape, weight.dtype), f"{node.inputs[1].name}_{part}")  # type: ignore[union-attr]
        for shape, part in zip(shapes, ("v", "u"), strict=True)
    ]
    one, two = _attributes(node)
    first = add_node(
        node,
        node.op_type,
        [node.inputs[0], held[0]],
        one,
        like=node.outputs[0],
        stem=f"{node.name}_v",
        sources=[node],
    )
    inner = list(outputs)
    inner[1 if conv else -1] = rank
    first.outputs[0].shape = Shape(inner)
    bias = input_value(node, 2)
    inputs_of_second = [first.outputs[0], held[1], *([bias] if bias is not None else [])]
    second = add_node(
        node, node.op_type, inputs_of_second, two, like=node.outputs[0], stem=f"{node.name}_u", sources=[node]
    )
    return first, second


def _attributes(node: Node) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of the first factor, which strides and pads, and of the second."""
    if node.op_type == "Conv":
        names = ("strides", "pads", "auto_pad", "dilations", "kernel_shape")
        first = {n: attribute(node, n) for n in names if n in node.attributes}
        return first, {}
    if node.op_type == "Gemm":
        return {}, {"beta": float(attribute(node, "beta", 1.0))}
    return {}, {}


def _refusal(node: Node, pair: tuple[Node, Node], price: Price | None) -> str:
    before = node_cost(node)
    after = [node_cost(n) for n in pair]
    if before.unknown or any(cost.unknown for cost in after):
        return "its size is not known"
    flops = sum(cost.flops for cost in after)
    if flops >= before.flops:
        return f"two factors need {flops / before.flops:.2f} of its FLOPs"
    if price is not None:
        was, now = price([node]), price(pair)
        if now >= was:
            part = flops / before.flops
            return f"two factors are predicted at {now / was:.2f} of its time, at {part:.2f} of its FLOPs"
    return ""


def _take_place(node: Node, pair: tuple[Node, Node]) -> None:
    """Let the pair stand for the node; the second takes its name, and its output that of the old output."""
    old, new = node.outputs[0], pair[1].outputs[0]
    graph = node.graph
    assert graph is not None
    name, node_name = old.name, node.name
    for user, index in tuple(old.uses()):
        user.replace_input_with(index, new)
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new
    old.name = f"{name}__whole"
    weight = node.inputs[1]
    remove_node(node)
    if weight is not None and not weight.uses() and weight.is_initializer():
        graph.initializers.pop(weight.name or "", None)
    pair[1].name = node_name
    new.name = name


def _fill(
    model: Model,
    copy: Model,
    ranks: Mapping[str, tuple[int, int]],
    moments: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write the factors into the thin layers."""
    from edgefuse.lowering import apply_biases, bias_of

    whole = {node.name: node for node in model.graph}
    biases: dict[str, np.ndarray] = {}
    for node in list(copy.graph):
        name = node.name or ""
        if name not in ranks:
            continue
        matrix = _matrix(whole[name])
        assert matrix is not None
        u, v, shift = factorize(matrix, ranks[name][0], moments.get(name))
        first = node.inputs[0].producer()  # type: ignore[union-attr]
        assert first is not None
        for target, factor in ((first, v), (node, u)):
            held = constant(target.inputs[1])
            assert held is not None
            array = factor.reshape(held.shape) if node.op_type == "Conv" else factor.T
            _overwrite(copy, target, array.astype(held.dtype))
        known = bias_of(node)
        if shift.any() and known is not None and known[1].shape == shift.shape:
            biases[known[0]] = (known[1] + shift).astype(np.float32)
    apply_biases(copy, biases)


def _overwrite(model: Model, node: Node, array: np.ndarray) -> None:
    old = node.inputs[1]
    assert old is not None
    node.replace_input_with(1, add_constant(model.graph, array, old.name or "factor"))
    model.graph.initializers.pop(old.name or "", None)


class _Moments:
    """Mean and covariance of the vectors that a layer reads, streaming; at most some rows of each sample."""

    rows_of_a_sample = 256

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self.count = 0
        self._sum: Any = 0.0
        self._square: Any = 0.0

    def update(self, array: np.ndarray) -> None:
        rows = np.moveaxis(array, self._axis, -1).reshape(-1, array.shape[self._axis])
        step = -(-len(rows) // self.rows_of_a_sample)
        rows = rows[::step].astype(np.float64)
        self._sum = self._sum + rows.sum(axis=0)
        self._square = self._square + rows.T @ rows
        self.count += len(rows)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self._sum / self.count
        found = self._square / self.count - np.outer(mean, mean)
        found += UNSEEN * np.trace(found) / len(mean) * np.eye(len(mean))
        return mean, found


def _moments(
    model: Model, ranks: Mapping[str, tuple[int, int]], samples: Sequence[Feeds]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    reads: dict[str, Value] = {}
    sinks: dict[str, _Moments] = {}
    for node in model.graph:
        value = input_value(node, 0)
        if node.name in ranks and value is not None:
            reads[node.name or ""] = value
            sinks.setdefault(value.name or "", _Moments(1 if node.op_type == "Conv" else -1))
    observe(model, sinks, samples)
    found = {name: sinks[value.name or ""] for name, value in reads.items()}
    return {name: sink.result() for name, sink in found.items() if sink.count}
