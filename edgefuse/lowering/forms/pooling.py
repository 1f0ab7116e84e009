"""AveragePool without dilations and GridSample by its first names."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import Node, Value, attribute, static_shape
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import Step
from edgefuse.lowering.reader import refusal


def _floor_mode(node: Node, make: Builder) -> None:
    """ceil_mode with fixed sizes becomes padding at the end that gives the same windows.

    Older sets (and readers of their time) count a last window that begins in the padding, which operator
    set 22 does not. Padding never counts in a maximum, nor in an average without count_include_pad.
    """
    x, out = node.inputs[0], node.outputs[0]
    size, wanted = static_shape(x), static_shape(out)
    if not attribute(node, "ceil_mode", 0) or size is None or wanted is None:
        return
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        node.attributes.pop("ceil_mode")
        return
    pads = _end_padded(node, size, wanted)
    if pads is None:
        return  # said by ceil_mode alone
    rank = len(pads) // 2
    before = attribute(node, "pads", (0,) * (2 * rank))
    counted = node.op_type == "AveragePool" and attribute(node, "count_include_pad", 0)
    if counted and any(new > old for new, old in zip(pads, before, strict=True)):
        return  # the added padding would count
    node.attributes.add(make.ints("pads", pads))
    node.attributes.pop("ceil_mode")
    node.attributes.pop("auto_pad", None)


def _end_padded(node: Node, size: tuple[int, ...], wanted: tuple[int, ...]) -> list[int] | None:
    """Return pads with which rounding down gives the `wanted` sizes, or None."""
    kernel = attribute(node, "kernel_shape")
    rank = len(kernel)
    strides = attribute(node, "strides", (1,) * rank)
    dilations = attribute(node, "dilations", (1,) * rank)
    pads = list(attribute(node, "pads", (0,) * (2 * rank)))
    for i in range(rank):
        window = (kernel[i] - 1) * dilations[i] + 1
        padded = size[2 + i] + pads[i]
        reach = (wanted[2 + i] - 1) * strides[i] + window
        pads[rank + i] = max(reach - padded, pads[rank + i])
        if (padded + pads[rank + i] - window) // strides[i] + 1 != wanted[2 + i]:
            return None
        if pads[rank + i] >= kernel[i]:
            return None
    return pads


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


STEPS = (
    Step("AveragePool", 22, _floor_mode),
    Step("MaxPool", 22, _floor_mode),
    Step("LpPool", 22, _floor_mode),
    Step("AveragePool", 19, _average_pool),
    Step("GridSample", 20, _grid_sample),
)
