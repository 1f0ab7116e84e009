"""`edgefuse build` of models that bring their own quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgefuse
from edgefuse.compose.imported import brings_quantizers, made_up_data
from edgefuse.compose.prepare import find_target, load_model, prepare
from edgefuse.errors import UsageError
from edgefuse.graph import Model, write_model
from edgefuse.graph.reference import Reference
from tests.passes.graphs import Build, conv
from tests.quant.trained_models import pair, random_samples, trained

VNNI = "x86-avx512-vnni"


def saved(model: Model, folder: Path, name: str = "net.onnx") -> str:
    path = folder / name
    write_model(model, path)
    return str(path)


@pytest.fixture
def trained_file(tmp_path: Path) -> str:
    model, _, _ = trained(random_samples(), seed=0)
    return saved(model, tmp_path)


def float_file(folder: Path) -> str:
    b = Build()
    return saved(b.y(conv(b, b.x([1, 3, 8, 8]), 3, 4)).model(), folder, "float.onnx")


def notes_of(report: dict[str, Any]) -> str:
    return "\n".join(report["notes"])


@pytest.mark.slow
def test_a_build_needs_no_calibration(trained_file: str, tmp_path: Path) -> None:
    result = edgefuse.build(trained_file, target=VNNI, precision="int8", output=str(tmp_path / "net.efa"))
    assert "ranges: the model's own (QAT): 4 of 4 activations and 4 of 4 weights" in notes_of(result.report)
    payloads = {p["id"]: p for p in result.report["payloads"]}
    assert payloads["int8"]["int8_groups"] == 4
    assert payloads["int8"]["accuracy"]["drop"] <= 1e-5
    assert payloads["float"]["accuracy"]["drop"] <= 1e-5
    assert payloads["int8"].get("repairs") is None


@pytest.mark.slow
def test_the_built_artifact_gives_what_the_model_means(tmp_path: Path) -> None:
    """From the file to the answer: at most one step of the last pair, in the target's exact arithmetic."""
    model, grids, last = trained(random_samples(), seed=1)
    path = saved(model, tmp_path)
    result = edgefuse.build(path, target=VNNI, precision="int8", output=str(tmp_path / "net.efa"))
    reference = Reference(model)
    with edgefuse.load(result.artifact, simulate=True) as loaded:
        for feeds in random_samples(count=3, seed=5):
            (wanted,), (got,) = reference.run(feeds).values(), loaded(feeds).values()
            assert np.abs(wanted - got).max() <= 1.001 * grids[last][0]


@pytest.mark.slow
def test_a_target_without_int8_gets_the_float_model(trained_file: str, tmp_path: Path) -> None:
    result = edgefuse.build(trained_file, target="jetson-nano", output=str(tmp_path / "net.efa"))
    assert [p["id"] for p in result.report["payloads"]] == ["float"]
    assert "the model brings its own quantization" in notes_of(result.report)


@pytest.mark.slow
def test_a_plan_needs_no_calibration(trained_file: str) -> None:
    assert edgefuse.plan(trained_file, target=VNNI, precision="int8").count("int8") == 4


def test_int8_of_a_float_model_still_needs_data(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs calibration data"):
        edgefuse.build(float_file(tmp_path), target=VNNI, precision="int8", output=str(tmp_path / "n.efa"))


def test_quantizers_without_a_range_need_data(tmp_path: Path) -> None:
    """A weight alone says nothing about activations."""
    b = Build()
    weight = b.op("DequantizeLinear", b.w(np.ones((4, 3, 1, 1)), dtype=np.int8), b.w(np.float32(0.1)))
    path = saved(b.y(b.op("Conv", b.x([1, 3, 8, 8]), weight)).model(), tmp_path)
    with pytest.raises(UsageError, match="the quantizers of the model give no range"):
        edgefuse.build(path, target=VNNI, precision="int8", output=str(tmp_path / "n.efa"))


def test_what_is_asked_before_a_model_is_read(trained_file: str, tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert brings_quantizers(trained_file)
    assert not brings_quantizers(float_file(tmp_path))
    assert not brings_quantizers(str(tmp_path / "empty.onnx"))
    assert not brings_quantizers(str(tmp_path / "none.onnx"))
    assert not brings_quantizers(str(tmp_path))


def test_made_up_samples_lie_in_the_range_of_the_input(tmp_path: Path) -> None:
    b = Build()
    read = pair(b, b.x([1, 3, 8, 8]), 1 / 255, 0, np.uint8)
    path = saved(b.y(b.op("Conv", read, b.rand(4, 3, 1, 1))).model(), tmp_path)
    prepared = prepare(load_model(path, {}), find_target(VNNI))
    data = made_up_data(prepared, 2)
    arrays = [sample.feeds["x"] for sample in data]
    assert all(0 <= a.min() < 0.05 and 0.95 < a.max() <= 1.000001 for a in arrays)
    assert not np.array_equal(*arrays)
    again = made_up_data(prepared, 2)
    assert all(np.array_equal(a, s.feeds["x"]) for a, s in zip(arrays, again, strict=True))


def test_a_float_model_has_nothing_imported(tmp_path: Path) -> None:
    prepared = prepare(load_model(float_file(tmp_path), {}), find_target(VNNI))
    assert (prepared.imported, prepared.unrounded) == (None, None)
    assert made_up_data(prepared, 1)[0].feeds["x"].min() < -1


def test_no_label_of_a_grid_is_left_on_the_prepared_model(trained_file: str) -> None:
    prepared = prepare(load_model(trained_file, {}), find_target(VNNI))
    assert prepared.imported
    values = [v for node in prepared.model.graph for v in node.outputs]
    assert not [v.name for v in values if any("grid" in key for key in v.metadata_props)]
