"""Resizing images in numpy: for 8-bit images, the levels that `PIL.Image.resize` gives. Python 3.6.

A separable convolution whose kernel widens when the image shrinks (antialiasing), as Pillow's
src/libImaging/Resample.c defines it: horizontal pass, round to levels, vertical pass, round; weights are
multiples of 2^-22. "area" is Pillow's BOX filter; bicubic has a = -0.5; nearest takes the pixel under the
centre. The order of the passes is that of every Pillow up to 12; Pillow 13 turns it round where the height
shrinks much more than the width, which moves sharp edges by some levels. OpenCV's INTER_LINEAR does not
widen its kernel and differs on purpose. The weights are applied in blocks as float64 matrix products: BLAS
does the work, and sums of whole numbers below 2^53 are exact.
"""

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["INTERPOLATIONS", "resize_planes"]

_ONE = float(1 << 22)  # weights of 8-bit images are whole multiples of 1 / _ONE
_BLOCK = 16  # output pixels a matrix product: few enough that the block's input span stays near the kernel's


def _triangle(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    import numpy as np

    result: np.ndarray[Any, Any] = np.maximum(0.0, 1.0 - np.abs(x))
    return result


def _cubic(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    import numpy as np

    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _box(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


_FILTERS: Dict[str, Tuple[float, Callable[..., Any]]] = {
    "bilinear": (1.0, _triangle),
    "bicubic": (2.0, _cubic),
    "area": (0.5, _box),
}

INTERPOLATIONS = ("nearest", *_FILTERS)


def _weights(
    size: int, wanted: int, interpolation: str
) -> "Tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Return (first input pixel int64 [wanted], weights float64 [wanted, taps]); rows sum to 1."""
    import numpy as np

    reach, kernel = _FILTERS[interpolation]
    scale = size / wanted
    widen = max(scale, 1.0)
    support = reach * widen
    taps = math.ceil(support) * 2 + 1
    centre = (np.arange(wanted) + 0.5) * scale
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), size)
    place = first[:, None] + np.arange(taps)[None, :]
    # Times the reciprocal and summed one by one, as Pillow does: BOX decides by the last bit.
    weights = kernel((place - centre[:, None] + 0.5) * (1.0 / widen))
    weights = np.where(place < last[:, None], weights, 0.0)
    return first, weights / np.cumsum(weights, axis=1)[:, -1:]


def _resize_last_axis(
    planes: "np.ndarray[Any, Any]", wanted: int, interpolation: str, levels: bool
) -> "np.ndarray[Any, Any]":
    """Return float32 [..., wanted] of float32 [..., size]."""
    import numpy as np

    size = planes.shape[-1]
    first, weights = _weights(size, wanted, interpolation)
    if levels:
        scaled = weights * _ONE
        weights = np.where(scaled < 0, np.ceil(scaled - 0.5), np.floor(scaled + 0.5))
    rows = planes.reshape(-1, size)
    result = np.empty((rows.shape[0], wanted), dtype=np.float32)
    for start in range(0, wanted, _BLOCK):
        stop = min(start + _BLOCK, wanted)
        low = int(first[start])
        high = min(int(first[stop - 1]) + weights.shape[1], size)
        block = np.zeros((high - low, stop - start))
        for column in range(start, stop):
            taps = min(weights.shape[1], size - int(first[column]))
            at = int(first[column]) - low
            block[at : at + taps, column - start] = weights[column, :taps]
        values = rows[:, low:high].astype(np.float64).dot(block)
        if levels:
            values = np.clip(np.floor((values + _ONE / 2) / _ONE), 0.0, 255.0)
        result[:, start:stop] = values
    return result.reshape((*planes.shape[:-1], wanted))


def resize_planes(
    planes: "np.ndarray[Any, Any]", height: int, width: int, interpolation: str, levels: bool
) -> "np.ndarray[Any, Any]":
    """Return the planes at another size, float32 [C, height, width].

    planes: float32 [C, H, W].  interpolation: one of INTERPOLATIONS.  levels: the values are whole numbers
    in 0..255 and are rounded to such after each pass, as Pillow does for 8-bit images; otherwise nothing is
    rounded but to float32 (Pillow's mode "F").
    """
    import numpy as np

    if interpolation == "nearest":
        rows = _nearest(planes.shape[1], height)
        columns = _nearest(planes.shape[2], width)
        return planes[:, rows][:, :, columns]
    if planes.shape[2] != width:
        planes = _resize_last_axis(planes, width, interpolation, levels)
    if planes.shape[1] != height:
        turned = np.ascontiguousarray(planes.transpose(0, 2, 1))
        planes = _resize_last_axis(turned, height, interpolation, levels).transpose(0, 2, 1)
    return planes


def _nearest(size: int, wanted: int) -> "np.ndarray[Any, Any]":
    import numpy as np

    # Summed up step by step as Pillow does: the rounding of the sums decides ties.
    steps = np.full(wanted, size / wanted)
    steps[0] *= 0.5
    return np.minimum(np.cumsum(steps).astype(np.int64), size - 1)
