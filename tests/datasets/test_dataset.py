from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.datasets import Dataset, Sample, dataset_from_samples, open_dataset, random_dataset
from edgefuse.errors import InputError
from edgefuse.runtime import TensorInfo


def numbered(count: int) -> Dataset:
    return dataset_from_samples(
        [Sample({"x": np.full((1, 1), index, np.float32)}, index, f"s{index}") for index in range(count)]
    )


def labels(dataset: Dataset) -> list[object]:
    return [sample.label for sample in dataset]


def test_take_and_spread() -> None:
    dataset = numbered(10)
    assert labels(dataset.take(3)) == [0, 1, 2]
    assert labels(dataset.take(99)) == list(range(10))
    assert len(dataset.take(0)) == 0
    assert labels(dataset.spread(2)) == [2, 7]
    assert labels(dataset.spread(5)) == [1, 3, 5, 7, 9]
    assert labels(dataset.spread(10)) == list(range(10))
    for bad in (dataset.take, dataset.spread):
        with pytest.raises(InputError, match="cannot be cut"):
            bad(-1)


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_split_is_a_partition_in_order(total: int, first: int) -> None:
    dataset = numbered(total)
    if first > total:
        with pytest.raises(InputError, match="cannot be split"):
            dataset.split(first)
        return
    left, right = ([int(name.split("#")[1]) for name in part.names()] for part in dataset.split(first))
    assert len(left) == first
    assert sorted(left + right) == list(range(total))
    assert left == sorted(left)
    assert labels(dataset.split(first)[0]) == left
    assert labels(dataset.split(first)[1]) == right


def test_a_split_hardly_changes_when_a_sample_is_added() -> None:
    before = set(labels(numbered(40).split(20)[0]))
    after = set(labels(numbered(41).split(20)[0]))
    assert len(before & after) >= 19
    assert before != set(range(20))


@given(st.integers(1, 60), st.integers(0, 60))
def test_spread_has_no_sample_twice(total: int, count: int) -> None:
    got = labels(numbered(total).spread(count))
    assert len(set(got)) == len(got) == min(total, count)


def test_random_data_is_seeded_and_does_not_depend_on_the_order_of_inputs() -> None:
    infos = [
        TensorInfo("image", "float32", ("N", 3, "H", 8)),
        TensorInfo("pixels", "uint8", (1, 4, 4, 3)),
        TensorInfo("ids", "int64", ("N", 16)),
        TensorInfo("flag", "bool", (16,)),
        TensorInfo("twin", "float32", ("N", 3, "H", 8)),
    ]
    first = random_dataset(infos, 3, seed=7, sizes={"H": 5})
    again = random_dataset(infos[::-1], 3, seed=7, sizes={"H": 5})
    for left, right in zip(first, again, strict=True):
        for info in infos:
            np.testing.assert_array_equal(left.feeds[info.name], right.feeds[info.name])
            assert left.feeds[info.name].dtype.name == info.dtype
    feeds = first[0].feeds
    assert feeds["image"].shape == (1, 3, 5, 8)
    assert abs(float(feeds["image"].mean())) < 0.4
    assert feeds["pixels"].max() > 100
    assert set(feeds["ids"].ravel().tolist()) == {0, 1}
    assert set(feeds["flag"].tolist()) == {True, False}
    assert not np.array_equal(feeds["image"], feeds["twin"])
    assert not np.array_equal(feeds["image"], first[1].feeds["image"])
    assert not np.array_equal(
        feeds["image"], random_dataset(infos, 1, seed=8, sizes={"H": 5})[0].feeds["image"]
    )


def test_random_data_gives_open_axes_a_size() -> None:
    shape = random_dataset([TensorInfo("x", "float32", ("N", 3, "H", "W"))], 1)[0].feeds["x"].shape
    assert shape == (1, 3, 64, 64)
    with pytest.raises(InputError, match="no data can be made up for input t"):
        random_dataset([TensorInfo("t", "str", (1,))], 1)


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    info = [TensorInfo("x", "float32", (1, 3))]
    with pytest.raises(InputError, match="there is no data at"):
        open_dataset(tmp_path / "absent", info)
    with pytest.raises(InputError, match="holds no data") as caught:
        open_dataset(tmp_path, info)
    assert caught.value.got == "an empty folder"
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.npz").write_bytes(b"")
    with pytest.raises(InputError, match="holds no data") as caught:
        open_dataset(tmp_path, info)
    assert caught.value.got == "1 other entries"
    with pytest.raises(InputError, match=r"notes\.txt is not data"):
        open_dataset(tmp_path / "notes.txt", info)
    with pytest.raises(InputError, match="without inputs"):
        open_dataset(tmp_path, [])


def test_a_mixed_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.npz").write_bytes(b"")
    with pytest.raises(InputError, match="several kinds") as caught:
        open_dataset(tmp_path, [TensorInfo("x", "float32", (1, 3))])
    assert caught.value.got == "1 images and 1 .npz files"
