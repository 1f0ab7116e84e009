"""What `edgefuse run` reads: a .npz of plain arrays, and one clear line for everything else."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgefuse.compose.arrays import read_arrays, write_arrays
from edgefuse.errors import InputError


class _Trap:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[()]]:
        return Path("unpickled").touch, ()


def _members(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


MAKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a text": (lambda p: p.write_text("1 2 3\n"), "a file of another kind"),
    "nothing": (lambda p: p.touch(), "an empty file"),
    "a folder": (lambda p: p.mkdir(), "Is a directory"),
    "no file": (lambda p: None, "No such file"),
    "a zip of texts": (lambda p: _members(p, readme=b"hello"), "'readme' is no array"),
    "an array that is none": (lambda p: _members(p, **{"x.npy": b"junk"}), "'x' is no array"),
    "a cut array": (lambda p: _members(p, **{"x.npy": b"\x93NUMPY\x01\x00"}), "cannot be read"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_npz_is_said_in_one_line(tmp_path: Path, kind: str) -> None:
    make, word = MAKERS[kind]
    make(tmp_path / "in.npz")
    with pytest.raises(InputError) as caught:
        read_arrays(tmp_path / "in.npz")
    assert word in str(caught.value)
    assert "\n" not in caught.value.message
    assert "numpy.savez" in str(caught.value.expected)


def test_one_array_without_a_name_is_said_so(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones(3))
    with pytest.raises(InputError) as caught:
        read_arrays(tmp_path / "in.npy")
    assert caught.value.got == "a .npy: one array without a name"


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", x=np.array([_Trap()], dtype=object))
    with pytest.raises(InputError, match="cannot be read"):
        read_arrays("in.npz")
    assert not Path("unpickled").exists()
    with np.load("in.npz", allow_pickle=True) as file:
        file["x"]
    assert Path("unpickled").exists(), "the trap works"


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    arrays = {"x": np.float32([[1, -2]]), "file": np.array(3, np.int64), "empty": np.zeros((0, 2), np.bool_)}
    write_arrays(tmp_path / "a.npz", arrays)
    back = read_arrays(tmp_path / "a.npz")
    assert list(back) == list(arrays)
    assert all(
        np.array_equal(back[n], a) and back[n].dtype == a.dtype and back[n].shape == a.shape
        for n, a in arrays.items()
    )
