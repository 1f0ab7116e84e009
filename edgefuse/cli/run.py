"""edgefuse run: one inference from a file to a file."""

from __future__ import annotations

import click

from edgefuse.cli.options import json_option, print_json, threads_option


@click.command("run", short_help="Run an artifact on the arrays of a .npz.")
@click.argument("artifact", metavar="X.efa")
@click.option("--input", "source", required=True, metavar="IN.npz", help="Arrays named as the inputs.")
@click.option("--output", "target", required=True, metavar="OUT.npz", help="Where the outputs go.")
@click.option("--simulate", is_flag=True, help="In the exact reference of the target's arithmetic.")
@threads_option
@json_option
def command(
    artifact: str, source: str, target: str, simulate: bool, threads: int | None, as_json: bool
) -> None:
    """Run an artifact once and write its outputs."""
    from edgefuse.compose.verbs import run

    outputs = run(artifact, source, target, simulate=simulate, threads=threads)
    described = {name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in outputs.items()}
    if as_json:
        print_json({"output": target, "arrays": described})
    else:
        for name, facts in described.items():
            print(f"{name}  {facts['dtype']} {facts['shape']}  -> {target}")
