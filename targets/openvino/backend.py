"""The OpenVINO family: IR payloads, legality by rules.yaml, readback from the runtime model."""

from __future__ import annotations

import importlib.util
from typing import Any

from edgefuse.backend import Backend, Candidate, Lowered, Probe, Readback, Verdict
from edgefuse.device import Target
from edgefuse.errors import InternalError
from edgefuse.graph import Model
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quantized import Quantized
from edgefuse.targets.openvino import legality, readback

__all__ = ["FamilyBackend"]


class FamilyBackend(Backend):
    """OpenVINO on x86 CPUs and Intel GPUs."""

    family = "openvino"

    def probe(self) -> Probe:
        """Return the installed OpenVINO, without importing it."""
        if importlib.util.find_spec("openvino") is None:
            return Probe(False, install="pip install 'edgefuse[openvino]'")
        from importlib import metadata

        return Probe(True, version=metadata.version("openvino"), detail="CPU plugin")

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        if variant != "plain":
            return Verdict(False, f"the variant {variant!r} is not written for OpenVINO by this version")
        return legality.judge(candidate, precision, output, target)

    def _prepare(self, model: Model, target: Target) -> Model:
        from edgefuse.targets.openvino.reader import readable

        return readable(model)

    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        from edgefuse.targets.openvino.emit import quantized_graph, write_ir

        graph = quantized_graph(model, plan, quantized) if quantized else model
        xml, weights = write_ir(graph)
        options = {
            "device": "GPU" if target.device.kind == "gpu" else "CPU",
            "hint": "LATENCY",
            "streams": 1,
            "inference_precision": "f32",
        }
        requires = {"openvino": f">={target.runtime.version.rsplit('.', 1)[0]}"}
        files = {"model.xml": xml, "model.bin": weights}
        return Lowered(files=files, entry="model.xml", options=options, requires=requires)

    def _readback(self, engine: Any, plan: Plan) -> Readback:
        compiled = getattr(engine, "compiled", None)
        if compiled is None:
            raise InternalError("readback needs an engine made by edgefuse.targets.openvino.engine")
        return readback.read_back(readback.kernels(compiled), plan)
