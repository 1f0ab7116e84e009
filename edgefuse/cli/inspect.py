"""edgefuse inspect: what is in a model or an artifact."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json, shape_option, shapes_of, target_option


@click.command("inspect", short_help="Show what is in a model or an artifact.")
@click.argument("path", metavar="MODEL.onnx|X.efa")
@target_option
@shape_option
@json_option
def command(path: str, target: str | None, shapes: tuple[str, ...], as_json: bool) -> None:
    """Show what dominates a model and what bounds it on a device, or what an artifact holds."""
    from edgefuse.compose.verbs import inspect
    from edgefuse.report.inspect import print_inspection

    found = inspect(path, target=target, shapes=shapes_of(shapes))
    print_json(found) if as_json else print_inspection(found)
