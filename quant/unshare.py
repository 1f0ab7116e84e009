"""Constants changed for one reader: every other reader keeps the old one.

Tied embeddings, a head used twice, exporters that merge equal arrays: a weight may have several readers, and
a repair that scales what one of them reads must not reach the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgefuse.errors import InternalError
from edgefuse.graph import Model, Node, add_constant, constant, input_value
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.weights import weight_rule

__all__ = ["differing_readers", "unshare", "write_own"]


def write_own(model: Model, node: Node, index: int, array: np.ndarray) -> bool:
    """Let input `index` of `node` read `array`, in the dtype of the constant that it read; return whether.

    array: float64, the same number of elements or another shape. False, and nothing done, where a finite
    number would overflow the dtype. The old constant stays for its other readers.
    """
    old = input_value(node, index)
    held = constant(old)
    if old is None or held is None:
        raise InternalError(f"input {index} of node {node.name!r} is no constant")
    with np.errstate(over="ignore", under="ignore"):
        made = array.astype(held.dtype)
    if not np.isfinite(made.astype(np.float64)).all():
        return False
    node.replace_input_with(index, add_constant(model.graph, made, old.name or "weight"))
    if not old.uses() and not old.is_graph_output():
        model.graph.initializers.pop(old.name or "", None)
    return True


def unshare(model: Model, names: frozenset[str]) -> int:
    """Give each of the named nodes its own copy of every constant that another node reads too; in place.

    Returns how many copies were made. For writers that keep integers under the name of the float weight, two
    readers at different scales would otherwise take each other's.
    """
    copies = 0
    for node in model.graph:
        if node.name not in names:
            continue
        for index, value in enumerate(node.inputs):
            array = constant(value)
            if value is None or array is None or len(tuple(value.uses())) < 2:
                continue
            node.replace_input_with(index, add_constant(model.graph, array, value.name or "weight"))
            copies += 1
    return copies


def differing_readers(model: Model, names: Iterable[str], scheme: Scheme) -> frozenset[str]:
    """Return those of the named nodes that share their weight or bias with another and need other integers.

    names: of nodes that run in int8. Weights: where the channels of the readers stand on different axes, pair
    or not, or have other limits. With integer biases also where the inputs differ, whose scales the bias and
    the room that it needs follow.
    """
    wanted = set(names)
    kinds: dict[int, set[object]] = {}
    users: dict[int, list[str]] = {}
    for node in model.graph:
        if node.name not in wanted or constant(input_value(node, 1)) is None:
            continue
        read = input_value(node, 0)
        scale = () if scheme.bias == "float" else (id(read),)
        for index in (1, 2):
            value = input_value(node, index)
            if value is not None and constant(value) is not None and len(tuple(value.uses())) > 1:
                rule = (weight_rule(node, scheme),) if index == 1 else ()
                kinds.setdefault(id(value), set()).add((*rule, *scale))
                users.setdefault(id(value), []).append(node.name)
    return frozenset(name for key, found in kinds.items() if len(found) > 1 for name in users[key][1:])
