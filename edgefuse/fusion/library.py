"""The rules: read from rules/*.yaml, checked, compiled, and kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import msgspec

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.fusion.conditions import Condition, compile_condition
from edgefuse.fusion.pattern import Pattern, parse_pattern

__all__ = ["Refusal", "Rule", "RuleText", "load_rules", "rule_named", "rules_from_text"]

Kind = Literal["vertical", "horizontal", "diagonal", "composite"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An example that looks like the rule and is none.

    by: the `where` line that refuses it, or "read outside", "not convex" or "pattern" (not even found).
    """

    graph: str
    by: str


class RuleText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is written; docs/fusion.md explains each key.

    sizes: for a size symbol of the examples the least and the greatest value to be tried.
    means: SSA lines in the names of the pattern that say the same in fewer, larger operators.
    """

    id: str
    kind: Kind
    why: str
    pattern: str
    outputs: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    no_quantizers: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("plain",)
    sizes: dict[str, tuple[int, int]] = {}
    means: str = ""
    accepted: str
    refused: Refusal


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, compiled.  family: the file it stands in."""

    text: RuleText
    family: str
    pattern: Pattern
    conditions: tuple[Condition, ...]

    @property
    def id(self) -> str:
        """Return the rule's name, unique over all files."""
        return self.text.id


@functools.cache
def load_rules() -> tuple[Rule, ...]:
    """Return all rules of the library, by file and place; raises InputError for the first broken entry."""
    folder = resources.files("edgefuse.fusion") / "rules"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    found: dict[str, Rule] = {}
    for file in files:
        for rule in rules_from_text(file.read_text(encoding="utf-8"), file.name.removesuffix(".yaml")):
            if rule.id in found:
                raise InputError(f"{file.name}: rule {rule.id!r} stands in {found[rule.id].family}.yaml too")
            found[rule.id] = rule
    return tuple(found.values())


def rule_named(name: str) -> Rule:
    """Return one rule; raises UsageError with the nearest name."""
    rules = {rule.id: rule for rule in load_rules()}
    if name not in rules:
        raise UsageError(f"no rule {name!r}{did_you_mean(name, list(rules))}", hint="`edgefuse rules`")
    return rules[name]


def rules_from_text(text: str, family: str) -> list[Rule]:
    """Return the rules of one YAML file; raises InputError naming the file and the entry."""
    import yaml

    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{family}.yaml is not valid YAML: {error}") from error
    if not isinstance(entries, list):
        raise InputError(f"{family}.yaml: a list of rules is expected", got=type(entries).__name__)
    rules = [_rule(entry, family, i) for i, entry in enumerate(entries)]
    names = [rule.id for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{family}.yaml: rule {name!r} stands there twice")
    return rules


def _rule(entry: Any, family: str, index: int) -> Rule:
    name = entry.get("id", f"number {index + 1}") if isinstance(entry, Mapping) else f"number {index + 1}"
    where = f"{family}.yaml, rule {name}"
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: keys are expected", got=type(entry).__name__)
    _refuse_unknown(entry, RuleText, where)
    if isinstance(entry.get("refused"), Mapping):
        _refuse_unknown(entry["refused"], Refusal, f"{where}, refused")
    try:
        text = msgspec.convert(entry, RuleText)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from error
    pattern = parse_pattern(text.pattern, text.outputs, where)
    conditions = tuple(compile_condition(line, pattern.names, where) for line in text.where)
    _check(text, pattern, where)
    return Rule(text, family, pattern, conditions)


def _check(text: RuleText, pattern: Pattern, where: str) -> None:
    inside = {name for line in pattern.alternatives[0] for name in line.outs if name}
    for name in text.no_quantizers:
        if name not in inside:
            near = did_you_mean(name, sorted(inside))
            raise InputError(f"{where}: no_quantizers names {name!r}, which is no tensor inside{near}")
    known = {*text.where, "read outside", "not convex", "pattern"}
    if text.refused.by not in known:
        raise InputError(f"{where}: refused.by is none of its conditions", expected=" | ".join(sorted(known)))
    has_siblings = any(line.siblings for line in pattern.alternatives[0])
    for condition in (line for line in text.where if line.startswith(("same(", "differ("))):
        if not has_siblings:
            raise InputError(f"{where}: {condition!r} needs a line of siblings (s* = ...)")
    if "plain" not in text.variants:
        raise InputError(f"{where}: the variant 'plain' is always offered", got=", ".join(text.variants))


def _refuse_unknown(entry: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    known = sorted(field.name for field in msgspec.structs.fields(kind))
    for key in entry:
        if key not in known:
            raise InputError(
                f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}",
                expected="one of " + ", ".join(known),
            )
