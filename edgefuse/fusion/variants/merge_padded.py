"""Sibling convolutions of different windows as one of the largest window."""

from __future__ import annotations

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.fusion.merging import Merged, convolutions, merge_convolutions
from edgefuse.graph import Model, Node

__all__ = ["merge_padded"]


def merge_padded(model: Model, nodes: list[Node], match: Match) -> bool:
    """Write the siblings as one convolution whose windows are padded with zeros, and a Split, in place.

    The zeros are multiplied: it pays where the input's traffic weighs more than arithmetic (cost decides).
    Takes siblings of one input, one group, constant weights, equal strides, dilation one, whose windows
    include one another once their paddings are aligned; False otherwise. Exact.
    """
    siblings = convolutions(nodes, match)
    if siblings is None or len({s.strides for s in siblings}) != 1:
        return False
    if any(d != 1 for s in siblings for d in s.dilations) or len({s.weight.shape[1] for s in siblings}) != 1:
        return False
    spatial = siblings[0].weight.ndim - 2
    begin = [max(s.pads[i] for s in siblings) for i in range(spatial)]
    leads = [[begin[i] - s.pads[i] for i in range(spatial)] for s in siblings]
    size = [
        max(lead[i] + s.weight.shape[2 + i] for s, lead in zip(siblings, leads, strict=True))
        for i in range(spatial)
    ]
    ends = {
        tuple(s.pads[spatial + i] + size[i] - lead[i] - s.weight.shape[2 + i] for i in range(spatial))
        for s, lead in zip(siblings, leads, strict=True)
    }
    if len(ends) != 1:
        return False  # the siblings' results have different sizes
    widened = []
    for s, lead in zip(siblings, leads, strict=True):
        room = [(lead[i], size[i] - lead[i] - s.weight.shape[2 + i]) for i in range(spatial)]
        widened.append(np.pad(s.weight, [(0, 0), (0, 0), *room]))
    merge_convolutions(model, siblings, Merged(np.concatenate(widened), (*begin, *next(iter(ends)))))
    return True
