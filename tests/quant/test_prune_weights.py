"""Single weights set to zero: how many, which, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import UsageError
from edgefuse.graph import Model, constant, model_to_bytes
from edgefuse.quant.prune_weights import prune_weights
from tests.passes.graphs import Build


def _model(*arrays: np.ndarray) -> Model:
    b = Build(seed=1)
    value = b.x([2, arrays[0].shape[0]])
    for i, array in enumerate(arrays):
        value = b.op("MatMul", value, b.w(array), name=f"m{i}")
    return b.y(value).model()


def _weights(model: Model) -> list[np.ndarray]:
    return [a for n in model.graph if (a := constant(n.inputs[1])) is not None]


def test_the_smallest_share_of_each_layer_goes() -> None:
    first = np.array([[1.0, -0.1, 3.0, 0.2], [0.3, 5.0, -0.4, 6.0]])
    model = _model(first, np.full((4, 2), 7.0))
    before = model_to_bytes(model)
    found = prune_weights(model, share=0.5)
    one, two = _weights(found.model)
    np.testing.assert_array_equal(one != 0, np.array([[1, 0, 1, 0], [0, 1, 0, 1]], bool))
    assert (two == 0).sum() == 4  # equal weights: as many as the share says
    assert found.zeros == {"m0": 0.5, "m1": 0.5}
    assert model_to_bytes(model) == before


def test_scope_model_compares_layers_by_their_own_size() -> None:
    flat, peaked = np.ones((4, 4)), np.ones((4, 4)) * 1e3
    peaked[:, :3] = 1.0
    found = prune_weights(_model(flat, peaked), share=0.375, scope="model")
    assert found.zeros == {"m0": 0.0, "m1": 0.75}


def test_a_threshold_is_a_part_of_the_root_mean_square() -> None:
    found = prune_weights(_model(np.array([[1.0, 1.0], [1.0, 0.1]])), threshold=0.5)
    np.testing.assert_array_equal(_weights(found.model)[0], np.array([[1, 1], [1, 0]], np.float32))


def test_dtype_stays_and_a_shared_weight_is_not_changed_for_others() -> None:
    b = Build(seed=1, dtype=np.float16)
    shared, x = b.rand(4, 4), b.x([2, 4])
    b.y(b.op("MatMul", x, shared, name="mm"), b.op("Mul", b.op("Relu", b.x([4, 4], "z")), shared, name="mul"))
    found = prune_weights(b.model(), share=0.5).model
    nodes = {n.name: n for n in found.graph}
    mm, mul = constant(nodes["mm"].inputs[1]), constant(nodes["mul"].inputs[1])
    assert mm is not None
    assert mul is not None
    assert mm.dtype == np.float16
    assert ((mm == 0).sum(), (mul == 0).sum()) == (8, 0)


@pytest.mark.parametrize(
    "amount", [{}, {"share": 0.0}, {"share": 1.0}, {"threshold": 0.0}, {"share": 0.5, "threshold": 0.5}]
)
def test_a_wrong_amount_is_refused(amount: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="share between 0 and 1"):
        prune_weights(_model(np.ones((2, 2))), **amount)  # type: ignore[arg-type]
