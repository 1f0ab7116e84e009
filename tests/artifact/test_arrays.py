from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefuse.artifact import array_from_bytes, array_to_bytes
from edgefuse.artifact.arrays import DTYPES
from edgefuse.errors import ArtifactError, InternalError


@settings(max_examples=100, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(sorted(DTYPES)))
def test_round_trip_and_numpy_reads_it(data: st.DataObject, dtype: str) -> None:
    array = data.draw(
        hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    )
    stored = array_to_bytes(array)
    for back in (array_from_bytes(stored, "x"), np.load(io.BytesIO(stored), allow_pickle=False)):
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        np.testing.assert_array_equal(back, array)
    # numpy's own writer makes the same bytes, so either side may write the vectors.
    buffer = io.BytesIO()
    np.save(buffer, array)
    assert array_from_bytes(buffer.getvalue(), "x").tobytes() == array.tobytes()


def test_order_and_byte_order_do_not_matter() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for other in (np.asfortranarray(array), array.astype(">f4"), array[:, ::-1][:, ::-1]):
        assert array_to_bytes(other) == array_to_bytes(array)


def test_the_result_may_be_written_to() -> None:
    array_from_bytes(array_to_bytes(np.zeros(3)), "x")[0] = 1


@pytest.mark.parametrize(
    "array", [np.array([{}]), np.array(["text"]), np.zeros(2, complex), np.zeros(1, "M8[s]")]
)
def test_other_dtypes_are_our_bug(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InternalError, match="cannot be stored"):
        array_to_bytes(array)


def saved(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


GOOD = saved(np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x02\x00" + GOOD[8:],
        b"PK\3\4",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:40],
        GOOD.replace(b"(4,)", b"(5,)"),
        GOOD.replace(b"(4,)", b"(-1,"),
        GOOD.replace(b"<f4", b"<i3"),
        GOOD.replace(b"<f4", b"|f4"),
        GOOD.replace(b"<f4", b"|O8"),
        GOOD.replace(b"(4,)", b"f(),"),
        saved(np.asfortranarray(np.zeros((2, 3)))),
        saved(np.array([{}]), allow_pickle=True),
        GOOD[:8] + b"\xff\xff" + GOOD[10:],
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match="vector"):
        array_from_bytes(data, "vector")


def test_a_huge_shape_is_refused_by_its_length() -> None:
    header = (
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 999999999999, 999999999999), }"
    )
    header = header.ljust(117) + b"\n"
    with pytest.raises(ArtifactError, match="wrong length"):
        array_from_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, "x")
