"""Resize as operator set 13 has it: no antialias, no axes, no aspect policy."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import Node, attribute, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import Step
from edgefuse.lowering.reader import refusal


def _newest_forms(node: Node, make: Builder) -> None:
    """Operator set 19 brought half_pixel_symmetric."""
    if attribute(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel_symmetric":
        raise refusal(
            node,
            f"coordinate_transformation_mode=half_pixel_symmetric is not in operator set {make.reader.opset}",
        )


def _resize(node: Node, make: Builder) -> None:
    """axes become scales of 1 and the sizes of the input; an unused aspect policy is dropped."""
    if attribute(node, "antialias", 0):
        raise refusal(node, f"antialias is not in operator set {make.reader.opset}")
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and input_value(node, 3) is not None:
        raise refusal(node, f"keep_aspect_ratio_policy={policy} is not in operator set {make.reader.opset}")
    for name in ("antialias", "keep_aspect_ratio_policy"):
        node.attributes.pop(name, None)
    axes = attribute(node, "axes")
    if axes is None:
        return
    x = make.input(0)
    rank = make.rank(x)
    places = [axis % rank for axis in axes]
    for index, what in ((2, "scales"), (3, "sizes")):
        given = make.constant_input(index, what)
        if given is None or given.size == 0:
            continue
        full: np.ndarray
        if what == "scales":
            full = np.ones(rank, dtype=np.float32)
        else:
            full = np.array([0 if i in places else make.size(x, i) for i in range(rank)], dtype=np.int64)
        full[places] = given.reshape(-1)
        node.replace_input_with(index, make.constant(full))
    region = make.constant_input(1, "roi")
    if region is not None and region.size:
        spread = np.concatenate([np.zeros(rank), np.ones(rank)]).astype(region.dtype)
        spread[[*places, *(place + rank for place in places)]] = region.reshape(-1)
        node.replace_input_with(1, make.constant(spread))
    del node.attributes["axes"]


STEPS = (Step("Resize", 19, _newest_forms), Step("Resize", 18, _resize))
