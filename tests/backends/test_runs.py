"""The payload runs and says what the model says; what cannot run here is skipped, with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from corpus import CORPUS, feeds_of
from families import FAMILIES, first_device, require_engine, way

from edgefuse.backend import load_backend
from edgefuse.compose.payloads import open_built
from edgefuse.errors import EdgefuseError
from edgefuse.runtime.engine import open_engine

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

# max|difference| / max|reference| of each output. float16 tensors carry 11 bits between any two kernels.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 4e-3}


def assert_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert set(want) <= set(got)
    for name, expected in want.items():
        array = got[name]
        assert array.dtype == expected.dtype, name
        assert array.shape == expected.shape, name
        if expected.dtype.kind != "f":
            assert np.array_equal(array, expected), name
            continue
        apart = np.abs(array.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
        size = np.abs(expected.astype(np.float64)).max(initial=1e-6)
        assert apart <= TOLERANCE[expected.dtype] * size, f"{name}: {apart / size:.2g}"


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("family", FAMILIES)
def test_float_payload_equals_the_model(family: str, name: str) -> None:
    require_engine(family)
    made = way(name, first_device(family))
    for feeds in made.feeds[:2]:
        assert_equal(made.run(feeds), made.expected(feeds))


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_carry_the_users_names_and_order(family: str) -> None:
    require_engine(family)
    for name in ("odd_names", "outputs_before_and_after", "passed_through", "decisions"):
        made = way(name, first_device(family))
        got = made.run(made.feeds[0])
        wanted = [v.name for v in made.proto.graph.output]
        assert set(got) == set(wanted)
        assert [info.name for info in made.prepared.outputs] == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_an_open_batch_takes_any_size(family: str) -> None:
    require_engine(family)
    made = way("dynamic_batch", first_device(family))
    engine = open_built(made.built, made.prepared, threads=1)
    for batch in (1, 3, 7, 2):
        feeds = feeds_of(made.proto, batch, batch)
        assert_equal(engine.run(feeds), made.expected(feeds))
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_results_belong_to_the_caller_and_inputs_stay(family: str) -> None:
    require_engine(family)
    made = way("residual", first_device(family))
    engine = open_built(made.built, made.prepared, threads=1)
    first, second = made.feeds[:2]
    kept = {name: array.copy() for name, array in first.items()}
    results = engine.run(first)
    before = {name: array.copy() for name, array in results.items()}
    engine.run(second)
    assert all(np.array_equal(first[name], kept[name]) for name in first)
    assert all(np.array_equal(results[name], before[name]) for name in results)
    for array in results.values():
        array[...] = 0  # must not reach the runtime's own memory
    assert_equal(engine.run(first), before)
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_describes_itself_and_closes_twice(family: str) -> None:
    require_engine(family)
    made = way("conv_chain", first_device(family))
    for profile in (False, True):
        engine = open_built(made.built, made.prepared, threads=1, profile=profile)
        described = engine.describe()
        assert {"runtime", "version", "device", "threads"} <= set(described)
        assert described["threads"] == 1
        engine.close()
        engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_damaged_or_missing_payload_is_an_error_of_ours(family: str) -> None:
    made = way("conv_chain", first_device(family))
    lowered = made.built.lowered
    damaged = dict.fromkeys(lowered.files, b"not this")
    for files in (damaged, {}):
        with pytest.raises(EdgefuseError) as caught:
            open_engine(family, files, lowered.entry, lowered.options)
        assert caught.value.message


@pytest.mark.parametrize("family", FAMILIES)
def test_without_its_runtime_a_payload_says_what_is_missing(family: str) -> None:
    made = way("conv_chain", first_device(family))
    if load_backend(family).probe().available:
        pytest.skip(f"the runtime of {family} is installed here")
    with pytest.raises(EdgefuseError) as caught:
        made.run(made.feeds[0])
    assert caught.value.hint


@pytest.mark.parametrize("family", FAMILIES)
def test_readback_speaks_of_the_plan(family: str) -> None:
    require_engine(family)
    for name in ("residual", "attention", "classifier", "odd_names", "lstm"):
        made = way(name, first_device(family))
        found = made.readback()
        plan = made.built.plan
        assert found.kernels
        assert [row.group for row in found.groups] == [group.id for group in plan.groups]
        assert all(row.confirmed or row.why for row in found.groups)
        assert 0.0 <= found.honoured(plan) <= 1.0
        confirmed = [row for row in found.groups if row.confirmed]
        assert len(confirmed) >= 0.6 * len(plan.groups), [
            row.why for row in found.groups if not row.confirmed
        ]
        assert any(kernel.ms is not None for kernel in found.kernels)


@pytest.mark.parametrize("family", FAMILIES)
def test_planned_fusions_are_honoured(family: str) -> None:
    require_engine(family)
    for name in ("conv_chain", "residual", "depthwise", "squeeze_excite", "classifier", "transposed"):
        made = way(name, first_device(family))
        found = made.readback()
        fused = {g.id for g in made.built.plan.groups if g.compute_nodes > 1}
        split = [(row.group, row.why) for row in found.groups if row.group in fused and not row.confirmed]
        assert found.honoured(made.built.plan) == 1.0, f"{name}: {split}"
