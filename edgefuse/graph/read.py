"""ONNX files into the canonical in-memory form.

    bytes ─► checks on the file ─► functions inlined ─► constants lifted ─► names made unique
          ─► operator set raised ─► shapes inferred ─► onnx_ir.Model

Every refusal here is one clear line: the file is the user's, and a file from elsewhere is not trusted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import google.protobuf.message
import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from edgefuse.errors import InputError, UnsupportedError, did_you_mean
from edgefuse.graph.access import SOURCE_KEY, all_nodes
from edgefuse.graph.opsets import check_opset, raise_opset
from edgefuse.graph.shapes import infer_shapes

__all__ = [
    "clone_model",
    "model_digest",
    "model_from_bytes",
    "model_from_proto",
    "read_model",
    "restore_model",
]

_DIGEST_KEY = "edgefuse.sha256"
_OPSET_KEY = "edgefuse.opset"
_NATIVE_DOMAINS = ("", "ai.onnx")
_OLDEST_IR = 3
_LOAD_BYTES = 2**31 - 1


def read_model(path: str | os.PathLike[str], *, custom_domains: frozenset[str] = frozenset()) -> ir.Model:
    """Return the ONNX file at `path` as a canonical model.

    custom_domains: operator domains beyond ONNX's own that a backend or an extension claims to run.
    Raises InputError (not an ONNX file, cut short, NaN weights, external data outside the model's folder,
    opset outside 7..newest) and UnsupportedError (an operator of a domain that nobody claims).
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"reading the model {str(path)!r}: {error.strerror or error}", hint="check the path"
        ) from error
    return model_from_bytes(data, name=str(path), folder=file.parent, custom_domains=custom_domains)


def model_from_bytes(
    data: bytes,
    *,
    name: str = "<bytes>",
    folder: Path | None = None,
    custom_domains: frozenset[str] = frozenset(),
) -> ir.Model:
    """Return the ONNX file held in `data` as a canonical model; `folder` is where its external data lies."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except google.protobuf.message.DecodeError as error:
        raise InputError(
            f"{name} is not an ONNX file, or it is cut short ({len(data)} bytes)",
            expected="an ONNX model (protobuf)",
            got=_looks_like(data),
            hint="export or download the model again",
        ) from error
    if not proto.graph.node and not proto.graph.output:
        raise InputError(
            f"{name} is not an ONNX file: it holds no graph", expected="an ONNX model", got=_looks_like(data)
        )
    digest = hashlib.sha256(data).hexdigest()
    return model_from_proto(proto, name=name, folder=folder, custom_domains=custom_domains, digest=digest)


def model_from_proto(
    proto: onnx.ModelProto,
    *,
    name: str = "<model>",
    folder: Path | None = None,
    custom_domains: frozenset[str] = frozenset(),
    digest: str = "",
) -> ir.Model:
    """Return a protobuf model as a canonical model; raises as `read_model` does. `proto` is not changed."""
    _check_versions(proto, name)
    _check_external_data(proto, name, folder)
    _check_single_writers(proto.graph, name)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # the deserializer raises many kinds on a malformed graph
        raise InputError(f"{name}: the graph cannot be read: {error}") from error
    if folder is not None:
        for graph in model.graphs():
            ir.external_data.set_base_dir(graph, folder)
    return _canonical(model, name, custom_domains, digest)


def restore_model(
    data: bytes, name: str = "<bytes>", weights: Mapping[str, bytes] = MappingProxyType({})
) -> ir.Model:
    """Return a model that `model_to_bytes` wrote, node for node: no operator set raised, no name changed.

    weights: the bytes of what `model_to_bytes_without` left out, by initializer.
    For our own bytes only: nothing about them is checked beyond their format. Raises InputError where they
    are no ONNX model.
    """
    try:
        proto = onnx.ModelProto.FromString(data)
        for tensor in proto.graph.initializer:
            if tensor.name in weights:
                tensor.raw_data = weights[tensor.name]
        return ir.serde.deserialize_model(proto)
    except Exception as error:  # the deserializer raises many kinds on a malformed graph
        raise InputError(f"{name}: the stored model cannot be read: {error}") from error


def clone_model(model: ir.Model) -> ir.Model:
    """Return a copy whose graph can be changed freely; weights are shared, since nobody writes into them."""
    copy = model.clone()
    copy.graph.meta.pop("edgefuse.names", None)  # the names in use are the copy's own from here on
    return copy


def model_digest(model: ir.Model) -> str:
    """Return the sha256 of the file that the model was read from ("" where it came from memory)."""
    return str(model.metadata_props.get(_DIGEST_KEY, ""))


def _canonical(model: ir.Model, name: str, custom_domains: frozenset[str], digest: str) -> ir.Model:
    original = int(model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1)))
    _settle_domains(model)
    if model.functions:
        common.InlinePass()(model)
        model.functions.clear()
    check_domains(model, custom_domains)
    _keep_source_names(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    _name_loose_dimensions(model)
    common.RemoveInitializersFromInputsPass()(model)
    _fix_names(model)
    _check_numbers(model, name)
    sources = {node.name: node.metadata_props[SOURCE_KEY] for node in all_nodes(model)}
    model = raise_opset(model)
    for node in all_nodes(model):  # the converter keeps names, and drops metadata
        if node.name in sources:
            node.metadata_props[SOURCE_KEY] = sources[node.name]
    model.ir_version = max(int(model.ir_version or 0), 10)
    _settle_domains(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _fix_names(model)
    _keep_source_names(model)
    _anchor_outputs(model)
    model.graph.sort()
    for graph in model.graphs():
        for node in graph:
            node.version = None
    model.metadata_props[_OPSET_KEY] = str(original)
    if digest:
        model.metadata_props[_DIGEST_KEY] = digest
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if size < _LOAD_BYTES:  # larger weights stay mapped from their file
        ir.external_data.load_to_model(model)
    infer_shapes(model)
    return model


def _name_loose_dimensions(model: ir.Model) -> None:
    """Give each unknown dimension of an input (-1, "?", "" or no value) a symbol of its own.

    Exporters write "?" for every unknown, and shape inference would take equal symbols for equal sizes.
    """
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape(
                [
                    ir.SymbolicDim(f"{value.name}_dim{axis}") if _is_loose(d) else d
                    for axis, d in enumerate(value.shape)
                ]
            )
    for value in model.graph.outputs:
        if value.shape is not None:
            value.shape = ir.Shape([None if _is_loose(d) else d for d in value.shape])


def _is_loose(dimension: int | ir.SymbolicDim) -> bool:
    if isinstance(dimension, int):
        return dimension < 0
    return dimension.value is None or str(dimension.value).strip() in ("", "?", "-1")


def _check_versions(proto: onnx.ModelProto, name: str) -> None:
    if proto.ir_version < _OLDEST_IR:
        raise InputError(
            f"{name} has IR version {proto.ir_version}", expected=f"IR version {_OLDEST_IR} or newer"
        )
    versions = {o.domain: o.version for o in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx"))
    if version is not None:
        check_opset(int(version))
    elif any(n.domain in _NATIVE_DOMAINS for n in proto.graph.node):
        raise InputError(
            f"{name} states no operator set for its operators", hint="the file is malformed; export it again"
        )


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _attribute_tensors(node)


def _attribute_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for found in node.attribute:
        if found.HasField("t"):
            yield found.t
        yield from found.tensors
        if found.HasField("g"):
            yield from _tensors(found.g)
        for graph in found.graphs:
            yield from _tensors(graph)


def _check_external_data(proto: onnx.ModelProto, name: str, folder: Path | None) -> None:
    """Refuse external data that lies outside the model's folder, is missing, or is too short."""
    tensors = list(_tensors(proto.graph))
    for function in proto.functions:
        for node in function.node:
            tensors.extend(_attribute_tensors(node))
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        what = f"{name}: the weights of {tensor.name!r} lie in {location!r}"
        if folder is None:
            raise InputError(f"{what}, and the model was not read from a folder", hint="pass the file's path")
        root = folder.resolve()
        path = (root / location).resolve()
        if not location or os.path.isabs(location) or not path.is_relative_to(root):
            raise InputError(f"{what}, outside the model's folder", expected=f"a file inside {folder}")
        if not path.is_file():
            raise InputError(f"{what}, which does not exist", hint=f"put {location} beside the model")
        try:
            start, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
        except ValueError as error:
            raise InputError(f"{what}, with an offset or length that is not a number") from error
        if start < 0 or length < 0 or start + length > path.stat().st_size:
            raise InputError(
                f"{what}, which is cut short",
                expected=f"at least {start + length} bytes",
                got=f"{path.stat().st_size} bytes",
            )


def _check_single_writers(graph: onnx.GraphProto, name: str) -> None:
    written = {i.name for i in graph.input}
    for node in graph.node:
        for output in node.output:
            if output and output in written:
                raise InputError(
                    f"{name}: tensor {output!r} is written twice (again by {node.op_type} {node.name!r})",
                    hint="the file is malformed; export it again",
                )
            written.add(output)
    known = written | {i.name for i in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    missing = [o.name for o in graph.output if o.name not in known]
    if missing:
        raise InputError(f"{name}: graph output {missing[0]!r} is written by no node")


def check_domains(model: ir.Model, claimed: frozenset[str]) -> None:
    """Raise UnsupportedError for the first *used* operator of a domain that is not ONNX's own or claimed."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain in claimed:
            continue
        if node.domain in _NATIVE_DOMAINS:
            _check_operator(node)
            continue
        known = node.name or node.outputs[0].name
        raise UnsupportedError(
            f"node {known!r}: operator {node.op_type} of domain {node.domain!r} is not known",
            expected="operators of the domain ai.onnx, or a local function in the model",
            got=f"{node.domain}::{node.op_type}",
            hint="replace the operator before export, or write it as a local function of the model",
        )


def _check_operator(node: ir.Node) -> None:
    if onnx.defs.has(node.op_type):
        return
    known = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
    raise UnsupportedError(
        f"node {node.name or node.outputs[0].name!r}: ONNX {onnx.__version__} has no operator {node.op_type}"
        f"{did_you_mean(node.op_type, known)}",
        hint="a newer onnx, or another name of the operator at export",
    )


def _settle_domains(model: ir.Model) -> None:
    """Write the default domain as "" everywhere, and drop operator sets that no node uses."""
    for graph in model.graphs():
        for node in graph:
            if node.domain == "ai.onnx":
                node.domain = ""
    imports = model.graph.opset_imports
    if "ai.onnx" in imports:
        imports.setdefault("", imports["ai.onnx"])
        del imports["ai.onnx"]
    used = {n.domain for n in ir.traversal.RecursiveGraphIterator(model.graph)}
    used |= {key[0] for key in model.functions}
    for function in model.functions.values():
        used |= {n.domain for n in ir.traversal.RecursiveGraphIterator(function.graph)}
    for domain in list(imports):
        if domain not in used and domain != "":
            del imports[domain]


def _keep_source_names(model: ir.Model) -> None:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if SOURCE_KEY not in node.metadata_props:
            known = node.name or next((v.name for v in node.outputs if v.name), "") or ""
            node.metadata_props[SOURCE_KEY] = known


def _fix_names(model: ir.Model) -> None:
    """Make node and value names unique in the whole model; graph inputs and outputs keep theirs."""
    kept = {(id(v)): v.name for v in [*model.graph.inputs, *model.graph.outputs]}
    common.NameFixPass()(model)
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.name != kept[id(value)]:
            value.name = kept[id(value)]
    model.graph.meta.pop("edgefuse.names", None)


def _anchor_outputs(model: ir.Model) -> None:
    """Put an Identity before an output that is a graph input, a constant, or stands twice in the list."""
    graph = model.graph
    names = [value.name for value in graph.inputs]
    common.OutputFixPass()(model)
    for value, name in zip(graph.inputs, names, strict=True):
        if value.name != name:  # an output that is the input: the input keeps the name that is fed
            for output in graph.outputs:
                if output.name == name:
                    output.name = f"{name}__output"
            value.name = name
    for index, output in enumerate(graph.outputs):
        if output.producer() is None and output.is_initializer():
            name = output.name
            del graph.initializers[name or ""]
            output.name = f"{name}__value"
            graph.register_initializer(output)
            node = ir.node("Identity", inputs=[output])
            node.name = f"{name}__identity"
            node.outputs[0].name = name
            node.outputs[0].type, node.outputs[0].shape = output.type, output.shape
            node.metadata_props[SOURCE_KEY] = name or ""
            graph.append(node)
            graph.outputs[index] = node.outputs[0]


def _check_numbers(model: ir.Model, name: str) -> None:
    """Refuse weights that hold NaN; infinities pass, since masks are written with them."""
    for value in model.graph.initializers.values():
        if value.const_value is None or not value.const_value.dtype.is_floating_point():
            continue
        array = value.const_value.numpy()
        if array.dtype.kind == "f" and np.isnan(array).any():
            where = np.argwhere(np.isnan(array))[0]
            raise InputError(
                f"{name}: the constant {value.name!r} holds NaN (first at index {[int(i) for i in where]})",
                expected="finite numbers",
                hint="the export or the training is broken; check the weights before quantizing anything",
            )


def _looks_like(data: bytes) -> str:
    """Return what the first bytes tell of a file that is no model, for the error message."""
    if not data:
        return "an empty file"
    for magic, what in (
        (b"\x89PNG", "a PNG image"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x7fELF", "a program"),
        (b"TFL3", "a FlatBuffers model"),
        (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
        (b"<", "an HTML or XML file"),
        (b"{", "a JSON file"),
    ):
        if data.startswith(magic) or (magic == b"TFL3" and data[4:8] == magic):
            return what
    return f"{len(data)} bytes beginning with {data[:8].hex()}"
