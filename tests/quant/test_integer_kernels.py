"""The exact integer reference against the int8 kernels of this machine, saturation included."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgefuse.device import probe_host, resolve_target
from edgefuse.errors import EdgefuseError
from edgefuse.graph import Model, model_to_bytes
from edgefuse.graph.reference import judge_session, signal_to_noise_db
from edgefuse.plans import Plan
from edgefuse.quant import Scheme, collect_ranges, quantize_plan
from edgefuse.quant.integer_reference import IntegerReference
from edgefuse.quantized import Quantized
from tests.passes.graphs import Build
from tests.quant.small_plans import plan_of, quantized_of

AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)


def _saturating_host() -> bool:
    try:
        return probe_host().device.name == "x86-avx2"
    except EdgefuseError:
        return False


needs_kernels = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None or not _saturating_host(),
    reason="needs OpenVINO on an x86 CPU with AVX2 and no VNNI, whose int8 kernels saturate",
)


def _real(model: Model, plan: Plan, q: Quantized, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    from edgefuse.backend import load_backend
    from edgefuse.runtime.engine import open_engine

    target = resolve_target("x86-avx2")
    lowered = load_backend("openvino").lower(model, plan, q, target)
    engine = open_engine("openvino", lowered.files, lowered.entry, {**lowered.options, "threads": 1})
    try:
        name = model.graph.outputs[0].name or ""
        return [engine.run(f)[name] for f in feeds]
    finally:
        engine.close()


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("shape", ["1x1", "3x3", "grouped", "depthwise", "first"])
def test_one_convolution_equals_the_real_kernel(shape: str, bits: int) -> None:
    """Weights of one sign and large inputs: with 8 bits most pairs saturate in the real kernel too."""
    channels, group, kernel = {
        "1x1": (32, 1, 1),
        "3x3": (16, 1, 3),
        "grouped": (32, 2, 3),
        "depthwise": (32, 32, 3),
        "first": (3, 1, 3),
    }[shape]
    rng = np.random.default_rng(6)
    b = Build()
    x = b.x([1, channels, 12, 12])
    signs = rng.choice([-1.0, 1.0], (32, 1, 1, 1))
    weight = signs * rng.uniform(0.3, 1, (32, channels // group, kernel, kernel))
    pads = [kernel // 2] * 4
    b.y(b.op("Conv", x, b.w(weight), b.rand(32), name="conv", group=group, pads=pads))
    model = b.model()
    plan = plan_of(model)
    feeds = {"x": rng.uniform(0, 1, (1, channels, 12, 12)).astype(np.float32)}
    scheme = replace(AFFINE, weight_bits=bits)
    q = quantized_of(model, plan, [feeds], scheme)
    (real,) = _real(model, plan, q, [feeds])
    run = IntegerReference(model, plan, q, scheme, pair_saturation=True).run_integers(feeds)
    exact = next(iter(run.outputs.values()))
    assert bool(run.saturated) == (bits == 8 and shape != "depthwise")
    np.testing.assert_allclose(real, exact, atol=2e-5 * np.abs(exact).max())
    if run.saturated:
        plain = next(iter(IntegerReference(model, plan, q, scheme).run(feeds).values()))
        assert signal_to_noise_db(real, plain) < 30, "the kernel saturates"


@needs_kernels
@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("bits", [7, 8])
def test_a_whole_network_loses_what_the_real_kernels_lose(
    bits: int, zoo_dir: Path, shared_dir: Path, repository: Path
) -> None:
    """efficientnet_lite0: within 0.5 dB of the real loss; with 8 bits that is mostly saturation."""
    from edgefuse.compose.prepare import load_model, prepare

    target = resolve_target("x86-avx2")
    path = str(zoo_dir / "efficientnet_lite0.onnx")
    model = prepare(load_model(path, {"image": [1, 3, 224, 224]}), target).model
    feeds = _photos(shared_dir, repository, 12)
    plan = plan_of(model, [(n.name or "",) for n in model.graph if n.op_type == "Conv"])
    names = ["image", *(v.name or "" for n in model.graph for v in n.outputs)]
    scheme = replace(AFFINE, weight_bits=bits)
    q = quantize_plan(model, plan, collect_ranges(model, names, feeds[:8]), scheme)
    evaluation = feeds[8:]
    real = np.concatenate(_real(model, plan, q, evaluation))
    reference = IntegerReference(model, plan, q, scheme, pair_saturation=True)
    exact = np.concatenate([next(iter(reference.run(f).values())) for f in evaluation])
    session = judge_session(model_to_bytes(model))
    clean = np.concatenate([session.run(None, f)[0] for f in evaluation])
    assert signal_to_noise_db(exact, clean) == pytest.approx(signal_to_noise_db(real, clean), abs=0.5)
    # The two part only where a sum falls so near a tie that float32 decides the rounding.
    assert signal_to_noise_db(exact, real) > 25
    if bits == 8:
        plain = IntegerReference(model, plan, q, scheme, pair_saturation=False)
        unsaturated = np.concatenate([next(iter(plain.run(f).values())) for f in evaluation])
        assert signal_to_noise_db(unsaturated, clean) > signal_to_noise_db(real, clean) + 5


def _photos(shared: Path, repository: Path, count: int) -> list[dict[str, np.ndarray]]:
    """Return the first photos for calibration (../shared/data/README.md), preprocessed."""
    from PIL import Image

    from edgefuse.runtime.preprocess import from_dict

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    zoo = tomllib.loads((repository / "examples/zoo.toml").read_text(encoding="utf-8"))
    steps = from_dict(zoo["models"]["efficientnet_lite0"]["preprocess"])
    paths = (shared / "data/photos").glob("*.jpg")
    chosen = sorted(paths, key=lambda p: hashlib.sha256(p.name.encode()).hexdigest())[:count]
    return [{"image": steps.apply(np.asarray(Image.open(p).convert("RGB")))} for p in chosen]
