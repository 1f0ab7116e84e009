"""Where results may go, and arrays written all or nothing."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgefuse.compose.arrays import read_arrays, write_arrays
from edgefuse.compose.outputs import require_arrays_place, require_artifact_place, require_other_file
from edgefuse.errors import InputError


def _zip(path: Path, member: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"{}")
    return path


def test_new_files_empty_files_and_artifacts_may_be_written(tmp_path: Path) -> None:
    require_artifact_place(tmp_path / "new.efa")
    require_artifact_place(_zip(tmp_path / "old.efa", "manifest.json"))
    (tmp_path / "empty.efa").touch()
    require_artifact_place(tmp_path / "empty.efa")
    (tmp_path / "link.efa").symlink_to(tmp_path / "old.efa")
    require_artifact_place(tmp_path / "link.efa")
    require_arrays_place(_zip(tmp_path / "old.npz", "y.npy"))


@pytest.mark.parametrize("content", [b"PK", b"PK\x03\x04", b"\x08\x08onnx", b"text\n", b"\0" * 100])
def test_another_file_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    for require in (require_artifact_place, require_arrays_place):
        with pytest.raises(InputError, match="not overwritten"):
            require(path)
    assert path.read_bytes() == content


def test_one_kind_does_not_overwrite_the_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not an artifact"):
        require_artifact_place(_zip(tmp_path / "a", "y.npy"))
    with pytest.raises(InputError, match=r"not a \.npz"):
        require_arrays_place(_zip(tmp_path / "b", "manifest.json"))


def test_places_that_cannot_hold_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, word in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "such" / "a.efa", "mkdir -p"),
        (tmp_path / "file" / "a.efa", "is a file"),
        (tmp_path / "file" / "deep" / "a.efa", "is a file"),
        (Path("/dev/null"), "not a plain file"),
    ):
        with pytest.raises(InputError, match=word):
            require_artifact_place(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    if os.geteuid() == 0 and not Path("/proc/self").is_dir():
        pytest.skip("root may write anywhere, and there is no /proc, where nobody may")
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written"):
            require_artifact_place((Path("/proc") if os.geteuid() == 0 else folder) / "a.efa")
    finally:
        folder.chmod(0o700)


def test_the_output_is_none_of_the_inputs_by_whatever_name(tmp_path: Path) -> None:
    held = tmp_path / "in.npz"
    held.write_bytes(b"x")
    (tmp_path / "link").symlink_to(held)
    os.link(held, tmp_path / "second")
    for name in ("in.npz", "link", "second"):
        with pytest.raises(InputError, match="is also --input"):
            require_other_file(tmp_path / name, {"--data": None, "--input": held})
    require_other_file(tmp_path / "new", {"--input": held})
    require_other_file(held, {"--input": tmp_path / "gone"})


def test_arrays_come_back_under_any_name_and_twice_the_same_bytes(tmp_path: Path) -> None:
    arrays = {
        "file": np.arange(3),
        "allow_pickle": np.float32([[1.5]]),
        "a/b:0": np.array(True),
        "ключ": np.zeros((0, 2), np.float16),
        "strided": np.arange(12).reshape(3, 4)[:, ::2],
    }
    write_arrays(tmp_path / "a.npz", arrays)
    write_arrays(tmp_path / "b.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_failed_write_leaves_the_old_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "a.npz", {"y": np.arange(3)})
    before = (tmp_path / "a.npz").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_arrays(tmp_path / "a.npz", {"y": np.arange(4)})
    assert (tmp_path / "a.npz").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("damage", ["npy", "text", "cut", "flipped", "pickle", "encrypted", "folder", "none"])
def test_arrays_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.arange(1000))
    whole = path.read_bytes()
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif damage == "pickle":
        np.savez(path, x=np.array([None]))
    elif damage in ("folder", "none"):
        path.unlink()
        if damage == "folder":
            path.mkdir()
    else:
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        encrypted = bytearray(whole)
        encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
        bytes_of = {"text": b"hello", "cut": whole[:-100], "flipped": flipped, "encrypted": encrypted}
        path.write_bytes(bytes(bytes_of[damage]))
    with pytest.raises(InputError, match="cannot be read"):
        read_arrays(path)
