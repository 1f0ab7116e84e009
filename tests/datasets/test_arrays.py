from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.datasets import open_dataset
from edgefuse.errors import InputError
from edgefuse.runtime import TensorInfo

IMAGE = TensorInfo("x", "float32", ("N", 3, 4, 5))


def arange(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_each_row_is_a_sample_with_batch_axis_one(tmp_path: Path, save: Callable[..., None]) -> None:
    data = arange(6, 3, 4, 5)
    save(tmp_path / "d.npz", x=data, labels=np.array([5, 4, 3, 2, 1, 0]))
    dataset = open_dataset(tmp_path / "d.npz", [IMAGE])
    assert len(dataset) == 6
    for again in range(2):
        samples = list(dataset)
        assert [sample.label for sample in samples] == [5, 4, 3, 2, 1, 0], again
        for index, sample in enumerate(samples):
            assert sample.feeds["x"].shape == (1, 3, 4, 5)
            assert sample.feeds["x"].flags.c_contiguous
            np.testing.assert_array_equal(sample.feeds["x"], data[index : index + 1])
    assert samples[2].source == f"{tmp_path / 'd.npz'}[2]"
    assert isinstance(samples[0].label, int)


def test_a_sample_is_the_callers_own_copy(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=arange(2, 3, 4, 5))
    dataset = open_dataset(tmp_path / "d.npz", [IMAGE])
    dataset[0].feeds["x"][:] = -1
    assert dataset[0].feeds["x"].min() == 0


def test_fortran_order_is_read_right(tmp_path: Path) -> None:
    data = arange(4, 3, 4, 5)
    np.savez(tmp_path / "d.npz", x=np.asfortranarray(data))
    np.testing.assert_array_equal(open_dataset(tmp_path / "d.npz", [IMAGE])[3].feeds["x"], data[3:4])


@pytest.mark.parametrize(
    ("wanted", "stored", "count", "each"),
    [
        ((1, 3), (7, 3), 7, (1, 3)),
        (("N", "T"), (7, 3), 7, (1, 3)),
        ((2, 1, 8), (6, 1, 8), 3, (2, 1, 8)),  # a fixed first axis of 2: two rows a sample
        ((2, 1, 8), (5, 2, 1, 8), 5, (2, 1, 8)),
        ((1, 3), (7, 1, 3), 7, (1, 3)),
        ((), (4,), 4, ()),
    ],
)
def test_how_samples_may_lie(
    tmp_path: Path, wanted: tuple[Any, ...], stored: tuple[int, ...], count: int, each: tuple[int, ...]
) -> None:
    data = arange(*stored)
    np.savez(tmp_path / "d.npz", x=data)
    dataset = open_dataset(tmp_path / "d.npz", [TensorInfo("x", "float32", wanted)])
    assert len(dataset) == count
    got = np.concatenate([sample.feeds["x"].ravel() for sample in dataset])
    assert dataset[count - 1].feeds["x"].shape == each
    np.testing.assert_array_equal(got, data.ravel())


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [
        ((1, 3), (7, 4)),
        ((2, 3), (7, 3)),
        ((1, 3), (3,)),
        ((1, 3), (7, 2, 3)),
        ((1, "T"), (7, 0)),
        ((1, 3), ()),
    ],
)
def test_a_wrong_shape_names_the_array_expected_and_got(
    tmp_path: Path, wanted: tuple[Any, ...], stored: tuple[int, ...]
) -> None:
    np.savez(tmp_path / "d.npz", x=arange(*stored))
    with pytest.raises(InputError, match="array 'x' has the wrong shape") as caught:
        open_dataset(tmp_path / "d.npz", [TensorInfo("x", "float32", wanted)])
    assert str(list(stored)) in str(caught.value.got)
    assert "samples" in str(caught.value.expected)


def test_several_inputs_and_labels_of_text_and_arrays(tmp_path: Path) -> None:
    infos = [TensorInfo("ids", "int32", (1, 4)), TensorInfo("state", "float32", (2, 1, 3))]
    np.savez(
        tmp_path / "d.npz",
        ids=np.arange(8).reshape(2, 4),
        state=arange(4, 1, 3),
        labels=np.array(["left", "right"]),
        unused=np.zeros(9),
    )
    samples = list(open_dataset(tmp_path / "d.npz", infos))
    assert [sample.label for sample in samples] == ["left", "right"]
    assert samples[1].feeds["ids"].dtype == np.int32
    assert samples[1].feeds["state"].tolist() == [[[6, 7, 8]], [[9, 10, 11]]]
    np.savez(tmp_path / "e.npz", ids=np.zeros((2, 4), int), state=arange(4, 1, 3), labels=np.eye(2))
    second = open_dataset(tmp_path / "e.npz", infos)[1].label
    assert isinstance(second, np.ndarray)
    assert second.tolist() == [0, 1]


def test_an_input_named_labels_is_an_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", labels=arange(2, 3))
    sample = open_dataset(tmp_path / "d.npz", [TensorInfo("labels", "float32", (1, 3))])[1]
    assert sample.feeds["labels"].tolist() == [[3, 4, 5]]
    assert sample.label is None


def test_a_missing_array_is_named_with_its_near_miss(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", image=arange(2, 3))
    with pytest.raises(InputError, match="has no array 'images', did you mean 'image'"):
        open_dataset(tmp_path / "d.npz", [TensorInfo("images", "float32", (1, 3))])


@pytest.mark.parametrize("other", ["y", "labels"])
def test_counts_must_agree(tmp_path: Path, other: str) -> None:
    arrays: dict[str, Any] = {"x": arange(4, 3), other: arange(3, 3)}
    np.savez(tmp_path / "d.npz", **arrays)
    infos = [TensorInfo("x", "float32", (1, 3)), TensorInfo("y", "float32", (1, 3))]
    with pytest.raises(InputError, match="same number of samples") as caught:
        open_dataset(tmp_path / "d.npz", infos[: 2 if other == "y" else 1])
    assert str(caught.value.got) == f"'{other}' has 3"


def test_floats_change_width_and_whole_numbers_where_they_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.full((1, 3), 0.1), i=np.array([[2**31 - 1]]))
    infos = [TensorInfo("x", "float32", (1, 3)), TensorInfo("i", "int32", (1, 1))]
    feeds = open_dataset(tmp_path / "d.npz", infos)[0].feeds
    assert feeds["x"].dtype == np.float32
    assert feeds["i"].tolist() == [[2**31 - 1]]


@pytest.mark.parametrize(
    ("stored", "dtype", "message"),
    [
        (np.array([[2**31]]), "int32", "whole numbers that the input cannot"),
        (np.array([[-1]]), "uint8", "whole numbers that the input cannot"),
        (np.array([[1]]), "float32", "wrong dtype"),
        (np.array([[1.0]]), "int32", "wrong dtype"),
        (np.array([[True]]), "float32", "wrong dtype"),
        (np.array([["a"]]), "float32", "wrong dtype"),
        (np.array([[np.nan]]), "float32", "not finite"),
        (np.array([[-np.inf]]), "float32", "not finite"),
        (np.array([[1e300]]), "float32", "not finite"),
    ],
)
def test_values_that_cannot_be_fed_are_refused(
    tmp_path: Path, stored: np.ndarray[Any, Any], dtype: str, message: str
) -> None:
    np.savez(tmp_path / "d.npz", x=stored)
    dataset = open_dataset(tmp_path / "d.npz", [TensorInfo("x", dtype, (1, 1))])
    with pytest.raises(InputError, match=message) as caught:
        list(dataset)
    assert "d.npz[0]: array 'x'" in caught.value.message


def test_pickled_arrays_are_never_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    np.savez(tmp_path / "d.npz", x=np.array([[Trap()]], dtype=object))
    with pytest.raises(InputError, match="pickled Python objects"):
        open_dataset(tmp_path / "d.npz", [TensorInfo("x", "float32", (1, 1))])
    np.savez(tmp_path / "d.npz", x=arange(1, 1), labels=np.array([Trap()], dtype=object))
    with pytest.raises(InputError, match="array 'labels' holds pickled"):
        open_dataset(tmp_path / "d.npz", [TensorInfo("x", "float32", (1, 1))])
    assert not (tmp_path / "ran").exists()


def test_no_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((0, 3), np.float32))
    with pytest.raises(InputError, match="holds no samples"):
        open_dataset(tmp_path / "d.npz", [TensorInfo("x", "float32", (1, 3))])


@pytest.mark.parametrize("keep", [0, 10, 200, -1])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    np.savez(tmp_path / "d.npz", x=arange(50, 3))
    data = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(data[:keep])
    with pytest.raises(InputError, match=r"not a whole \.npz"):
        open_dataset(tmp_path / "d.npz", [TensorInfo("x", "float32", (1, 3))])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_damaged_byte_gives_an_input_error_or_reads(tmp_path: Path, save: Callable[..., None]) -> None:
    path = tmp_path / "d.npz"
    save(path, x=arange(5, 3))
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            for sample in open_dataset(path, [TensorInfo("x", "float32", (1, 3))]):
                assert sample.feeds["x"].shape == (1, 3)
        except InputError:
            refused += 1
    assert refused > 20


def test_a_folder_of_npz_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, first, count in (("b", 10, 2), ("a", 0, 1), ("c", 20, 3)):
        np.savez(tmp_path / f"{name}.npz", x=arange(count, 1) + first, labels=np.arange(count))
    (tmp_path / "README.md").write_text("not data")
    dataset = open_dataset(tmp_path, [TensorInfo("x", "float32", (1, 1))])
    assert dataset.kind == "npz folder"
    assert [float(sample.feeds["x"][0, 0]) for sample in dataset] == [0, 10, 11, 20, 21, 22]
    assert dataset.names() == ("a.npz[0]", "b.npz[0]", "b.npz[1]", "c.npz[0]", "c.npz[1]", "c.npz[2]")


def test_a_bad_file_in_a_folder_is_named_before_any_work(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=arange(1, 1))
    np.savez(tmp_path / "b.npz", x=arange(1, 2))
    with pytest.raises(InputError, match=r"b\.npz: array 'x' has the wrong shape"):
        open_dataset(tmp_path, [TensorInfo("x", "float32", (1, 1))])
