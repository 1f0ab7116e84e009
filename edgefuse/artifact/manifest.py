"""What `manifest.json` says, schema 1: every field, its check, and the canonical bytes.

The table below is the description of the format (docs/artifact.md shows it as text). A field that is not in
the table is refused: an old runtime must not ignore what a new build relies on. Additions get a new schema
number, and every schema that was ever released stays loadable. Standard library only; Python 3.6.

Top level
    schema          1
    name            the artifact's name (letters, digits, `_ . -`)
    producer        who wrote it, such as "edgefuse 0.1.0"
    target          device, runtime, family: what it was built for; requirements: what it needs (below)
    inputs, outputs one entry a tensor under the user's name: name, dtype (numpy's), shape (whole numbers and
                    symbol names; a symbol stands for one size per call), layout ("NCHW", … or null),
                    description (optional text)
    preprocess      what `Model.predict` does with an image (docs/preprocess.md), or null
    labels          class names by index, or null
    decoder         how outputs become a result: {"kind": "classify", …}, or null
    model           sha256 of the ONNX source; file name of it (optional)
    rollback_index  whole number >= 0; a device refuses a lower one than it has seen
    payloads        what can run, best first: the first is the active one
    plan, reasons   paths of the plan and of the explanations inside, or null
    files           path -> sha256 and bytes, every member but the manifest (filled in by the writer)
    signature       null in schema 1 as released; the member name `signature.sig` is reserved
    extra           free JSON for tools; the runtime never reads it (optional)
Requirements (all optional): architecture ("x86_64", "aarch64"), cpu_flags (Linux names that must be there),
    packages (pip requirements of the runtime), memory_bytes.
Payload
    id              short name, unique
    family          which engine runs it: edgefuse.targets.<family>.engine
    precision       what the plan chose: "fp32", "fp16", "int8", "mixed"
    plan_digest     sha256 of the plan, or null
    files, entry    its members, all below `payloads/<id>/`, and the one that the engine opens; the engine
                    sees the names without that folder
    options         free JSON for the engine; `threads` is a whole number >= 1 or null
    simulates       true: this payload is the exact simulation of the target for other machines (optional)
    self_test       vectors: inputs and outputs (user's name -> path of a .npy member), tolerances (output ->
                    the largest max|difference| / max|expected| that passes)
    accuracy        metric, value, drop (in points of the metric), samples; or null
"""

import json
import math
from typing import Any, Dict, List, Tuple

from edgefuse.artifact.arrays import DTYPES
from edgefuse.artifact.checks import (
    Check,
    anything,
    boolean,
    either,
    integer,
    list_of,
    map_of,
    number,
    one_of,
    optional,
    record,
    text,
    wrong,
)
from edgefuse.artifact.layout import MAX_MEMBERS, check_member_name
from edgefuse.errors import ArtifactError, InternalError

__all__ = [
    "MANIFEST_NAME",
    "MAX_MANIFEST_BYTES",
    "SCHEMA",
    "SIGNATURE_NAME",
    "manifest_bytes",
    "parse_manifest",
    "payload_folder",
    "validate_manifest",
]

SCHEMA = 1
MANIFEST_NAME = "manifest.json"
SIGNATURE_NAME = "signature.sig"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
_MAX_DEPTH = 24
_MAX_DIGITS = 40

_name = text(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", "a name of letters, digits and _ . + -", 100)
_tensor_name = text(None, "a tensor name", 500)
_digest = text(r"[0-9a-f]{64}", "64 hexadecimal digits (sha256)", 64)
_family = text(r"_?[a-z][a-z0-9_]*", "a family: lower-case letters, digits and _", 40)
_line = text(None, "text", 2000)


def _path(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise wrong(where, "the path of a file inside", value)
    check_member_name(value, "manifest field '{}'".format(where))


_dim = either(
    integer(1, 2**40),
    text(r"[A-Za-z_][A-Za-z0-9_.\- +*/()]*", "a symbol", 200),
    "a size of at least 1 or a symbol's name",
)

_TENSOR = record(
    {
        "name": (True, _tensor_name),
        "dtype": (True, one_of(sorted(DTYPES))),
        "shape": (True, list_of(_dim, 0, 32)),
        "layout": (False, optional(text(r"[A-Z]+", "axis letters such as NCHW", 16))),
        "description": (False, optional(_line)),
    }
)

_VECTOR = record(
    {
        "inputs": (True, map_of(_path, _tensor_name)),
        "outputs": (True, map_of(_path, _tensor_name)),
        "tolerances": (True, map_of(number(0.0), _tensor_name)),
    }
)

_ACCURACY = record(
    {
        "metric": (True, _line),
        "value": (True, number()),
        "drop": (True, number()),
        "samples": (True, integer(0)),
    }
)

_OPTION_CHECKS: Dict[str, Check] = {"threads": optional(integer(1, 4096))}


def _options(value: Any, where: str) -> None:
    map_of(anything, _name, 200)(value, where)
    for key, check in _OPTION_CHECKS.items():
        if key in value:
            check(value[key], "{}.{}".format(where, key))


_PAYLOAD = record(
    {
        "id": (True, _name),
        "family": (True, _family),
        "precision": (True, _name),
        "plan_digest": (True, optional(_digest)),
        "files": (True, list_of(_path, 1, MAX_MEMBERS)),
        "entry": (True, _path),
        "options": (True, _options),
        "simulates": (False, boolean),
        "self_test": (True, list_of(_VECTOR, 0, 1000)),
        "accuracy": (True, optional(_ACCURACY)),
    }
)

_REQUIREMENTS = record(
    {
        "architecture": (False, optional(_name)),
        "cpu_flags": (False, list_of(_name, 0, 200)),
        "packages": (False, list_of(_line, 0, 50)),
        "memory_bytes": (False, optional(integer(0))),
    }
)

_TARGET = record(
    {
        "device": (True, _name),
        "runtime": (True, _name),
        "family": (True, _family),
        "requirements": (True, _REQUIREMENTS),
    }
)


def _named_kind(value: Any, where: str) -> None:
    map_of(anything, _name, 200)(value, where)
    if not isinstance(value.get("kind"), str):
        raise wrong(where + ".kind", "the decoder's name", value.get("kind"))


_MANIFEST = record(
    {
        "schema": (True, integer(SCHEMA, SCHEMA)),
        "name": (True, _name),
        "producer": (True, _line),
        "target": (True, _TARGET),
        "inputs": (True, list_of(_TENSOR, 1, 1000)),
        "outputs": (True, list_of(_TENSOR, 1, 1000)),
        "preprocess": (True, optional(map_of(anything, _name, 200))),
        "labels": (True, optional(list_of(text(None, "a label", 1000, empty=True)))),
        "decoder": (True, optional(_named_kind)),
        "model": (True, record({"sha256": (True, _digest), "file": (False, optional(_line))})),
        "rollback_index": (True, integer(0)),
        "payloads": (True, list_of(_PAYLOAD, 1, 64)),
        "plan": (False, optional(_path)),
        "reasons": (False, optional(_path)),
        "files": (
            True,
            map_of(record({"sha256": (True, _digest), "bytes": (True, integer(0))}), _path, MAX_MEMBERS),
        ),
        "signature": (True, anything),
        "extra": (False, optional(map_of(anything))),
    }
)


def payload_folder(payload_id: str) -> str:
    """Return the folder inside the artifact, with its final slash, below which a payload's files lie."""
    return "payloads/{}/".format(payload_id)


def validate_manifest(manifest: Any) -> None:
    """Raise ArtifactError, naming the field, unless `manifest` is a whole, consistent schema-1 manifest."""
    if not isinstance(manifest, dict):
        raise wrong("manifest", "an object", manifest)
    schema = manifest.get("schema")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA:
        raise ArtifactError(
            "the artifact was made by a newer edgefuse",
            expected="schema {} or older".format(SCHEMA),
            got="schema {}".format(schema),
            hint="upgrade edgefuse on this machine",
        )
    _MANIFEST(manifest, "")
    if manifest["signature"] is not None:
        # Running a signed file without looking at its signature would promise what is not checked.
        raise ArtifactError(
            "the artifact is signed, and this edgefuse cannot check signatures",
            hint="upgrade edgefuse on this machine",
        )
    _check_references(manifest)


def _unique(names: List[str], where: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ArtifactError("manifest field '{}' names '{}' twice".format(where, name))


def _check_references(manifest: Dict[str, Any]) -> None:
    files = manifest["files"]
    for reserved in (MANIFEST_NAME, SIGNATURE_NAME):
        if reserved in files:
            raise ArtifactError("manifest field 'files' lists the reserved name '{}'".format(reserved))

    def known(path: Any, where: str) -> None:
        if path is not None and path not in files:
            raise ArtifactError(
                "manifest field '{}' names '{}', which 'files' does not list".format(where, path)
            )

    known(manifest.get("plan"), "plan")
    known(manifest.get("reasons"), "reasons")
    for side in ("inputs", "outputs"):
        _unique([entry["name"] for entry in manifest[side]], side)
    _unique([payload["id"] for payload in manifest["payloads"]], "payloads.id")
    for index, payload in enumerate(manifest["payloads"]):
        where = "payloads[{}]".format(index)
        folder = payload_folder(payload["id"])
        for path in payload["files"]:
            known(path, where + ".files")
            if not path.startswith(folder):
                raise wrong(where + ".files", "paths below " + folder, path)
        _unique(payload["files"], where + ".files")
        if payload["entry"] not in payload["files"]:
            raise wrong(where + ".entry", "one of the payload's files", payload["entry"])
        for number_, vector in enumerate(payload["self_test"]):
            _check_vector(manifest, vector, "{}.self_test[{}]".format(where, number_), known)


def _check_vector(manifest: Dict[str, Any], vector: Dict[str, Any], where: str, known: Check) -> None:
    for part, side in (("inputs", "inputs"), ("outputs", "outputs"), ("tolerances", "outputs")):
        names = sorted(entry["name"] for entry in manifest[side])
        if sorted(vector[part]) != names:
            raise wrong(
                "{}.{}".format(where, part), "one entry for each of " + ", ".join(names), sorted(vector[part])
            )
    for part in ("inputs", "outputs"):
        for name, path in vector[part].items():
            known(path, "{}.{}.{}".format(where, part, name))


def manifest_bytes(manifest: Dict[str, Any]) -> bytes:
    """Return `manifest` as canonical JSON: sorted keys, two spaces, UTF-8, a newline at the end.

    Raises InternalError for a value that is no JSON (a numpy number, NaN).
    """
    try:
        body = json.dumps(manifest, sort_keys=True, ensure_ascii=False, indent=2, allow_nan=False)
        return (body + "\n").encode("utf-8")
    except (TypeError, ValueError) as error:
        raise InternalError("the manifest holds a value that is no JSON: {}".format(error)) from error


def parse_manifest(data: bytes, what: str) -> Dict[str, Any]:
    """Return the manifest in `data`, checked against schema 1.

    what: the artifact's name for messages.  Bounds before meaning: at most 16 MiB, 24 levels, no NaN, no
    number of more than 40 characters, no key twice.  Raises ArtifactError.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ArtifactError(
            "{}: {} is too large".format(what, MANIFEST_NAME), got="{} bytes".format(len(data))
        )
    try:
        manifest = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_parse_constant,
        )
        _check_depth(manifest)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("{}: {} is not valid JSON: {}".format(what, MANIFEST_NAME, error)) from error
    try:
        validate_manifest(manifest)
    except ArtifactError as error:
        raise ArtifactError(
            "{}: {}".format(what, error.message), error.expected, error.got, error.hint
        ) from error
    result: Dict[str, Any] = manifest
    return result


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is there twice")
    return result


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number is too long")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits) if len(digits) <= _MAX_DIGITS else math.inf
    if not math.isfinite(value):
        raise ValueError("a number is too long or too large")
    return value


def _parse_constant(word: str) -> float:
    raise ValueError("{} is no JSON number".format(word))


def _check_depth(value: Any) -> None:
    level: List[Any] = [value]
    for _ in range(_MAX_DEPTH):
        below: List[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                below.extend(entry.keys())
                below.extend(entry.values())
            elif isinstance(entry, list):
                below.extend(entry)
            elif isinstance(entry, str):
                entry.encode("utf-8")  # a lone surrogate is a ValueError here
        if not below:
            return
        level = below
    raise ValueError("nested deeper than {} levels".format(_MAX_DEPTH))
