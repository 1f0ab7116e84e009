"""edgefuse verify: an artifact against its model: regions, end to end, stress; or the region at fault."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json, threads_option


@click.command("verify", short_help="Check an artifact against its model.")
@click.argument("artifact", metavar="X.efa")
@click.option(
    "--model", metavar="M.onnx", help="The float model; without it only levels that need none are run."
)
@click.option("--data", metavar="PATH", help="Evaluation data; without it seeded random inputs.")
@click.option("--metric", metavar="NAME|MODULE:FUNCTION", help="Default: the one that the artifact names.")
@click.option("--max-drop", type=float, metavar="POINTS", help="Default 0.01.")
@click.option("--simulate", is_flag=True, help="In the exact reference of the target's arithmetic.")
@click.option("--bisect", is_flag=True, help="Find the region that spoils an output.")
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
    simulate: bool,
    bisect: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run the self-test of an artifact, then judge its regions, its outputs on data, and stress inputs."""
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
            simulate=simulate,
            bisect=bisect,
            progress=progress,
        )
    print_json(report) if as_json else print_verification(report)
    if not report["ok"]:
        context.exit(1)
