from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.errors import InputError
from edgefuse.runtime.preprocess import Letterbox, from_dict, read_toml

DOCS = Path(__file__).resolve().parents[2] / "docs/preprocess.md"


def image(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_color_layout_and_numbers() -> None:
    frame = image(4, 5)
    steps = from_dict({"resize": "none", "scale": 1 / 255, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]})
    got = steps.apply(frame)
    assert got.shape == (1, 3, 4, 5)
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    expected = (frame / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    np.testing.assert_allclose(got[0].transpose(1, 2, 0), expected, atol=1e-6)
    bgr = from_dict({**steps.to_dict(), "color": "bgr", "layout": "NHWC"})
    expected = (frame[:, :, ::-1] / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    np.testing.assert_allclose(bgr.apply(frame)[0], expected, atol=1e-6)
    np.testing.assert_array_equal(bgr.apply(frame), bgr.apply(frame[:, :, ::-1], color="bgr"))
    np.testing.assert_array_equal(steps.apply(frame), steps.apply(frame[:, :, ::-1], "bgr"))


def test_gray_as_pillow_has_it() -> None:
    pillow = pytest.importorskip("PIL.Image")
    frame = image(16, 16)
    steps = from_dict({"resize": "none", "color": "gray", "dtype": "uint8"})
    assert steps.channels == 1
    expected = np.asarray(pillow.fromarray(frame).convert("L"))
    np.testing.assert_array_equal(steps.apply(frame)[0, 0], expected)
    np.testing.assert_array_equal(steps.apply(frame[:, :, ::-1], "bgr")[0, 0], expected)
    np.testing.assert_array_equal(steps.apply(expected)[0, 0], expected)
    color = from_dict({"resize": "none", "dtype": "uint8"})
    np.testing.assert_array_equal(color.apply(expected)[0], np.stack([expected] * 3))


def test_a_pil_image_is_an_image() -> None:
    pillow = pytest.importorskip("PIL.Image")
    frame = image(10, 12)
    steps = from_dict({"height": 6, "width": 6})
    np.testing.assert_array_equal(steps.apply(pillow.fromarray(frame)), steps.apply(frame))


def test_float_images_are_taken_as_levels() -> None:
    frame = image(6, 6)
    steps = from_dict({"resize": "none"})
    np.testing.assert_array_equal(steps.apply(frame.astype(np.float64)), steps.apply(frame))


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [("uint8", 300.0, 255), ("uint8", -3.0, 0), ("int8", -300.0, -128), ("int8", 2.5, 2), ("uint8", 3.5, 4)],
)
def test_integer_inputs_are_rounded_and_clipped(dtype: str, value: float, expected: int) -> None:
    steps = from_dict({"resize": "none", "dtype": dtype, "mean": -value})
    got = steps.apply(np.zeros((1, 1), np.uint8))
    assert got.dtype == np.dtype(dtype)
    assert got.ravel().tolist() == [expected] * 3


def test_stretch_is_pillows_resize() -> None:
    pillow = pytest.importorskip("PIL.Image")
    frame = image(50, 70)
    got = from_dict({"height": 32, "width": 24}).apply(frame)[0].transpose(1, 2, 0)
    expected = np.asarray(pillow.fromarray(frame).resize((24, 32), pillow.Resampling.BILINEAR), np.float64)
    assert np.abs(got - expected).max() <= 1


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (256, 256), (50, 70)])
def test_crop_is_short_side_and_centre(shape: tuple[int, int]) -> None:
    """The usual evaluation of classifiers: short side to 224 / 0.875 = 256, then the central 224 x 224."""
    pillow = pytest.importorskip("PIL.Image")
    frame = image(*shape)
    steps = from_dict({"height": 224, "width": 224, "resize": "crop", "crop_fraction": 0.875})
    ratio = 256 / min(shape)
    high, wide = round(shape[0] * ratio), round(shape[1] * ratio)
    resized = np.asarray(pillow.fromarray(frame).resize((wide, high), pillow.Resampling.BILINEAR), np.float64)
    top, left = round((high - 224) / 2), round((wide - 224) / 2)
    got = steps.apply(frame)[0].transpose(1, 2, 0)
    assert got.shape == (224, 224, 3)
    assert np.abs(got - resized[top : top + 224, left : left + 224]).max() <= 1


@pytest.mark.parametrize(("position", "top", "left"), [("center", 20, 0), ("top-left", 0, 0)])
def test_letterbox_keeps_the_shape_and_pads(position: str, top: int, left: int) -> None:
    frame = np.full((30, 100, 3), 7, np.uint8)
    table = {"height": 60, "width": 66, "resize": "letterbox", "pad_value": 114, "pad_position": position}
    got = from_dict(table).apply(frame)[0, 0]
    inner = got[top : top + 20, left : left + 66]
    assert (inner == 7).all()
    assert (got == 114).sum() == 60 * 66 - 20 * 66
    box = from_dict(table).geometry(30, 100)
    assert box == Letterbox(float(left), float(top), 0.66, 20 / 30)


@settings(max_examples=100, deadline=None)
@given(
    height=st.integers(1, 900),
    width=st.integers(1, 900),
    wanted=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    resize=st.sampled_from(["stretch", "crop", "letterbox"]),
    position=st.sampled_from(["center", "top-left"]),
    fraction=st.floats(0.5, 1.0),
)
def test_geometry_maps_there_and_back(
    height: int, width: int, wanted: tuple[int, int], resize: str, position: str, fraction: float
) -> None:
    table = {"height": wanted[0], "width": wanted[1], "resize": resize, "pad_position": position}
    steps = from_dict({**table, "crop_fraction": fraction})
    box = steps.geometry(height, width)
    for x, y in ((0.0, 0.0), (width, height), (width / 3, height / 2)):
        there = box.from_image(x, y)
        back = box.to_image(*there)
        assert back == pytest.approx((x, y), abs=1e-6)
        if resize != "crop":
            assert -1e-6 <= there[0] <= wanted[1] + 1e-6
            assert -1e-6 <= there[1] <= wanted[0] + 1e-6
    corner, end = box.from_image(0, 0), box.from_image(width, height)
    if resize == "crop":
        assert max(*corner) <= 0.5 + 1e-6
        assert end[0] >= wanted[1] - 0.5 - 1e-6
        assert end[1] >= wanted[0] - 0.5 - 1e-6


def test_a_mark_in_the_image_is_where_the_geometry_says() -> None:
    frame = np.zeros((90, 160, 3), np.uint8)
    frame[40:44, 100:104] = 255
    steps = from_dict({"height": 64, "width": 64, "resize": "letterbox"})
    plane = steps.apply(frame)[0, 0]
    y, x = (float((plane * np.arange(64).reshape(shape)).sum() / plane.sum()) for shape in ((64, 1), (1, 64)))
    back = steps.geometry(90, 160).to_image(x + 0.5, y + 0.5)
    assert back == pytest.approx((102, 42), abs=0.5)


@pytest.mark.parametrize(
    ("frame", "got"),
    [
        (np.zeros((4, 4, 4), np.uint8), "uint8 of shape [4, 4, 4]"),
        (np.zeros((3, 4, 4), np.uint8), "uint8 of shape [3, 4, 4]"),
        (np.zeros((1, 4, 4, 3), np.uint8), "uint8 of shape [1, 4, 4, 3]"),
        (np.zeros((4, 4, 3), np.int32), "int32 of shape [4, 4, 3]"),
        (np.zeros((0, 4, 3), np.uint8), "uint8 of shape [0, 4, 3]"),
        (None, "object of shape []"),
    ],
)
def test_what_is_no_image_is_refused(frame: Any, got: str) -> None:
    with pytest.raises(InputError, match="not an image") as caught:
        from_dict({"resize": "none"}).apply(frame)
    assert caught.value.got == got


def test_wrong_size_without_resize_and_wrong_order_are_refused() -> None:
    steps = from_dict({"resize": "none", "height": 4})
    assert steps.apply(image(4, 9)).shape == (1, 3, 4, 9)
    with pytest.raises(InputError, match="does not resize") as caught:
        steps.apply(image(5, 9))
    assert (caught.value.expected, caught.value.got) == ("4 x any (height x width)", "5 x 9")
    with pytest.raises(InputError, match="color order"):
        steps.apply(image(4, 9), "rbg")


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"colour": "rgb"}, "no key 'colour', did you mean 'color'"),
        ({"resize": "leterbox"}, "'resize' is not valid, did you mean 'letterbox'"),
        ({"color": "RGB"}, "'color' is not valid"),
        ({"layout": 3}, "'layout' is not valid"),
        ({}, "needs height and width"),
        ({"height": 4}, "needs height and width"),
        ({"height": 0, "width": 4}, "'height' is not valid"),
        ({"height": 4.0, "width": 4}, "'height' is not valid"),
        ({"height": True, "width": 4}, "'height' is not valid"),
        ({"height": 4, "width": 4, "crop_fraction": 0}, "'crop_fraction'"),
        ({"height": 4, "width": 4, "crop_fraction": 1.5}, "'crop_fraction'"),
        ({"height": 4, "width": 4, "pad_value": 256}, "'pad_value'"),
        ({"height": 4, "width": 4, "pad_value": float("nan")}, "'pad_value'"),
        ({"height": 4, "width": 4, "mean": [1, 2]}, "'mean'"),
        ({"height": 4, "width": 4, "mean": ["1", 2, 3]}, "'mean'"),
        ({"height": 4, "width": 4, "mean": float("inf")}, "'mean'"),
        ({"height": 4, "width": 4, "std": [1, 0, 1]}, "'std'"),
        ({"height": 4, "width": 4, "std": []}, "'std'"),
        ({"height": 4, "width": 4, "color": "gray", "std": [1, 1, 1]}, "'std'"),
        ({"height": 4, "width": 4, "dtype": "float64"}, "'dtype'"),
    ],
)
def test_bad_tables_name_the_key(table: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        from_dict(table)


def test_the_whole_table_goes_round() -> None:
    steps = from_dict({"height": 4, "width": 6, "mean": 0.5, "color": "bgr"})
    assert from_dict(steps.to_dict()).to_dict() == steps.to_dict()
    np.testing.assert_array_equal(from_dict(steps.to_dict()).apply(image(9, 9)), steps.apply(image(9, 9)))


def test_toml_files(tmp_path: Path) -> None:
    path = tmp_path / "pre.toml"
    path.write_text('height = 4\nwidth = 6\nscale = 0.5\ncolor = "bgr"\n')
    assert read_toml(path).apply(image(8, 8)).shape == (1, 3, 4, 6)
    path.write_text("height = ")
    with pytest.raises(InputError, match="not valid TOML"):
        read_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not valid TOML"):
        read_toml(path)
    path.write_text("hight = 3")
    with pytest.raises(InputError, match=r"pre\.toml: preprocess has no key 'hight', did you mean 'height'"):
        read_toml(path)
    with pytest.raises(InputError, match="No such file"):
        read_toml(tmp_path / "none.toml")


def test_the_page_documents_every_key_and_its_examples_load(tmp_path: Path) -> None:
    page = DOCS.read_text()
    keys = from_dict({"height": 1, "width": 1}).to_dict()
    assert [key for key in keys if f"| `{key}` |" not in page] == []
    examples = re.findall(r"```toml\n(.*?)```", page, re.S)
    assert len(examples) >= 2
    for example in examples:
        (tmp_path / "example.toml").write_text(example)
        assert read_toml(tmp_path / "example.toml").channels == 3
