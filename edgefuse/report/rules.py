"""The fusion rules, for the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from edgefuse.fusion import load_rules, rule_named
from edgefuse.report.tables import print_table

__all__ = ["list_rules", "print_rule", "print_rules", "rule_facts"]


def list_rules() -> list[dict[str, Any]]:
    """Return id, family (the file), kind, variants and why of every rule, in the order of the library."""
    return [
        {
            "id": rule.id,
            "family": rule.family,
            "kind": rule.text.kind,
            "variants": list(rule.text.variants),
            "why": rule.text.why,
        }
        for rule in load_rules()
    ]


def rule_facts(name: str) -> dict[str, Any]:
    """Return everything that is written of one rule; raises UsageError with the nearest name."""
    rule = rule_named(name)
    facts: dict[str, Any] = msgspec.to_builtins(rule.text)
    return {**facts, "family": rule.family, "outputs": list(rule.pattern.outputs)}


def print_rules(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line a rule."""
    table = [[row["id"], row["family"], row["kind"], " ".join(row["variants"]), row["why"]] for row in rows]
    print_table(["rule", "family", "kind", "variants", "why"], table)


def print_rule(facts: Mapping[str, Any]) -> None:
    """Print one rule: what it is for, what it takes, what it refuses."""
    print(f"{facts['id']} ({facts['family']}, {facts['kind']})\n  {facts['why']}")
    _block("pattern", facts["pattern"])
    for title in ("outputs", "where", "no_quantizers", "variants"):
        if facts[title]:
            print(f"\n{title.replace('_', ' ')}:")
            print("\n".join(f"  {line}" for line in facts[title]))
    if facts["means"]:
        _block("means", facts["means"])
    _block("an example that it takes", facts["accepted"])
    _block(f"one that it refuses, by: {facts['refused']['by']}", facts["refused"]["graph"])


def _block(title: str, text: str) -> None:
    print(f"\n{title}:")
    print("\n".join(f"  {line}" for line in text.strip().splitlines()))
