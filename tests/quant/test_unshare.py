"""A changed constant reaches the reader it was changed for, and no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgefuse.errors import InternalError
from edgefuse.graph import Model, Node, constant, model_to_bytes
from edgefuse.quant import Scheme
from edgefuse.quant.unshare import differing_readers, unshare, write_own
from tests.passes.graphs import Build
from tests.quant.small_plans import EIGHT


def tied() -> Model:
    b = Build(seed=1)
    w = b.rand(4, 4)
    one = b.op("MatMul", b.x([2, 4]), w, name="one")
    return b.y(b.op("MatMul", b.op("Relu", one), w, name="two")).model()


def _node(model: Model, name: str) -> Node:
    return next(n for n in model.graph if n.name == name)


def test_a_new_constant_is_one_readers_own() -> None:
    model = tied()
    old = constant(_node(model, "one").inputs[1])
    assert old is not None
    assert write_own(model, _node(model, "one"), 1, old.astype(np.float64) * 2)
    new, kept = (constant(_node(model, n).inputs[1]) for n in ("one", "two"))
    assert new is not None
    assert new.dtype == np.float32
    np.testing.assert_array_equal(new, old * 2)
    np.testing.assert_array_equal(kept, old)
    assert write_own(model, _node(model, "two"), 1, np.zeros((4, 4)))
    assert len(model.graph.initializers) == 2, "what nobody reads is gone"


def test_what_overflows_is_refused_and_what_is_computed_is_our_bug() -> None:
    model = tied()
    before = model_to_bytes(model)
    assert not write_own(model, _node(model, "one"), 1, np.full((4, 4), 1e300))
    assert model_to_bytes(model) == before
    with pytest.raises(InternalError, match="two"):
        write_own(model, _node(model, "two"), 0, np.zeros((4, 4)))


def test_named_nodes_get_copies_of_what_they_share() -> None:
    model = tied()
    assert unshare(model, frozenset()) == 0
    assert unshare(model, frozenset({"one"})) == 1
    assert _node(model, "one").inputs[1] is not _node(model, "two").inputs[1]
    assert unshare(model, frozenset({"one", "two"})) == 0, "nothing is shared any more"


def _tied(scheme: Scheme, second: str) -> frozenset[str]:
    """Return what needs its own copy where a MatMul and another layer read one weight and one bias."""
    b = Build(seed=1)
    x = b.x([4, 6])
    weight, bias = b.rand(6, 6), b.rand(6)
    first = b.op("Gemm", x, weight, bias, name="first")
    if second == "turned":
        y = b.op("Gemm", first, weight, bias, name="second", transB=1)
    else:
        y = b.op("Gemm", first if second == "behind" else x, weight, bias, name="second")
    return differing_readers(b.y(b.op("Add", first, y)).model(), ["first", "second"], scheme)


def test_only_readers_that_need_other_integers_differ() -> None:
    integer_bias = replace(EIGHT, bias="int32")
    assert _tied(EIGHT, "turned") == {"second"}, "its channels stand on the other axis"
    assert _tied(EIGHT, "behind") == frozenset(), "the same integers at the same scale"
    assert _tied(integer_bias, "behind") == {"second"}, "an integer bias follows the input's scale"
    assert _tied(integer_bias, "beside") == frozenset()
    assert _tied(replace(EIGHT, per_channel=False), "turned") == frozenset()
