"""The artifact `NAME.efa`: its manifest, writing it and reading it (docs/artifact.md). Python 3.6."""

from edgefuse.artifact.arrays import array_from_bytes, array_to_bytes
from edgefuse.artifact.manifest import manifest_bytes, parse_manifest, validate_manifest
from edgefuse.artifact.pack import write_artifact
from edgefuse.artifact.read import Artifact, PayloadFiles, open_artifact

__all__ = [
    "Artifact",
    "PayloadFiles",
    "array_from_bytes",
    "array_to_bytes",
    "manifest_bytes",
    "open_artifact",
    "parse_manifest",
    "validate_manifest",
    "write_artifact",
]
