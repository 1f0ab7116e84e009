"""The TensorRT family without TensorRT: what it says is legal, and the payload that it writes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

from edgefuse.backend import Candidate, load_backend
from edgefuse.device import Target, devices, resolve_target
from edgefuse.errors import InternalError, ToolMissingError, UnsupportedError
from edgefuse.graph import Model, all_nodes, model_from_proto, model_to_bytes
from edgefuse.graph.reference import Reference, judge_session, max_relative_error
from edgefuse.plans import CostTerm, Format, Group, Plan
from edgefuse.quantized import Quantized, QuantizedWeight

NANO = resolve_target("jetson-nano")
RNG = np.random.default_rng(0)
BACKEND = load_backend("tensorrt")


def small_model() -> Model:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (int64[1,8] ids, uint8[1,4,8] image) => (float[1,8,8] y, int64[1,8] best) {
          table = Gather (embedding, ids)
          normal = LayerNormalization <epsilon = 1e-5> (table, gain)
          scaled = Cast <to = 1> (image)
          seen = MatMul (normal, mix)
          active = HardSwish (seen)
          attended = MatMul (active, scaled)
          y = Gelu (attended)
          best = ArgMax <axis = -1, keepdims = 0> (y)
        }"""
    )
    for name, array in {
        "embedding": RNG.standard_normal((30, 8)) * 2,
        "gain": np.linspace(0.5, 1.5, 8),
        "mix": RNG.standard_normal((8, 4)),
    }.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model_from_proto(proto)


def feeds() -> dict[str, np.ndarray]:
    return {
        "ids": RNG.integers(0, 30, (1, 8)),
        "image": RNG.integers(0, 255, (1, 4, 8)).astype(np.uint8),
    }


def plan_of(model: Model, target: Target, precision: str = "fp16") -> Plan:
    """Return a plan of one group a node, in `precision` where that is legal, else fp32."""
    groups = []
    for index, node in enumerate(model.graph):
        half = precision == "fp16" and bool(legal(model, index, "fp16", target))
        groups.append(
            Group(
                id=f"g{index}",
                nodes=(node.name or "",),
                sources=(node.name or "",),
                operators=(node.op_type,),
                writes=tuple(value.name or "" for value in node.outputs),
                rule="single",
                variant="plain",
                precision="fp16" if half else "fp32",
                output=Format("float16" if half else "float32"),
                cost=(CostTerm("compute", 0.1, "estimate", "test"),),
                loss=0.0,
                compute_nodes=1,
                reason="a test's plan",
            )
        )
    return Plan(model="", target=target.string, requested="auto", groups=tuple(groups))


def legal(model: Model, index: int, precision: Any, target: Target, **more: Any) -> Any:
    node = list(model.graph)[index]
    candidate = Candidate((node,), node, "single", tuple(node.outputs))
    output = more.get("output", Format({"fp16": "float16", "int8": "int8"}.get(precision, "float32")))
    return BACKEND.legal(candidate, more.get("variant", "plain"), precision, output, target)


def test_the_payload_is_within_the_runtime_and_equal_to_the_float_model() -> None:
    model = small_model()
    prepared = BACKEND.prepare(model, NANO)
    lowered = BACKEND.lower(prepared, plan_of(prepared, NANO), Quantized(), NANO)
    assert set(lowered.files) == {"model.onnx", "precision.json", "build.json"}
    proto = onnx.load_from_string(lowered.files["model.onnx"])
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 13
    assert {node.op_type for node in proto.graph.node} <= set(NANO.runtime.readable_ops)
    held = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32}
    io = [*proto.graph.input, *proto.graph.output]
    assert {value.type.tensor_type.elem_type for value in io} <= held
    assert all(d.dim_value > 0 for value in io for d in value.type.tensor_type.shape.dim)
    assert {i.data_type for i in proto.graph.initializer} <= {*held, onnx.TensorProto.INT64}
    assert lowered.options["input_casts"] == {"ids": ["int64", "int32"], "image": ["uint8", "int32"]}
    assert lowered.options["output_casts"] == {"best": ["int64", "int32"]}
    given = feeds()
    wanted = Reference(model, precision="native").run(given)
    session = judge_session(lowered.files["model.onnx"])
    got = session.run(["y", "best"], {name: array.astype(np.int32) for name, array in given.items()})
    assert max_relative_error(got[0], wanted["y"]) <= 1e-5
    assert np.array_equal(got[1], wanted["best"])


def test_the_payload_is_the_same_bytes_each_time_and_holds_nothing_of_ours() -> None:
    def build() -> dict[str, bytes]:
        prepared = BACKEND.prepare(small_model_fixed(), NANO)
        return dict(BACKEND.lower(prepared, plan_of(prepared, NANO), Quantized(), NANO).files)

    model = small_model()

    def small_model_fixed() -> Model:
        from edgefuse.graph import clone_model

        return clone_model(model)

    first = build()
    assert first == build()
    proto = onnx.load_from_string(first["model.onnx"])
    assert not proto.metadata_props
    assert all(not node.metadata_props and not node.doc_string for node in proto.graph.node)


def test_precision_json_names_every_layer_with_its_reason_and_the_casts() -> None:
    prepared = BACKEND.prepare(small_model(), NANO)
    plan = plan_of(prepared, NANO)
    written = json.loads(BACKEND.lower(prepared, plan, Quantized(), NANO).files["precision.json"])
    assert (written["planned"], written["model_precision"]) == ("fp16", "fp32")
    layers = {row["node"]: row for row in written["layers"]}
    assert list(layers) == [node.name for node in prepared.graph]
    for row in layers.values():
        assert ("reason" in row) == (row["precision"] == "fp32")
    squares = [r for r in layers.values() if r["operator"] == "Mul" and "squares" in r.get("reason", "")]
    assert len(squares) == 1
    assert any(row["precision"] == "fp16" for row in layers.values())
    producer = {value.name: node.name for node in prepared.graph for value in node.outputs}
    assert written["casts"]
    for cast in written["casts"]:
        source = producer.get(cast["tensor"])
        assert cast["from"] == (layers[source]["precision"] if source else "fp32")
        assert cast["from"] != cast["to"]
    last = layers[producer["y"]]["precision"]
    at_output = {"tensor": "y", "from": "fp16", "to": "fp32"}
    assert (at_output in written["casts"]) == (last == "fp16")


def test_an_fp32_plan_says_so() -> None:
    prepared = BACKEND.prepare(small_model(), NANO)
    lowered = BACKEND.lower(prepared, plan_of(prepared, NANO, "fp32"), Quantized(), NANO)
    written = json.loads(lowered.files["precision.json"])
    assert (written["planned"], written["casts"]) == ("fp32", [])
    assert "--fp16" not in json.loads(lowered.files["build.json"])["arguments"]
    assert lowered.options["precision"] == "fp32"


@pytest.mark.parametrize(
    ("target", "has", "lacks"),
    [
        (
            "jetson-nano",
            ["--fp16", "--workspace={workspace_mb}", "--buildOnly"],
            ["--memPool", "--layerPrec"],
        ),
        (
            "jetson-xavier-nx",
            [
                "--fp16",
                "--memPoolSize=workspace:{workspace_mb}",
                "--buildOnly",
                "--precisionConstraints=obey",
            ],
            ["--workspace", "--skipInference"],
        ),
        (
            "jetson-orin-nano@jetpack-6.2",
            ["--fp16", "--memPoolSize=workspace:{workspace_mb}", "--skipInference"],
            ["--workspace", "--buildOnly"],
        ),
    ],
)
def test_build_json_speaks_the_trtexec_of_its_version(target: str, has: list[str], lacks: list[str]) -> None:
    found = resolve_target(target)
    prepared = BACKEND.prepare(small_model(), found)
    lowered = BACKEND.lower(prepared, plan_of(prepared, found), Quantized(), found)
    written = json.loads(lowered.files["build.json"])
    assert isinstance(written["arguments"], list)
    assert set(has) <= set(written["arguments"])
    for word in lacks:
        assert not any(argument.startswith(word) for argument in written["arguments"])
    listed = [a for a in written["arguments"] if a.startswith("--layerPrecisions=")]
    if listed:
        names = {node.name for node in prepared.graph}
        for item in listed[0].removeprefix("--layerPrecisions=").split(","):
            name, _, precision = item.rpartition(":")
            assert name in names
            assert precision == "fp32"
    assert written["workspace_mb"] == sorted(written["workspace_mb"], reverse=True)
    assert written["checked"] == "not on hardware"
    assert any("never run by us" in note for note in lowered.notes)


def test_layers_that_this_trtexec_cannot_be_told_are_named() -> None:
    prepared = BACKEND.prepare(small_model(), NANO)
    lowered = BACKEND.lower(prepared, plan_of(prepared, NANO), Quantized(), NANO)
    written = json.loads(lowered.files["build.json"])
    assert written["fp32_layers_not_in_arguments"] == written["fp32_layers"] != []
    assert any("must stay in fp32" in note for note in lowered.notes)


@pytest.mark.parametrize("name", [device.name for device in devices("tensorrt")])
def test_int8_is_refused_with_the_device_s_own_reason(name: str) -> None:
    target = resolve_target(name)
    prepared = BACKEND.prepare(small_model(), target)
    verdict = legal(prepared, 0, "int8", target)
    assert not verdict
    if target.device.int8 == "none":
        assert "no INT8 arithmetic" in verdict.reason
    else:
        assert "writes no int8" in verdict.reason


def test_what_is_legal() -> None:
    prepared = BACKEND.prepare(small_model(), NANO)
    kinds = [node.op_type for node in prepared.graph]
    for index, kind in enumerate(kinds):
        assert legal(prepared, index, "fp32", NANO)
        half = legal(prepared, index, "fp16", NANO)
        if kind in ("MatMul", "HardSigmoid", "Erf", "Gather"):
            assert half, kind
        if kind in ("Sqrt", "ArgMax"):
            assert not half
            assert prepared.graph[index].name in half.reason
    index = kinds.index("MatMul")
    assert "variant 'merged'" in legal(prepared, index, "fp32", NANO, variant="merged").reason
    assert not legal(prepared, index, "fp16", NANO, output=Format("float16", "plain", "dla"))
    assert not legal(prepared, index, "fp16", NANO, output=Format("float16", "nhwc"))
    assert not legal(prepared, index, "fp16", NANO, output=Format("int8"))


def test_strongly_typed_runtimes_plan_fp32_only_and_say_why() -> None:
    target = resolve_target("jetson-agx-orin@jetpack-7.2")
    prepared = BACKEND.prepare(small_model(), target)
    index = [node.op_type for node in prepared.graph].index("MatMul")
    verdict = legal(prepared, index, "fp16", target)
    assert "types in the model" in verdict.reason
    assert legal(prepared, index, "fp32", target)


def test_newer_runtimes_keep_newer_operators() -> None:
    found = {}
    for name in ("jetson-nano", "jetson-xavier-nx", "jetson-orin-nano@jetpack-6.2"):
        target = resolve_target(name)
        found[name] = {node.op_type for node in all_nodes(BACKEND.prepare(small_model(), target))}
    assert not {"HardSwish", "Gelu", "LayerNormalization"} & found["jetson-nano"]
    assert "HardSwish" in found["jetson-xavier-nx"]
    assert {"HardSwish", "Gelu", "LayerNormalization"} <= found["jetson-orin-nano@jetpack-6.2"]


def test_an_already_quantized_model_keeps_its_rounding_where_there_is_no_int8() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 19]>
        g (float[1,4,6,6] x) => (float[1,4,6,6] y)
          <float scale = {0.05}, int8 zero = {0}, float wide = {0.01}> {
          q = QuantizeLinear (x, scale, zero)
          d = DequantizeLinear (q, scale, zero)
          w = DequantizeLinear (weight, wide, zero)
          y = Conv <pads = [1, 1, 1, 1]> (d, w)
        }"""
    )
    weight = RNG.integers(-127, 127, (4, 4, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    model = model_from_proto(proto)
    prepared = BACKEND.prepare(model, NANO)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in all_nodes(prepared)}
    x = RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)
    wanted, got = (Reference(m, precision="native").run({"x": x})["y"] for m in (model, prepared))
    assert max_relative_error(got, wanted) <= 1e-5


def test_names_that_trtexec_would_misread_are_made_plain() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    proto.graph.node[0].name = "block:0,relu"
    prepared = BACKEND.prepare(model_from_proto(proto), NANO)
    (node,) = prepared.graph
    assert node.name == "block_0_relu"
    assert node.metadata_props["edgefuse.source"] == "block:0,relu"


def test_lower_takes_what_prepare_made_and_nothing_quantized() -> None:
    model = small_model()
    with pytest.raises(InternalError, match="prepare"):
        BACKEND.lower(model, plan_of(model, NANO), Quantized(), NANO)
    prepared = BACKEND.prepare(model, NANO)
    weight = QuantizedWeight(np.zeros((1,), np.int8), np.ones(1, np.float32), None, 8)
    with pytest.raises(UnsupportedError, match="no INT8 arithmetic"):
        BACKEND.lower(prepared, plan_of(prepared, NANO), Quantized(weights={("n", 1): weight}), NANO)


def test_readback_is_refused_off_the_board() -> None:
    prepared = BACKEND.prepare(small_model(), NANO)
    with pytest.raises(UnsupportedError, match="on the board only"):
        BACKEND.readback(None, plan_of(prepared, NANO))


def test_probe_tells_what_is_here_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("edgefuse.targets.tensorrt.backend._TRTEXEC_FOLDERS", (str(tmp_path / "bin"),))
    absent = BACKEND.probe()
    if not absent.available:  # a machine with the Python package says so
        assert "JetPack brings TensorRT" in absent.install
    tool = tmp_path / "trtexec"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    found = BACKEND.probe()
    assert found.available
    assert str(tool) in found.detail


def test_the_engine_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import sys
    import types

    from edgefuse.errors import DeviceError
    from edgefuse.targets.tensorrt.engine import build_command, engine_path, load_engine

    prepared = BACKEND.prepare(small_model(), NANO)
    lowered = BACKEND.lower(prepared, plan_of(prepared, NANO), Quantized(), NANO)
    files = dict(lowered.files)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(ToolMissingError, match="not installed") as missing:
        load_engine(files, lowered.entry, {})
    assert "JetPack" in str(missing.value)
    fake = types.ModuleType("tensorrt")
    fake.__version__ = "8.2.1.8"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    monkeypatch.setenv("EDGEFUSE_CACHE", str(tmp_path))
    with pytest.raises(DeviceError, match="no engine was built") as unbuilt:
        load_engine(files, lowered.entry, {})
    path = engine_path(files, lowered.entry, "8.2.1.8")
    assert path in str(unbuilt.value)
    assert "--fp16" in str(unbuilt.value)
    command = build_command(files, path, 256)
    assert command[0].endswith("trtexec")
    assert "--workspace=256" in command
    assert f"--saveEngine={path}" in command
    assert not any("{" in argument for argument in command)
    (tmp_path / path.rsplit("/", 1)[1]).write_bytes(b"plan")
    with pytest.raises(UnsupportedError, match="cannot run it"):
        load_engine(files, lowered.entry, {})
    changed = {**files, "precision.json": files["precision.json"] + b" "}
    assert engine_path(changed, lowered.entry, "8.2.1.8") != path
    assert engine_path(files, lowered.entry, "10.3.0") != path


def test_the_engine_runs_from_a_folder_and_refuses_a_broken_build_file(tmp_path: Any) -> None:
    from edgefuse.errors import ArtifactError, InputError
    from edgefuse.targets.tensorrt.engine import build_command

    (tmp_path / "build.json").write_text('{"arguments": ["--onnx=model.onnx", "--saveEngine={engine}"]}')
    assert build_command(str(tmp_path), "e.plan", 64)[1:] == ["--onnx=model.onnx", "--saveEngine=e.plan"]
    (tmp_path / "build.json").write_text('{"argument": []}')
    with pytest.raises(InputError, match=r"build\.json"):
        build_command(str(tmp_path), "e.plan", 64)
    with pytest.raises(ArtifactError, match=r"build\.json"):
        build_command({}, "e.plan", 64)


@pytest.mark.parametrize("turns", [1, 4])
def test_a_loop_whose_turns_come_at_run_time_is_written_right(turns: int) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,4] x, int64 n) => (float[1,4] y) <bool go = {1}> {
          y = Loop (n, go, x) <body = b (int64 i, bool c, float[1,4] s) => (bool k, float[1,4] t) {
            t = Add (s, x)
            k = Identity (c)
          }>
        }"""
    )
    made = BACKEND.prepare(model_from_proto(proto), NANO)
    given = {"x": np.float32([[1, -2, 0.5, 3]]), "n": np.array(turns, np.int32)}
    session = judge_session(model_to_bytes(made))
    assert session.run(["y"], given)[0].tolist() == ((turns + 1) * given["x"]).tolist()
