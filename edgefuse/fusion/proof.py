"""The proof of a rule: on graphs of random sizes, fused and unfused are the same function.

A grouping rule changes no arithmetic, so what has to be shown is that the group can stand as one unit: its
nodes, run as one function of what they read from outside, and the graph around them, which sees nothing of
the group but its outputs, together give what the model gives, to the last bit. Where the rule says what it
`means`, or offers a variant that rewrites, that form is run too and compared in float64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.errors import InternalError
from edgefuse.fusion.examples import draw_sizes, feeds_for, model_from_lines, nodes_from_lines
from edgefuse.fusion.library import Rule
from edgefuse.fusion.match import Match, Matches, find_matches
from edgefuse.fusion.outline import outline
from edgefuse.fusion.variants import rewrite
from edgefuse.graph import Graph, Model, Value, clone_model
from edgefuse.graph.reference import Reference, max_relative_error

__all__ = ["Proof", "prove", "prove_match", "refusals_of"]

# Constants of a rewritten form are stored in float32; a form without new constants differs in float64 only.
TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared: the sizes drawn, the nodes of the group, the worst error of each form."""

    rule: str
    sizes: Mapping[str, int]
    nodes: int
    errors: Mapping[str, float]


def prove(rule: Rule, seed: int) -> Proof:
    """Return the proof of `rule` on its accepted example in sizes drawn from `seed`.

    Raises InternalError where the example is not matched, the group cannot stand alone, or a form of it gives
    other numbers.
    """
    random = np.random.default_rng(seed)
    sizes = draw_sizes(rule.text.accepted, rule.text.sizes, random)
    model = model_from_lines(rule.text.accepted, sizes, random, f"{rule.id}, accepted")
    found = find_matches(model, [rule])
    if not found.matches:
        raise InternalError(f"rule {rule.id}: its accepted example is no match at {sizes}{_because(found)}")
    match = max(found.matches, key=lambda m: len(m.nodes))
    errors = prove_match(model, match, feeds_for(model, random))
    return Proof(rule.id, sizes, len(match.nodes), errors)


def prove_match(model: Model, match: Match, feeds: Mapping[str, Any]) -> dict[str, float]:
    """Return the worst relative error of each form of one match: "one unit" (0.0), "means", each variant."""
    whole = Reference(model)
    wanted = whole.run(feeds)
    errors = {"one unit": _as_one_unit(model, match, feeds, wanted)}
    if match.rule.text.means:
        errors["means"] = _meaning(model, match, feeds)
    for name in match.rule.text.variants:
        if name == "plain":
            continue
        changed = rewrite(name, model, match)
        if changed is not None:
            errors[name] = _worst(Reference(changed).run(feeds), wanted)
    for form, error in errors.items():
        if error > (0.0 if form == "one unit" else TOLERANCE):
            raise InternalError(
                f"rule {match.rule.id}: as {form!r} it gives other numbers", got=f"{error:.3g}"
            )
    return errors


def refusals_of(rule: Rule, seed: int) -> tuple[str, ...]:
    """Return what refuses the rule's refused example, each reason once; "pattern" where it fits nowhere.

    A reason is a `where` line, "read outside" or "not convex". () where the rule holds somewhere in it.
    """
    random = np.random.default_rng(seed)
    text = rule.text.refused.graph
    sizes = draw_sizes(text, rule.text.sizes, random)
    found = find_matches(model_from_lines(text, sizes, random, f"{rule.id}, refused"), [rule])
    if found.matches:
        return ()
    return tuple(dict.fromkeys(refused.by for refused in found.refused)) or ("pattern",)


def _because(found: Matches) -> str:
    return f": refused by {found.refused[0].by!r}" if found.refused else ": the pattern fits nowhere"


def _as_one_unit(model: Model, match: Match, feeds: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Return how far the group as a function, and the graph around it, are from the model."""
    names = {node.name or "" for node in match.nodes}
    writes = [value.name or "" for value in match.outputs]
    try:
        group, around = outline(model, names, writes)
    except ValueError as error:
        raise InternalError(f"rule {match.rule.id}: the group cannot stand alone: {error}") from error
    reads = [value.name or "" for value in group.graph.inputs]
    tensors = Reference(model).run(feeds, fetch=list(dict.fromkeys([*reads, *writes])))
    made = Reference(group).run({name: tensors[name] for name in reads})
    inner = _worst(made, {name: tensors[name] for name in writes})
    # The graph around it runs on what the group made, so that nothing of the inside can reach it.
    rest = Reference(around).run({**feeds, **{name: made[name] for name in writes}})
    return max(inner, _worst(rest, wanted))


def _meaning(model: Model, match: Match, feeds: Mapping[str, Any]) -> float:
    """Return how far the rule's own words for the group are from the group."""
    copy = clone_model(model)
    values = {v.name or "": v for v in [*copy.graph.inputs, *copy.graph.initializers.values()]}
    for node in copy.graph:
        values.update({v.name or "": v for v in node.outputs})
    known: dict[str, Value] = {}
    for name, bound in match.bound.items():
        if bound is not None:
            known[name] = values[bound.name or ""]
    graph: Graph = copy.graph
    wanted = {name: match.bound[name] for name in match.rule.pattern.outputs}
    last = _renamed(match.rule.text.means)
    nodes_from_lines(graph, last, known, {}, np.random.default_rng(0), f"{match.rule.id}, means")
    pairs = {f"{name}_meant": value.name or "" for name, value in wanted.items() if value is not None}
    run = Reference(copy).run(feeds, fetch=[*pairs, *pairs.values()])
    return max(max_relative_error(run[meant], run[real]) for meant, real in pairs.items())


def _renamed(text: str) -> str:
    """Return the lines with "_meant" behind each result, so that both forms stand in one graph."""
    lines = [line.strip() for line in text.strip().splitlines()]
    results = [line.split("=", 1)[0].strip() for line in lines]
    renamed = []
    for line in lines:
        result, rest = line.split("=", 1)
        for name in results:
            rest = _word(rest, name)
        renamed.append(f"{result.strip()}_meant = {rest.strip()}")
    return "\n".join(renamed)


def _word(text: str, name: str) -> str:
    return re.sub(rf"\b{name}\b(?!\s*=)", f"{name}_meant", text)


def _worst(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    return max((max_relative_error(made[name], array) for name, array in wanted.items()), default=0.0)
