"""Numbers for a model's symbolic dimensions, given by the caller, never guessed."""

from __future__ import annotations

from collections.abc import Mapping

from edgefuse.errors import UsageError, did_you_mean
from edgefuse.graph import Model, bind_dimensions, clone_model, dims

__all__ = ["bound_model"]


def bound_model(model: Model, binding: Mapping[str, int] | None) -> Model:
    """Return the model with the named dimensions of its inputs bound and all shapes inferred anew.

    The model itself comes back where there is nothing to bind; otherwise a copy that shares the weights.
    binding: dimension name -> number. An input with a dimension left unbound keeps its symbols.
    Raises UsageError for a name that no input has, or a number below 1.
    """
    if not binding:
        return model
    shapes = {value.name or "": dims(value) or () for value in model.graph.inputs}
    known = sorted({dim for shape in shapes.values() for dim in shape if isinstance(dim, str)})
    for name, number in binding.items():
        if name not in known:
            raise UsageError(
                f"the model's inputs have no dimension {name!r}{did_you_mean(name, known)}",
                expected="one of " + ", ".join(known) if known else "none: every dimension is a number",
                got=name,
            )
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(
                f"dimension {name!r} must be a whole number above 0", expected="1 or more", got=str(number)
            )
    numbers = {
        name: [binding.get(dim, 0) if isinstance(dim, str) else dim or 0 for dim in shape]
        for name, shape in shapes.items()
    }
    copy = clone_model(model)
    bind_dimensions(copy, {name: shape for name, shape in numbers.items() if shape and min(shape) > 0})
    return copy
