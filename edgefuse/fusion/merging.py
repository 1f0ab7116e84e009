"""What the merging variants share: sibling convolutions read, and one convolution put in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    input_value,
    replace_node,
)

__all__ = ["Merged", "Sibling", "convolutions", "merge_convolutions", "split_results"]


@dataclass(frozen=True, slots=True)
class Sibling:
    """A convolution of one group.  weight: [O, C, k...].  pads: beginnings, then ends."""

    node: Node
    weight: np.ndarray
    bias: np.ndarray | None
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def geometry(self) -> tuple[tuple[int, ...], ...]:
        """Return what siblings must share to become one."""
        return (self.strides, self.dilations, self.pads)


@dataclass(frozen=True, slots=True)
class Merged:
    """The one convolution: weight [sum of O, C, k...] and pads."""

    weight: np.ndarray
    pads: tuple[int, ...]


def convolutions(nodes: Sequence[Node], match: Match) -> list[Sibling] | None:
    """Return the siblings of the match as read from `nodes`, or None where one of them cannot be merged."""
    wanted = {node.name for node in match.siblings}
    found = [_read(node) for node in nodes if node.name in wanted]
    good = [sibling for sibling in found if sibling is not None]
    return good if len(good) == len(found) and len(good) > 1 else None


def _read(node: Node) -> Sibling | None:
    weight, given = constant(input_value(node, 1)), input_value(node, 2)
    bias = constant(given)
    if node.op_type != "Conv" or weight is None or (given is not None and bias is None):
        return None
    if attribute(node, "group", 1) != 1 or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    spatial = weight.ndim - 2
    strides = attribute(node, "strides", (1,) * spatial)
    dilations = attribute(node, "dilations", (1,) * spatial)
    return Sibling(node, weight, bias, strides, dilations, attribute(node, "pads", (0,) * (2 * spatial)))


def merge_convolutions(model: Model, siblings: Sequence[Sibling], merged: Merged) -> None:
    """Put one convolution and a Split in the place of the siblings, in place."""
    first = siblings[0].node
    stem = f"{first.name}_merged"
    inputs = [first.inputs[0], add_constant(model.graph, merged.weight, f"{stem}_weight")]
    if any(sibling.bias is not None for sibling in siblings):
        parts = [
            s.bias if s.bias is not None else np.zeros(s.weight.shape[0], s.weight.dtype) for s in siblings
        ]
        inputs.append(add_constant(model.graph, np.concatenate(parts), f"{stem}_bias"))
    attributes = {
        "strides": list(siblings[0].strides),
        "dilations": list(siblings[0].dilations),
        "pads": list(merged.pads),
        "kernel_shape": list(merged.weight.shape[2:]),
    }
    nodes = [sibling.node for sibling in siblings]
    wide = add_node(first, "Conv", inputs, attributes, stem=stem, sources=nodes).outputs[0]
    wide.type = first.outputs[0].type
    split_results(model, nodes, wide, [s.weight.shape[0] for s in siblings], axis=1)


def split_results(model: Model, nodes: Sequence[Node], wide: Value, sizes: Sequence[int], axis: int) -> None:
    """Let each node's readers read its slice of `wide` along `axis`, and remove the nodes."""
    first = nodes[0]
    lengths = add_constant(model.graph, np.array(sizes, np.int64), f"{first.name}_sizes")
    split = add_node(first, "Split", [wide, lengths], {"axis": axis}, outputs=len(nodes), sources=nodes)
    for node, part in zip(nodes, split.outputs, strict=True):
        part.type, part.shape = node.outputs[0].type, node.outputs[0].shape
        replace_node(node, [part])
