"""The graph: the only room that touches onnx and onnx_ir.

Other rooms import the types and functions below. A model in memory is an `onnx_ir.Model`, *canonical on
import*: one operator set (`CANONICAL_OPSET`, or the file's own where that is newer), functions inlined,
constants as initializers, unique names, shapes inferred, the user's input and output names kept.
"""

from onnx_ir import Attr, AttributeType, DataType, Graph, Model, Node, Shape, SymbolicDim, TensorType, Value

from edgefuse.graph.access import (
    all_nodes,
    attribute,
    constant,
    dims,
    element_bytes,
    has_subgraphs,
    input_value,
    is_float,
    is_scalar_constant,
    opset,
    readers,
    scalar,
    sole_reader,
    source_name,
    static_shape,
)
from edgefuse.graph.edit import (
    add_constant,
    add_node,
    fresh_name,
    remove_node,
    replace_node,
    replace_value,
)
from edgefuse.graph.opsets import CANONICAL_OPSET, OLDEST_OPSET
from edgefuse.graph.read import (
    clone_model,
    model_digest,
    model_from_bytes,
    model_from_proto,
    read_model,
    restore_model,
)
from edgefuse.graph.shapes import bind_dimensions, infer_shapes
from edgefuse.graph.write import model_to_bytes, model_to_bytes_without, model_to_proto, write_model

__all__ = [
    "CANONICAL_OPSET",
    "OLDEST_OPSET",
    "Attr",
    "AttributeType",
    "DataType",
    "Graph",
    "Model",
    "Node",
    "Shape",
    "SymbolicDim",
    "TensorType",
    "Value",
    "add_constant",
    "add_node",
    "all_nodes",
    "attribute",
    "bind_dimensions",
    "clone_model",
    "constant",
    "dims",
    "element_bytes",
    "fresh_name",
    "has_subgraphs",
    "infer_shapes",
    "input_value",
    "is_float",
    "is_scalar_constant",
    "model_digest",
    "model_from_bytes",
    "model_from_proto",
    "model_to_bytes",
    "model_to_bytes_without",
    "model_to_proto",
    "opset",
    "read_model",
    "readers",
    "remove_node",
    "replace_node",
    "replace_value",
    "restore_model",
    "scalar",
    "sole_reader",
    "source_name",
    "static_shape",
    "write_model",
]
