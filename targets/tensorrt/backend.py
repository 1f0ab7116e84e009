"""The TensorRT family: an ONNX that the board's TensorRT reads, and how to build the engine there.

An engine is tied to its board and TensorRT version and can be built nowhere else, so that the payload is the
model and the plan. `build` therefore needs none of NVIDIA's software.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
from typing import Any

from edgefuse.backend import YES, Backend, Candidate, Lowered, Probe, Readback, Verdict
from edgefuse.device import Target
from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.fusion import ANCHORS, POINTWISE
from edgefuse.graph import Model, clone_model, fresh_name, model_to_bytes, opset
from edgefuse.lowering import lower_model
from edgefuse.lowering.float16_range import float16_fault
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quantized import Quantized
from edgefuse.targets.tensorrt.importer import operator_limits, readable_operators, retyped, version_key
from edgefuse.targets.tensorrt.payload import build_file, precision_file, precision_plan

__all__ = ["FamilyBackend"]

_TRTEXEC_FOLDERS = ("/usr/src/tensorrt/bin", "/opt/tensorrt/bin")
_LOWERING_KEY = "edgefuse.tensorrt.lowering"

# From 11.0 on precision is said by the types in the model alone, which this version does not write.
_TYPED_ONLY = (11, 0)


class FamilyBackend(Backend):
    """TensorRT on Jetson: fp32 and fp16, weakly typed (the flags and precision.json say the precision)."""

    family = "tensorrt"

    def probe(self) -> Probe:
        """Return whether TensorRT is here: its Python package, or trtexec on PATH or in JetPack's folder."""
        trtexec = shutil.which("trtexec") or next(
            (
                path
                for path in (os.path.join(folder, "trtexec") for folder in _TRTEXEC_FOLDERS)
                if os.access(path, os.X_OK)
            ),
            None,
        )
        if importlib.util.find_spec("tensorrt") is not None:
            try:
                version = importlib.metadata.version("tensorrt")
            except importlib.metadata.PackageNotFoundError:
                version = ""
            return Probe(True, version, f"Python package tensorrt; trtexec: {trtexec or 'not found'}")
        if trtexec is not None:
            return Probe(True, "", f"trtexec: {trtexec}; no Python package tensorrt")
        return Probe(
            False,
            detail="no TensorRT on this machine",
            install="JetPack brings TensorRT to the board; nothing is needed on the machine that builds",
        )

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        if variant != "plain":
            return Verdict(False, f"the variant {variant!r} is not written for TensorRT by this version")
        if output.place != "main" or output.layout != "plain":
            return Verdict(False, "this version leaves layout and place to TensorRT")
        if precision == "int8" or output.dtype == "int8":
            return Verdict(False, _int8_reason(target))
        if precision == "fp16" and version_key(target.runtime.version) >= _TYPED_ONLY:
            return Verdict(
                False,
                f"{target.runtime.title} takes precision from the types in the model, and this version of "
                "edgefuse writes float32 models only",
            )
        apart = _apart(candidate)
        if apart:
            return Verdict(False, apart)
        for node in candidate.nodes:
            support = target.support(node.op_type, precision)
            if not support.allowed:
                return Verdict(False, f"{node.op_type}: {support.reason}")
            fault = float16_fault(node) if precision == "fp16" else ""
            if fault:
                return Verdict(False, f"{node.op_type} {node.name!r}: {fault}")
        return YES

    def _prepare(self, model: Model, target: Target) -> Model:
        """Return the model in the runtime's operators; what changed is kept with it for `lower`."""
        version = target.runtime.version
        made, notes = lower_model(
            model,
            opset=int(target.runtime.opset),
            operators=readable_operators(target),
            index_dtype=target.runtime.index_dtype,
            static=target.runtime.static_shapes,
            limits=operator_limits(version),
            retype=retyped(version),
        )
        _plain_node_names(made)
        made.metadata_props[_LOWERING_KEY] = json.dumps(
            {
                "lines": list(notes.lines),
                "input_casts": {k: list(v) for k, v in notes.input_casts.items()},
                "output_casts": {k: list(v) for k, v in notes.output_casts.items()},
            },
            sort_keys=True,
        )
        return made

    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        """Return model.onnx (float32), precision.json and build.json for the prepared model."""
        known = model.metadata_props.get(_LOWERING_KEY)
        if known is None or opset(model) > int(target.runtime.opset):
            raise InternalError("tensorrt: lower() was given a model that prepare() did not make")
        if quantized:
            raise UnsupportedError(f"int8 for {target.device.name}: {_int8_reason(target)}")
        lowering = json.loads(known)
        planned = precision_plan(model, plan)
        build, build_notes = build_file(target.runtime.version, planned)
        payload = clone_model(model)
        _strip(payload)
        notes = [*lowering["lines"], *build_notes, "times on this board are estimates"]
        return Lowered(
            files={
                "model.onnx": model_to_bytes(payload),
                "precision.json": precision_file(planned),
                "build.json": build,
            },
            entry="model.onnx",
            options={
                "precision": planned["planned"],
                "input_casts": lowering["input_casts"],
                "output_casts": lowering["output_casts"],
            },
            requires={
                "runtime": f"{target.runtime.vendor_package} {target.runtime.version}",
                "compute_capability": target.device.compute_capability,
            },
            notes=tuple(notes),
        )

    def _readback(self, engine: Any, plan: Plan) -> Readback:
        raise UnsupportedError(
            "what became of the plan can be read on the board only: the engine is built there",
            hint="times for this board are estimates until it is measured",
        )


def _apart(candidate: Candidate) -> str:
    """Return why a group is no kernel of TensorRT's that was seen in compiled engines, or "".

    Seen (jetson builds compiled on a host): a product with a pointwise epilogue, and generated kernels of
    pointwise nodes. Q, K and V are merged by TensorRT itself, whatever the plan says.
    """
    nodes = candidate.nodes
    products = [node for node in nodes if node.op_type in ANCHORS]
    if len(products) > 1:
        return f"{len(products)} products in one kernel: TensorRT merges siblings itself and chains none"
    if products and nodes[0] is not products[0]:
        return f"{nodes[0].op_type} before {products[0].op_type} is a kernel of its own"
    other = next((n for n in nodes if n.op_type not in ANCHORS and n.op_type not in POINTWISE), None)
    if len(nodes) > 1 and other is not None:
        return f"{other.op_type} is no part of an epilogue or of a generated pointwise kernel"
    return ""


def _int8_reason(target: Target) -> str:
    if target.device.int8 == "none":
        return target.device.int8_reason
    return "this version of edgefuse writes no int8 for TensorRT"


def _plain_node_names(model: Model) -> None:
    """Take the separators of trtexec's layer lists out of node names; reports keep the user's names."""
    for graph in model.graphs():
        for node in graph:
            plain = "".join("_" if c in ',:*"' else c for c in node.name or "")
            if plain != node.name:
                node.name = fresh_name(model.graph, plain)


def _strip(model: Model) -> None:
    """Drop what only edgefuse reads, so that the payload holds the model and nothing else."""
    model.metadata_props.clear()
    model.producer_name, model.producer_version, model.doc_string = "edgefuse", "", ""
    for graph in model.graphs():
        graph.metadata_props.clear()
        for value in graph.initializers.values():
            value.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = ""
            for value in node.outputs:
                value.metadata_props.clear()
