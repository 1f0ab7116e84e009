"""Sibling convolutions as one of more output channels."""

from __future__ import annotations

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.fusion.merging import Merged, convolutions, merge_convolutions
from edgefuse.graph import Model, Node

__all__ = ["merge_wide"]


def merge_wide(model: Model, nodes: list[Node], match: Match) -> bool:
    """Write the siblings of the group as one convolution and a Split, in place.

    The input is loaded once for all of them, and small ones fill the tensor cores together. Takes siblings of
    one input with constant weights that agree in window, strides, padding and dilation and have one group;
    False otherwise. Exact.
    """
    siblings = convolutions(nodes, match)
    if siblings is None or len({(s.weight.shape[1:], s.geometry) for s in siblings}) != 1:
        return False
    weight = np.concatenate([s.weight for s in siblings])
    merge_convolutions(model, siblings, Merged(weight, siblings[0].pads))
    return True
