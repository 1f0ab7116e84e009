"""A small artifact that the tests of artifact/, runtime/ and benchmark/ share: y = 2 * x on a toy engine."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from edgefuse.artifact import array_to_bytes, manifest_bytes

FILES: dict[str, bytes] = {
    "payloads/planned/scale.json": b'{"scale": 2.0}\n',
    "payloads/float/scale.json": b'{"scale": 2.0}\n',
    "plan.json": b"{}\n",
    "self_test/0/x.npy": array_to_bytes(np.arange(6, dtype=np.float32).reshape(1, 2, 3)),
    "self_test/0/y.npy": array_to_bytes(2 * np.arange(6, dtype=np.float32).reshape(1, 2, 3)),
}

VECTOR: dict[str, Any] = {
    "inputs": {"x": "self_test/0/x.npy"},
    "outputs": {"y": "self_test/0/y.npy"},
    "tolerances": {"y": 1e-5},
}


def payload(name: str, **changes: Any) -> dict[str, Any]:
    path = f"payloads/{name}/scale.json"
    full: dict[str, Any] = {
        "id": name,
        "family": "_toy",
        "precision": "fp32",
        "plan_digest": None,
        "files": [path],
        "entry": path,
        "options": {},
        "self_test": [copy.deepcopy(VECTOR)],
        "accuracy": None,
    }
    return {**full, **changes}


def manifest(**changes: Any) -> dict[str, Any]:
    tensor = {"dtype": "float32", "shape": ["batch", 2, 3], "layout": None}
    full: dict[str, Any] = {
        "schema": 1,
        "name": "sample",
        "producer": "edgefuse 0.1.0",
        "target": {"device": "toy-board", "runtime": "toy-1", "family": "_toy", "requirements": {}},
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
        "preprocess": None,
        "labels": None,
        "decoder": None,
        "model": {"sha256": "ab" * 32},
        "rollback_index": 0,
        "payloads": [payload("planned"), payload("float")],
        "plan": "plan.json",
        "reasons": None,
        "signature": None,
    }
    return {**full, **changes}


def manifest_with_files(**changes: Any) -> dict[str, Any]:
    """The manifest as it stands in an artifact, for tests that change one field of it."""
    import hashlib

    files = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in FILES.items()
    }
    return {**manifest(), "files": files, **changes}


def raw_artifact(described: dict[str, Any], files: dict[str, bytes]) -> bytes:
    """Bytes in the writer's layout around any manifest, valid or not: what an attacker could write."""
    from edgefuse.artifact.layout import checksum, directory_bytes, local_header, place_members

    contents = {"manifest.json": manifest_bytes(described), **{name: files[name] for name in sorted(files)}}
    members = place_members([(name, len(data), checksum(data)) for name, data in contents.items()])
    body = b"".join(local_header(member) + contents[member.name] for member in members)
    return body + directory_bytes(members)
