"""What `edgefuse verify` knows of an artifact, for level 1, level 3 and the bisection.

Level 1 needs the model in the target's operators, the plan and the integers: from the artifact where it
carries them, else a float payload is planned again from the user's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgefuse.artifact.read import Artifact
from edgefuse.backend import load_backend
from edgefuse.compose.prepare import prepare
from edgefuse.compose.regions import Planned, check_range_ends, check_regions, opened, session_outputs
from edgefuse.compose.simulate import stored_plan
from edgefuse.device import probe_host, resolve_target
from edgefuse.errors import EdgefuseError, UnsupportedError
from edgefuse.graph import Model
from edgefuse.plans import Plan
from edgefuse.quantized import Quantized
from edgefuse.runtime.tensors import TensorInfo
from edgefuse.verification import (
    SPOILED_DB,
    Bisection,
    Call,
    InputRange,
    OutputError,
    OutputErrors,
    StressReport,
    bisect_plan,
    run_stress,
)

__all__ = ["bisect", "input_ranges", "planned_payload", "stress"]

Feeds = Mapping[str, np.ndarray]

# Samples of a bisection: each halving runs them all.
BISECT_SAMPLES = 8


def planned_payload(
    artifact: Artifact, payload: str, original: Model | None, simulate: bool
) -> Planned | str:
    """Return a payload as it is judged, or why it cannot be, as the user reads it.

    original: the user's model with the sizes of the artifact, or None.  simulate: judge in the exact
    reference of the target's arithmetic although this machine may be the target.
    """
    name = f"{artifact.manifest['target']['device']}@{artifact.manifest['target']['runtime']}"
    target = resolve_target(name)
    backend = load_backend(target.family)
    here = not simulate and backend.probe().available and _host() == target.device.name
    found = stored_plan(artifact, payload)
    if found is not None:
        model, plan, quantized, arithmetic = found
        return Planned(model, plan, quantized, arithmetic if quantized else None, target, backend, here)
    plan = Plan.from_json(artifact.read(f"payloads/{payload}/plan.json"))
    if original is None:
        return "no --model"
    if plan.count("int8"):
        return "the artifact keeps no integers: it was built by an older edgefuse"
    model = prepare(original, target).model
    if [n for group in plan.groups for n in group.nodes if n not in {node.name for node in model.graph}]:
        return "the plan is of another version of edgefuse: its nodes are not those of this one"
    return Planned(model, plan, Quantized(), None, target, backend, here)


def _host() -> str:
    try:
        return probe_host().device.name
    except EdgefuseError:
        return ""


def input_ranges(
    work: Planned | str, inputs: Sequence[TensorInfo], samples: Sequence[Feeds]
) -> dict[str, InputRange]:
    """Return the range of each float input: as calibrated where int8 reads it, else as samples hold it."""
    known = work.quantized.activations if isinstance(work, Planned) else {}
    ranges = {}
    for info in inputs:
        if np.dtype(info.dtype).kind != "f":
            continue
        if info.name in known:
            ranges[info.name] = InputRange(known[info.name].minimum, known[info.name].maximum)
        else:
            held = [feeds[info.name] for feeds in samples]
            low = min(float(array.min(initial=0.0)) for array in held)
            high = max(float(array.max(initial=0.0)) for array in held)
            ranges[info.name] = InputRange(low, high if high > low else low + 1.0)
    return ranges


def stress(
    deployed: Call,
    reference: Call,
    work: Planned | str,
    inputs: Sequence[TensorInfo],
    samples: Sequence[Feeds],
    precision: str,
) -> StressReport:
    """Return level 3: stress inputs of the size of the first sample, and the plan's ranges at their ends."""
    ranges = input_ranges(work, inputs, samples)
    found = run_stress(deployed, reference, inputs, samples[0], ranges, precision=precision)
    if isinstance(work, str):
        return found
    try:
        ends = check_range_ends(work, samples[0])
    except UnsupportedError:  # a region that cannot be run alone: level 1 says so
        return found
    return replace(found, results=(*found.results, *ends))


def bisect(
    work: Planned,
    samples: Sequence[Feeds],
    limit_db: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Bisection:
    """Return the region at which an output falls below `limit_db` (None: 20 dB) on the first samples."""
    feeds = [dict(sample) for sample in samples[:BISECT_SAMPLES]]
    reference = session_outputs(work.model)
    wanted = [reference(sample) for sample in feeds]

    def errors(plan: Plan) -> Sequence[OutputError]:
        sums = OutputErrors()
        with opened(work, work.model, plan) as candidate:
            for sample, right in zip(feeds, wanted, strict=True):
                sums.update(candidate(sample), right)
        return sums.results()

    found = bisect_plan(work.plan, errors, SPOILED_DB if limit_db is None else limit_db, progress)
    if found.group is None:
        return found
    alone = {region.group: region for region in check_regions(work, feeds).regions}
    return found.with_own(alone[found.group.id].sqnr_db)
