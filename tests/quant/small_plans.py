"""Plans for small models, and the measures that the tests of the repairs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgefuse.graph import Model, constant, is_float, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.plans import Format, Group, Plan
from edgefuse.quant import Scheme, collect_ranges, quantize_plan, simulated_graph
from edgefuse.quantized import Quantized

SEVEN = Scheme(0, 255, symmetric=False, weight_bits=7, per_channel=True)
EIGHT = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
SYMMETRIC = Scheme(-127, 127, symmetric=True, weight_bits=8, per_channel=True)

ANCHORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def plan_of(model: Model, int8: Sequence[tuple[str, ...]] | None = None) -> Plan:
    """Return a plan with these groups in int8 (None: every anchor with constant weights), the rest float."""
    if int8 is None:
        int8 = [
            (n.name or "",)
            for n in model.graph
            if n.op_type in ANCHORS and constant(n.inputs[1]) is not None and constant(n.inputs[0]) is None
        ]
    held = {name for nodes in int8 for name in nodes}
    rows = [*int8, *((n.name or "",) for n in model.graph if n.name not in held)]
    groups = tuple(
        Group(
            id=f"g{i}",
            nodes=tuple(nodes),
            sources=tuple(nodes),
            operators=(),
            writes=(),
            rule="",
            variant="plain",
            precision="int8" if i < len(int8) else "fp32",
            output=Format(),
            cost=(),
            loss=0.0,
            compute_nodes=len(nodes),
            reason="-",
        )
        for i, nodes in enumerate(rows)
    )
    return Plan(model="", target="", requested="int8", groups=groups)


def quantized_of(
    model: Model, plan: Plan, samples: Sequence[Mapping[str, np.ndarray]], scheme: Scheme = SEVEN
) -> Quantized:
    """Return min-max quantization of the plan over the samples."""
    names = [v.name or "" for n in model.graph for v in n.inputs if v is not None and constant(v) is None]
    by_name = {v.name: v for n in model.graph for v in n.inputs if v is not None}
    ranges = collect_ranges(model, [n for n in names if is_float(by_name[n])], samples)
    return quantize_plan(model, plan, ranges, scheme)


def outputs_of(model: Model, samples: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Return all outputs of the model for each sample, in ONNX Runtime with its optimiser off."""
    session = judge_session(model_to_bytes(model))
    return [session.run(None, dict(feeds)) for feeds in samples]


def decibels(
    model: Model,
    plan: Plan,
    quantized: Quantized,
    samples: Sequence[Mapping[str, np.ndarray]],
    output: int = 0,
) -> float:
    """Return the signal-to-noise ratio of one output of the simulated plan, over all samples together."""
    clean = outputs_of(model, samples)
    noisy = outputs_of(simulated_graph(model, plan, quantized), samples)
    error = sum(float(np.square(b[output] - a[output]).sum()) for a, b in zip(clean, noisy, strict=True))
    power = sum(float(np.square(a[output]).sum()) for a in clean)
    return 10.0 * float(np.log10(power / error))
