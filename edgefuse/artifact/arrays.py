"""Self-test vectors as `.npy` bytes, written and parsed here: no pickle, no evaluated text, no surprise.

The format is numpy's NEP 1, version 1.0, restricted to C order and plain little-endian numbers, so any
numpy reads these members. Runs under Python 3.6; numpy is imported when a function is called.
"""

import re
import struct
from typing import TYPE_CHECKING, Any

from edgefuse.errors import ArtifactError, InternalError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DTYPES", "array_from_bytes", "array_to_bytes"]

# numpy's descr of every dtype that an artifact may name.
DTYPES = {
    "bool": "|b1",
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}

_MAGIC = b"\x93NUMPY\x01\x00"
_MAX_HEADER = 4096
_HEADER = re.compile(
    r"\{'descr': '([<|][biuf][1248])', 'fortran_order': False, "
    r"'shape': \(((?:\d{1,12}, ?)*(?:\d{1,12},?)?)\), \} *\n\Z"
)


def array_to_bytes(array: "np.ndarray[Any, Any]") -> bytes:
    """Return `array` as the bytes of a `.npy` file, the same for every numpy version.

    array: any shape, any dtype of DTYPES.  Raises InternalError for another dtype.
    """
    import numpy as np

    descr = DTYPES.get(array.dtype.name)
    if descr is None:
        raise InternalError("self-test vector: dtype {} cannot be stored".format(array.dtype))
    shape = (
        "({},)".format(array.shape[0]) if array.ndim == 1 else "({})".format(", ".join(map(str, array.shape)))
    )
    text = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}".format(descr, shape)
    text += " " * (-(len(_MAGIC) + 2 + len(text) + 1) % 64) + "\n"
    data = np.asarray(array, dtype=np.dtype(descr), order="C").tobytes()
    return _MAGIC + struct.pack("<H", len(text)) + text.encode("ascii") + data


def array_from_bytes(data: bytes, what: str) -> "np.ndarray[Any, Any]":
    """Return the array in the `.npy` bytes `data`, as a copy that may be written to.

    what: the member's name for messages.  Raises ArtifactError unless `data` is exactly one plain array.
    """
    import numpy as np

    start = len(_MAGIC) + 2
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ArtifactError("{}: not a .npy file of version 1.0".format(what))
    (length,) = struct.unpack_from("<H", data, len(_MAGIC))
    if length > _MAX_HEADER:
        raise ArtifactError("{}: the .npy header is too long".format(what), got="{} bytes".format(length))
    match = _HEADER.match(data[start : start + length].decode("latin-1"))
    if match is None or match.group(1) not in DTYPES.values():
        raise ArtifactError("{}: the .npy header is not a plain array's".format(what))
    shape = tuple(int(part) for part in match.group(2).replace(",", " ").split())
    dtype = np.dtype(match.group(1))
    count = 1
    for size in shape:
        count *= size
    if len(data) - start - length != count * dtype.itemsize:
        raise ArtifactError(
            "{}: the .npy file has the wrong length".format(what),
            expected="{} bytes of data for shape {}".format(count * dtype.itemsize, list(shape)),
            got="{} bytes".format(len(data) - start - length),
        )
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype=dtype, offset=start + length)
    result: np.ndarray[Any, Any] = array.reshape(shape).copy()
    return result
