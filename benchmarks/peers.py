"""The quantizers that are compared: each builds its file from the same samples, and opens it again.

A peer runs in a process of its own (`python -m benchmarks.peers build PEER FOLDER`): some leak threads, some
crash. The folder holds `task.json`, `calibration.npz` and `evaluation.npz`; the peer adds its file, what its
runs make of the evaluation samples, and `result.json`.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo_inputs import run_shaped
from edgefuse.errors import InputError

__all__ = ["PEERS", "Peer", "Task", "float_runtime", "open_in", "read_task", "write_task"]

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]
Call = Callable[[dict[str, Array]], Arrays]

THREADS = 1
OPSET = 17  # per-channel DequantizeLinear needs 13; the zoo's oldest file has 11


@dataclass(frozen=True, slots=True)
class Task:
    """One model to quantize. shapes: input name -> sizes.  transformer: says so to peers that ask."""

    name: str
    model: str
    shapes: Mapping[str, Sequence[int]]
    transformer: bool = False
    metric: str = "snr"
    max_drop: float = 1.0


def write_task(folder: Path, task: Task, calibration: Arrays, evaluation: Arrays) -> None:
    """Write what a peer reads: the task, and the samples as `zoo_inputs.samples` gives them."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {name: getattr(task, name) for name in Task.__slots__}
    (folder / "task.json").write_text(json.dumps(fields))
    for name, arrays in (("calibration", calibration), ("evaluation", evaluation)):
        with (folder / f"{name}.npz").open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def read_task(folder: Path) -> Task:
    """Return the task in a folder."""
    return Task(**json.loads((folder / "task.json").read_text()))


def _stored(folder: Path, name: str) -> dict[str, Array]:
    with np.load(folder / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def _calibration_feeds(folder: Path) -> list[dict[str, Array]]:
    task, arrays = read_task(folder), _stored(folder, "calibration")
    count = len(next(iter(arrays.values())))
    return [{key: array[i].reshape(task.shapes[key]) for key, array in arrays.items()} for i in range(count)]


@dataclass(frozen=True, slots=True)
class Peer:
    """How one quantizer is called.

    build: makes `file` in the folder, returns notes.  runs: name -> how the file is opened; the first is the
    runtime that it was made for and that is raced.  share: share of multiply-accumulates in int8.
    """

    file: str
    build: Callable[[Path], list[str]]
    runs: Mapping[str, Callable[[Path], Call]]
    share: Callable[[Path], float]


# edgefuse


def _build_ours(folder: Path) -> list[str]:
    import edgefuse

    task = read_task(folder)
    built = edgefuse.build(
        task.model,
        target="host",
        precision="int8",
        calib=folder / "calibration.npz",
        metric=task.metric,
        max_drop=task.max_drop,
        shapes=task.shapes,
        output=folder / "edgefuse.efa",
    )
    payloads = {payload["id"]: payload for payload in built.report["payloads"]}
    if "int8" not in payloads:
        raise InputError("the build made no int8 payload", got="; ".join(built.report["notes"])[:500])
    (folder / "edgefuse-share.json").write_text(json.dumps(payloads["int8"]["int8_mac_share"]))
    return [str(note) for note in built.report["notes"]]


def _open_ours(folder: Path, simulate: bool) -> Call:
    import edgefuse

    options: dict[str, Any] = {} if simulate else {"threads": THREADS}
    return edgefuse.load(folder / "edgefuse.efa", simulate=simulate, payload="int8", **options)


def _share_of_ours(folder: Path) -> float:
    return float(json.loads((folder / "edgefuse-share.json").read_text()))


# ONNX Runtime


def _static_model(task: Task, path: Path) -> Path:
    """Write the model with fixed input sizes, of an operator set with per-channel scales; return its path."""
    import onnx
    from onnx import version_converter

    model = onnx.load(task.model)
    for value in model.graph.input:
        if value.name in task.shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in task.shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    if max(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}) < OPSET:
        model = version_converter.convert_version(model, OPSET)
    onnx.save(model, path)
    return path


class _Reader:
    """Hands out calibration feeds; ONNX Runtime asks for them by `get_next`."""

    def __init__(self, feeds: Sequence[Mapping[str, Array]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Mapping[str, Array] | None:
        """Return the next feeds, None at the end."""
        return next(self._feeds, None)


def _build_onnxruntime(folder: Path, file: str, reduce_range: bool) -> list[str]:
    """Quantize as its documentation advises: shapes and fusions first, Q/DQ, u8s8, per channel."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    notes = []
    source = _static_model(read_task(folder), folder / "static.onnx")
    prepared = source
    for skip in (False, True):  # symbolic shape inference gives up on some files; the rest still helps
        try:
            quant_pre_process(str(source), str(folder / "prepared.onnx"), skip_symbolic_shape=skip)
            prepared = folder / "prepared.onnx"
            break
        except Exception as error:  # it raises what it likes
            notes.append(f"quant_pre_process, skip_symbolic_shape={skip}: {_line(error)}")
    quantize_static(
        str(prepared),
        str(folder / file),
        _Reader(_calibration_feeds(folder)),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=reduce_range,
    )
    return notes


def _open_session(path: Path, exact: bool) -> Call:
    import onnxruntime

    if exact:
        from edgefuse.graph.reference import judge_session

        session = judge_session(path)
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    read = {value.name for value in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]

    def call(feeds: dict[str, Array]) -> Arrays:
        given = {name: array for name, array in feeds.items() if name in read}
        return dict(zip(names, session.run(names, given), strict=True))

    return call


def _share_of_onnx(path: Path, shapes: Mapping[str, Sequence[int]]) -> float:
    """Return the share of the products that the file's Q/DQ nodes make int8, whatever the runtime does.

    Of the nodes whose shapes the file states: the preparation for quantizing writes them.
    """
    from edgefuse.analysis import node_cost
    from edgefuse.compose.prepare import load_model

    int8 = total = 0
    for node in load_model(str(path), shapes).graph:
        cost = node_cost(node)
        macs = cost.macs if cost is not None else 0
        total += macs
        makers = [value.producer() for value in node.inputs[:2] if value is not None]
        if macs and all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers):
            int8 += macs
    return int8 / total if total else 0.0


# NNCF and OpenVINO


def _openvino() -> Any:
    from edgefuse.targets.openvino.engine import import_openvino

    return import_openvino()  # without its telemetry, which nncf takes from it


def _compiled(path: Path, shapes: Mapping[str, Sequence[int]]) -> Any:
    openvino = _openvino()
    core = openvino.Core()
    model = core.read_model(path)
    model.reshape(
        {port: shapes[name] for port in model.inputs for name in port.get_names() if name in shapes}
    )
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": THREADS,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return core.compile_model(model, "CPU", options)


def _open_openvino(path: Path, shapes: Mapping[str, Sequence[int]]) -> Call:
    compiled = _compiled(path, shapes)
    request = compiled.create_infer_request()
    read = {name for port in compiled.inputs for name in port.get_names()}
    ports = [(name, port) for port in compiled.outputs for name in port.get_names()]

    def call(feeds: dict[str, Array]) -> Arrays:
        given = {name: array for name, array in feeds.items() if name in read}
        results = request.infer(given, share_inputs=True, share_outputs=False)
        return {name: results[port] for name, port in ports}

    return call


def _build_nncf(folder: Path, file: str, best: bool) -> list[str]:
    """Quantize by `nncf.quantize`; best: halved weights everywhere, and the model type where it is one."""
    openvino = _openvino()
    os.environ["NNCF_CI"] = "1"
    import nncf  # type: ignore[import-untyped, import-not-found, unused-ignore]

    task = read_task(folder)
    model = openvino.Core().read_model(task.model)
    names = {name for port in model.inputs for name in port.get_names()}
    model.reshape({name: list(sizes) for name, sizes in task.shapes.items() if name in names})
    feeds = _calibration_feeds(folder)
    options: dict[str, Any] = {}
    if best:
        options["advanced_parameters"] = nncf.AdvancedQuantizationParameters(
            overflow_fix=nncf.OverflowFix.ENABLE
        )
        if task.transformer:
            options["model_type"] = nncf.ModelType.TRANSFORMER
    quantized = nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds), **options)
    openvino.save_model(quantized, folder / file, compress_to_fp16=False)
    return []


def _share_of_openvino(path: Path, shapes: Mapping[str, Sequence[int]]) -> float:
    """Return the share of the products that OpenVINO's own list of kernels names as int8 kernels."""
    from edgefuse.targets.openvino.readback import kernels

    compiled = _compiled(path, shapes)
    made = {kernel.name: kernel for kernel in kernels(compiled)}
    int8 = total = 0
    for op in compiled.get_runtime_model().get_ordered_ops():
        kernel = made.get(op.get_friendly_name())
        macs = _kernel_macs(kernel.kind, op) if kernel is not None else 0
        total += macs
        if kernel is not None and kernel.implementation.lower().endswith("_i8"):
            int8 += macs
    return int8 / total if total else 0.0


def _kernel_macs(kind: str, op: Any) -> int:
    """Return multiply-accumulates of one kernel: values of the output times the length of each one's sum.

    Of an LSTM or GRU of batch 1: steps times the values of its two weights.
    """
    if kind.startswith("RNN"):
        sizes = [list(port.get_source_output().get_shape()) for port in op.inputs()]
        weights = [size for size in sizes[1:] if len(size) == 3 and size[1] > 1]
        return int(sizes[0][1] * sum(map(math.prod, weights)))
    if kind not in {"Convolution", "Deconvolution", "FullyConnected", "MatMul"}:
        return 0
    out = op.output(0).get_shape()
    left, right = (op.input(port).get_source_output().get_shape() for port in (0, 1))
    if kind == "Convolution":
        return int(math.prod(out) * math.prod(right) // out[1])
    if kind == "Deconvolution":
        return int(math.prod(left) * math.prod(right) // left[1])
    return int(math.prod(out) * left[-1])


def _shaped(folder: Path) -> Mapping[str, Sequence[int]]:
    return read_task(folder).shapes


def _onnxruntime(file: str, reduce_range: bool) -> Peer:
    return Peer(
        file,
        lambda folder: _build_onnxruntime(folder, file, reduce_range),
        {
            "own kernels": lambda folder: _open_session(folder / file, exact=False),
            "exact": lambda folder: _open_session(folder / file, exact=True),
        },
        lambda folder: _share_of_onnx(folder / file, _shaped(folder)),
    )


def _nncf(file: str, best: bool) -> Peer:
    return Peer(
        file,
        lambda folder: _build_nncf(folder, file, best),
        {"own kernels": lambda folder: _open_openvino(folder / file, _shaped(folder))},
        lambda folder: _share_of_openvino(folder / file, _shaped(folder)),
    )


PEERS: dict[str, Peer] = {
    "edgefuse": Peer(
        "edgefuse.efa",
        _build_ours,
        {
            "own kernels": functools.partial(_open_ours, simulate=False),
            "exact": functools.partial(_open_ours, simulate=True),
        },
        _share_of_ours,
    ),
    "onnxruntime": _onnxruntime("onnxruntime.onnx", reduce_range=False),
    "onnxruntime-7bit": _onnxruntime("onnxruntime-7bit.onnx", reduce_range=True),
    "nncf": _nncf("nncf.xml", best=False),
    "nncf-best": _nncf("nncf-best.xml", best=True),
}


def float_runtime(folder: Path) -> Call:
    """Return the float model in OpenVINO: what every time is held against."""
    task = read_task(folder)
    return _open_openvino(Path(task.model), task.shapes)


def open_in(peer: str, run: str, folder: Path) -> Call:
    """Return a built file, opened in one of the peer's runtimes."""
    return PEERS[peer].runs[run](folder)


def _line(error: BaseException) -> str:
    """Return type and text of an error in one line, at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _build(peer: str, folder: Path) -> None:
    """Build, run, and write result.json: what worked so far stands in it whatever comes next."""
    result: dict[str, Any] = {"peer": peer, "errors": {}, "notes": []}
    place = folder / f"{peer}.result.json"

    def step(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # a peer raises what it likes: the error is its row
            result["errors"][name] = _line(error)
            return None
        finally:
            place.write_text(json.dumps(result))

    started = time.process_time()
    notes = step("build", lambda: PEERS[peer].build(folder))
    result["build_cpu_s"] = round(time.process_time() - started, 1)
    result["notes"] = notes or []
    place.write_text(json.dumps(result))
    if "build" not in result["errors"]:
        result["int8_share"] = step("share", lambda: PEERS[peer].share(folder))
        for run in PEERS[peer].runs:
            step(run, lambda run=run: _evaluate(peer, run, folder))  # type: ignore[misc]
    place.write_text(json.dumps(result))


def _evaluate(peer: str, run: str, folder: Path) -> None:
    outputs = run_shaped(_shaped(folder), open_in(peer, run, folder), _stored(folder, "evaluation"))
    with (folder / f"{peer}.{run.replace(' ', '-')}.npz").open("wb") as file:
        np.savez(file, **outputs)  # type: ignore[arg-type]


def _race(names: Sequence[str], folder: Path, seconds: float) -> None:
    """Race the built files beside the float model, and write race.json: ratios of process CPU medians."""
    from edgefuse.benchmark import race

    arrays = _stored(folder, "evaluation")
    feeds = {key: array[0].reshape(_shaped(folder)[key]) for key, array in arrays.items()}
    calls = {"float": functools.partial(float_runtime(folder), feeds)}
    for name in names:
        calls[name] = functools.partial(open_in(name, "own kernels", folder), feeds)
    raced = race(calls, seconds=seconds)
    ratios = {name: raced.ratio(name, "float") for name in names}
    rows = {name: {"ratio": ratio.value, "spread": ratio.spread} for name, ratio in ratios.items()}
    rows["float"] = {"ratio": 1.0, "spread": 0.0}
    (folder / "race.json").write_text(json.dumps({"rows": rows, "rounds": raced.rounds}))


def main() -> int:
    """Run one child's work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=("build", "race"))
    parser.add_argument("names", nargs="+", help="one peer to build, several to race")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.verb == "build":
        _build(arguments.names[0], arguments.folder)
    else:
        _race(arguments.names, arguments.folder, arguments.seconds)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what a peer leaves running (threads, telemetry) must not keep or crash the process


if __name__ == "__main__":
    sys.exit(main())
