"""edgefuse bench: latency of an artifact on this machine."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json, threads_option


@click.command("bench", short_help="Measure an artifact's latency on this machine.")
@click.argument("artifact", metavar="X.efa")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Longest timed part.",
)
@click.option("--payload", metavar="ID", help="A payload other than the active one.")
@click.option(
    "--gate", "gates", multiple=True, metavar="'p90<=12ms'", help="Fail unless it holds; repeatable."
)
@threads_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    artifact: str,
    seconds: float,
    payload: str | None,
    gates: tuple[str, ...],
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure load, first inference, p50/p90/p99 and CPU time: 1024 runs or --seconds, what comes first."""
    from edgefuse.compose.verbs import bench
    from edgefuse.report.bench import print_bench

    report = bench(artifact, threads=threads, seconds=seconds, payload=payload, gates=gates)
    print_json(report) if as_json else print_bench(report)
    if not all(gate["ok"] for gate in report["gates"]):
        context.exit(1)
