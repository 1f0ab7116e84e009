"""Level 1 with what a build knows: each region of a payload, run as the payload would be, alone.

Where this machine is the target, the cut model is lowered and opened like the payload itself, so that a
region is judged in the kernels that it is deployed in; elsewhere in the exact reference of the target's
arithmetic. The judge of both is the float64 reference on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from edgefuse.backend import Backend
from edgefuse.compose.payloads import Built, runs_here
from edgefuse.compose.prepare import Prepared, tensor_info
from edgefuse.compose.sessions import open_session
from edgefuse.device import Target
from edgefuse.graph import Model
from edgefuse.graph.reference import Reference
from edgefuse.plans import Plan
from edgefuse.quant import scheme_of
from edgefuse.quant.integer_bias import with_integer_biases
from edgefuse.quant.integer_reference import Arithmetic, IntegerReference
from edgefuse.quantized import Quantized
from edgefuse.runtime.engine import open_engine
from edgefuse.verification import (
    Call,
    RegionLimits,
    RegionReport,
    Stress,
    boundary_tensors,
    cut_between_groups,
    judge_regions,
    judge_stress,
    measure_regions,
    output_scales,
)

__all__ = [
    "REGION_SAMPLES",
    "Planned",
    "check_range_ends",
    "check_regions",
    "opened",
    "planned",
    "session_outputs",
]

Feeds = Mapping[str, np.ndarray]

# Sums of float32 in any order are within 1e-5 of float64 on two samples as on many (measured on ten models).
REGION_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class Planned:
    """A model in its target's operators with the plan that runs it.

    quantized: empty for a float plan.  arithmetic: the target's rounding, None for a float plan.
    here: whether this machine is the target.
    """

    model: Model
    plan: Plan
    quantized: Quantized
    arithmetic: Arithmetic | None
    target: Target
    backend: Backend
    here: bool

    @property
    def by(self) -> str:
        """Return what runs it, for the reader."""
        return "the deployed runtime" if self.here else "the exact reference of the target's arithmetic"


def planned(prepared: Prepared, built: Built, here: bool | None = None) -> Planned:
    """Return a payload of a build as it is judged; here: None = found out."""
    return Planned(
        built.lowered_model(prepared),
        built.plan,
        built.quantized,
        scheme_of(prepared.target) if built.quantized else None,
        prepared.target,
        prepared.backend,
        runs_here(prepared) if here is None else here,
    )


@contextmanager
def opened(work: Planned, model: Model, plan: Plan) -> Iterator[Call]:
    """Yield a call that runs `model` by `plan` with the integers of `work`, as its target would."""
    if not work.here:
        reference = IntegerReference(model, plan, work.quantized, work.arithmetic)
        yield _casting(model, reference.run)
        return
    # A plan whose int8 groups are all turned to float still holds integers: nothing reads them.
    used = work.quantized if plan.count("int8") else Quantized()
    lowered = work.backend.lower(model, plan, used, work.target)
    options = {**lowered.options, "threads": 1}
    engine = open_engine(
        work.target.family, lowered.files, lowered.entry, options, work.target.runtime.requirements
    )
    try:
        yield _casting(model, engine.run)
    finally:
        engine.close()


def session_outputs(model: Model) -> Call:
    """Return a call that gives the outputs of `model` in ONNX Runtime with its optimiser off."""
    session = open_session(model)
    names = [value.name or "" for value in model.graph.outputs]
    return _casting(model, lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True)))


def _casting(model: Model, run: Callable[[Feeds], Feeds]) -> Call:
    """Return `run` for feeds in the user's dtypes, of which it gets those that the model has."""
    dtypes = {info.name: np.dtype(info.dtype) for info in map(tensor_info, model.graph.inputs)}

    def call(feeds: dict[str, np.ndarray]) -> Feeds:
        return run(
            {name: np.asarray(a, dtypes[name], order="C") for name, a in feeds.items() if name in dtypes}
        )

    return call


def check_regions(
    work: Planned, samples: Sequence[Feeds], limits: RegionLimits | None = None
) -> RegionReport:
    """Return level 1 of a payload on the first samples (REGION_SAMPLES are enough)."""
    work = _without_corrections(work)
    cut = cut_between_groups(work.model, work.plan)
    outputs = [value.name or "" for value in work.model.graph.outputs]
    boundary = session_outputs(boundary_tensors(work.model, cut.between)) if cut.between else _nothing
    exact = Reference(cut.model)
    with opened(work, cut.model, work.plan) as candidate:
        errors, count = measure_regions(
            cut, boundary, _casting(cut.model, exact.run), candidate, samples[:REGION_SAMPLES]
        )
    return judge_regions(work.plan, cut, errors, outputs, samples=count, by=work.by, limits=limits)


def check_range_ends(work: Planned, sample: Feeds) -> tuple[Stress, ...]:
    """Return what every region makes of the ends of the ranges that int8 reads: low, high, and by turns.

    Ranges are those observed in calibration; tensors without one hold what the sample gives. There are no
    rows for a float plan.
    """
    ranges = work.quantized.activations
    if not work.plan.count("int8"):
        return ()
    work = _without_corrections(work)
    cut = cut_between_groups(work.model, work.plan)
    boundary = session_outputs(boundary_tensors(work.model, cut.between)) if cut.between else _nothing
    exact = _casting(cut.model, Reference(cut.model).run)
    usual = {**sample, **boundary(dict(sample))}
    scales = output_scales(exact(dict(usual)))
    rows = []
    with opened(work, cut.model, work.plan) as candidate:
        for word, pick in _ENDS.items():
            feeds = {
                name: pick(array, ranges[name].minimum, ranges[name].maximum) if name in ranges else array
                for name, array in usual.items()
            }
            kind = f"every region {word}"
            rows.append(judge_stress(kind, True, exact(dict(feeds)), candidate(dict(feeds)), scales))
    return tuple(rows)


def _by_turns(array: np.ndarray, low: float, high: float) -> np.ndarray:
    turns = np.arange(array.size).reshape(array.shape) % 2
    return np.where(turns == 0, low, high).astype(array.dtype)


_ENDS: Mapping[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "at the low end of its range": lambda array, low, high: np.full_like(array, low),
    "at the high end of its range": lambda array, low, high: np.full_like(array, high),
    "at both ends by turns": _by_turns,
}


def _without_corrections(work: Planned) -> Planned:
    """Return `work` with the float model's biases.

    A corrected bias takes out the mean error of the regions before it too: on inputs without that error it
    would count as one. What corrections do is judged end to end.
    """
    if not work.quantized.biases:
        return work
    plain = replace(work.quantized, biases={}, integer_biases={})
    return replace(work, quantized=with_integer_biases(work.model, plain, scheme_of(work.target)))


def _nothing(feeds: dict[str, np.ndarray]) -> Feeds:
    return {}
