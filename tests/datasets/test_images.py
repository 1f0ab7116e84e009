from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.datasets import Dataset, open_dataset, read_image
from edgefuse.datasets import images as images_module
from edgefuse.errors import InputError
from edgefuse.runtime import TensorInfo
from edgefuse.runtime.preprocess import Preprocess, from_dict

Image = pytest.importorskip("PIL.Image")

INPUT = TensorInfo("x", "float32", ("N", 3, 4, 6))


def plain(**more: Any) -> Preprocess:
    return from_dict({"height": 4, "width": 6, **more})


def save(path: Path, color: Any = (10, 20, 30), mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


def opened(path: Path, preprocess: Preprocess | None = None, labels: list[str] | None = None) -> Dataset:
    return open_dataset(path, [INPUT], preprocess or plain(), labels=labels)


@pytest.mark.parametrize(
    ("mode", "color", "name", "expected"),
    [
        ("RGB", (10, 20, 30), "a.png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), "a.png", (10, 20, 30)),
        ("L", 77, "a.png", (77, 77, 77)),
        ("LA", (77, 3), "a.png", (77, 77, 77)),
        ("1", 1, "a.png", (255, 255, 255)),
        ("I;16", 0x1234, "a.png", (0x12, 0x12, 0x12)),
        ("CMYK", (0, 0, 0, 255), "a.tif", (0, 0, 0)),
        ("RGB", (10, 20, 30), "a.bmp", (10, 20, 30)),
        ("RGB", (10, 20, 30), "a.ppm", (10, 20, 30)),
    ],
)
def test_every_usual_pixel_format_becomes_rgb(
    tmp_path: Path, mode: str, color: Any, name: str, expected: tuple[int, ...]
) -> None:
    image = read_image(save(tmp_path / name, color, mode))
    assert image.dtype == np.uint8
    assert image.shape == (4, 6, 3)
    assert tuple(image[0, 0]) == expected


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    image = Image.new("P", (6, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "a.png")
    assert tuple(read_image(tmp_path / "a.png")[3, 5]) == (200, 100, 50)


def test_the_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (6, 4), (0, 0, 0))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise: the top left corner goes to the top right
    image.save(tmp_path / "a.png", exif=exif)
    shown = read_image(tmp_path / "a.png")
    assert shown.shape == (6, 4, 3)
    assert shown[0, 3, 0] == 255
    assert shown.sum() == 3 * 255


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pixel format F"):
        read_image(save(tmp_path / "a.tif", 0.5, "F"))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"0" * 40])
def test_a_broken_image_is_named(tmp_path: Path, content: bytes) -> None:
    save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(content)
    dataset = opened(tmp_path)
    assert len(dataset) == 2
    with pytest.raises(InputError, match=r"b\.png cannot be read as an image") as caught:
        list(dataset)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_cut_image_is_refused(tmp_path: Path, name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="cannot be read as an image"):
        read_image(tmp_path / name)


def test_an_image_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.png", 0, "1", (20000, 10000))
    assert (tmp_path / "a.png").stat().st_size < 100_000
    with pytest.raises(InputError, match="too large an image") as caught:
        read_image(tmp_path / "a.png")
    assert caught.value.expected == "at most 100000000 pixels"
    monkeypatch.setattr(images_module, "MAX_PIXELS", 24)
    assert read_image(save(tmp_path / "b.png")).shape == (4, 6, 3)
    with pytest.raises(InputError, match="too large"):
        read_image(save(tmp_path / "c.png", size=(5, 5)))


def test_images_are_sorted_and_preprocessed(tmp_path: Path) -> None:
    for name, red in (("b.png", 2), ("a.PNG", 1), ("c.jpeg", 3)):
        Image.new("RGB", (6, 4), (red, red, red)).save(
            tmp_path / name, format="PNG" if name != "c.jpeg" else "JPEG"
        )
    (tmp_path / ".thumb.png").write_bytes(b"broken")
    (tmp_path / "list.txt").write_text("a.PNG")
    dataset = opened(tmp_path, plain(scale=2.0, mean=[1, 0, 0], color="bgr"))
    assert dataset.names() == ("a.PNG", "b.png", "c.jpeg")
    assert [sample.label for sample in dataset] == [None] * 3
    first = dataset[0].feeds["x"]
    assert first.shape == (1, 3, 4, 6)
    assert first.dtype == np.float32
    assert first[0, :, 0, 0].tolist() == [1, 2, 2]


def test_class_folders_give_labels_in_sorted_order(tmp_path: Path) -> None:
    for name in ("dog/1.png", "cat/2.png", "cat/1.png", "eel/x.png"):
        save(tmp_path / name)
    dataset = opened(tmp_path)
    assert dataset.names() == ("cat/1.png", "cat/2.png", "dog/1.png", "eel/x.png")
    assert [sample.label for sample in dataset] == [0, 0, 1, 2]
    assert dataset.classes == ("cat", "dog", "eel")


def test_class_folders_are_matched_to_the_models_labels(tmp_path: Path) -> None:
    for name in ("dog/1.png", "cat/1.png"):
        save(tmp_path / name)
    labels = ["bird", "dog", "cat"]
    assert [sample.label for sample in opened(tmp_path, labels=labels)] == [2, 1]
    assert opened(tmp_path, labels=labels).classes == ("bird", "dog", "cat")
    with pytest.raises(InputError, match="class folder 'dog' is not one of the labels, did you mean 'dogs'"):
        opened(tmp_path, labels=["dogs", "cat"])


def test_folders_of_numbers_are_class_indices(tmp_path: Path) -> None:
    for name in ("0017/1.png", "3/1.png"):
        save(tmp_path / name)
    dataset = opened(tmp_path)
    assert [sample.label for sample in dataset] == [17, 3]
    assert dataset.classes is None


def test_images_beside_class_folders_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    save(tmp_path / "cat" / "a.png")
    with pytest.raises(InputError, match="several kinds"):
        opened(tmp_path)


def test_an_image_that_the_preprocessing_cannot_take_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.png", size=(5, 5))
    with pytest.raises(InputError, match=r"a\.png: the image has the wrong size"):
        list(opened(tmp_path, plain(resize="none")))


@pytest.mark.parametrize("change", [{"layout": "NHWC"}, {"height": 5}, {"color": "gray"}, {"dtype": "uint8"}])
def test_preprocessing_that_does_not_fit_the_input_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    save(tmp_path / "a.png")
    with pytest.raises(InputError, match="does not give what input 'x' takes") as caught:
        list(opened(tmp_path, plain(**change)))
    assert caught.value.expected == "x float32[N, 3, 4, 6]"


def test_no_preprocessing_only_for_raw_pixels(tmp_path: Path) -> None:
    save(tmp_path / "a.png", size=(12, 8))
    with pytest.raises(InputError, match="is not known") as caught:
        open_dataset(tmp_path, [INPUT])
    assert "--preprocess FILE.toml" in str(caught.value.expected)
    feeds = open_dataset(tmp_path, [TensorInfo("x", "uint8", (1, 4, 6, 3))])[0].feeds["x"]
    assert feeds.shape == (1, 4, 6, 3)
    assert feeds[0, 0, 0].tolist() == [10, 20, 30]
    gray = open_dataset(tmp_path, [TensorInfo("x", "uint8", ("N", 1, 4, 6))])[0].feeds["x"]
    assert gray.shape == (1, 1, 4, 6)
    with pytest.raises(InputError, match="is not known"):
        open_dataset(tmp_path, [TensorInfo("x", "uint8", (1, 3, "H", "W"))])


@pytest.mark.parametrize(
    "infos",
    [[INPUT, TensorInfo("y", "float32", (1,))], [TensorInfo("x", "float32", (1, 3))]],
)
def test_models_that_take_no_image(tmp_path: Path, infos: list[TensorInfo]) -> None:
    save(tmp_path / "a.png")
    with pytest.raises(InputError, match="images cannot feed this model"):
        open_dataset(tmp_path, infos, plain())


def test_one_image_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not data that can be read") as caught:
        opened(save(tmp_path / "a.png"))
    assert caught.value.hint == f"give the folder: {tmp_path}"


@pytest.mark.shared
def test_the_shared_photos(shared_dir: Path) -> None:
    preprocess = from_dict(
        {
            "height": 224,
            "width": 224,
            "resize": "crop",
            "crop_fraction": 0.875,
            "interpolation": "bicubic",
            "mean": 127,
            "std": 128,
        }
    )
    dataset = open_dataset(
        shared_dir / "data" / "photos", [TensorInfo("x", "float32", (1, 3, 224, 224))], preprocess
    )
    calibration, evaluation = dataset.split(100)
    assert (len(dataset), len(calibration), len(evaluation)) == (500, 100, 400)
    for sample in calibration.take(3):
        values = sample.feeds["x"]
        assert values.shape == (1, 3, 224, 224)
        assert -1 <= values.min() < values.max() <= 1
