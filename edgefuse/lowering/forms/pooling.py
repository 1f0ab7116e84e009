"""AveragePool without dilations and GridSample by its first names."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import Node, Value, attribute
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import Step
from edgefuse.lowering.reader import refusal


def _average_pool(node: Node, make: Builder) -> list[Value] | None:
    """A dilated average is a depthwise convolution by 1/size, where every window counts the same."""
    dilations = attribute(node, "dilations")
    if dilations is None or set(dilations) == {1}:
        node.attributes.pop("dilations", None)
        return None
    pads = attribute(node, "pads", ())
    padded = any(pads) or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if (padded and not attribute(node, "count_include_pad", 0)) or attribute(node, "ceil_mode", 0):
        raise refusal(
            node,
            f"dilations={tuple(dilations)} with windows of unequal count is not in operator set "
            f"{make.reader.opset}",
        )
    x = make.input(0)
    channels, kernel = make.size(x, 1), attribute(node, "kernel_shape")
    weight = np.full((channels, 1, *kernel), 1.0 / np.prod(kernel))
    kept = {
        name: attribute(node, name) for name in ("auto_pad", "pads", "strides") if name in node.attributes
    }
    weights = make.constant(weight, make.dtype(x))
    return [
        make.op(
            "Conv",
            x,
            weights,
            like=node.outputs[0],
            group=channels,
            kernel_shape=list(kernel),
            dilations=list(dilations),
            **kept,
        )
    ]


def _grid_sample(node: Node, make: Builder) -> None:
    """Operator set 20 renamed the modes and took inputs of any rank."""
    if make.rank(make.input(0)) != 4:
        raise refusal(node, f"inputs that are not images are not in operator set {make.reader.opset}")
    renamed = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    node.attributes.add(make.text("mode", renamed[attribute(node, "mode", "linear")]))


STEPS = (Step("AveragePool", 19, _average_pool), Step("GridSample", 20, _grid_sample))
