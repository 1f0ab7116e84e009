"""Trained models and field cases for the oldest reader: set 13, its operators, int32, fixed shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import OLD_READER, operators

from edgefuse.errors import UnsupportedError
from edgefuse.graph import (
    DataType,
    Model,
    all_nodes,
    bind_dimensions,
    model_to_bytes,
    opset,
    read_model,
    static_shape,
)
from edgefuse.graph.check import check_model
from edgefuse.graph.reference import Reference, judge_session, max_relative_error
from edgefuse.lowering import LoweringNotes, lower_model

pytestmark = pytest.mark.shared

READABLE = OLD_READER - {"QuantizeLinear", "DequantizeLinear"}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "basic_pitch": {"serving_default_input_2:0": (1, 43844, 1)},
    "efficientnet_lite0": {},
    "fastestdet": {},
    "magika_v3_3": {"bytes": (1, 2048)},
    "minilm_l6_s128": {},
    "pplcnet_orientation": {"x": (1, 3, 224, 224)},
    "ppocr_cls": {"x": (1, 3, 48, 192)},
    "ppocrv4_det": {"x": (1, 3, 320, 320)},
    "ppocrv4_rec": {"x": (1, 3, 48, 320)},
    "silero_vad_openvino_16k": {},
}
CASE_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {"c38": {"x": (2, 3, 20, 24)}}
# c51 holds an operator of an unknown domain (refused on import); c42 chooses boxes by their scores.
CASES = [
    *(
        "c01 c02 c03 c05 c07 c08 c09 c11 c12 c13 c14 c16 c17 c18 c19 c21 c22 c23 c25 c27 c28 c29 c30 c32"
    ).split(),
    *("c33 c35 c36 c38 c39 c40 c44 c45 c46 c48 c50 c52 c54 c56").split(),
]


def feeds_of(model: Model, name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        shape, kind = static_shape(value), value.dtype
        assert shape is not None
        assert kind is not None
        limit = {"input_ids": 30522, "attention_mask": 1, "token_type_ids": 1}.get(value.name or "", 256)
        if value.name == "attention_mask":
            array: np.ndarray = np.ones(shape)
        elif value.name == "state":
            array = np.zeros(shape)
        elif kind.is_floating_point():
            array = rng.standard_normal(shape)
        else:
            array = rng.integers(0, limit, shape)
        feeds[value.name or ""] = array.astype(kind.numpy())
    if name == "ppocrv4_det":  # on noise its map is 1e-8 everywhere, all of it rounding
        feeds["x"] = np.repeat(page(320), 3, axis=1)
    return feeds


def page(size: int) -> np.ndarray:
    """Return a page with dark bars for lines of text, [1, 1, size, size], normalised."""
    image = np.ones((size, size), np.float32)
    for row in range(40, size - 20, 40):
        image[row : row + 14, 30 : size - 30 : 3] = 0.1
        image[row : row + 14 : 4, 30 : size - 30] = 0.1
    return ((image - 0.45) / 0.225)[None, None].astype(np.float32)


def lowered(model: Model) -> tuple[Model, LoweringNotes]:
    return lower_model(
        model,
        opset=13,
        operators=READABLE,
        index_dtype="int32",
        static=True,
        retype={"double": "float", "float16": "float", "uint8": "int32"},
    )


def hold_equal(model: Model, made: Model, notes: LoweringNotes, feeds: dict[str, np.ndarray]) -> None:
    cast = {
        key: array.astype(np.int32) if key in notes.input_casts else array for key, array in feeds.items()
    }
    wanted = judge_session(model_to_bytes(model)).run(None, feeds)
    got = judge_session(model_to_bytes(made)).run(None, cast)
    errors = [max_relative_error(a, b) for a, b in zip(got, wanted, strict=True)]
    if max(errors) <= 1e-5:
        return
    # float32 itself is further than that from the model's meaning: be no further from it than the original
    exact = list(Reference(model).run(feeds).values())
    own = [max_relative_error(a, np.asarray(b)) for a, b in zip(wanted, exact, strict=True)]
    ours = [max_relative_error(a, np.asarray(b)) for a, b in zip(got, exact, strict=True)]
    assert max(own) > 1e-5, errors
    for mine, theirs in zip(ours, own, strict=True):
        assert mine <= max(1e-5, 1.5 * theirs)


def hold_promises(model: Model, made: Model) -> None:
    check_model(made)
    assert (opset(made), made.ir_version) == (13, 7)
    assert operators(made) <= READABLE
    assert all(static_shape(v) is not None for node in all_nodes(made) for v in node.outputs if v.name)
    allowed = {DataType.FLOAT, DataType.INT32, DataType.BOOL}
    assert {v.dtype for v in made.graph.inputs} | {v.dtype for v in made.graph.outputs} <= allowed
    assert [v.name for v in made.graph.inputs] == [v.name for v in model.graph.inputs]
    assert [v.name for v in made.graph.outputs] == [v.name for v in model.graph.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_trained_model_lowers_and_keeps_its_meaning(name: str, zoo_dir: Path) -> None:
    model = read_model(zoo_dir / f"{name}.onnx")
    bind_dimensions(model, SHAPES[name])
    made, notes = lowered(model)
    hold_promises(model, made)
    assert not {"Shape", "Size", "ConstantOfShape", "If", "Loop", "Range"} & operators(made)
    hold_equal(model, made, notes, feeds_of(model, name))


@pytest.fixture(scope="session")
def cases_dir(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the field cases written out."""
    folder = tmp_path_factory.mktemp("cases")
    command = [sys.executable, str(shared_dir / "cases" / "cases.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_field_case_lowers_and_keeps_its_meaning(name: str, cases_dir: Path) -> None:
    model = read_model(cases_dir / f"{name}.onnx")
    if name in CASE_SHAPES:
        bind_dimensions(model, CASE_SHAPES[name])
    made, notes = lowered(model)
    hold_promises(model, made)
    hold_equal(model, made, notes, feeds_of(model, name))


@pytest.mark.slow
def test_boxes_chosen_by_score_have_no_fixed_size(cases_dir: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"NonMaxSuppression.*depends on data"):
        lowered(read_model(cases_dir / "c42.onnx"))


def test_a_model_with_open_shapes_is_sent_back_with_the_option(zoo_dir: Path) -> None:
    from edgefuse.errors import InputError

    with pytest.raises(InputError) as caught:
        lowered(read_model(zoo_dir / "ppocrv4_rec.onnx"))
    assert "--shape" in str(caught.value)


def test_what_comes_out_says_what_was_done(zoo_dir: Path) -> None:
    model = read_model(zoo_dir / "pplcnet_orientation.onnx")
    bind_dimensions(model, SHAPES["pplcnet_orientation"])
    made, notes = lowered(model)
    again, _ = lowered(model)
    assert model_to_bytes(again) == model_to_bytes(made)
    counted: Any = [line for line in notes.lines if line.startswith("HardSwish is rewritten in 28 places")]
    assert len(counted) == 1
