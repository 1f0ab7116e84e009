"""Every trained model, on real inputs: imported, canonicalised, built for this machine and for a Jetson.

The bound is 1e-5 of the largest output, against exact (float64) arithmetic. One model cannot keep it in
float32 at all: the file of ppocrv4_det itself, run as it is, is 9e-5 away from exact arithmetic on a page
(its last sigmoid is steep). So the bound is the larger of 1e-5 and what the file itself is away.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgefuse
from edgefuse.device import resolve_target
from edgefuse.errors import UsageError
from edgefuse.graph import Model, clone_model, model_from_bytes, model_to_bytes, opset, read_model
from edgefuse.graph.reference import Reference, judge_session, max_relative_error
from edgefuse.passes import canonicalize
from tests.zoo.real_inputs import Feeds, real_inputs

ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    "basic_pitch",
    "efficientnet_lite0",
    "fastestdet",
    "magika_v3_3",
    "minilm_l6_s128",
    "pplcnet_orientation",
    "ppocr_cls",
    "ppocrv4_det",
    "ppocrv4_rec",
    "silero_vad_openvino_16k",
)

pytestmark = [pytest.mark.shared, pytest.mark.slow]


def _table() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("zoo", ROOT / "examples" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    models: dict[str, Any] = module.load_table()["models"]
    return models


TABLE = _table()


def _inputs(name: str, shared_dir: Path) -> list[Feeds]:
    return list(real_inputs(name, TABLE[name], shared_dir / "data"))


def _original(path: Path, feeds: Feeds) -> Feeds:
    """Return what the file itself says, in ONNX Runtime with its optimiser off."""
    session = judge_session(path.read_bytes())
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def _check(path: Path, imported: Model, feeds: Feeds, outputs: Feeds, share: float) -> None:
    """Assert that outputs are within max(1e-5, share x the file's own float32 error) of exact arithmetic."""
    exact, file = Reference(imported).run(feeds), _original(path, feeds)
    assert set(outputs) == set(exact)
    for name, wanted in exact.items():
        bound = max(1e-5, share * max_relative_error(file[name], wanted))
        assert bound < 1e-3, f"{name}: the file itself is too far from exact arithmetic to judge by it"
        assert max_relative_error(outputs[name], wanted) <= bound, name


def test_the_table_knows_every_model() -> None:
    assert set(MODELS) == set(TABLE)


@pytest.mark.parametrize("name", MODELS)
def test_import_and_canonical_form_mean_the_same(name: str, zoo_dir: Path, shared_dir: Path) -> None:
    path = zoo_dir / f"{name}.onnx"
    imported = read_model(path)
    canonical = clone_model(imported)
    canonicalize(canonical)
    assert [v.name for v in canonical.graph.outputs] == [v.name for v in imported.graph.outputs]
    for feeds in _inputs(name, shared_dir):
        # Float64 on both sides: what shows is a change of meaning, or the rounding of a folded weight.
        _check(path, imported, feeds, Reference(canonical).run(feeds), share=0.5)


@pytest.mark.parametrize("name", MODELS)
def test_the_host_artifact_equals_the_model(
    name: str, zoo_dir: Path, shared_dir: Path, tmp_path: Path
) -> None:
    path = zoo_dir / f"{name}.onnx"
    result = edgefuse.build(path, target="host", precision="fp32", output=tmp_path / "m.efa")
    assert result.plan.count("int8") == 0
    imported = read_model(path)
    with edgefuse.load(result.artifact, threads=1) as model:
        assert [i.name for i in model.outputs] == [v.name for v in imported.graph.outputs]
        for feeds in _inputs(name, shared_dir):
            _check(path, imported, feeds, model(feeds), share=2)


@pytest.mark.parametrize("name", MODELS)
def test_the_nano_payload_reads_in_tensorrt_8_2_and_equals_the_model(
    name: str, zoo_dir: Path, shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = "\n".join(f"{json.dumps(k)} = {v}" for k, v in TABLE[name]["shapes"].items())
    config = f"model = {json.dumps(str(zoo_dir / name) + '.onnx')}\n[shapes]\n{shapes}\n"
    (tmp_path / "edgefuse.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    result = edgefuse.build(target="jetson-nano")
    with zipfile.ZipFile(result.artifact) as artifact:
        payload = artifact.read("payloads/float/model.onnx")
    proto = onnx.load_from_string(payload)
    onnx.checker.check_model(proto, full_check=True)
    runtime = resolve_target("jetson-nano").runtime
    assert {o.domain: o.version for o in proto.opset_import} == {"": 13}
    assert {n.op_type for n in proto.graph.node} <= set(runtime.readable_ops)
    assert all(d.HasField("dim_value") for v in proto.graph.input for d in v.type.tensor_type.shape.dim)
    assert not any(n.op_type == "Cast" and _is_float16(n) for n in proto.graph.node)
    session = judge_session(payload)
    kinds = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input}
    path = zoo_dir / f"{name}.onnx"
    imported = read_model(path)
    for feeds in _inputs(name, shared_dir):
        given = {k: a.astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[k])) for k, a in feeds.items()}
        names = [o.name for o in session.get_outputs()]
        _check(path, imported, feeds, dict(zip(names, session.run(None, given), strict=True)), share=2)


def _is_float16(node: onnx.NodeProto) -> bool:
    return any(a.name == "to" and a.i == onnx.TensorProto.FLOAT16 for a in node.attribute)


def test_int8_on_the_nano_is_refused_with_its_reason(zoo_dir: Path) -> None:
    with pytest.raises(UsageError, match="no INT8 arithmetic"):
        edgefuse.build(zoo_dir / "efficientnet_lite0.onnx", target="jetson-nano", precision="int8")


@pytest.mark.parametrize("name", ["efficientnet_lite0", "fastestdet"])
def test_two_builds_are_byte_identical(name: str, zoo_dir: Path, tmp_path: Path) -> None:
    path = zoo_dir / f"{name}.onnx"
    made = [edgefuse.build(path, precision="fp32", output=tmp_path / f"{k}.efa").artifact for k in "ab"]
    assert made[0].read_bytes() == made[1].read_bytes()


LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_light_models_of_the_onnx_wheel(path: Path, tmp_path: Path) -> None:
    imported = model_from_bytes(path.read_bytes())
    assert opset(imported) >= 24
    result = edgefuse.build(path, target="host", precision="fp32", output=tmp_path / "m.efa")
    rng = np.random.default_rng(0)
    with edgefuse.load(result.artifact, threads=1) as model:
        info = model.inputs[0]
        shape = tuple(d if isinstance(d, int) else 1 for d in info.shape)
        feeds = {info.name: rng.standard_normal(shape).astype(info.dtype)}
        outputs = model(feeds)
    session = judge_session(model_to_bytes(imported))
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    for output in wanted:
        assert max_relative_error(outputs[output], wanted[output]) <= 1e-5, output
