from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgefuse.artifact import PayloadFiles, layout, manifest_bytes, open_artifact, write_artifact
from edgefuse.errors import ArtifactError, InputError, UsageError

FROZEN = Path(__file__).parent / "frozen"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, samples: ModuleType) -> bytes:
    path = tmp_path_factory.mktemp("raw") / "a.efa"
    write_artifact(path, samples.manifest(), samples.FILES)
    return path.read_bytes()


def refused(folder: Path, data: bytes) -> ArtifactError:
    path = folder / "bad.efa"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as caught, open_artifact(path):
        pass
    assert "bad.efa" in caught.value.message
    return caught.value


def test_reads_back_what_was_written(tmp_path: Path, samples: ModuleType, raw: bytes) -> None:
    (tmp_path / "a.efa").write_bytes(raw)
    with open_artifact(tmp_path / "a.efa") as artifact:
        assert artifact.members == tuple(sorted(samples.FILES))
        assert {name: artifact.read(name) for name in artifact.members} == samples.FILES
        assert {**artifact.manifest, "files": None} == {**samples.manifest(), "files": None}
        assert len(artifact.digest) == 64
        with pytest.raises(InputError, match=r"no file 'none'"):
            artifact.read("none")
    artifact.close()
    with pytest.raises(InputError, match="is closed"):
        artifact.read("plan.json")


def test_payload_files_show_only_their_own(tmp_path: Path, samples: ModuleType, raw: bytes) -> None:
    (tmp_path / "a.efa").write_bytes(raw)
    with open_artifact(tmp_path / "a.efa", verify="on-read") as artifact:
        files = PayloadFiles(artifact, artifact.manifest["payloads"][1])
        assert dict(files) == {"scale.json": b'{"scale": 2.0}\n'}
        assert (files.entry, len(files)) == ("scale.json", 1)
        for name in ("plan.json", "payloads/float/scale.json", "../planned/scale.json"):
            with pytest.raises(KeyError):
                files[name]


def test_every_release_of_the_schema_stays_loadable(samples: ModuleType) -> None:
    """frozen/v1.efa was written by edgefuse 0.1.0 and is never written again."""
    with open_artifact(FROZEN / "v1.efa") as artifact:
        assert artifact.manifest["schema"] == 1
        assert artifact.digest == "24ed356293da2e10923d3460a532b6b3120b36a5964277c950cf123c7fb24972"
        assert artifact.read("plan.json") == b"{}\n"
        assert artifact.manifest["payloads"][0]["accuracy"] == {
            "metric": "top1", "value": 0.866, "drop": 0.004, "samples": 500,
        }  # fmt: skip


def test_todays_writer_still_writes_the_frozen_bytes(tmp_path: Path) -> None:
    with open_artifact(FROZEN / "v1.efa") as artifact:
        files = {name: artifact.read(name) for name in artifact.members}
        described = {key: value for key, value in artifact.manifest.items() if key != "files"}
    write_artifact(tmp_path / "again.efa", described, files)
    assert (tmp_path / "again.efa").read_bytes() == (FROZEN / "v1.efa").read_bytes()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_changed_byte_anywhere_is_refused(tmp_path: Path, raw: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(raw) - 1))
    change = data.draw(st.integers(1, 255))
    broken = bytearray(raw)
    broken[place] ^= change
    refused(tmp_path, bytes(broken))


def test_one_flipped_bit_in_headers_and_directory_is_refused(
    tmp_path: Path, raw: bytes, samples: ModuleType
) -> None:
    path = tmp_path / "a.efa"
    path.write_bytes(raw)
    with open_artifact(path) as artifact:
        members = list(artifact._members.values())
    places = [place for member in members for place in range(member.offset, member.data_offset)]
    places += range(members[-1].data_offset + members[-1].size, len(raw))
    for place in places[::4]:
        broken = bytearray(raw)
        broken[place] ^= 1 << (place % 8)
        refused(tmp_path, bytes(broken))


def test_cut_short_at_every_length_is_refused(tmp_path: Path, raw: bytes) -> None:
    for length in [*range(200), *range(200, len(raw), 97), *range(len(raw) - 100, len(raw))]:
        error = refused(tmp_path, raw[:length])
        assert any(word in error.message for word in ("empty", "cut short", "not a zip")), error


@pytest.mark.parametrize("extra", [b"\0", b"appended", b"PK\5\6" + bytes(18)])
def test_added_bytes_are_refused(tmp_path: Path, raw: bytes, extra: bytes) -> None:
    behind = refused(tmp_path, raw + extra).message
    assert "cut short or altered" in behind or "not an edgefuse artifact" in behind
    assert refused(tmp_path, extra + raw)
    middle = raw.index(b"PK\1\2")
    assert refused(tmp_path, raw[:middle] + extra + raw[middle:])


def test_the_altered_file_is_named(tmp_path: Path, raw: bytes) -> None:
    error = refused(tmp_path, raw.replace(b'{"scale": 2.0}\n', b'{"scale": 3.0}\n', 1))
    assert "'payloads/float/scale.json' is altered" in error.message
    assert error.expected is not None
    assert error.expected.startswith("sha256 ")


def test_on_read_leaves_the_rest_alone_until_it_is_read(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.efa"
    path.write_bytes(raw.replace(b'{"scale": 2.0}\n', b'{"scale": 3.0}\n', 1))
    with open_artifact(path, verify="on-read") as artifact:
        assert artifact.read("plan.json") == b"{}\n"
        with pytest.raises(ArtifactError, match=r"float/scale\.json' is altered"):
            artifact.read("payloads/float/scale.json")
    with pytest.raises(UsageError):
        open_artifact(path, verify="never")


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x07ONNX model", b"PK", b"PK\3\4", b"\0" * 1000, b"PK\3\4" + b"\0" * 1000]
)
def test_other_files_are_no_artifact(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data)


def test_other_zips_are_no_artifact(tmp_path: Path, samples: ModuleType) -> None:
    def zipped(compression: int, **contents: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, data in contents.items():
                archive.writestr(name.replace("__", "."), data)
        return buffer.getvalue()

    assert "first member is not manifest.json" in refused(tmp_path, zipped(0, a__txt=b"x")).message
    assert "compressed" in refused(tmp_path, zipped(zipfile.ZIP_DEFLATED, a__txt=b"x" * 999)).message
    assert "not as edgefuse writes it" in refused(tmp_path, zipped(0, manifest__json=b"{")).message
    # The right content, packed again by another tool: the layout is not ours.
    whole = zipped(
        0,
        manifest__json=manifest_bytes(samples.manifest_with_files()),
        **samples.FILES,
    )
    assert "not as edgefuse writes it" in refused(tmp_path, whole).message


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        open_artifact(tmp_path / "none.efa")
    with pytest.raises(InputError, match="not a plain file"):
        open_artifact(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a plain file"):
        open_artifact(tmp_path / "pipe")


def test_a_newer_schema_says_so(tmp_path: Path, samples: ModuleType) -> None:
    newer = {**samples.manifest_with_files(), "schema": 2, "something_new": {"a": [1]}}
    error = refused(tmp_path, samples.raw_artifact(newer, samples.FILES))
    assert "made by a newer edgefuse" in error.message
    assert error.got == "schema 2"
    assert error.hint is not None
    assert "upgrade" in error.hint


def test_a_signed_artifact_is_refused_by_this_version(tmp_path: Path, samples: ModuleType) -> None:
    signed = samples.manifest_with_files(signature={"algorithm": "ed25519"})
    assert "cannot check signatures" in refused(tmp_path, samples.raw_artifact(signed, samples.FILES)).message


def test_files_and_members_must_be_the_same_set(tmp_path: Path, samples: ModuleType) -> None:
    described = samples.manifest_with_files()
    more = samples.raw_artifact(described, {**samples.FILES, "stowaway.bin": b"x"})
    assert "'stowaway.bin' is inside, and the manifest does not list it" in refused(tmp_path, more).message
    less = {name: data for name, data in samples.FILES.items() if name != "plan.json"}
    assert "'plan.json' is missing" in refused(tmp_path, samples.raw_artifact(described, less)).message
    longer = samples.raw_artifact(described, {**samples.FILES, "plan.json": b"{}\n\n"})
    assert "'plan.json' is altered" in refused(tmp_path, longer).message


def directory_of(members: list[layout.Member], names: dict[str, bytes]) -> bytes:
    """The directory of `members` with names replaced by raw bytes of the same length."""
    data = layout.directory_bytes(members)
    for name, wanted in names.items():
        assert len(name) == len(wanted)
        data = data.replace(name.encode(), wanted)
    return data


@pytest.mark.parametrize(
    "name",
    [b"../evil01", b"/etc/evil1", b"a\\b\\evil01"[:10], b"evil\x00evil0"[:10], b"a/../evil1", b"\xff" * 10],
)
def test_dangerous_names_are_refused(tmp_path: Path, raw: bytes, samples: ModuleType, name: bytes) -> None:
    name = name.ljust(9, b"x")[:9]
    broken = raw.replace(b"plan.json", name)
    assert "not allowed" in refused(tmp_path, broken).message
    assert not (tmp_path.parent / "evil01").exists()


def patched(raw: bytes, member: str, field: int, value: bytes, samples: ModuleType) -> bytes:
    """`raw` with `value` written at `field` of the member's entry in the central directory."""
    start = raw.index(b"PK\1\2")
    place = raw.index(member.encode(), start) - 46
    assert raw[place : place + 4] == b"PK\1\2"
    return raw[: place + field] + value + raw[place + field + len(value) :]


def test_a_symbolic_link_is_refused(tmp_path: Path, raw: bytes, samples: ModuleType) -> None:
    link = patched(raw, "plan.json", 38, struct.pack("<L", 0o120777 << 16), samples)
    assert "not as edgefuse writes it" in refused(tmp_path, link).message


def test_overlapping_members_are_refused(tmp_path: Path, raw: bytes, samples: ModuleType) -> None:
    assert (
        "not as edgefuse writes it"
        in refused(tmp_path, patched(raw, "plan.json", 42, struct.pack("<L", 0), samples)).message
    )


@pytest.mark.parametrize("size", [1 << 20, 0xFFFFFFFE, 0xFFFFFFFF])
def test_sizes_beyond_the_file_are_refused(
    tmp_path: Path, raw: bytes, samples: ModuleType, size: int
) -> None:
    bomb = patched(raw, "plan.json", 20, struct.pack("<LL", size, size), samples)
    assert "outside the file" in refused(tmp_path, bomb).message
    bomb = patched(raw, "manifest.json", 20, struct.pack("<LL", size, size), samples)
    assert "outside the file" in refused(tmp_path, bomb).message


def test_a_name_twice_and_a_file_that_is_a_folder_are_refused(tmp_path: Path, samples: ModuleType) -> None:
    def written(*names: str) -> bytes:
        head = manifest_bytes(samples.manifest_with_files())
        contents = [("manifest.json", head), *((name, b"x") for name in names)]
        members = layout.place_members([(name, len(data), layout.checksum(data)) for name, data in contents])
        body = b"".join(layout.local_header(m) + data for m, (_, data) in zip(members, contents, strict=True))
        return body + layout.directory_bytes(members)

    assert "'a/B' is there twice" in refused(tmp_path, written("a/b", "a/B")).message
    assert "a file and a folder" in refused(tmp_path, written("a", "a/b")).message


def test_too_many_members_are_refused_before_they_are_read(tmp_path: Path, raw: bytes) -> None:
    end = raw[:-14] + struct.pack("<HH", 20000, 20000) + raw[-10:]
    assert len(end) == len(raw)
    assert "too many files" in refused(tmp_path, end).message


def test_a_huge_manifest_is_refused(tmp_path: Path, samples: ModuleType) -> None:
    described = samples.manifest_with_files(extra={"x": "y" * (17 << 20)})
    assert "too large" in refused(tmp_path, samples.raw_artifact(described, samples.FILES)).message


def test_extract_writes_everything_into_a_new_folder(tmp_path: Path, samples: ModuleType, raw: bytes) -> None:
    (tmp_path / "a.efa").write_bytes(raw)
    with open_artifact(tmp_path / "a.efa") as artifact:
        written = artifact.extract(tmp_path / "out")
        assert sorted(written) == sorted(
            str(tmp_path / "out" / name) for name in [*samples.FILES, "manifest.json"]
        )
        assert json.loads((tmp_path / "out/manifest.json").read_text()) == artifact.manifest
        for name, data in samples.FILES.items():
            assert (tmp_path / "out" / name).read_bytes() == data
        with pytest.raises(InputError, match="not empty"):
            artifact.extract(tmp_path / "out")
        assert artifact.extract(tmp_path / "one", ["plan.json"]) == [str(tmp_path / "one/plan.json")]
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(InputError, match="cannot extract"):
            artifact.extract(tmp_path / "file")


def test_extract_of_an_altered_file_leaves_no_file(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.efa").write_bytes(raw.replace(b'{"scale": 2.0}\n', b'{"scale": 3.0}\n', 1))
    artifact = open_artifact(tmp_path / "a.efa", verify="on-read")
    with artifact, pytest.raises(ArtifactError, match="is altered"):
        artifact.extract(tmp_path / "out")
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_a_file_that_shrinks_while_open_is_noticed(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.efa"
    path.write_bytes(raw)
    with open_artifact(path) as artifact:
        os.truncate(path, 3000)
        with pytest.raises(ArtifactError, match="is altered"):
            artifact.read("self_test/0/y.npy")


ONLY_STDLIB = """
import sys
sys.modules["numpy"] = None
from edgefuse.artifact import open_artifact
with open_artifact(sys.argv[1]) as artifact:
    print(sys.version_info[:2], artifact.manifest["name"], len(artifact.members))
"""


def python36() -> str | None:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which("python3.6"), *map(str, sorted(root.glob("3.6.*/bin/python")))]
    for candidate in filter(None, candidates):
        # pyenv's shim is on the PATH even where it has nothing to call.
        asked = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True
        )
        if asked.stdout.strip() == b"(3, 6)":
            return candidate
    return None


@pytest.mark.parametrize("version", ["this", "3.6"])
def test_reading_needs_the_standard_library_only(version: str) -> None:
    interpreter: Any = sys.executable if version == "this" else python36()
    if interpreter is None:
        pytest.skip("no Python 3.6 here (python3.6 on the PATH or in pyenv)")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [interpreter, "-B", "-c", ONLY_STDLIB, str(FROZEN / "v1.efa")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "frozen 5" in done.stdout
    if version == "3.6":
        assert done.stdout.startswith("(3, 6)")
