"""Weights fitted again behind a compression, so that each layer writes what it wrote in the original.

He et al. 2017, arXiv 1707.06168, eq. 1-2: with the channels chosen, the weights of the layer that reads them
are the least-squares solution of |Y - X W|^2, X being what the compressed model feeds it and Y what the layer
wrote in the original model; on a residual branch Y takes the error of the other branch too (section 3.3).
Both models run side by side, node by node in graph order, so that each layer is fitted behind layers that are
fitted already. The fit is a change of the weights at hand, with a ridge on the change, since a few dozen
samples do not determine a thousand inputs; means are fitted by the bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.errors import UnsupportedError
from edgefuse.graph import (
    Model,
    Node,
    Value,
    constant,
    has_subgraphs,
    opset,
    sole_reader,
    source_name,
)
from edgefuse.lowering import apply_biases, bias_of
from edgefuse.quant.layer_rows import (
    is_layer,
    layer_matrix,
    output_rows,
    positions_of,
    read_rows,
    weight_of_matrix,
)
from edgefuse.quant.unshare import write_own
from edgefuse.quant.walk import _NodeRunner

__all__ = ["RIDGE", "reconstruct"]

Feeds = Mapping[str, np.ndarray]
Arrays = list[np.ndarray]
Kept = Mapping[str, tuple[int, np.ndarray]]

# Part of the mean square of a layer's reads that is added to the diagonal. EfficientNet-Lite0 with 30 % of
# each layer's channels removed, fitted to 64 calibration photos, agreement on 36 held-out ones: 1e-2 gives
# .167, 1e-1 .194.
RIDGE = 1e-1
# Positions of one sample that are fitted on: neighbours in a map say much the same.
POSITIONS = 64
# Below this, relative to the largest, a layer writes what it should.
_SAME = 1e-6


def reconstruct(
    original: Model,
    compressed: Model,
    samples: Sequence[Feeds],
    kept: Kept,
    *,
    weights: bool = True,
    ridge: float = RIDGE,
    positions: int = POSITIONS,
) -> int:
    """Fit the layers of `compressed` to what the layers of those names wrote in `original`; in place.

    samples: feeds by input name; all are held in memory.  kept: tensor name -> (channel axis, positions of
    the original that stay), as `prune_channels` gives it.  weights: False fits biases only (the mean of what
    went is added to the next bias), for weights whose zeros must stay.  ridge: see RIDGE.
    Returns how many layers were changed. Raises UnsupportedError for a model with branches or loops.
    """
    for node in (*original.graph, *compressed.graph):
        if has_subgraphs(node):
            raise UnsupportedError(f"node {source_name(node)!r} ({node.op_type}) holds a body of its own")
    return _Fit(original, compressed, samples, kept, weights, ridge, positions).run()


class _Side:
    """One of the two models, run node by node; arrays are dropped after their last reader."""

    def __init__(self, model: Model, samples: Sequence[Feeds]) -> None:
        self.model = model
        self._count = len(samples)
        self._runner = _NodeRunner(opset(model))
        self._left = {id(v): len(tuple(v.uses())) for n in model.graph for v in n.outputs}
        self.values: dict[int, Arrays] = {
            id(v): [np.asarray(f[v.name or ""]) for f in samples] for v in model.graph.inputs
        }

    def reads(self, node: Node) -> list[Arrays | None]:
        found: list[Arrays | None] = []
        for value in node.inputs:
            if value is None:
                found.append(None)
            elif id(value) in self.values:
                found.append(self.values[id(value)])
            else:
                array = constant(value)
                assert array is not None
                found.append([array] * self._count)
        return found

    def evaluate(self, node: Node) -> list[Arrays]:
        reads = self.reads(node)
        self._runner._node = None  # the weights of a node may have changed since it was run
        rows = [
            self._runner.run(node, [None if a is None else a[i] for a in reads]) for i in range(self._count)
        ]
        return [list(column) for column in zip(*rows, strict=True)]

    def keep(self, node: Node, written: list[Arrays]) -> None:
        for value, arrays in zip(node.outputs, written, strict=True):
            self.values[id(value)] = arrays

    def drop(self, node: Node) -> None:
        for value in node.inputs:
            if value is not None and id(value) in self._left:
                self._left[id(value)] -= 1
        for value in (*node.inputs, *node.outputs):
            if value is not None and self._left.get(id(value)) == 0:
                self.values.pop(id(value), None)


class _Fit:
    def __init__(
        self,
        original: Model,
        compressed: Model,
        samples: Sequence[Feeds],
        kept: Kept,
        weights: bool,
        ridge: float,
        positions: int,
    ) -> None:
        self._exact, self._rough = _Side(original, samples), _Side(compressed, samples)
        self._kept, self._weights, self._ridge, self._positions = kept, weights, ridge, positions
        self._values = {v.name: v for n in original.graph for v in n.outputs}
        self._values |= {v.name: v for v in original.graph.inputs}
        self._biases: dict[str, np.ndarray] = {}
        self._fitted = 0

    def run(self) -> int:
        ahead, names = iter(self._exact.model.graph), {n.name for n in self._exact.model.graph}
        done: dict[str, Node] = {}
        for node in self._rough.model.graph:
            waiting: list[Node] = []
            if node.name in names and node.name not in done:
                for other in ahead:
                    self._exact.keep(other, self._exact.evaluate(other))
                    done[other.name or ""] = other
                    waiting.append(other)
                    if other.name == node.name:
                        break
            self._step(node, done.get(node.name or ""))
            for other in waiting:
                self._exact.drop(other)
        apply_biases(self._rough.model, self._biases)
        return self._fitted

    def _step(self, node: Node, twin: Node | None) -> None:
        written = self._rough.evaluate(node)
        if twin is not None and is_layer(node) and twin.outputs[0].name == node.outputs[0].name:
            written[0] = self._fit(node, twin, written)
        self._rough.keep(node, written)
        self._rough.drop(node)

    def _fit(self, node: Node, twin: Node, written: list[Arrays]) -> Arrays:
        """Fit the layer to what its twin wrote; return what it writes then."""
        held, weight = bias_of(node), constant(node.inputs[1])
        assert weight is not None
        rows, wanted, have = self._rows(node, twin, weight, written[0])
        if np.abs(wanted - have).max(initial=0.0) <= _SAME * np.abs(wanted).max(initial=0.0):
            return written[0]
        if self._weights:
            step = _ridge_step(rows, wanted - have, self._ridge)
            matrix = layer_matrix(node, weight) + step
            if np.isfinite(matrix).all() and write_own(
                self._rough.model, node, 1, weight_of_matrix(node, matrix, weight)
            ):
                written = self._rough.evaluate(node)
                have = have + (rows.transpose(1, 0, 2) @ step.transpose(0, 2, 1)).transpose(1, 0, 2)
        self._fitted += 1
        return self._shifted(node, held, (wanted - have).mean(axis=0).reshape(-1), written[0])

    def _rows(
        self, node: Node, twin: Node, weight: np.ndarray, written: Arrays
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (reads, what should be written, what is written), each float64 [rows, groups, -1]."""
        rng = np.random.default_rng(0)
        reads, branch = self._rough.reads(node)[0], self._branch(node, written[0].shape)
        assert reads is not None
        rows, wanted, have = [], [], []
        for i, (read, wrote) in enumerate(zip(reads, written, strict=True)):
            places = positions_of(node, wrote, self._positions, rng)
            if self._weights:
                rows.append(read_rows(node, read, weight.shape[2:], places))
            goal = self._exact_rows(node, twin.outputs[0], i, places)
            if branch is not None:
                error = self._exact_rows(node, branch[0], i, places) - output_rows(
                    node, self._rough.values[id(branch[1])][i], places
                )
                goal = goal + error
            wanted.append(goal)
            have.append(output_rows(node, wrote, places))
        x = np.concatenate(rows) if rows else np.zeros((sum(map(len, wanted)), 1, 0))
        shape = (x.shape[0], x.shape[1], -1)
        goals, found = (np.concatenate(a).astype(np.float64).reshape(shape) for a in (wanted, have))
        return x, goals, found

    def _exact_rows(self, node: Node, value: Value, sample: int, places: np.ndarray) -> np.ndarray:
        """Return the original's channels that stay, at the places; `node` says where channels stand."""
        rows = output_rows(node, self._exact.values[id(value)][sample], places)
        found = self._kept.get(value.name or "")
        return rows if found is None else rows[:, found[1]]

    def _branch(self, node: Node, shape: tuple[int, ...]) -> tuple[Value, Value] | None:
        """Return the other branch of an Add that alone reads the layer: in the original, and here."""
        add = sole_reader(node.outputs[0])
        if add is None or add.op_type != "Add":
            return None
        other = next((v for v in add.inputs if v is not node.outputs[0]), None)
        exact = self._values.get(other.name) if other is not None else None
        if other is None or exact is None or id(exact) not in self._exact.values:
            return None
        mine = self._rough.values.get(id(other))
        return (exact, other) if mine is not None and mine[0].shape == shape else None

    def _shifted(
        self, node: Node, held: tuple[str, np.ndarray] | None, shift: np.ndarray, written: Arrays
    ) -> Arrays:
        if held is None or held[1].shape != shift.shape or not np.isfinite(shift).all():
            return written
        name, bias = held
        self._biases[name] = (bias.astype(np.float64) + shift).astype(np.float32)
        if node.op_type == "Conv":
            shift = shift.reshape(-1, *[1] * (written[0].ndim - 2))
        return [a + shift.astype(a.dtype) for a in written]


def _ridge_step(rows: np.ndarray, error: np.ndarray, ridge: float) -> np.ndarray:
    """Return the change of the matrix that takes up the error: float64 [groups, outputs, inputs].

    rows: [r, groups, inputs].  error: [r, groups, outputs].  Means are left to the bias.
    """
    x = np.ascontiguousarray((rows - rows.mean(axis=0)).transpose(1, 0, 2))
    e = np.ascontiguousarray((error - error.mean(axis=0)).transpose(1, 0, 2))
    gram = x.transpose(0, 2, 1) @ x
    size = np.trace(gram, axis1=1, axis2=2) / gram.shape[1]
    gram += (ridge * size + 1e-30)[:, None, None] * np.eye(gram.shape[1])
    found: np.ndarray = np.linalg.solve(gram, x.transpose(0, 2, 1) @ e).transpose(0, 2, 1)
    return found
