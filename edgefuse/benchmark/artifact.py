"""An artifact, measured on this machine: load, first inference and steady state, each by itself."""

import os
import time
from typing import TYPE_CHECKING, Any

from edgefuse.benchmark.machine import machine_fingerprint, memory_mb
from edgefuse.benchmark.timing import Clock, measure

if TYPE_CHECKING:
    import numpy as np

    from edgefuse.runtime import Model

__all__ = ["bench_artifact", "example_feeds"]

SCHEMA = 1


def bench_artifact(
    path: str | os.PathLike[str],
    threads: int | None = None,
    seconds: float = 10.0,
    *,
    min_runs: int = 1024,
    warmup_seconds: float = 0.5,
    payload: str | None = None,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock = time.process_time,
) -> dict[str, Any]:
    """Return the report of the artifact at `path` on this machine, as JSON values.

    threads: of the engine; None = the artifact's own choice, and the report says what the engine then used.
    seconds, min_runs: the timed part ends at whichever comes first.  payload: measure this one.
    Keys: load_ms (checks of the file, import of the vendor's runtime if it was not imported yet, compilation;
    no self-test), first_ms (first inference), latency (Timing of a whole call: checks, engine, outputs),
    threads, payload, family, precision, notes, feeds ("self_test" vectors or "random"), memory_mb (resident
    before loading, after loading, after the runs, and peak), engine, machine.
    Raises what `edgefuse.runtime.load` raises.
    """
    from edgefuse.runtime import load

    machine = machine_fingerprint()
    before = memory_mb()
    start = clock()
    model = load(path, threads=threads, payload=payload, self_test=False)
    load_ms = 1e3 * (clock() - start)
    with model:
        loaded = memory_mb()
        feeds, source = example_feeds(model)
        start = clock()
        model(feeds)
        first_ms = 1e3 * (clock() - start)
        timing = measure(
            lambda: model(feeds),
            seconds=seconds,
            min_runs=min_runs,
            warmup_seconds=warmup_seconds,
            clock=clock,
            cpu_clock=cpu_clock,
        )
        after = memory_mb()
        described = model.describe()
    described = {**described, "artifact": model.manifest["name"]}
    figures = {"load_ms": load_ms, "first_ms": first_ms, "latency": timing.to_dict()}
    memory = {
        "before": before["now"],
        "loaded": loaded["now"],
        "after": after["now"],
        "peak": after["peak"],
    }
    return _report(described, figures, memory, source, machine)


def _report(
    described: dict[str, Any],
    figures: dict[str, Any],
    memory: dict[str, float | None],
    source: str,
    machine: dict[str, Any],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **{key: described[key] for key in ("artifact", "target", "payload", "family", "precision", "notes")},
        "threads": described["engine"].get("threads"),
        "feeds": source,
        **figures,
        "percentiles": "nearest rank",
        "memory_mb": memory,
        "engine": described["engine"],
        "machine": machine,
    }


def example_feeds(model: "Model") -> "tuple[dict[str, np.ndarray[Any, Any]], str]":
    """Return inputs for `model` and where they are from.

    The first self-test vector's inputs where the artifact holds one ("self_test"), otherwise seeded noise
    ("random"): floats in 0..1, integers in 0..1, symbols bound to 1.
    """
    import numpy as np

    stored = model.example_inputs()
    if stored is not None:
        return stored, "self_test"
    generator = np.random.default_rng(0)
    feeds = {}
    for info in model.inputs:
        shape = tuple(size if isinstance(size, int) else 1 for size in info.shape)
        dtype = np.dtype(info.dtype)
        values = generator.random(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        feeds[info.name] = np.asarray(values, dtype=dtype)
    return feeds, "random"
