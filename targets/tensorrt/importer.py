"""importer.toml as the limits that lowering works by, for one TensorRT version."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgefuse.device import Target
from edgefuse.graph import DataType
from edgefuse.lowering import OperatorLimit

__all__ = ["operator_limits", "readable_operators", "retyped", "rows_for", "version_key"]

_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def version_key(version: str) -> tuple[int, ...]:
    """Return a version as numbers that compare: "8.2.1" -> (8, 2, 1)."""
    return tuple(int(part) for part in version.split("."))


def rows_for(rows: list[dict[str, Any]], version: str) -> list[dict[str, Any]]:
    """Return the rows whose `since` .. `before` holds for the version."""
    here = version_key(version)
    return [
        row
        for row in rows
        if version_key(row.get("since", "0")) <= here
        and ("before" not in row or here < version_key(row["before"]))
    ]


@functools.cache
def read_table(name: str) -> dict[str, Any]:
    """Return a TOML file of this folder."""
    found: dict[str, Any] = msgspec.toml.decode((Path(__file__).parent / name).read_bytes())
    return found


def operator_limits(version: str) -> Mapping[str, OperatorLimit]:
    """Return what the importer of this TensorRT version asks of each operator."""
    table = read_table("importer.toml")
    types: dict[str, frozenset[DataType]] = {}
    for row in rows_for(table["types"], version):
        for op_type in row["operators"]:
            types[op_type] = frozenset(DataType[name.upper()] for name in row["holds"])
    rules = {op_type: row for row in rows_for(table["restriction"], version) for op_type in row["operators"]}
    return {
        op_type: OperatorLimit(
            types=types.get(op_type, frozenset()),
            constant_inputs=tuple(rules.get(op_type, {}).get("constant_inputs", ())),
            attributes={
                name: tuple(values) for name, values in rules.get(op_type, {}).get("attributes", {}).items()
            },
            max_outputs=rules.get(op_type, {}).get("max_outputs"),
            reason=rules.get(op_type, {}).get("reason", ""),
        )
        for op_type in {*types, *rules}
    }


def retyped(version: str) -> Mapping[str, str]:
    """Return element types that this version does not hold -> what is written in their place."""
    merged: dict[str, str] = {}
    for row in rows_for(read_table("importer.toml")["retype"], version):
        merged.update(row["types"])
    return merged


def readable_operators(target: Target) -> frozenset[str] | None:
    """Return the operators that the target reads, or None where its reader keeps no list.

    A device without int8 reads no Q/DQ: TensorRT refuses the model there (NVIDIA/TensorRT#3157), so that an
    already quantized model is written in float arithmetic with the same rounding.
    """
    listed = frozenset(target.runtime.readable_ops)
    if not listed:
        return None
    return listed - _QUANTIZERS if target.device.int8 == "none" else listed
