"""Corrected biases reach the payloads: the runtimes compute what the simulation with them computes."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from edgefuse.backend import load_backend
from edgefuse.device import resolve_target
from edgefuse.graph import Model
from edgefuse.graph.reference import signal_to_noise_db
from edgefuse.quant import simulated_graph
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quantized import Quantized
from edgefuse.runtime.engine import open_engine
from tests.passes.graphs import Build, conv
from tests.quant.small_plans import SEVEN, outputs_of, plan_of, quantized_of
from tests.quant.test_equalize import samples_of

FAMILIES = {"openvino": "x86-avx2", "_example": "example-cpu"}


def net(kind: str) -> Model:
    b = Build(seed=3)
    if kind == "MatMul":
        a = b.op("Relu", b.op("MatMul", b.x([8, 16]), b.rand(16, 16), name="bare"))
        return b.y(b.op("Add", b.op("MatMul", a, b.rand(16, 8), name="held"), b.rand(8), name="add")).model()
    a = b.op("Relu", conv(b, b.x([1, 8, 8, 8]), 8, 8, bias=False, name="bare"))
    return b.y(conv(b, a, 8, 4, name="held")).model()


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_payload_carries_the_biases(family: str, kind: str) -> None:
    if family == "openvino" and importlib.util.find_spec("openvino") is None:
        pytest.skip("OpenVINO is not installed: pip install 'edgefuse[openvino]'")
    model = net(kind)
    samples, plan = samples_of(model, 6), plan_of(model)
    plain = quantized_of(model, plan, samples, SEVEN)
    moved = bias_correct(model, plan, plain, samples)
    # Far larger than any correction, so that a payload without it cannot pass.
    far = {name: bias + np.float32(1.5) for name, bias in moved.biases.items()}
    quantized = Quantized(plain.activations, plain.weights, plain.scheme, far)
    backend = load_backend(family)
    lowered = backend.lower(model, plan, quantized, resolve_target(FAMILIES[family]))
    engine = open_engine(family, lowered.files, lowered.entry, {**lowered.options, "threads": 1})
    try:
        got = [next(iter(engine.run(feeds).values())) for feeds in samples]
    finally:
        engine.close()
    wanted = [o[0] for o in outputs_of(simulated_graph(model, plan, quantized), samples)]
    without = [o[0] for o in outputs_of(simulated_graph(model, plan, plain), samples)]
    assert signal_to_noise_db(np.stack(got), np.stack(wanted)) > 35
    assert signal_to_noise_db(np.stack(without), np.stack(wanted)) < 15
