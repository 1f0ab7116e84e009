from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgefuse.artifact import layout, open_artifact, write_artifact
from edgefuse.artifact.manifest import MANIFEST_NAME
from edgefuse.errors import InputError, InternalError

ROOT = Path(__file__).resolve().parents[2]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "sample.efa")


def test_same_content_gives_same_bytes_and_the_digest_is_the_files(
    tmp_path: Path, samples: ModuleType
) -> None:
    first = write_artifact(tmp_path / "a.efa", samples.manifest(), samples.FILES)
    backwards = dict(reversed(list(samples.FILES.items())))
    second = write_artifact(str(tmp_path / "b.efa"), dict(reversed(samples.manifest().items())), backwards)
    assert first == second == hashlib.sha256((tmp_path / "a.efa").read_bytes()).hexdigest()
    assert (tmp_path / "a.efa").read_bytes() == (tmp_path / "b.efa").read_bytes()


def test_other_content_gives_another_digest(tmp_path: Path, samples: ModuleType) -> None:
    first = write_artifact(tmp_path / "a.efa", samples.manifest(), samples.FILES)
    assert write_artifact(tmp_path / "b.efa", samples.manifest(rollback_index=1), samples.FILES) != first


def test_any_zip_tool_reads_it(tmp_path: Path, samples: ModuleType) -> None:
    write_artifact(tmp_path / "a.efa", samples.manifest(), samples.FILES)
    raw = (tmp_path / "a.efa").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.efa") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [MANIFEST_NAME, *sorted(samples.FILES)]
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert stat.S_IFMT(info.external_attr >> 16) == stat.S_IFREG
        for name, data in samples.FILES.items():
            assert archive.read(name) == data
            assert raw.index(data, 0) >= 0
    with open_artifact(tmp_path / "a.efa") as artifact:
        for member in artifact._members.values():
            assert member.data_offset % 64 == 0
            assert raw[member.data_offset : member.data_offset + member.size] == samples.FILES[member.name]


def test_a_file_can_be_streamed_from_the_disk(tmp_path: Path, samples: ModuleType) -> None:
    weights = os.urandom(3 * (1 << 20) + 17)
    (tmp_path / "w.bin").write_bytes(weights)
    name = "payloads/planned/w.bin"
    payloads = [samples.payload("planned", files=["payloads/planned/scale.json", name])]
    from_path = {**samples.FILES, name: tmp_path / "w.bin"}
    from_bytes = {**samples.FILES, name: memoryview(weights)}
    one = write_artifact(tmp_path / "a.efa", samples.manifest(payloads=payloads), from_path)
    two = write_artifact(tmp_path / "b.efa", samples.manifest(payloads=payloads), from_bytes)
    assert one == two
    with open_artifact(tmp_path / "a.efa") as artifact:
        assert artifact.read(name) == weights


def test_a_streamed_file_that_is_missing_or_changes_leaves_nothing(
    tmp_path: Path, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(InputError, match=r"cannot read .*none\.bin"):
        write_artifact(
            out / "sample.efa", samples.manifest(), {**samples.FILES, "w.bin": tmp_path / "none.bin"}
        )
    source = tmp_path / "w.bin"
    source.write_bytes(b"before")
    real = layout.local_header

    def change(member: layout.Member) -> bytes:
        if member.name == "w.bin":
            source.write_bytes(b"behind")
        return real(member)

    monkeypatch.setattr("edgefuse.artifact.pack.local_header", change)
    with pytest.raises(InputError, match=r"'w\.bin' changed while"):
        write_artifact(out / "sample.efa", samples.manifest(), {**samples.FILES, "w.bin": source})
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"payloads": []},
        {"plan": "nowhere.json"},
        {"name": "a b"},
        {"extra": {"x": float("nan")}},
    ],
)
def test_a_bad_manifest_is_our_bug_and_writes_nothing(
    tmp_path: Path, samples: ModuleType, changes: dict[str, Any]
) -> None:
    with pytest.raises(InternalError, match="manifest"):
        write_artifact(tmp_path / "sample.efa", samples.manifest(**changes), samples.FILES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a\\b", ".hidden", "a/../b", "x\0", "é", "-x", "a/"])
def test_a_bad_member_name_is_refused_on_writing_too(tmp_path: Path, samples: ModuleType, name: str) -> None:
    with pytest.raises(InternalError, match="not allowed"):
        write_artifact(tmp_path / "sample.efa", samples.manifest(), {**samples.FILES, name: b""})


def test_unwritable_places_are_named(tmp_path: Path, samples: ModuleType) -> None:
    with pytest.raises(InputError, match="cannot write") as caught:
        write_artifact(tmp_path / "none" / "sample.efa", samples.manifest(), samples.FILES)
    assert "none" in caught.value.message
    assert caught.value.hint
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="not a plain file"):
        write_artifact(tmp_path / "folder", samples.manifest(), samples.FILES)
    with pytest.raises(InputError, match="not a plain file"):
        write_artifact("/dev/null", samples.manifest(), samples.FILES)


def test_a_full_disk_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "sample.efa"
    write_artifact(target, samples.manifest(), samples.FILES)
    old = target.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_artifact(target, samples.manifest(rollback_index=1), samples.FILES)
    assert target.read_bytes() == old
    assert leftovers(tmp_path) == []


def test_a_real_limit_of_the_file_size_keeps_the_old_file(tmp_path: Path, samples: ModuleType) -> None:
    target = tmp_path / "sample.efa"
    write_artifact(target, samples.manifest(), samples.FILES)
    old = target.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(InputError, match="File too large"):
            write_artifact(target, samples.manifest(), {**samples.FILES, "big.bin": bytes(2 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == old
    assert leftovers(tmp_path) == []


def test_an_interrupt_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "sample.efa"
    write_artifact(target, samples.manifest(), samples.FILES)
    old = target.read_bytes()

    def interrupt(source: str, goal: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(target, samples.manifest(rollback_index=1), samples.FILES)
    assert target.read_bytes() == old
    assert leftovers(tmp_path) == []


KILLED = """
import importlib.util, os, sys, time
def wait(descriptor):
    print("ready", flush=True)
    time.sleep(60)
os.fsync = wait
spec = importlib.util.spec_from_file_location("samples", sys.argv[1])
samples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(samples)
from edgefuse.artifact import write_artifact
write_artifact(sys.argv[2], samples.manifest(rollback_index=1), samples.FILES)
"""


def test_a_killed_writer_leaves_the_old_file_and_the_next_write_sweeps(
    tmp_path: Path, samples: ModuleType
) -> None:
    target = tmp_path / "sample.efa"
    write_artifact(target, samples.manifest(), samples.FILES)
    old = target.read_bytes()
    command = [sys.executable, "-c", KILLED, str(samples.__file__), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        # A neighbour that writes meanwhile must not take the running writer's file away.
        write_artifact(target, samples.manifest(), samples.FILES)
        assert len(leftovers(tmp_path)) == 1
        writer.kill()
    assert writer.returncode == -signal.SIGKILL
    assert target.read_bytes() == old
    assert len(leftovers(tmp_path)) == 1
    write_artifact(target, samples.manifest(rollback_index=2), samples.FILES)
    assert leftovers(tmp_path) == []
    with open_artifact(target) as artifact:
        assert artifact.manifest["rollback_index"] == 2


def test_a_link_is_written_through_and_the_mode_follows_the_umask(
    tmp_path: Path, samples: ModuleType
) -> None:
    (tmp_path / "link.efa").symlink_to("real.efa")
    old = os.umask(0o027)
    try:
        write_artifact(tmp_path / "link.efa", samples.manifest(), samples.FILES)
    finally:
        os.umask(old)
    assert (tmp_path / "link.efa").is_symlink()
    assert stat.S_IMODE((tmp_path / "real.efa").stat().st_mode) == 0o640


def test_zip64_records_are_written_and_read(
    tmp_path: Path, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered, so that small files get the records that 4 GiB would need."""
    monkeypatch.setattr(layout, "ZIP64_FROM", 100)
    write_artifact(tmp_path / "a.efa", samples.manifest(), samples.FILES)
    with zipfile.ZipFile(tmp_path / "a.efa") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in samples.FILES} == samples.FILES
    with open_artifact(tmp_path / "a.efa") as artifact:
        assert {name: artifact.read(name) for name in artifact.members} == samples.FILES
        assert all(member.data_offset % 64 == 0 for member in artifact._members.values())
