"""edgefuse rules: the library of fusion rules, and everything about one of them."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json


@click.command("rules", short_help="List the fusion rules, or show one.")
@click.argument("name", required=False, metavar="[ID]")
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List all fusion rules, or show the pattern, the conditions and the examples of rule ID."""
    from edgefuse.report.rules import list_rules, print_rule, print_rules, rule_facts

    if name is not None:
        facts = rule_facts(name)
        print_json(facts) if as_json else print_rule(facts)
        return
    rows = list_rules()
    print_json({"rules": rows}) if as_json else print_rules(rows)
