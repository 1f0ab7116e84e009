"""A canonical model in the operators, the forms and the types of a limited or older reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.graph import (
    DataType,
    Model,
    all_nodes,
    clone_model,
    has_subgraphs,
    infer_shapes,
    source_name,
    static_shape,
)
from edgefuse.graph.check import check_model
from edgefuse.graph.shapes import require_static
from edgefuse.lowering.decompose import decompose
from edgefuse.lowering.reader import OLDEST_TARGET_OPSET, OperatorLimit, Reader, refusal
from edgefuse.lowering.settle_types import settle_types
from edgefuse.lowering.step_down import step_down

__all__ = ["LoweringNotes", "lower_model"]


# The passes that may run after the decomposition: none of them recovers a pattern.
_FOLDING = (
    "resolve_if",
    "fold_constants",
    "remove_identity",
    "eliminate_common_subexpressions",
    "remove_dead_code",
)
_MOST_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class LoweringNotes:
    """What the user should know.

    lines: one sentence each.  input_casts, output_casts: by the user's name, (their element type, the
    payload's), both as numpy names them; the engine converts, checking that integers fit.
    """

    lines: tuple[str, ...] = ()
    input_casts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    output_casts: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def lower_model(
    model: Model,
    *,
    opset: int,
    operators: frozenset[str] | None = None,
    index_dtype: Literal["int32", "int64"] = "int64",
    static: bool = False,
    limits: Mapping[str, OperatorLimit] | None = None,
    retype: Mapping[str, str] | None = None,
) -> tuple[Model, LoweringNotes]:
    """Return a copy of `model` that a limited reader takes, equal in float meaning, and what changed.

    opset: of the default operator set, 13 or newer.  operators: that the reader knows (None: all of the set).
    index_dtype: "int32" where the target has no int64; ONNX's own int64 ports (shapes, axes) keep int64
    tensors whose values fit int32.  static: every shape must be a number.  limits: what the reader asks of an
    operator beyond the standard.  retype: element types that the target does not hold -> the one in their
    place, as ONNX names in lower case ({"double": "float"}); float16 to float is exact, double to float
    rounds.

    Order: shapes settle and constants fold while every operator is still canonical; then what the reader does
    not know is written by simpler operators; then forms step down; then element types settle, by the older
    set's rules; then everything is checked. Nothing recovers patterns after the decomposition, or it would
    bring back what was just taken apart.
    Raises InputError (an input shape that is not fixed) and UnsupportedError (naming node and operator).
    """
    if opset < OLDEST_TARGET_OPSET:
        raise UnsupportedError(
            f"operator set {opset} is older than what edgefuse writes",
            expected=f"operator set {OLDEST_TARGET_OPSET} or newer",
            got=str(opset),
        )
    replaced = {DataType[a.upper()]: DataType[b.upper()] for a, b in (retype or {}).items()}
    if index_dtype == "int32":
        replaced[DataType.INT64] = DataType.INT32
    reader = Reader(opset, operators, limits or {}, replaced, static)
    made = clone_model(model)
    if static:
        require_static(made, "this target needs fixed shapes")
    _simplify(made)
    lines = list(decompose(made, reader))
    _fold(made)
    if static:
        _require_sizes(made)
    step_down(made, reader)
    infer_shapes(made)
    casts = settle_types(made, reader)
    infer_shapes(made)
    made.graph.sort()
    _check(made, reader)
    return made, LoweringNotes((*lines, *casts.notes), casts.inputs, casts.outputs)


def _simplify(model: Model) -> None:
    from edgefuse.passes import canonicalize

    canonicalize(model)


def _fold(model: Model) -> None:
    """Fold what the decompositions left foldable, without the passes that recover patterns."""
    from edgefuse.passes.pipeline import load_pass

    for _ in range(_MOST_ROUNDS):
        changed = 0
        for name in _FOLDING:
            found = load_pass(name)(model)
            changed += found.changed
            if found:
                infer_shapes(model)
        if not changed:
            return


def _require_sizes(model: Model) -> None:
    """Raise UnsupportedError naming the first node whose result has a size that is not a number."""
    for node in all_nodes(model):
        for value in node.outputs:
            if value.name and static_shape(value) is None and value.dtype is not None:
                raise refusal(
                    node,
                    f"the size of its result {value.name!r} ({value.shape}) depends on data, and this target "
                    "needs fixed shapes",
                )


def _check(model: Model, reader: Reader) -> None:
    """Hold the promise: only operators and types that the reader takes, and valid ONNX."""
    for node in all_nodes(model):
        if node.domain not in ("", "ai.onnx"):
            continue
        why = reader.fault(node)
        if why:
            raise refusal(node, why)
        for value in node.outputs:
            if value.dtype is not None and value.dtype in (DataType.DOUBLE, DataType.FLOAT16):
                if reader.held(value.dtype) != value.dtype:
                    raise InternalError(f"{source_name(node)} still writes {value.dtype.name}")
    try:
        check_model(model)
    except InternalError as error:
        body = next((node for node in all_nodes(model) if has_subgraphs(node)), None)
        if body is None:
            raise
        raise refusal(
            body,
            f"its body cannot be written in the operators and element types that the target holds ({error})",
            "a constant condition or trip count, which is resolved at import, or a model without it",
        ) from error
