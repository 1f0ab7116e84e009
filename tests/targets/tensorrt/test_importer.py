"""importer.toml and trtexec.toml: every row is well formed, and rows are chosen by version."""

from __future__ import annotations

import onnx
import pytest

from edgefuse.device import resolve_target, runtimes
from edgefuse.graph import DataType
from edgefuse.graph.schemas import operator_form
from edgefuse.targets.tensorrt.importer import (
    operator_limits,
    read_table,
    readable_operators,
    retyped,
    rows_for,
    version_key,
)

IMPORTER = read_table("importer.toml")
TRTEXEC = read_table("trtexec.toml")
# In TensorRT's list, and not (or no longer) operators of ONNX 13.
NOT_ONNX = {"ImageScaler", "ParametricSoftplus", "ScaledTanh", "Scatter", "Upsample"}


def test_rows_are_well_formed() -> None:
    for kind in ("types", "restriction", "retype"):
        for row in IMPORTER[kind]:
            assert row["source"].strip()
            for bound in ("since", "before"):
                assert all(part.isdigit() for part in row.get(bound, "0").split("."))
    for row in IMPORTER["types"]:
        assert {DataType[name.upper()] for name in row["holds"]}
    for row in IMPORTER["restriction"]:
        assert row["reason"].startswith("TensorRT")
        assert {"constant_inputs", "attributes", "max_outputs"} & set(row)
    for row in TRTEXEC["argument"]:
        assert row["text"].startswith("--")
        assert row.get("when") in (None, "fp16", "mixed")


def test_every_operator_named_is_one() -> None:
    newest = onnx.defs.onnx_opset_version()
    named = {op for kind in ("types", "restriction") for row in IMPORTER[kind] for op in row["operators"]}
    for op_type in named - NOT_ONNX:
        assert operator_form(op_type, newest) is not None, op_type
    per_version = [op for row in IMPORTER["types"] for op in row["operators"]]
    assert len(per_version) == len(set(per_version))


def test_constant_inputs_are_inputs_and_attributes_are_attributes() -> None:
    for row in IMPORTER["restriction"]:
        for op_type in row["operators"]:
            form = operator_form(op_type, 13)
            assert form is not None
            for index in row.get("constant_inputs", ()):
                assert form.input_port(index) is not None, op_type
            assert set(row.get("attributes", {})) <= set(form.attributes)


def test_rows_are_chosen_by_version() -> None:
    rows = [{"name": "old", "before": "8.4.1"}, {"name": "new", "since": "8.4.1"}, {"name": "all"}]
    assert [r["name"] for r in rows_for(rows, "8.2.1")] == ["old", "all"]
    assert [r["name"] for r in rows_for(rows, "8.4.1")] == ["new", "all"]
    assert [r["name"] for r in rows_for(rows, "10.3.0")] == ["new", "all"]
    assert version_key("10.3.0") > version_key("8.6.1")


@pytest.mark.parametrize("runtime", runtimes("tensorrt"), ids=lambda runtime: runtime.name)
def test_every_runtime_has_its_limits(runtime: object) -> None:
    version = runtime.version  # type: ignore[attr-defined]
    assert retyped(version)["double"] == "float"
    assert operator_limits(version)["TopK"].constant_inputs == (1,)


def test_limits_of_two_versions() -> None:
    old, new = operator_limits("8.2.1"), operator_limits("10.3.0")
    assert old["Equal"].types == {DataType.FLOAT, DataType.FLOAT16, DataType.INT32}
    assert old["Conv"].constant_inputs == (1,)
    assert old["Clip"].constant_inputs == (1, 2)
    assert old["Resize"].attributes["mode"] == ("nearest", "linear")
    assert "Equal" not in new
    assert "Conv" not in new


def test_a_board_without_int8_reads_no_quantized_operators() -> None:
    nano, orin = (readable_operators(resolve_target(name)) for name in ("jetson-nano", "jetson-orin-nano"))
    assert nano is not None
    assert orin is not None
    assert "QuantizeLinear" not in nano
    assert "QuantizeLinear" in orin
