"""The files beside model.onnx: precision.json (which layer in which precision) and build.json (trtexec)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgefuse.graph import Model, constant, is_float
from edgefuse.lowering.float16_range import float16_fault
from edgefuse.plans import Plan
from edgefuse.targets.tensorrt.importer import read_table, rows_for, version_key

__all__ = ["build_file", "precision_file", "precision_plan"]

# --layerPrecisions separates its items with these.
_SEPARATORS = frozenset(",:")
_LAYER_FLAGS_SINCE = (8, 4, 1)


def precision_plan(model: Model, plan: Plan) -> dict[str, Any]:
    """Return the planned precision of every layer, with reasons, and the casts at the borders.

    layers: in the model's order; reason only where a layer stays fp32 in a plan that has fp16.
    casts: float tensors that pass from one precision to the other. They are not in the model, which is
    float32 throughout: TensorRT puts them in itself.
    """
    chosen = {name: group for group in plan.groups for name in group.nodes}
    nodes = list(model.graph)
    half = any(group.precision == "fp16" for group in plan.groups)
    layers = []
    for node in nodes:
        group = chosen.get(node.name or "")
        precision = group.precision if group is not None else "fp32"
        row = {"node": node.name, "operator": node.op_type, "precision": precision}
        if half and precision == "fp32":
            row["reason"] = float16_fault(node) or (group.reason if group is not None else "not planned")
        layers.append(row)
    return {
        "schema": 1,
        "model_precision": "fp32",
        "planned": "fp16" if half else "fp32",
        "layers": layers,
        "casts": _casts(model, {row["node"]: row["precision"] for row in layers}),
    }


def _casts(model: Model, precision: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Return each tensor and the precision that it is read in, where it is written in another.

    Inputs and outputs of the graph are fp32.
    """
    reads = [(value, precision[node.name]) for node in model.graph for value in node.inputs]
    reads += [(value, "fp32") for value in model.graph.outputs]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for value, to in reads:
        if value is None or not is_float(value) or constant(value) is not None:
            continue
        producer = value.producer()
        source = precision[producer.name] if producer is not None else "fp32"
        if source != to:
            found[value.name or "", to] = {"tensor": value.name, "from": source, "to": to}
    return list(found.values())


def precision_file(plan: Mapping[str, Any]) -> bytes:
    """Return precision.json."""
    return _json(plan)


def build_file(version: str, planned: Mapping[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """Return build.json and notes: the trtexec call of this TensorRT version, as an argument list.

    {engine}, {timing_cache} and {workspace_mb} stay in the text: the board fills them in.
    """
    table = read_table("trtexec.toml")
    half = planned["planned"] == "fp16"
    single = [
        row["node"] for row in planned["layers"] if half and row["precision"] == "fp32" and _floats(row)
    ]
    sayable = [name for name in single if not _SEPARATORS & set(name)]
    mixed = bool(sayable)
    arguments = []
    for row in rows_for(table["argument"], version):
        when = row.get("when")
        if (when == "fp16" and not half) or (when == "mixed" and not mixed):
            continue
        layers = ",".join(f"{name}:fp32" for name in sayable)
        arguments.append(row["text"].replace("{onnx}", "model.onnx").replace("{layers}", layers))
    notes = ["the build command was never run by us: TensorRT builds an engine on the board only"]
    unsaid = single if version_key(version) < _LAYER_FLAGS_SINCE else [n for n in single if n not in sayable]
    if unsaid:
        notes.append(
            f"{len(unsaid)} layers must stay in fp32 and trtexec of TensorRT {version} cannot be told so: "
            "precision.json lists them for a build through the API"
        )
    text = {
        "schema": 1,
        "tool": "trtexec",
        "arguments": arguments,
        "workspace_mb": table["workspace_mb"],
        "fp32_layers": single,
        "fp32_layers_not_in_arguments": unsaid,
        "checked": "not on hardware",
    }
    return _json(text), tuple(notes)


def _floats(row: Mapping[str, Any]) -> bool:
    return "integers" not in row.get("reason", "")


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
