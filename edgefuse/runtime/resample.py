"""Resizing images in numpy: Pillow's filters, to within one grey level of `PIL.Image.resize`. Python 3.6.

A separable convolution whose kernel widens when the image shrinks (antialiasing), as in Pillow's
src/libImaging/Resample.c: horizontal pass, round to uint8, vertical pass, round. "area" is Pillow's BOX
filter; bicubic has a = -0.5; nearest takes the pixel under the centre. OpenCV's INTER_LINEAR does not widen
its kernel and differs on purpose. Rows of the weight matrix are applied in blocks as matrix products, so
that BLAS does the work.
"""

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["INTERPOLATIONS", "resize_planes"]

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
    weights = kernel((place - centre[:, None] + 0.5) / widen)
    weights = np.where(place < last[:, None], weights, 0.0)
    return first, weights / weights.sum(axis=1, keepdims=True)


def _resize_last_axis(
    planes: "np.ndarray[Any, Any]", wanted: int, interpolation: str
) -> "np.ndarray[Any, Any]":
    """Return float32 [..., wanted] of float32 [..., size]."""
    import numpy as np

    size = planes.shape[-1]
    first, weights = _weights(size, wanted, interpolation)
    rows = planes.reshape(-1, size)
    result = np.empty((rows.shape[0], wanted), dtype=np.float32)
    for start in range(0, wanted, _BLOCK):
        stop = min(start + _BLOCK, wanted)
        low = int(first[start])
        high = min(int(first[stop - 1]) + weights.shape[1], size)
        block = np.zeros((high - low, stop - start), dtype=np.float32)
        for column in range(start, stop):
            taps = min(weights.shape[1], size - int(first[column]))
            at = int(first[column]) - low
            block[at : at + taps, column - start] = weights[column, :taps]
        result[:, start:stop] = rows[:, low:high].dot(block)
    return result.reshape((*planes.shape[:-1], wanted))


def _to_levels(planes: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    import numpy as np

    result: np.ndarray[Any, Any] = np.clip(np.floor(planes + np.float32(0.5)), 0.0, 255.0)
    return result


def resize_planes(
    planes: "np.ndarray[Any, Any]", height: int, width: int, interpolation: str, levels: bool
) -> "np.ndarray[Any, Any]":
    """Return the planes at another size, float32 [C, height, width].

    planes: float32 [C, H, W].  interpolation: one of INTERPOLATIONS.  levels: round to whole numbers in
    0..255 after each pass, as Pillow does for 8-bit images; otherwise nothing is rounded (mode "F").
    """
    import numpy as np

    if interpolation == "nearest":
        rows = _nearest(planes.shape[1], height)
        columns = _nearest(planes.shape[2], width)
        return planes[:, rows][:, :, columns]
    if planes.shape[2] != width:
        planes = _resize_last_axis(planes, width, interpolation)
        planes = _to_levels(planes) if levels else planes
    if planes.shape[1] != height:
        turned = np.ascontiguousarray(planes.transpose(0, 2, 1))
        planes = _resize_last_axis(turned, height, interpolation).transpose(0, 2, 1)
        planes = _to_levels(planes) if levels else planes
    return planes


def _nearest(size: int, wanted: int) -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.minimum(((np.arange(wanted) + 0.5) * (size / wanted)).astype(np.int64), size - 1)
