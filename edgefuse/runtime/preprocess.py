"""From a camera's image to the model's input, as a small table says (docs/preprocess.md). Python 3.6.

The table is the content of `--preprocess FILE.toml` and of the manifest's `preprocess`; build and robot run
this same code, so a calibration image and a live frame get the same numbers.
"""

import importlib
import math
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from edgefuse.errors import InputError, ToolMissingError, did_you_mean
from edgefuse.runtime.resample import INTERPOLATIONS, resize_planes

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Letterbox", "Preprocess", "from_dict", "read_toml"]

COLORS = ("rgb", "bgr", "gray")
LAYOUTS = ("NCHW", "NHWC")
RESIZES = ("stretch", "crop", "letterbox", "none")
POSITIONS = ("center", "top-left")
DTYPES = ("float32", "float16", "uint8", "int8")

# ITU-R BT.601, as Pillow's convert("L") has it: fixed point with 16 bits, rounded.
_GRAY = (19595.0 / 65536.0, 38470.0 / 65536.0, 7471.0 / 65536.0)


class Letterbox(NamedTuple):
    """Where the image lies in the model's input, in pixels: position there = image position * scale + offset.

    It describes a stretch and a crop too (then the offsets are zero or negative).
    """

    left: float
    top: float
    scale_x: float
    scale_y: float

    def to_image(self, x: float, y: float) -> Tuple[float, float]:
        """Return the image position of model input position (x, y); numbers or arrays, pixels."""
        return (x - self.left) / self.scale_x, (y - self.top) / self.scale_y

    def from_image(self, x: float, y: float) -> Tuple[float, float]:
        """Return the model input position of image position (x, y); numbers or arrays, pixels."""
        return x * self.scale_x + self.left, y * self.scale_y + self.top


class _Fit(NamedTuple):
    """The resized image's size, and the offset of its corner in the model's input (negative: cropped)."""

    height: int
    width: int
    top: int
    left: int


class Preprocess:
    """The steps, checked; `apply` runs them. Made by `from_dict`; the fields are the table's keys."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = dict(table)
        self.color = str(table["color"])
        self.layout = str(table["layout"])
        self.height: Optional[int] = table["height"]
        self.width: Optional[int] = table["width"]
        self.resize = str(table["resize"])
        self.interpolation = str(table["interpolation"])
        self.crop_fraction = float(table["crop_fraction"])
        self.pad_value = float(table["pad_value"])
        self.pad_position = str(table["pad_position"])
        self.dtype = str(table["dtype"])
        self.scale: List[float] = table["scale"]
        self.mean: List[float] = table["mean"]
        self.std: List[float] = table["std"]

    @property
    def channels(self) -> int:
        """Channels of the model's input: 1 for gray, else 3."""
        return 1 if self.color == "gray" else 3

    def to_dict(self) -> Dict[str, Any]:
        """Return the whole table with every default written out: what the manifest carries."""
        return dict(self._table)

    def geometry(self, height: int, width: int) -> Letterbox:
        """Return where an image of height x width pixels lies in the model's input."""
        fit = self._fit(height, width)
        return Letterbox(float(fit.left), float(fit.top), fit.width / width, fit.height / height)

    def apply(self, image: Any, color: str = "rgb") -> "np.ndarray[Any, Any]":
        """Return the model's input: [1, C, H, W] or [1, H, W, C] of the table's dtype.

        image: uint8 [H, W, 3] or [H, W], float with values 0..255 of the same shapes, or a PIL image in mode
        RGB or L;  color: order of its channels, "rgb" or "bgr".  Order of steps: channels, resize, crop or
        pad, then (pixel * scale - mean) / std in float32; integer dtypes are rounded half to even and
        clipped.  Resizing an 8-bit image rounds to whole levels as Pillow does.
        Raises InputError naming what the image is and what is taken.
        """
        import numpy as np

        planes, levels = self._planes(image, color)
        planes = self._place(planes, levels)
        shape = (-1, 1, 1)
        scale, mean, std = (
            np.asarray(values, dtype=np.float32).reshape(shape)
            for values in (self.scale, self.mean, self.std)
        )
        values = (planes * scale - mean) / std
        if self.dtype in ("uint8", "int8"):
            bounds = np.iinfo(self.dtype)
            values = np.clip(np.rint(values), bounds.min, bounds.max)
        if self.layout == "NHWC":
            values = values.transpose(1, 2, 0)
        return np.ascontiguousarray(values[None].astype(self.dtype))

    def _planes(self, image: Any, color: str) -> "Tuple[np.ndarray[Any, Any], bool]":
        import numpy as np

        if color not in ("rgb", "bgr"):
            raise InputError(
                "the image's color order is not known", expected="'rgb' or 'bgr'", got=repr(color)
            )
        array = np.asarray(image)
        good = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3))
        if not good or 0 in array.shape or not (array.dtype == np.uint8 or array.dtype.kind == "f"):
            raise InputError(
                "this is not an image that can be taken",
                expected="uint8 (or float, 0..255) of shape [H, W, 3] or [H, W]",
                got="{} of shape {}".format(array.dtype, list(array.shape)),
                hint="drop an alpha channel with image[..., :3]; a PIL image: .convert('RGB')",
            )
        levels = bool(array.dtype == np.uint8)
        if array.ndim == 2:
            array = array[:, :, None]
        planes = np.ascontiguousarray(array.transpose(2, 0, 1), dtype=np.float32)
        if planes.shape[0] == self.channels:
            return (planes[::-1] if self.channels == 3 and color != self.color else planes), levels
        if planes.shape[0] == 1:
            return np.repeat(planes, 3, axis=0), levels
        red, green, blue = planes if color == "rgb" else planes[::-1]
        gray = red * np.float32(_GRAY[0]) + green * np.float32(_GRAY[1]) + blue * np.float32(_GRAY[2])
        return (np.floor(gray + np.float32(0.5)) if levels else gray)[None], levels

    def _fit(self, height: int, width: int) -> _Fit:
        if self.resize == "none" or self.height is None or self.width is None:
            if (self.height or height, self.width or width) != (height, width):
                raise InputError(
                    "the image has the wrong size, and the preprocessing does not resize",
                    expected="{} x {} (height x width)".format(self.height or "any", self.width or "any"),
                    got="{} x {}".format(height, width),
                )
            return _Fit(height, width, 0, 0)
        if self.resize == "stretch":
            return _Fit(self.height, self.width, 0, 0)
        if self.resize == "crop":
            # The image covers a box 1/crop_fraction of the input, in whole pixels rounded down (as timm).
            box_h = math.floor(self.height / self.crop_fraction)
            box_w = math.floor(self.width / self.crop_fraction)
            new_h, new_w = _scaled(height, width, box_h, box_w, max)
            return _Fit(new_h, new_w, -round((new_h - self.height) / 2), -round((new_w - self.width) / 2))
        new_h, new_w = _scaled(height, width, self.height, self.width, min)
        if self.pad_position == "top-left":
            return _Fit(new_h, new_w, 0, 0)
        return _Fit(new_h, new_w, (self.height - new_h) // 2, (self.width - new_w) // 2)

    def _place(self, planes: "np.ndarray[Any, Any]", levels: bool) -> "np.ndarray[Any, Any]":
        import numpy as np

        fit = self._fit(planes.shape[1], planes.shape[2])
        if (fit.height, fit.width) != planes.shape[1:]:
            planes = resize_planes(planes, fit.height, fit.width, self.interpolation, levels)
        if self.resize == "crop":
            high, wide = self.height or 0, self.width or 0
            return planes[:, -fit.top : high - fit.top, -fit.left : wide - fit.left]
        if self.resize == "letterbox":
            padded = np.full(
                (planes.shape[0], self.height or 0, self.width or 0), self.pad_value, dtype=np.float32
            )
            padded[:, fit.top : fit.top + fit.height, fit.left : fit.left + fit.width] = planes
            return padded
        return planes


def _scaled(
    height: int, width: int, box_h: int, box_w: int, choose: Callable[[float, float], float]
) -> Tuple[int, int]:
    ratio = choose(box_h / height, box_w / width)
    # The side that decides lands on the box exactly; the other is rounded, and is at least one pixel.
    new_h = box_h if ratio == box_h / height else max(1, round(height * ratio))
    new_w = box_w if ratio == box_w / width else max(1, round(width * ratio))
    return new_h, new_w


def _word(known: Tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            near = did_you_mean(value, known) if isinstance(value, str) else ""
            raise _wrong(key, "one of " + ", ".join(known), value, near)
        return value

    return check


def _size(key: str, value: Any) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65536:
        raise _wrong(key, "a whole number of pixels from 1 to 65536", value)
    return value


def _real(low: float, high: float) -> Callable[[str, Any], float]:
    def check(key: str, value: Any) -> float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not low <= value <= high:
            raise _wrong(key, "a number from {:g} to {:g}".format(low, high), value)
        return float(value)

    return check


def _per_channel(key: str, value: Any) -> List[float]:
    values = value if isinstance(value, (list, tuple)) else [value]
    if len(values) not in (1, 3):
        raise _wrong(key, "one number, or a list of one or three (in the model's channel order)", value)
    check = _real(-1e9, 1e9)
    return [check(key, entry) for entry in values]


# key -> (default, check); the order is the documentation's.
_KEYS: Dict[str, Tuple[Any, Callable[[str, Any], Any]]] = {
    "color": ("rgb", _word(COLORS)),
    "layout": ("NCHW", _word(LAYOUTS)),
    "height": (None, _size),
    "width": (None, _size),
    "resize": ("stretch", _word(RESIZES)),
    "interpolation": ("bilinear", _word(INTERPOLATIONS)),
    "crop_fraction": (1.0, _real(0.01, 1.0)),
    "pad_value": (0.0, _real(0.0, 255.0)),
    "pad_position": ("center", _word(POSITIONS)),
    "scale": (1.0, _per_channel),
    "mean": (0.0, _per_channel),
    "std": (1.0, _per_channel),
    "dtype": ("float32", _word(DTYPES)),
}


def _wrong(key: str, expected: str, value: Any, near: str = "") -> InputError:
    return InputError(
        "preprocess key '{}' is not valid{}".format(key, near), expected=expected, got=repr(value)
    )


def from_dict(table: Mapping[str, Any]) -> Preprocess:
    """Return the preprocessing that `table` describes (keys and defaults: docs/preprocess.md).

    Raises InputError: an unknown key (with the nearest known one), a value out of range, a size left out.
    """
    for key in table:
        if key not in _KEYS:
            raise InputError(
                "preprocess has no key '{}'{}".format(key, did_you_mean(str(key), list(_KEYS))),
                expected="keys " + ", ".join(_KEYS),
            )
    full = {}
    for key, (default, check) in _KEYS.items():
        full[key] = check(key, table.get(key, default))
    if full["resize"] != "none" and (full["height"] is None or full["width"] is None):
        raise InputError(
            "preprocess needs height and width for resize = '{}'".format(full["resize"]),
            hint="add both, or resize = 'none' where the camera gives the model's size",
        )
    channels = 1 if full["color"] == "gray" else 3
    for key in ("scale", "mean", "std"):
        if len(full[key]) not in (1, channels):
            raise _wrong(key, "at most {} number for color '{}'".format(channels, full["color"]), full[key])
    if 0.0 in full["std"]:
        raise _wrong("std", "numbers other than zero", full["std"])
    return Preprocess(full)


def read_toml(path: "Union[str, os.PathLike[str]]") -> Preprocess:
    """Return the preprocessing in a TOML file (host side: Python 3.11, or any with the `tomli` package).

    Raises InputError: no such file, not TOML, or what `from_dict` refuses, naming the file.
    """
    toml = _toml_module()
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            table = toml.load(file)
    except OSError as error:
        raise InputError("cannot read {}: {}".format(name, error.strerror)) from error
    except ValueError as error:
        raise InputError("{} is not valid TOML: {}".format(name, error)) from error
    try:
        return from_dict(table)
    except InputError as error:
        raise InputError(
            "{}: {}".format(name, error.message), error.expected, error.got, error.hint
        ) from error


def _toml_module() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ToolMissingError("reading TOML needs Python 3.11 or the package tomli", hint="pip install tomli")
