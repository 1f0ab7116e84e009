"""edgefuse build: a model becomes a verified artifact for one device."""

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


@click.command("build", short_help="Build a verified artifact for one device.")
@click.argument("models", nargs=-1, metavar="[MODEL.onnx]")
@target_option
@click.option(
    "-o", "--output", metavar="OUT.efa", help="Where the artifact goes (default: MODEL.TARGET.efa)."
)
@click.option("--calib", metavar="PATH", help="Calibration data: images, .npz, or a folder of .npz.")
@click.option("--eval", "evaluation", metavar="PATH", help="Evaluation data (default: the calibration data).")
@click.option(
    "--metric", metavar="NAME|MODULE:FUNCTION", help="What accuracy means (default: by the outputs)."
)
@click.option("--max-drop", type=float, metavar="POINTS", help="Largest drop of the metric (default 0.01).")
@click.option("--precision", metavar="auto|fp32|fp16|int8", help="Default auto.")
@click.option("--preprocess", metavar="FILE.toml", help="How an image becomes the input.")
@click.option("--labels", metavar="FILE", help="Class names, one a line.")
@click.option("--prune", metavar="channels=30%", help="Remove channels (or zero weights) within --max-drop.")
@click.option(
    "--low-rank",
    type=float,
    metavar="SHARE",
    help="Factor layers to this share of their rank, within --max-drop.",
)
@click.option("--sparsity", metavar="2:4", help="Zero two of four weights, where the GPU skips them.")
@shape_option
@threads_option
@json_option
def command(
    models: tuple[str, ...], evaluation: str | None, shapes: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Build MODEL.onnx for a device.

    What is left out comes from edgefuse.toml in the working folder.
    """
    from edgefuse.compose.build import build_from_options
    from edgefuse.errors import UsageError
    from edgefuse.report import terminal_progress

    if len(models) > 1:
        raise UsageError(
            "build takes one model", got=", ".join(models), hint="build them one after the other"
        )
    options["model"] = models[0] if models else None
    options["eval"] = evaluation
    options["shapes"] = shapes_of(shapes) or None
    with terminal_progress() as progress:
        result = build_from_options(options, progress)
    if as_json:
        print_json(result.report)
    else:
        from edgefuse.report.build import print_build

        print_build(result.report)
