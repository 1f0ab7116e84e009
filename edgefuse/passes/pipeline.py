"""The order of the passes, run to a fixed point."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from edgefuse.graph import Model, infer_shapes
from edgefuse.passes.contract import Pass, PassResult
from edgefuse.passes.name_dimensions import name_dimensions

__all__ = ["MAX_ROUNDS", "ORDER", "canonicalize"]

# Why this order:
#  - control flow first: what a branch or a body holds is seen by no other pass before it is inlined;
#  - constants next, since every later pattern asks "is this input constant?", then the passes that make
#    patterns visible: nothing in between (identities), nothing dead, equal things one value, reshapes and
#    transposes out of the way;
#  - recovery before folding: fold_scale_shift would swallow the 1/sqrt(2) of a GELU or the 1/6 of a
#    HardSwish; the larger pattern before the one that is part of it (HardSwish before HardSigmoid, LayerNorm
#    before RMSNorm);
#  - fold_batchnorm before fold_scale_shift, which takes the Mul and Add that an unfoldable BatchNorm becomes;
#  - fold_pads last: a Pad that moved into a Conv would stop a shift before that Conv from being folded, so
#    the shift is judged first (it is refused through zero padding either way).
ORDER: tuple[str, ...] = (
    "resolve_if",
    "unroll_loop",
    "fold_constants",
    "remove_identity",
    "remove_dead_code",
    "share_weights",
    "eliminate_common_subexpressions",
    "cancel_reshapes",
    "cancel_transposes",
    "recover_layernorm",
    "recover_rmsnorm",
    "recover_instancenorm",
    "recover_gelu",
    "recover_hardswish",
    "recover_hardsigmoid",
    "recover_silu",
    "fold_batchnorm",
    "fold_scale_shift",
    "fold_pads",
)

# After these every value that is left has the shape it had; inference is most of what a round costs.
_KEEP_SHAPES = frozenset({"remove_dead_code", "share_weights", "eliminate_common_subexpressions"})

# The zoo settles in three to five rounds; more than this means that two passes undo each other.
MAX_ROUNDS = 12


def canonicalize(model: Model) -> list[PassResult]:
    """Bring the model to its canonical form, in place; returns one result for each pass of ORDER, summed up.

    Passes run in ORDER, shapes are inferred after each pass that changed any, and the round is repeated
    until no pass changes anything (a pass is not run again while nothing changed since it last found
    nothing). A second call changes nothing. Where MAX_ROUNDS is reached, the model is right but may be not
    the smallest, and a last result named "pipeline" says which passes were still changing it.
    """
    passes = {name: load_pass(name) for name in ORDER}
    changed = dict.fromkeys(ORDER, 0)
    notes: dict[str, list[str]] = {name: [] for name in ORDER}
    version = 0  # counts changes of the model
    settled = dict.fromkeys(ORDER, -1)  # the version at which a pass last found nothing to do
    active: list[str] = []
    name_dimensions(model)
    for _ in range(MAX_ROUNDS):
        active = []
        for name, run in passes.items():
            if settled[name] == version:
                continue
            result = run(model)
            if not result:
                settled[name] = version
                continue
            version += 1
            active.append(name)
            changed[name] += result.changed
            notes[name].extend(result.notes)
            if name not in _KEEP_SHAPES:
                infer_shapes(model)
                name_dimensions(model)
        if not active:
            break
    results = [PassResult(name, changed[name], tuple(dict.fromkeys(notes[name]))) for name in ORDER]
    if active:
        note = f"stopped after {MAX_ROUNDS} rounds; still changing: {', '.join(active)}"
        results.append(PassResult("pipeline", 0, (note,)))
    return results


def load_pass(name: str) -> Pass:
    """Return the pass `name`: the function of that name in the module of that name."""
    found: Callable[[Model], PassResult] = getattr(import_module(f"edgefuse.passes.{name}"), name)
    return found
