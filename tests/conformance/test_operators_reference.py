"""Every operator case of the onnx wheel runs in the reference executor, and imports into a canonical model.

One test a shard, not a case: generating the cases takes seconds and must not happen at collection.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from node_cases import NodeCase, differences, exclusion_of, exclusions, node_cases

from edgefuse.errors import EdgefuseError
from edgefuse.graph import model_from_proto
from edgefuse.graph.reference import Reference

pytestmark = pytest.mark.slow

SHARDS = 8


def _run(case: NodeCase) -> list[str]:
    results = Reference(ir.from_proto(case.model), precision="native").run(case.inputs)
    return differences(case, results)


def _import_and_run(case: NodeCase) -> list[str]:
    model = model_from_proto(case.model)
    if [value.name for value in model.graph.outputs] != list(case.outputs):
        return [f"{case.name}: outputs renamed"]
    return differences(case, Reference(model, precision="native").run(case.inputs))


ROUTES = {"run": _run, "import": _import_and_run}


def _failures(case: NodeCase, route: str) -> list[str]:
    try:
        return ROUTES[route](case)
    except EdgefuseError as error:
        return [f"{case.name}: {type(error).__name__}: {error}"]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cases_run(shard: int) -> None:
    cases = [c for c in node_cases()[shard::SHARDS] if exclusion_of(c, "run") is None]
    assert len(cases) > 100
    lines = [line for case in cases for line in _failures(case, "run")]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cases_import(shard: int) -> None:
    cases = [c for c in node_cases()[shard::SHARDS] if c.kind != "domain"]
    cases = [c for c in cases if exclusion_of(c, "import") is None]
    assert len(cases) > 100
    lines = [line for case in cases for line in _failures(case, "import")]
    assert not lines, "\n".join(lines)


def test_other_domains_are_refused_on_import_and_run_in_the_executor() -> None:
    cases = [c for c in node_cases() if c.kind == "domain"]
    assert cases
    for case in cases:
        with pytest.raises(EdgefuseError, match="domain"):
            _import_and_run(case)
        assert _run(case) == []


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_exclusions_are_few_and_none_is_stale(route: str) -> None:
    plain = [c for c in node_cases() if c.kind == "plain"]
    assert len(plain) > 1500
    excluded = [c for c in plain if exclusion_of(c, route) is not None]
    assert len(excluded) <= 0.05 * len(plain)
    for name, entry in exclusions().items():
        assert entry["reason"], name
        if route not in entry["route"]:
            continue
        members = [c for c in node_cases() if exclusion_of(c, route) == name]
        assert any(_failures(c, route) for c in members), f"exclusion '{name}' ({route}) is stale: remove it"


def test_random_cases_keep_shape_dtype_and_range() -> None:
    cases = [c for c in node_cases() if exclusion_of(c) == "random"]
    assert cases
    for case in cases:
        results = Reference(ir.from_proto(case.model), precision="native").run(case.inputs)
        for name, want in case.outputs.items():
            assert (results[name].dtype, results[name].shape) == (want.dtype, want.shape)
            assert np.isin(results[name].astype(np.float64), (0.0, 1.0)).all()


# In float64 these answer in steps: a small change of the input may leave them equal or move them by a step.
_STEPS = frozenset(
    "Bernoulli BitCast BlackmanWindow Ceil Clip Constant ConstantOfShape DequantizeLinear EyeLike Floor If "
    "DynamicQuantizeLinear HammingWindow HannWindow Hardmax MelWeightMatrix OneHot Range Round Sign Unique "
    "TfIdfVectorizer ThresholdedRelu".split()
)
_ILL_CONDITIONED = ("large_number", "empty_set", "bernoulli", "range", "window", "clip", "nearest", "acosh")


def _float64_failures(case: NodeCase, generator: np.random.Generator) -> list[str]:
    """Return what shows that some step of a float64 run was rounded to a narrower type.

    A change of 1e-10 of the inputs must show in the outputs, and by no more than a float32 step (6e-8).
    """
    reference = Reference(ir.from_proto(case.model))
    moved = {
        name: value.astype(np.float64) * (1 + 1e-10 * generator.standard_normal(value.shape))
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        else value
        for name, value in case.inputs.items()
    }
    before, after = reference.run(case.inputs), reference.run(moved)
    lines = []
    for name, want in case.outputs.items():
        if not isinstance(want, np.ndarray) or want.dtype.kind != "f":
            continue
        if before[name].dtype != np.float64:
            lines.append(f"{case.name}: output '{name}' is {before[name].dtype}")
            continue
        finite = np.isfinite(before[name]) & np.isfinite(after[name])
        change = np.abs(after[name][finite] - before[name][finite])
        size = np.abs(before[name][finite]).max(initial=1e-3)
        if change.size and not 0.0 < change.max() < 3e-8 * size:
            lines.append(f"{case.name}: output '{name}' moves by {change.max():.2e} of {size:.2e}")
    return lines


def test_float64_rounds_nothing() -> None:
    generator = np.random.default_rng(7)
    lines, tried = [], 0
    for case in node_cases():
        floats = [
            v for v in case.inputs.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.size
        ]
        if case.kind != "plain" or not floats or case.op_types & _STEPS:
            continue
        if any(word in case.name for word in _ILL_CONDITIONED):
            continue
        tried += 1
        lines += _float64_failures(case, generator)
    assert tried > 850
    assert not lines, "\n".join(lines)
