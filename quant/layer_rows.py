"""A layer as a matrix product: the rows that it reads, and the rows that it writes, at sampled positions.

out[r, g, :] = rows[r, g, :] @ matrix[g].T + bias, for a convolution of g groups, a Gemm or a MatMul with
constant weights; r runs over samples and positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgefuse.graph import Node, attribute, constant, input_value

__all__ = ["is_layer", "layer_matrix", "output_rows", "positions_of", "read_rows", "weight_of_matrix"]


def is_layer(node: Node) -> bool:
    """Return whether the node is a layer that can be taken apart: constant weights, explicit padding."""
    weight = constant(input_value(node, 1))
    if node.domain or weight is None or constant(input_value(node, 0)) is not None:
        return False
    if node.op_type == "Conv":
        return weight.ndim >= 3 and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if node.op_type == "Gemm":
        return weight.ndim == 2 and not attribute(node, "transA", 0)
    return node.op_type == "MatMul" and weight.ndim == 2


def layer_matrix(node: Node, weight: np.ndarray) -> np.ndarray:
    """Return the weight as float64 [groups, outputs a group, inputs a group x kernel places]."""
    array = weight.astype(np.float64)
    if node.op_type == "Conv":
        groups = int(attribute(node, "group", 1))
        return array.reshape(groups, array.shape[0] // groups, -1)
    if node.op_type == "Gemm":
        array = array * float(attribute(node, "alpha", 1.0))
    turned: np.ndarray = array if attribute(node, "transB", 0) else array.T
    return turned[None]


def weight_of_matrix(node: Node, matrix: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weight of `node` that `layer_matrix` gives back as `matrix`, in the shape of `weight`."""
    if node.op_type == "Conv":
        return matrix.reshape(weight.shape)
    if node.op_type == "Gemm":
        matrix = matrix / float(attribute(node, "alpha", 1.0))
    turned: np.ndarray = matrix[0] if attribute(node, "transB", 0) else matrix[0].T
    return turned


def positions_of(node: Node, output: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Return at most `limit` positions of one sample's output, int64 [positions, axes besides channels].

    output: [N, O, ...] of a Conv, else [..., O]. All positions where there are no more than `limit`.
    """
    places = (output.shape[0], *output.shape[2:]) if node.op_type == "Conv" else output.shape[:-1]
    count = int(np.prod(places))
    flat = np.arange(count) if count <= limit else np.sort(rng.choice(count, limit, replace=False))
    return np.stack(np.unravel_index(flat, places), axis=1) if places else np.zeros((1, 0), np.int64)


def output_rows(node: Node, output: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the channels at the positions: [positions, O]."""
    last = np.moveaxis(output, 1, -1) if node.op_type == "Conv" else output
    found: np.ndarray = last[tuple(positions.T)] if positions.shape[1] else last[None]
    return found


def read_rows(node: Node, read: np.ndarray, kernel: Sequence[int], positions: np.ndarray) -> np.ndarray:
    """Return what the layer reads for the positions: float64 [positions, groups, inputs a group x places]."""
    if node.op_type != "Conv":
        rows: np.ndarray = read[tuple(positions.T)] if positions.shape[1] else read[None]
        return rows.astype(np.float64)[:, None, :]
    groups = int(attribute(node, "group", 1))
    axes = len(kernel)
    pads = tuple(attribute(node, "pads", (0,) * (2 * axes)))
    if attribute(node, "auto_pad", "NOTSET") == "VALID":
        pads = (0,) * (2 * axes)
    strides = attribute(node, "strides", (1,) * axes)
    dilations = attribute(node, "dilations", (1,) * axes)
    padded = np.pad(read, [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)])
    offsets = np.stack(np.meshgrid(*map(np.arange, kernel), indexing="ij"), -1).reshape(-1, axes)
    index = positions[:, None, 1:] * np.array(strides) + offsets[None] * np.array(dilations)
    last = np.moveaxis(padded, 1, -1)
    where = (positions[:, :1], *np.moveaxis(index, -1, 0))
    found: np.ndarray = last[where].astype(np.float64)  # [positions, places, channels]
    turned: np.ndarray = found.transpose(0, 2, 1).reshape(len(positions), groups, -1)
    return turned
