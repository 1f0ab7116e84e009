"""Runs OpenVINO IR. Python 3.6 syntax; needs numpy and openvino."""

import os
import sys
from typing import Any, Dict, Mapping

from edgefuse.errors import ArtifactError, DeviceError
from edgefuse.runtime.engine import Engine, Files, read_file

__all__ = ["OpenVinoEngine", "import_openvino", "load_engine"]


class OpenVinoEngine(Engine):
    """One compiled model and one inference request.

    `compiled` is the openvino.CompiledModel, for readback.
    """

    def __init__(self, compiled: Any, version: str, options: Mapping[str, Any]) -> None:
        self.compiled = compiled
        self._version = version
        self._options = dict(options)
        self._request: Any = compiled.create_infer_request()
        self._read = {name for port in compiled.inputs for name in port.get_names()}
        self._outputs = [(sorted(port.get_names()), port) for port in compiled.outputs]

    def run(self, feeds: Mapping[str, Any]) -> Dict[str, Any]:
        """Return every output under each of its names; copies, so that a later call leaves them alone.

        Inputs that the network does not read were left out of it.
        """
        read = {name: array for name, array in feeds.items() if name in self._read}
        results = self._request.infer(read, share_inputs=True, share_outputs=False)
        named = {}
        for names, port in self._outputs:
            # An output that is the input itself bears both names.
            for name in [name for name in names if name not in feeds] or names:
                named[name] = results[port]
        return named

    def close(self) -> None:
        """Free the compiled model."""
        self._request = None
        self._outputs = []
        self.compiled = None

    def describe(self) -> Dict[str, Any]:
        """Return version, device, and the thread and stream counts that OpenVINO settled on."""
        described: Dict[str, Any] = {
            "runtime": "openvino",
            "version": self._version,
            "device": str(self._options.get("device", "CPU")),
        }
        for key, name in (("threads", "INFERENCE_NUM_THREADS"), ("streams", "NUM_STREAMS")):
            try:
                described[key] = int(self.compiled.get_property(name))
            except (RuntimeError, TypeError, ValueError):
                described[key] = self._options.get(key)
        return described


def import_openvino() -> Any:
    """Return the openvino module, imported without its telemetry; raises ImportError without it.

    `import openvino` starts openvino_telemetry, which writes to the home folder and, where no consent file
    says no, sends events. A robot does not phone home; without that package openvino uses its own
    do-nothing class.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def load_engine(files: Files, entry: str, options: Mapping[str, Any]) -> OpenVinoEngine:
    """Return the payload compiled for this machine.

    options: device ("CPU"), hint ("LATENCY"), streams, inference_precision ("f32"), threads (absent: all
    cores), profile (True: time each kernel).  Raises ImportError without openvino, ArtifactError for an IR
    that cannot be read, DeviceError where the device refuses to compile it.
    """
    openvino = import_openvino()
    core = openvino.Core()
    try:
        if isinstance(files, str):
            network = core.read_model(os.path.join(files, *entry.split("/")))
        else:
            weights = read_file(files, entry[: -len(".xml")] + ".bin")
            network = core.read_model(read_file(files, entry), _tensor(openvino, weights))
    except RuntimeError as error:
        raise ArtifactError("OpenVINO cannot read the payload: {}".format(_last_line(error))) from error
    device = str(options.get("device", "CPU"))
    try:
        compiled = core.compile_model(network, device, _configuration(options))
    except RuntimeError as error:
        raise DeviceError(
            "OpenVINO cannot compile the payload for {}: {}".format(device, _last_line(error))
        ) from error
    return OpenVinoEngine(compiled, openvino.get_version().split("-")[0], options)


def _tensor(openvino: Any, weights: bytes) -> Any:
    import numpy as np

    array = np.frombuffer(weights, dtype=np.uint8)
    return openvino.Tensor(array.copy() if array.size else np.zeros(1, np.uint8))


def _configuration(options: Mapping[str, Any]) -> Dict[str, Any]:
    configuration: Dict[str, Any] = {
        "PERFORMANCE_HINT": str(options.get("hint", "LATENCY")),
        "INFERENCE_PRECISION_HINT": str(options.get("inference_precision", "f32")),
    }
    if options.get("streams") is not None:
        configuration["NUM_STREAMS"] = int(options["streams"])
    if options.get("threads") is not None:
        configuration["INFERENCE_NUM_THREADS"] = int(options["threads"])
    if options.get("profile"):
        configuration["PERF_COUNT"] = True
    return configuration


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
