from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.runtime.resample import INTERPOLATIONS, resize_planes

Image = pytest.importorskip("PIL.Image", reason="Pillow judges the resizing")

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.BOX,
}


def ours(image: np.ndarray[Any, Any], height: int, width: int, interpolation: str) -> np.ndarray[Any, Any]:
    planes = np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32)
    resized = resize_planes(planes, height, width, interpolation, levels=image.dtype == np.uint8)
    return np.asarray(resized.transpose(1, 2, 0))


def pillow(image: np.ndarray[Any, Any], height: int, width: int, interpolation: str) -> np.ndarray[Any, Any]:
    """Pillow's answer, width first: asked in two steps, since Pillow 13 chooses the order by the shape."""
    wide = Image.fromarray(image).resize((width, image.shape[0]), FILTERS[interpolation])
    return np.asarray(wide.resize((width, height), FILTERS[interpolation]), dtype=np.float64)


def test_every_interpolation_is_judged() -> None:
    assert sorted(FILTERS) == sorted(INTERPOLATIONS)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    wanted=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    interpolation=st.sampled_from(INTERPOLATIONS),
)
def test_every_level_is_pillows(
    seed: int, size: tuple[int, int], wanted: tuple[int, int], interpolation: str
) -> None:
    """Noise of 0 and 255 among others: the hardest edges, and the overshoot of bicubic."""
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
    image[generator.random(size) < 0.3] = 255
    image[generator.random(size) < 0.3] = 0
    np.testing.assert_array_equal(ours(image, *wanted, interpolation), pillow(image, *wanted, interpolation))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("wanted", [(224, 224), (192, 256), (720, 1280)])
def test_a_camera_frame_is_within_one_level_in_one_step(interpolation: str, wanted: tuple[int, int]) -> None:
    generator = np.random.default_rng(7)
    coarse = generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC))
    expected = np.asarray(Image.fromarray(image).resize(wanted[::-1], FILTERS[interpolation]), np.float64)
    assert np.abs(ours(image, *wanted, interpolation) - expected).max() <= 1


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_float_images_are_not_rounded(interpolation: str) -> None:
    generator = np.random.default_rng(1)
    plane = generator.random((31, 45)).astype(np.float32) * 255
    got = ours(plane[:, :, None], 20, 70, interpolation)[:, :, 0]
    expected = np.asarray(Image.fromarray(plane).resize((70, 20), FILTERS[interpolation]))
    np.testing.assert_allclose(got, expected, atol=1e-3)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_a_flat_image_stays_flat_and_the_same_size_stays_the_same(interpolation: str) -> None:
    flat = np.full((13, 57, 3), 201, np.uint8)
    assert (ours(flat, 40, 9, interpolation) == 201).all()
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(ours(noise, 9, 7, interpolation), noise)


def test_by_hand() -> None:
    row = np.array([[[0], [100]]], np.float32)
    assert ours(row, 1, 4, "bilinear").ravel().tolist() == [0, 25, 75, 100]
    assert ours(row, 1, 1, "area").ravel().tolist() == [50]
    assert ours(row, 1, 4, "nearest").ravel().tolist() == [0, 0, 100, 100]
    four = np.array([[[0], [40], [80], [200]]], np.float32)
    assert ours(four, 1, 2, "area").ravel().tolist() == [20, 140]
