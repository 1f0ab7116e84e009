"""edgefuse plan: what would run as one kernel, in which precision, and why."""

from __future__ import annotations

from typing import Any

import click

from edgefuse.cli.options import (
    json_option,
    print_json,
    shape_option,
    shapes_of,
    target_option,
    threads_option,
)


@click.command("plan", short_help="Show fusion groups and precisions, and why.")
@click.argument("model", required=False, metavar="[MODEL.onnx]")
@target_option
@click.option("--calib", metavar="PATH", help="Calibration data; without it no int8 is planned.")
@click.option("--preprocess", metavar="FILE.toml", help="How an image becomes the input.")
@click.option("--precision", metavar="auto|fp32|fp16|int8", help="Default auto.")
@click.option("--explain", metavar="NODE", help="Everything that decided about one node.")
@shape_option
@threads_option
@json_option
def command(
    model: str | None, explain: str | None, shapes: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Plan MODEL.onnx for a device and print the groups; times are estimates."""
    from edgefuse.compose.verbs import explain_from_options, plan_from_options
    from edgefuse.report import terminal_progress
    from edgefuse.report.plan import plan_json, print_plan

    options["model"] = model
    options["shapes"] = shapes_of(shapes) or None
    with terminal_progress() as progress:
        if explain is not None:
            explained = explain_from_options(options, explain, progress)
        else:
            plan, notes = plan_from_options(options, progress)
    if explain is not None:
        print_json(explained) if as_json else print(explained["text"])
    elif as_json:
        print_json(plan_json(plan, notes))
    else:
        print_plan(plan, notes)
