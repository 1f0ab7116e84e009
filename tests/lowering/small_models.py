"""Models of one node, and the two judges that every rewrite of this room is held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from edgefuse.device import load_runtime
from edgefuse.graph import Model, all_nodes, clone_model, model_from_proto, model_to_bytes, opset
from edgefuse.graph.reference import Reference, judge_session, max_relative_error
from edgefuse.lowering import LoweringNotes, lower_model

Array = np.ndarray

# The oldest reader that the project writes for: operator set 13 and its operators.
OLD_READER = frozenset(load_runtime("tensorrt", "jetpack-4.6").readable_ops)


def one_node(
    op_type: str,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array | None] | None = None,
    *,
    outputs: int = 1,
    version: int = 24,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    **attributes: Any,
) -> Model:
    """Return a model of one node; its inputs are `inputs`, then `constants` (None: left out), in order."""
    constants = constants or {}
    names = [*inputs, *(name if array is not None else "" for name, array in constants.items())]
    results = [f"y{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, name="the_node", **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), (shapes or {}).get(name, array.shape)
            )
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [onnx.numpy_helper.from_array(a, name) for name, a in constants.items() if a is not None],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    proto.ir_version = 10
    # output types come from the schema, as an exporter would write them
    typed = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    for output, found in zip(proto.graph.output, typed.graph.output, strict=True):
        output.CopyFrom(found)
    return model_from_proto(proto)


def operators(model: Model) -> set[str]:
    return {node.op_type for node in all_nodes(model)}


def lowered_equal(
    model: Model, feeds: Mapping[str, Array], tolerance: float = 1e-9, ort: bool = True, **options: Any
) -> tuple[Model, LoweringNotes]:
    """Return the lowered model after holding it to the original: float64 to `tolerance`, float32 to 1e-5.

    ort: also in ONNX Runtime, which must open what was written.
    """
    before = model_to_bytes(model)
    made, notes = lower_model(clone_model(model), **options)
    assert model_to_bytes(model) == before
    assert opset(made) == min(options["opset"], opset(model))
    assert [v.name for v in made.graph.inputs] == [v.name for v in model.graph.inputs]
    assert [v.name for v in made.graph.outputs] == [v.name for v in model.graph.outputs]
    cast = {
        name: array.astype(_numpy(notes.input_casts[name][1])) if name in notes.input_casts else array
        for name, array in feeds.items()
    }
    wanted = Reference(model).run(feeds)
    got = Reference(made).run(cast)
    for name, array in wanted.items():
        assert (
            max_relative_error(np.asarray(got[name], np.float64), np.asarray(array, np.float64)) <= tolerance
        )
    if ort:
        session = judge_session(model_to_bytes(made))
        native = Reference(model, precision="native").run(feeds)
        for name, array in zip(native, session.run(list(native), cast), strict=True):
            assert max_relative_error(array, np.asarray(native[name])) <= 1e-5, name
    return made, notes


def _numpy(name: str) -> str:
    return {"float": "float32", "double": "float64"}.get(name, name)
