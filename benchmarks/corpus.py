"""All the graphs that the fusion rules are counted on: generated networks, and trained ones from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.architectures import ARCHITECTURES
from benchmarks.sequence_nets import SEQUENCE_NETS
from benchmarks.vision_nets import VISION_NETS
from edgefuse.graph import Model, read_model
from edgefuse.passes import canonicalize

__all__ = ["GENERATED", "trained"]

GENERATED: Mapping[str, Callable[[], Model]] = {**ARCHITECTURES, **VISION_NETS, **SEQUENCE_NETS}


def trained(folder: Path, most_bytes: int = 12 << 20) -> Iterator[tuple[str, Model]]:
    """Yield each model of `folder` up to a size, as it was exported and as the pipeline's passes leave it."""
    for path in sorted(folder.glob("*.onnx")):
        if path.stat().st_size <= most_bytes:
            yield f"{path.stem}, exported", read_model(path)
            model = read_model(path)
            canonicalize(model)
            yield path.stem, model
