from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.datasets import Boxes, open_dataset
from edgefuse.errors import InputError
from edgefuse.runtime import TensorInfo
from edgefuse.runtime.preprocess import from_dict

Image = pytest.importorskip("PIL.Image")

INPUT = [TensorInfo("x", "float32", (1, 3, 32, 32))]


def document() -> dict[str, Any]:
    return {
        "images": [{"id": 7, "file_name": "b.png"}, {"id": 3, "file_name": "a.png"}],
        "categories": [{"id": 90, "name": "cup"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"image_id": 7, "category_id": 90, "bbox": [10, 4, 20, 8]},
            {"image_id": 7, "category_id": 1, "bbox": [0, 0, 64.0, 16], "iscrowd": 1},
        ],
    }


def write(folder: Path, content: Any, images: str = "") -> Path:
    (folder / images).mkdir(exist_ok=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 16), (1, 2, 3)).save(folder / images / name)
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder / "boxes.json"


@pytest.mark.parametrize("images", ["", "images"])
def test_boxes_come_in_the_pixels_of_the_models_input(tmp_path: Path, images: str) -> None:
    path = write(tmp_path, document(), images)
    dataset = open_dataset(path, INPUT, from_dict({"height": 32, "width": 32, "resize": "letterbox"}))
    assert dataset.names() == ("a.png", "b.png")
    assert dataset.classes == ("person", "cup")
    empty, full = (sample.label for sample in dataset)
    assert isinstance(empty, Boxes)
    assert isinstance(full, Boxes)
    assert empty.corners.shape == (0, 4)
    # 64 x 16 goes to 32 x 8, twelve rows down: position * 0.5 + (0, 12).
    assert full.corners.tolist() == [[5, 14, 15, 18], [0, 12, 32, 20]]
    assert full.classes.tolist() == [1, 0]
    assert full.crowd.tolist() == [False, True]
    assert full.corners.dtype == np.float64


def test_a_stretch_scales_each_axis(tmp_path: Path) -> None:
    dataset = open_dataset(write(tmp_path, document()), INPUT, from_dict({"height": 32, "width": 32}))
    label = dataset[1].label
    assert isinstance(label, Boxes)
    assert label.corners[0].tolist() == [5, 8, 15, 24]


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    content: Any = document()
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a COCO annotation file"),
        ({"images": []}, "not a COCO annotation file"),
        ({"images": [], "categories": [], "annotations": []}, "names no images"),
        (changed(("annotations",), 3), "not a COCO annotation file"),
        (changed(("annotations", 0, "bbox"), [1, 2, 3]), r"annotations\[0\]\.bbox"),
        (changed(("annotations", 0, "bbox"), [1, 2, -3, 4]), r"annotations\[0\]\.bbox"),
        (changed(("annotations", 0, "bbox"), [1, 2, float("nan"), 4]), r"annotations\[0\]\.bbox"),
        (changed(("annotations", 1, "bbox"), "1 2 3 4"), r"annotations\[1\]\.bbox"),
        (changed(("annotations", 1, "image_id"), 99), r"annotations\[1\] names image 99"),
        (changed(("annotations", 1, "category_id"), 2), r"annotations\[1\] names category 2"),
        (changed(("annotations", 1, "category_id"), "1"), r"annotations\[1\]\.category_id"),
        (changed(("images", 1, "id"), 7), r"images\[1\] needs an id of its own"),
        (changed(("images", 1, "file_name"), None), r"images\[1\] needs an id"),
        (changed(("images", 1, "file_name"), "z.png"), "names the image z.png, which is not there"),
        (changed(("categories", 0, "id"), 1), "two categories have the same id"),
        (changed(("categories", 0, "id"), None), r"categories\[0\]\.id"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_dataset(write(tmp_path, content), INPUT, from_dict({"height": 32, "width": 32}))


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100000])
def test_text_that_is_not_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="not a JSON file that can be read"):
        open_dataset(tmp_path / "x.json", INPUT, from_dict({"height": 32, "width": 32}))
