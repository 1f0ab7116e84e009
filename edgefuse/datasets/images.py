"""Samples out of image files: reading, the model's preprocessing, and class labels from sub-folders."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgefuse.datasets.sample import Array, Dataset, Sample, finite
from edgefuse.errors import InputError, ToolMissingError, did_you_mean
from edgefuse.runtime.preprocess import Preprocess, from_dict
from edgefuse.runtime.tensors import TensorInfo

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "ImageInput",
    "class_folders",
    "image_input",
    "open_image_folder",
    "read_image",
]

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
# A file of a few kB can unpack to gigabytes; no edge model is fed by larger images.
MAX_PIXELS = 100_000_000


def read_image(path: Path) -> Array:
    """Return the image as uint8 [height, width, 3], RGB.

    The EXIF orientation is applied (as OpenCV does; Pillow alone does not). Gray is repeated, a palette is
    looked up, an alpha channel is dropped, CMYK is converted without a colour profile, 16 bit gray keeps its
    upper 8 bits; of an animation the first frame is taken.
    Raises InputError naming the file: broken, not an image, over MAX_PIXELS, or of a float pixel format.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ToolMissingError("reading images needs Pillow", hint="pip install 'edgefuse[build]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged EXIF and the like: the pixels decide
            with Image.open(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise _too_large(path, f"{image.width} x {image.height}")
                turned = ImageOps.exif_transpose(image)
                return np.asarray(_rgb(turned, path), dtype=np.uint8)
    except Image.DecompressionBombError as error:
        raise _too_large(path, str(error)) from error
    except FileNotFoundError as error:
        raise InputError(f"there is no image {path}") from error
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        reason = str(error).replace(repr(str(path)), "it")
        raise InputError(
            f"{path} cannot be read as an image ({reason})", hint="repair the file or take it out"
        ) from error


def _too_large(path: Path, got: str) -> InputError:
    return InputError(f"{path} is too large an image", expected=f"at most {MAX_PIXELS} pixels", got=got)


def _rgb(image: Image.Image, path: Path) -> Image.Image:
    if image.mode.startswith("I;16"):
        from PIL import Image as Images

        # Pillow's own conversion would clip at 255.
        return Images.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise InputError(
            f"{path} has the pixel format {image.mode}, whose range is not known",
            expected="8 bit gray, RGB, RGBA, palette or CMYK, or 16 bit gray",
        )
    return image.convert("RGB")


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The input that images feed, and how a file becomes its array."""

    info: TensorInfo
    preprocess: Preprocess

    def feeds(self, path: Path) -> tuple[dict[str, Array], tuple[int, int]]:
        """Return the feeds for one image file, and the image's (height, width) as shown."""
        image = read_image(path)
        try:
            array = self.preprocess.apply(image)
        except InputError as error:
            raise InputError(f"{path}: {error.message}", error.expected, error.got, error.hint) from error
        same = len(array.shape) == len(self.info.shape) and all(
            isinstance(want, str) or size == want
            for size, want in zip(array.shape, self.info.shape, strict=True)
        )
        if not same or array.dtype.name != self.info.dtype:
            raise InputError(
                f"{path}: the preprocessing does not give what input '{self.info.name}' takes",
                expected=str(self.info),
                got=f"{array.dtype}{list(array.shape)}",
                hint="check layout, height, width, color and dtype of the preprocessing",
            )
        return {self.info.name: finite(array, f"{path} after the preprocessing")}, image.shape[:2]


def image_input(path: Path, infos: Sequence[TensorInfo], preprocess: Preprocess | None) -> ImageInput:
    """Return the input of the model that images at `path` feed.

    Without `preprocess` only a fixed-size uint8 input of 1 or 3 channels is understood: its range is the
    image's own, so that stretching is all that is left to do. Raises InputError otherwise.
    """
    described = ", ".join(str(info) for info in infos)
    if len(infos) != 1 or len(infos[0].shape) != 4:
        raise InputError(
            f"{path}: images cannot feed this model",
            expected="a model with one input of four axes",
            got=described,
            hint="give a .npz with one array for each input",
        )
    if preprocess is not None:
        return ImageInput(infos[0], preprocess)
    guessed = _plain_pixels(infos[0])
    if guessed is None:
        raise InputError(
            f"{path}: how images become input {described} is not known",
            expected="--preprocess FILE.toml (color, layout, height, width, resize, scale, mean, std)",
            hint="see docs/preprocess.md, or give a .npz of arrays that are ready for the model",
        )
    return ImageInput(infos[0], guessed)


def _plain_pixels(info: TensorInfo) -> Preprocess | None:
    shape = info.shape
    if info.dtype != "uint8":
        return None
    for layout, channel, sizes in (("NCHW", shape[1], shape[2:]), ("NHWC", shape[3], shape[1:3])):
        if channel in (1, 3) and all(isinstance(size, int) for size in sizes):
            table = {"layout": layout, "height": sizes[0], "width": sizes[1], "dtype": "uint8"}
            return from_dict({**table, "color": "gray" if channel == 1 else "rgb"})
    return None


class _Images:
    def __init__(self, folder: Path, files: Sequence[tuple[Path, int | None]], feeder: ImageInput) -> None:
        self._folder = folder
        self._files = files
        self._feeder = feeder

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return self._files[index][0].relative_to(self._folder).as_posix()

    def read(self, index: int) -> Sample:
        path, label = self._files[index]
        feeds, _ = self._feeder.feeds(path)
        return Sample(feeds, label, str(path))


def open_image_folder(
    folder: Path,
    files: Sequence[Path],
    by_class: dict[str, list[Path]],
    feeder: ImageInput,
    labels: Sequence[str] | None,
) -> Dataset:
    """Return the images of a folder, sorted by path; class folders give each a class index as label.

    files: images in the folder itself, without labels.  by_class: sub-folder name -> its images; used when
    `files` is empty.  labels: the model's class names, see `class_folders`.
    """
    if files:
        return Dataset(
            _Images(folder, [(file, None) for file in files], feeder), kind="images", path=str(folder)
        )
    indices = class_folders(folder, sorted(by_class), labels)
    pairs = [(file, indices[name]) for name in sorted(by_class) for file in by_class[name]]
    names = labels if labels is not None else _names(indices)
    return Dataset(_Images(folder, pairs, feeder), kind="images", path=str(folder), classes=names)


def _names(indices: dict[str, int]) -> list[str] | None:
    ordered = sorted(indices, key=lambda name: indices[name])
    return ordered if [indices[name] for name in ordered] == list(range(len(ordered))) else None


def class_folders(folder: Path, names: Sequence[str], labels: Sequence[str] | None) -> dict[str, int]:
    """Return folder name -> class index.

    Names that are all whole numbers are the indices themselves ("0", "0017"). Else they are looked up in
    `labels`, where given; else they count in sorted order. Raises InputError for a name that is no label.
    """
    if all(name.isascii() and name.isdigit() for name in names):
        return {name: int(name) for name in names}
    if labels is None:
        return {name: index for index, name in enumerate(names)}
    known = {label: index for index, label in reversed(list(enumerate(labels)))}
    for name in names:
        if name not in known:
            raise InputError(
                f"{folder}: class folder '{name}' is not one of the labels{did_you_mean(name, list(known))}",
                expected="folders named as the labels, or by class index",
            )
    return {name: known[name] for name in names}
