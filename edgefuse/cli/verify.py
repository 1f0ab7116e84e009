"""edgefuse verify: an artifact against its model, end to end."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json, threads_option


@click.command("verify", short_help="Check an artifact against its model.")
@click.argument("artifact", metavar="X.efa")
@click.option("--model", metavar="M.onnx", help="The float model; without it only the self-test is run.")
@click.option("--data", metavar="PATH", help="Evaluation data; without it seeded random inputs.")
@click.option("--metric", metavar="NAME|MODULE:FUNCTION", help="Default: the one that the artifact names.")
@click.option("--max-drop", type=float, metavar="POINTS", help="Default 0.01.")
@threads_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    artifact: str,
    model: str | None,
    data: str | None,
    metric: str | None,
    max_drop: float | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run the self-test of an artifact, then compare it with the float model on data."""
    from edgefuse.compose.verbs import verify
    from edgefuse.report import terminal_progress
    from edgefuse.report.verify import print_verification

    with terminal_progress() as progress:
        report = verify(
            artifact,
            model=model,
            data=data,
            metric=metric,
            max_drop=max_drop,
            threads=threads,
            progress=progress,
        )
    print_json(report) if as_json else print_verification(report)
    if not report["ok"]:
        context.exit(1)
