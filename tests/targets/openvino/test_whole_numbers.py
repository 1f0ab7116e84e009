"""Whole numbers beyond 32 bits: refused where OpenVINO would compute with them, passed where it would not."""

from __future__ import annotations

import numpy as np
import pytest

from edgefuse.errors import UnsupportedError
from edgefuse.targets.openvino.reader import readable
from tests.passes.graphs import Build

INT64 = 7


def test_arithmetic_beyond_32_bits_is_refused_by_node() -> None:
    b = Build()
    x = b.x([2], element=INT64)
    b.y(b.op("Mul", x, b.w(np.array([2**40]), dtype=np.int64), name="huge"), element=INT64)
    with pytest.raises(UnsupportedError, match=r"'huge'.*beyond 32 bits"):
        readable(b.model())


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31)])
def test_the_ends_of_32_bits_pass(number: int) -> None:
    b = Build()
    x = b.x([2], element=INT64)
    b.y(b.op("Add", x, b.w(np.array([number]), dtype=np.int64)), element=INT64)
    model = b.model()
    assert readable(model) is model


def test_an_endless_slice_passes() -> None:
    b = Build()
    x = b.x([4])
    b.y(b.op("Slice", x, b.ints(1), b.ints(2**63 - 1), b.ints(0)))
    model = b.model()
    assert readable(model) is model
