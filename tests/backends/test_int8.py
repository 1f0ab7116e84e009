"""Backends encode integers and never compute them: the payload holds what quant/ gave, and runs as int8."""

from __future__ import annotations

import numpy as np
import pytest
from families import FAMILIES, first_device, require_engine, way
from payload_integers import DECODERS

from edgefuse.device import devices, resolve_target
from edgefuse.errors import EdgefuseError
from edgefuse.graph import model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.quant import simulated_graph

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

MODELS = [
    "conv_chain",
    "residual",
    "depthwise",
    "squeeze_excite",
    "classifier",
    "attention",
    "perceptron",
    "concat_split",
    "dynamic_batch",
    "outputs_before_and_after",
    "odd_names",
    "one_and_three_dimensions",
    "shared_weight",
    "shared_activation",
]


def lowers_int8(family: str) -> bool:
    """Return whether some anchor of a plain model is legal in int8 on the family's first device."""
    try:
        return "int8" in resolve_target(first_device(family)).device.precisions and bool(
            way("conv_chain", first_device(family), "int8").built.quantized
        )
    except EdgefuseError:
        return False


INT8 = [family for family in FAMILIES if lowers_int8(family)]


def test_two_families_write_int8_and_each_can_be_decoded() -> None:
    assert {"openvino", "_example"} <= set(INT8)
    assert set(INT8) <= set(DECODERS), "write a decoder of the new family's payload"


@pytest.mark.parametrize("family", FAMILIES)
def test_where_int8_is_refused_the_reason_is_told(family: str) -> None:
    quantized = way("conv_chain", first_device("openvino"), "int8").built.quantized
    for device in devices(family):
        if device.int8 != "none":
            continue
        made = way("conv_chain", device.name)
        with pytest.raises(EdgefuseError, match="int8"):
            made.prepared.backend.lower(made.prepared.model, made.built.plan, quantized, made.prepared.target)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("family", INT8)
def test_the_payload_holds_the_integers_that_quant_gave(family: str, name: str) -> None:
    made = way(name, first_device(family), "int8")
    quantized = made.built.quantized
    assert quantized.weights
    held = DECODERS[family](made.built.lowered)
    assert len(held.weights) == len(quantized.weights)
    left = list(held.weights)
    for key, weight in quantized.weights.items():
        match = [
            index
            for index, (values, scale) in enumerate(left)
            if values.dtype == np.int8
            and np.array_equal(values, weight.values)
            and np.allclose(np.broadcast_to(scale, values.shape), weight.expanded_scale(), rtol=1e-6, atol=0)
        ]
        assert match, f"{key}: no such integers in the payload"
        left.pop(match[0])
        assert np.abs(weight.values).max() <= 2 ** (weight.bits - 1) - 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("family", INT8)
def test_the_payload_holds_the_grids_that_quant_gave(family: str, name: str) -> None:
    made = way(name, first_device(family), "int8")
    held = DECODERS[family](made.built.lowered).grids
    wanted = [
        ((a.low - a.zero_point) * a.scale, (a.high - a.zero_point) * a.scale, a.high - a.low + 1)
        for a in made.built.quantized.activations.values()
    ]
    for low, high, levels in wanted:
        close = [g for g in held if g[2] == levels and np.allclose(g[:2], (low, high), rtol=1e-6, atol=1e-9)]
        assert close, f"no grid from {low} to {high}: {held}"
    for low, high, levels in held:
        same = [w for w in wanted if w[2] == levels and np.allclose(w[:2], (low, high), rtol=1e-6, atol=1e-9)]
        assert same, f"a grid from {low} to {high} that quant did not give"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("family", INT8)
def test_every_planned_int8_group_runs_as_int8(family: str, name: str) -> None:
    require_engine(family)
    made = way(name, first_device(family), "int8")
    rows = {row.group: row for row in made.readback().groups}
    planned = [group for group in made.built.plan.groups if group.precision == "int8"]
    assert planned
    for group in planned:
        row = rows[group.id]
        assert row.confirmed, f"{group.operators}: {row.why}"
        assert row.precision == "int8"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("family", INT8)
def test_the_payload_computes_what_the_simulation_says(family: str, name: str) -> None:
    require_engine(family)
    made = way(name, first_device(family), "int8")
    graph = simulated_graph(made.prepared.model, made.built.plan, made.built.quantized)
    session = judge_session(model_to_bytes(graph))
    names = [value.name for value in made.proto.graph.output]
    for feeds in made.feeds:
        got = made.run(feeds)
        for output, expected in zip(names, session.run(names, feeds), strict=True):
            apart = np.abs(got[output] - expected)
            size = np.abs(expected).max()
            # A number between two steps may be rounded either way: a step of one tensor, at few places.
            assert np.median(apart) <= 1e-5 * size, output
            assert apart.max() <= 0.05 * size, output


@pytest.mark.parametrize("family", INT8)
def test_a_weight_read_twice_and_a_tensor_read_twice_are_both_quantized(family: str) -> None:
    twice = way("shared_weight", first_device(family), "int8").built
    assert len(twice.quantized.weights) == 3
    both = way("shared_activation", first_device(family), "int8").built
    assert len(both.quantized.weights) == 3
    assert len(both.quantized.activations) == 2, "the tensor that two convolutions read has one grid"
