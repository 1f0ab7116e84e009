"""Timing on the host: percentiles of one call, races of several, an artifact's whole report, gates on it."""

from edgefuse.benchmark.artifact import bench_artifact
from edgefuse.benchmark.gate import gate
from edgefuse.benchmark.machine import machine_fingerprint
from edgefuse.benchmark.race import Race, Ratio, race
from edgefuse.benchmark.timing import Timing, measure, percentile

__all__ = [
    "Race",
    "Ratio",
    "Timing",
    "bench_artifact",
    "gate",
    "machine_fingerprint",
    "measure",
    "percentile",
    "race",
]
