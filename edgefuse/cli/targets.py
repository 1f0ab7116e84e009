"""edgefuse targets: the devices that can be built for, and what is usable here."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json


@click.command("targets", short_help="List devices, precisions, and what is usable here.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List all targets, or everything that is known of one."""
    from edgefuse.compose.targets import describe_target, list_targets
    from edgefuse.report.targets import print_target, print_targets

    if name is not None:
        described = describe_target(name)
        print_json(described) if as_json else print_target(described)
        return
    rows = list_targets()
    print_json({"targets": rows}) if as_json else print_targets(rows)
