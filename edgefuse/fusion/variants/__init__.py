"""Other ways to write a group, each proven equal: one file a rewrite, found by listing the folder."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

from edgefuse.errors import InputError, did_you_mean
from edgefuse.fusion.match import Match
from edgefuse.graph import Model, Node, Value, clone_model

__all__ = ["names", "rewrite"]

Rewrite = Callable[[Model, "list[Node]", Match], bool]


def names() -> tuple[str, ...]:
    """Return the names of the rewrites, sorted; "plain" (nothing rewritten) is not among them."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def rewrite(name: str, model: Model, match: Match) -> Model | None:
    """Return a copy of `model` with the match written as variant `name`, or None where that cannot be.

    The copy keeps the user's inputs and outputs and gives the same numbers (stored constants: in float32).
    Raises InputError for a name that is no variant.
    """
    if name not in names():
        raise InputError(f"no variant {name!r}{did_you_mean(name, names())}", expected=", ".join(names()))
    copy = clone_model(model)
    wanted = {node.name for node in match.nodes}
    nodes = [node for node in copy.graph if node.name in wanted]
    module = import_module(f"{__name__}.{name}")
    change: Rewrite = getattr(module, name)
    return copy if change(copy, nodes, match) else None


def value_in(model: Model, value: Value) -> Value:
    """Return the tensor of the same name in a copy of the model."""
    for node in model.graph:
        for found in (*node.outputs, *(v for v in node.inputs if v is not None)):
            if found.name == value.name:
                return found
    raise InputError(f"the copy has no tensor {value.name!r}")
