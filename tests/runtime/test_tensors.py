from __future__ import annotations

import array
import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.artifact.arrays import DTYPES
from edgefuse.errors import InputError
from edgefuse.runtime.tensors import TensorInfo, bind_inputs, check_feeds

IMAGE = TensorInfo("image", "float32", ("n", 2, 3))
MASK = TensorInfo("mask", "int64", ("n", 2))


def one(value: Any, info: TensorInfo = IMAGE) -> np.ndarray[Any, Any]:
    return check_feeds([info], {info.name: value})[info.name]


def test_the_three_ways_to_call() -> None:
    assert bind_inputs([IMAGE], (5,), {}) == {"image": 5}
    assert bind_inputs([IMAGE], ({"image": 5},), {}) == {"image": 5}
    assert bind_inputs([IMAGE, MASK], (), {"mask": 1, "image": 2}) == {"image": 2, "mask": 1}


@pytest.mark.parametrize(
    ("positional", "named", "match"),
    [
        ((1, 2), {}, "one array, one dict, or keyword"),
        ((1,), {"image": 2}, "one array, one dict, or keyword"),
        ((1,), {}, "has 2 inputs and was given one array"),
        (({"image": 1},), {}, "leaves out an input"),
        ((), {}, "leaves out an input"),
        (({"image": 1, "msk": 2},), {}, "did you mean 'mask'"),
        ((), {"image": 1, "mask": 2, "more": 3}, "no input 'more'"),
        (({"image": 1, 3: 2},), {}, "no input 3"),
    ],
)
def test_wrong_calls_name_what_is_wrong(positional: Any, named: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        bind_inputs([IMAGE, MASK], positional, named)


class Interface:
    """An object that is an array only by __array_interface__, as a PIL image is."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data
        self.__array_interface__ = data.__array_interface__


class Convertible:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.data


class Exchange:
    """An object that is an array only by DLPack, as a torch tensor is."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


DATA = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


@pytest.mark.parametrize(
    "value",
    [
        DATA,
        np.asfortranarray(DATA),
        np.repeat(DATA, 2, axis=2)[:, :, ::2],
        DATA.astype(np.float16),
        DATA.astype(">f4"),
        memoryview(DATA),  # type: ignore[arg-type]
        Interface(DATA),
        Convertible(DATA),
        Exchange(DATA),
        (ctypes.c_float * 3 * 2 * 1).from_buffer_copy(DATA.tobytes()),
    ],
    ids=[
        "array",
        "fortran",
        "strided",
        "float16",
        "big-endian",
        "memoryview",
        "interface",
        "array()",
        "dlpack",
        "ctypes",
    ],
)
def test_everything_that_is_an_array_is_taken(value: Any) -> None:
    got = one(value)
    assert got.dtype == np.float32
    assert got.dtype.isnative
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, DATA)


def test_nothing_is_copied_where_nothing_must_be() -> None:
    assert one(DATA) is DATA


def test_a_scalar_input_keeps_its_zero_axes() -> None:
    info = TensorInfo("t", "float32", ())
    assert one(np.float32(3).reshape(()), info).shape == ()
    assert one(array.array("f", [1, 2]), TensorInfo("t", "float32", (2,))).tolist() == [1, 2]


@pytest.mark.parametrize("value", [[[1.0]], 5, "text", None, object(), {"a": 1}])
def test_what_is_no_array_is_refused_with_the_way_out(value: Any) -> None:
    with pytest.raises(InputError, match="input 'image' is not an array") as caught:
        one(value)
    assert caught.value.hint == "pass numpy.asarray(value, dtype='float32')"


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float64", "float32"),
        ("int64", "int32"),
        ("uint8", "float32"),
        ("uint8", "int8"),
        ("bool", "uint8"),
        ("int8", "uint8"),
        ("float32", "float16"),
        ("uint64", "int64"),
        ("complex64", "float32"),
        ("int32", "bool"),
    ],
)
def test_casts_that_could_lose_are_refused(dtype: str, wanted: str) -> None:
    with pytest.raises(InputError, match="input 't' has the wrong dtype") as caught:
        one(np.zeros((1,), dtype), TensorInfo("t", wanted, (1,)))
    assert caught.value.expected == f"t {wanted}[1]"
    assert caught.value.got == f"{dtype}[1]"
    assert caught.value.hint is not None
    assert f".astype('{wanted}')" in caught.value.hint


@given(source=st.sampled_from(sorted(DTYPES)), wanted=st.sampled_from(sorted(DTYPES)))
def test_a_cast_that_is_made_keeps_every_extreme_value(source: str, wanted: str) -> None:
    dtype = np.dtype(source)
    if dtype.kind == "b":
        values = np.array([False, True])
    else:
        bounds: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        values = np.array([bounds.min, 0, 1, bounds.max], dtype)
    try:
        got = one(values, TensorInfo("t", wanted, (len(values),)))
    except InputError:
        assert source != wanted
        return
    assert got.dtype == wanted
    assert got.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((2, 3), "2 axes, not 3"),
        ((1, 2, 4), "axis 2 is 4, not 3"),
        ((0, 2, 3), r"axis 0 \(n\) is empty"),
        ((1, 2, 3, 1), "4 axes"),
    ],
)
def test_wrong_shapes_say_expected_and_got(shape: tuple[int, ...], match: str) -> None:
    with pytest.raises(InputError, match=f"input 'image' has the wrong shape: {match}") as caught:
        one(np.zeros(shape, np.float32))
    assert caught.value.expected == "image float32[n, 2, 3]"
    assert caught.value.got == f"float32{list(shape)}"


def test_a_symbol_is_one_size_in_all_inputs() -> None:
    good = {"image": np.zeros((4, 2, 3), np.float32), "mask": np.zeros((4, 2), np.int64)}
    assert check_feeds([IMAGE, MASK], good)["mask"].shape == (4, 2)
    good["mask"] = np.zeros((5, 2), np.int64)
    with pytest.raises(InputError, match=r"axis 0 \(n\) is 5, and 4 at image axis 0"):
        check_feeds([IMAGE, MASK], good)
