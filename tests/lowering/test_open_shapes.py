"""Lowering where sizes stay open: what a target with dynamic shapes gets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from small_models import OLD_READER, operators

from edgefuse.errors import InputError
from edgefuse.graph import Model, dims, model_from_proto, model_to_bytes
from edgefuse.graph.reference import Reference, judge_session, max_relative_error
from edgefuse.lowering import lower_model


def open_model() -> Model:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[n,6,h,w] x) => (float[n,6,h,w] y, float[n,k] flat) {
          normal = GroupNormalization <num_groups = 3> (x, gain, shift)
          layer = LayerNormalization <axis = 1> (normal, gain4)
          active = HardSwish (layer)
          y = Gelu (active)
          s = Shape <start = 0, end = 1> (y)
          rest = Constant <value_ints = [-1]> ()
          target = Concat <axis = 0> (s, rest)
          flat = Reshape (y, target)
        }"""
    )
    gain = np.linspace(0.5, 1.5, 6, dtype=np.float32)
    for name, array in {"gain": gain, "shift": gain, "gain4": gain.reshape(6, 1, 1)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model_from_proto(proto)


@pytest.mark.parametrize("index_dtype", ["int64", "int32"])
def test_a_model_with_open_sizes_keeps_its_meaning_at_every_size(index_dtype: str) -> None:
    model = open_model()
    made, _ = lower_model(
        model,
        opset=17,
        operators=OLD_READER,
        index_dtype=index_dtype,  # type: ignore[arg-type]
    )
    assert operators(made) <= OLD_READER
    assert dims(made.graph.inputs[0]) == dims(model.graph.inputs[0])
    session = judge_session(model_to_bytes(made))
    rng = np.random.default_rng(1)
    for shape in ((1, 6, 4, 5), (3, 6, 2, 7)):
        x = rng.standard_normal(shape).astype(np.float32)
        wanted = Reference(model).run({"x": x})
        for name, got in zip(wanted, session.run(list(wanted), {"x": x}), strict=True):
            assert max_relative_error(got, wanted[name]) <= 1e-5


def test_a_target_of_fixed_shapes_asks_for_them() -> None:
    with pytest.raises(InputError, match="fixed"):
        lower_model(open_model(), opset=17, operators=OLD_READER, static=True)
