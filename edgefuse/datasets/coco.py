"""Samples out of a COCO annotation file: images with their boxes (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.datasets.images import ImageInput
from edgefuse.datasets.sample import Boxes, Dataset, Sample
from edgefuse.errors import InputError

__all__ = ["open_coco"]


@dataclass(frozen=True, slots=True)
class _Picture:
    """One image: its file, and rows of (left, top, width, height, class index, crowd) in its own pixels."""

    path: Path
    rows: tuple[tuple[float, float, float, float, int, bool], ...]


class _Pictures:
    def __init__(self, pictures: Sequence[_Picture], feeder: ImageInput) -> None:
        self._pictures = pictures
        self._feeder = feeder

    def __len__(self) -> int:
        return len(self._pictures)

    def name(self, index: int) -> str:
        return str(self._pictures[index].path.name)

    def read(self, index: int) -> Sample:
        picture = self._pictures[index]
        feeds, (height, width) = self._feeder.feeds(picture.path)
        table = np.array([row[:4] for row in picture.rows], dtype=np.float64).reshape(-1, 4)
        place = self._feeder.preprocess.geometry(height, width)
        # Every step of the preprocessing stretches and shifts each axis by itself, which leaves the overlap
        # of two boxes as it is: truth may be compared in the model's pixels.
        table[:, 2:] += table[:, :2]
        table *= (place.scale_x, place.scale_y) * 2
        table += (place.left, place.top) * 2
        label = Boxes(
            table,
            np.array([row[4] for row in picture.rows], dtype=np.int64),
            np.array([row[5] for row in picture.rows], dtype=bool),
        )
        return Sample(feeds, label, str(picture.path))


def open_coco(path: Path, feeder: ImageInput) -> Dataset:
    """Return the images of annotation file `path`, sorted by file name, each with its `Boxes` as label.

    Images are looked for at `file_name` beside the annotation file, then in a folder `images` beside it.
    Class indices count the file's categories in the order of their ids. Every number is checked; raises
    InputError naming the entry.
    """
    document = _load(path)
    categories = _entries(path, document, "categories")
    order = sorted(_whole(path, f"categories[{n}].id", entry.get("id")) for n, entry in enumerate(categories))
    index = {identity: place for place, identity in enumerate(order)}
    if len(index) != len(categories):
        raise InputError(f"{path}: two categories have the same id")
    names = {entry["id"]: str(entry.get("name", entry["id"])) for entry in categories}
    files: dict[int, str] = {}
    for number, entry in enumerate(_entries(path, document, "images")):
        identity = _whole(path, f"images[{number}].id", entry.get("id"))
        file_name = entry.get("file_name")
        if identity in files or not isinstance(file_name, str) or not file_name:
            raise InputError(f"{path}: images[{number}] needs an id of its own and a file_name")
        files[identity] = file_name
    rows = _rows(path, document, files, index)
    if not files:
        raise InputError(f"{path} names no images", expected="at least one entry in 'images'")
    pictures = [
        _Picture(_find(path, file_name), tuple(rows[identity]))
        for identity, file_name in sorted(files.items(), key=lambda item: (item[1], item[0]))
    ]
    classes = [names[identity] for identity in order]
    return Dataset(_Pictures(pictures, feeder), kind="coco", path=str(path), classes=classes)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON file that can be read ({error})") from error
    if not isinstance(document, dict):
        raise InputError(
            f"{path} is not a COCO annotation file",
            expected="an object with images, annotations and categories",
            got=type(document).__name__,
        )
    return document


def _entries(path: Path, document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path} is not a COCO annotation file", expected=f"a list of objects under '{key}'")
    return entries


def _whole(path: Path, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{path}: {where} is not valid", expected="a whole number", got=repr(value))
    return value


def _rows(
    path: Path, document: Mapping[str, Any], files: Mapping[int, str], index: Mapping[int, int]
) -> dict[int, list[tuple[float, float, float, float, int, bool]]]:
    rows: dict[int, list[tuple[float, float, float, float, int, bool]]] = {key: [] for key in files}
    for number, entry in enumerate(_entries(path, document, "annotations")):
        where = f"annotations[{number}]"
        image = _whole(path, where + ".image_id", entry.get("image_id"))
        category = _whole(path, where + ".category_id", entry.get("category_id"))
        if image not in files or category not in index:
            missing = f"image {image}" if image not in files else f"category {category}"
            raise InputError(f"{path}: {where} names {missing}, which the file does not list")
        left, top, width, height = _box(path, where, entry.get("bbox"))
        rows[image].append((left, top, width, height, index[category], bool(entry.get("iscrowd", 0))))
    return rows


def _box(path: Path, where: str, value: object) -> tuple[float, float, float, float]:
    good = (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in value)
        and min(value[2:]) >= 0
    )
    if not good or not isinstance(value, list):
        raise InputError(
            f"{path}: {where}.bbox is not valid",
            expected="[left, top, width, height] in pixels",
            got=repr(value)[:80],
        )
    return float(value[0]), float(value[1]), float(value[2]), float(value[3])


def _find(path: Path, file_name: str) -> Path:
    for candidate in (path.parent / file_name, path.parent / "images" / file_name):
        if candidate.is_file():
            return candidate
    raise InputError(
        f"{path} names the image {file_name}, which is not there",
        expected=f"{path.parent / file_name} or {path.parent / 'images' / file_name}",
    )
