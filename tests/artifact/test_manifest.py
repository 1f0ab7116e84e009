from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from edgefuse.artifact import manifest_bytes, parse_manifest, validate_manifest
from edgefuse.errors import ArtifactError, InternalError

Edit = Callable[[dict[str, Any]], object]


def put(*path: str | int, to: Any) -> Edit:
    """An edit that sets the value at `path`."""

    def edit(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return edit


def drop(*path: str | int) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return edit


# (edit, the field that the message must name)
BROKEN: list[tuple[Edit, str]] = [
    (put("schema", to="1"), "schema"),
    (put("schema", to=True), "schema"),
    (put("schema", to=0), "schema"),
    (put("schema", to=1.0), "schema"),
    (drop("schema"), "schema"),
    (put("name", to=""), "name"),
    (put("name", to="../x"), "name"),
    (put("name", to="a" * 101), "name"),
    (put("name", to=None), "name"),
    (drop("name"), "name"),
    (put("producer", to=1), "producer"),
    (put("target", to=[]), "target"),
    (put("target", "family", to="Toy"), "target.family"),
    (put("target", "family", to="a.b"), "target.family"),
    (put("target", "device", to="a b"), "target.device"),
    (put("target", "requirements", "cpu_flags", to="avx2"), "target.requirements.cpu_flags"),
    (put("target", "requirements", "cpuflags", to=[]), "target.requirements.cpuflags"),
    (put("target", "requirements", "memory_bytes", to=-1), "target.requirements.memory_bytes"),
    (put("inputs", to=[]), "inputs"),
    (put("inputs", to={}), "inputs"),
    (put("inputs", 0, "name", to=7), "inputs[0].name"),
    (put("inputs", 0, "dtype", to="float8"), "inputs[0].dtype"),
    (put("inputs", 0, "dtype", to=["float32"]), "inputs[0].dtype"),
    (put("inputs", 0, "shape", to=[0, 2]), "inputs[0].shape[0]"),
    (put("inputs", 0, "shape", to=[True]), "inputs[0].shape[0]"),
    (put("inputs", 0, "shape", to=[1.0]), "inputs[0].shape[0]"),
    (put("inputs", 0, "shape", to=["9x"]), "inputs[0].shape[0]"),
    (put("inputs", 0, "shape", to=[1] * 33), "inputs[0].shape"),
    (put("inputs", 0, "layout", to="nchw"), "inputs[0].layout"),
    (put("outputs", 0, "shape", to=None), "outputs[0].shape"),
    (put("preprocess", to=[]), "preprocess"),
    (put("labels", to=[1]), "labels[0]"),
    (put("decoder", to={}), "decoder.kind"),
    (put("decoder", to={"kind": 3}), "decoder.kind"),
    (put("model", "sha256", to="AB" * 32), "model.sha256"),
    (put("model", "sha256", to="ab" * 31), "model.sha256"),
    (put("model", "path", to="x"), "model.path"),
    (put("rollback_index", to=-1), "rollback_index"),
    (put("rollback_index", to=False), "rollback_index"),
    (put("rollback_index", to=2**64), "rollback_index"),
    (put("payloads", to=[]), "payloads"),
    (put("payloads", 0, "id", to="a b"), "payloads[0].id"),
    (put("payloads", 1, "id", to="planned"), "payloads.id"),
    (put("payloads", 0, "family", to="os.path"), "payloads[0].family"),
    (put("payloads", 0, "plan_digest", to="none"), "payloads[0].plan_digest"),
    (put("payloads", 0, "files", to=[]), "payloads[0].files"),
    (put("payloads", 0, "files", to=["none.bin"]), "payloads[0].files"),
    (put("payloads", 0, "files", to=["plan.json"]), "payloads[0].files"),
    (put("payloads", 0, "files", to=["payloads/float/scale.json"]), "payloads[0].files"),
    (put("payloads", 0, "files", to=["../plan.json"]), "payloads[0].files[0]"),
    (put("payloads", 0, "files", to=["payloads/planned/scale.json"] * 2), "payloads[0].files"),
    (put("payloads", 0, "entry", to="plan.json"), "payloads[0].entry"),
    (put("payloads", 0, "options", to=None), "payloads[0].options"),
    (put("payloads", 0, "options", "threads", to=0), "payloads[0].options.threads"),
    (put("payloads", 0, "options", "threads", to="2"), "payloads[0].options.threads"),
    (put("payloads", 0, "simulates", to="yes"), "payloads[0].simulates"),
    (put("payloads", 0, "self_test", to=None), "payloads[0].self_test"),
    (put("payloads", 0, "self_test", 0, "inputs", to={}), "payloads[0].self_test[0].inputs"),
    (put("payloads", 0, "self_test", 0, "inputs", "x", to="none.npy"), "payloads[0].self_test[0].inputs.x"),
    (put("payloads", 0, "self_test", 0, "outputs", "z", to="plan.json"), "payloads[0].self_test[0].outputs"),
    (put("payloads", 0, "self_test", 0, "tolerances", "y", to=-1), "payloads[0].self_test[0].tolerances.y"),
    (put("payloads", 0, "self_test", 0, "tolerances", to={}), "payloads[0].self_test[0].tolerances"),
    (put("payloads", 0, "accuracy", to={"metric": "top1"}), "payloads[0].accuracy.value"),
    (put("plan", to="none.json"), "plan"),
    (put("reasons", to=5), "reasons"),
    (put("files", "plan.json", "bytes", to=-1), "files.plan.json.bytes"),
    (put("files", "plan.json", "sha256", to=None), "files.plan.json.sha256"),
    (put("files", "/etc/passwd", to={"sha256": "ab" * 32, "bytes": 1}), "files./etc/passwd"),
    (put("files", "manifest.json", to={"sha256": "ab" * 32, "bytes": 1}), "files"),
    (put("files", "signature.sig", to={"sha256": "ab" * 32, "bytes": 1}), "files"),
    (drop("signature"), "signature"),
    (put("extra", to=[]), "extra"),
]


@pytest.mark.parametrize(
    ("edit", "field"), BROKEN, ids=[f"{i}-{field}" for i, (_, field) in enumerate(BROKEN)]
)
def test_each_broken_field_is_named(samples: ModuleType, edit: Edit, field: str) -> None:
    described = samples.manifest_with_files()
    validate_manifest(described)
    edit(described)
    with pytest.raises(ArtifactError) as caught:
        validate_manifest(described)
    assert f"'{field}'" in caught.value.message
    with pytest.raises(ArtifactError) as caught:
        parse_manifest(json.dumps(described).encode(), "x.efa")
    assert caught.value.message.startswith("x.efa: ")


def test_unknown_fields_are_refused_with_the_nearest(samples: ModuleType) -> None:
    described = samples.manifest_with_files(rollback_indx=1)
    with pytest.raises(ArtifactError, match="'rollback_indx' is not known, did you mean 'rollback_index'"):
        validate_manifest(described)


def test_optional_fields_pass_where_they_are_and_where_not(samples: ModuleType) -> None:
    described = samples.manifest_with_files(
        labels=["a", ""],
        decoder={"kind": "classify", "top": 3},
        preprocess={"color": "rgb"},
        extra={"anything": [1, None, {"deep": True}]},
    )
    described["target"]["requirements"] = {
        "architecture": "x86_64",
        "cpu_flags": ["avx2"],
        "packages": ["toy>=1"],
        "memory_bytes": 1 << 30,
    }
    described["payloads"][0].update(
        simulates=True,
        plan_digest="ab" * 32,
        options={"threads": 2, "hints": {"x": [1]}},
        accuracy={"metric": "top1", "value": 0.9, "drop": -0.01, "samples": 500},
    )
    described["inputs"][0]["layout"] = "NCHW"
    validate_manifest(described)
    for name in ("plan", "reasons"):
        del described[name]
    validate_manifest(described)


def test_bytes_are_canonical(samples: ModuleType) -> None:
    described = samples.manifest_with_files(labels=["čaj", "茶"])
    data = manifest_bytes(described)
    assert data == manifest_bytes(dict(reversed(described.items())))
    assert data.endswith(b"}\n")
    assert "茶".encode() in data
    assert parse_manifest(data, "x") == described
    keys = list(json.loads(data))
    assert keys == sorted(keys)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"x", {1, 2}])
def test_values_that_are_no_json_are_our_bug(value: Any) -> None:
    with pytest.raises(InternalError, match="no JSON"):
        manifest_bytes({"x": value})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"[" * 30 + b"]" * 30 + b"}",
        b"[" * 200000,
        b'{"a":' * 200000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"x\.efa: "):
        parse_manifest(data, "x.efa")


def test_every_field_is_described(samples: ModuleType) -> None:
    """The module's docstring and docs/artifact.md name every field that the check knows."""
    from pathlib import Path

    from edgefuse.artifact import manifest

    pages = [manifest.__doc__ or "", (Path(__file__).resolve().parents[2] / "docs/artifact.md").read_text()]
    described = samples.manifest_with_files(extra={})
    names = {*described, *described["payloads"][0], *described["target"], *described["inputs"][0]}
    names |= {"simulates", "architecture", "cpu_flags", "packages", "memory_bytes", "tolerances", "samples"}
    for page in pages:
        assert [name for name in sorted(names) if name not in page] == []
