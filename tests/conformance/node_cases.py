"""The operator cases of the onnx wheel, generated once a process and shared by every conformance suite.

`node_cases()` is what another suite (a vendor backend) takes; `differences` compares as onnx's own runner.
Unlike it, strings, dtypes, sequences and absent optionals are compared too.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Plain: what a deployed model carries. Other element types have their own class.
PLAIN_TYPES = frozenset(
    "FLOAT FLOAT16 DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL STRING".split()
)
EXCLUSIONS = Path(__file__).with_name("exclusions.toml")


@dataclass(frozen=True)
class NodeCase:
    """One operator case: a model, its inputs and the outputs that the standard's authors expect.

    kind: "plain" (plain tensors, domain ai.onnx), "sequence" (a sequence or optional goes in or out),
    "types" (float8, float4, bfloat16, 2- and 4-bit integers), "domain" (another operator domain).
    rtol is at least 1e-3, as in onnx's own runner.
    """

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    rtol: float
    atol: float
    kind: str

    @property
    def op_types(self) -> frozenset[str]:
        return frozenset(node.op_type for node in self.model.graph.node)


def _kind(model: onnx.ModelProto) -> str:
    types = set()
    for value in [*model.graph.input, *model.graph.output]:
        which = value.type.WhichOneof("value")
        if which != "tensor_type":
            return "sequence"
        types.add(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type))
    if any(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        return "domain"
    return "plain" if types <= PLAIN_TYPES else "types"


def _as_value(value: Any) -> Any:
    # The cast cases hold TensorProto, the others arrays, lists or None.
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value


@lru_cache(maxsize=1)
def node_cases() -> tuple[NodeCase, ...]:
    """Return every case of onnx.backend.test.case.node, in the wheel's order (about 8 s the first time)."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    cases = []
    for case in found:
        inputs, outputs = case.data_sets[0]
        graph = case.model.graph
        cases.append(
            NodeCase(
                case.name,
                case.model,
                {v.name: _as_value(x) for v, x in zip(graph.input, inputs, strict=False)},
                {v.name: _as_value(y) for v, y in zip(graph.output, outputs, strict=False)},
                max(case.rtol, 1e-3),
                case.atol,
                _kind(case.model),
            )
        )
    return tuple(cases)


@lru_cache(maxsize=1)
def exclusions() -> dict[str, dict[str, Any]]:
    """Return the table of exclusions.toml: class -> {reason, route, names}."""
    return tomllib.loads(EXCLUSIONS.read_text(encoding="utf-8"))


def exclusion_of(case: NodeCase, route: str = "run") -> str | None:
    """Return the class under which a case is excluded on a route ("run" or "import"), or None."""
    for name, entry in exclusions().items():
        if route in entry["route"] and any(fnmatchcase(case.name, pattern) for pattern in entry["names"]):
            return name
    return None


def _difference(got: Any, want: Any, case: NodeCase) -> str | None:
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"sequence of {len(want)} expected, got {type(got).__name__}"
        parts = [_difference(g, w, case) for g, w in zip(got, want, strict=True)]
        return next((part for part in parts if part), None)
    if want is None or got is None:
        return None if want is None and got is None else "one of both is an absent optional"
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype.kind in "OUST":
        return None if (got.astype(str) == want.astype(str)).all() else "strings differ"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, expected {want.dtype}"
    if got.dtype.kind == "V" or "float" in got.dtype.name or "int" in got.dtype.name:
        exact = want.dtype.kind in "iu" and want.dtype.itemsize == 8
        got, want = (got, want) if exact else (got.astype(np.float64), want.astype(np.float64))
    if np.allclose(got, want, rtol=case.rtol, atol=case.atol, equal_nan=True):
        return None
    return f"values differ by up to {np.nanmax(np.abs(got.astype(float) - want.astype(float)))}"


def differences(case: NodeCase, results: dict[str, Any]) -> list[str]:
    """Return one line for each output that is not as expected (dtype, shape, or rtol and atol)."""
    lines = []
    for name, want in case.outputs.items():
        if text := _difference(results[name], want, case):
            lines.append(f"{case.name}: output '{name}': {text}")
    return lines
