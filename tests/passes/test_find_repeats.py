"""find_repeats and structural_hash: what counts as the same segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgefuse.graph import Model
from edgefuse.passes.find_repeats import find_repeats, structural_hash
from tests.passes.graphs import Build, conv, ops


def block(b: Build, x: str, channels: int = 4, k: int = 3) -> str:
    y = b.op("Relu", conv(b, x, channels, channels, k=k))
    return b.op("Relu", b.op("Add", conv(b, y, channels, channels, k=k), x))


def stack(*kernels: int) -> Model:
    b = Build()
    x = b.op("Sigmoid", b.x([1, 4, 8, 8]))
    for k in kernels:
        x = block(b, x, k=k)
    return b.y(b.op("Tanh", x)).model()


def test_three_residual_blocks_are_one_group() -> None:
    model = stack(3, 3, 3)
    (group,) = find_repeats(model)
    assert group.count == 3
    assert group.operators == ("Conv", "Relu", "Conv", "Add", "Relu")
    assert str(group).startswith("x3: Conv Relu Conv Add Relu, first at ")
    assert len({n for i in group.instances for n in i}) == 15
    assert {structural_hash(i) for i in group.instances} == {group.digest}


def test_two_kinds_of_block_are_two_groups_in_order() -> None:
    groups = find_repeats(stack(3, 3, 1, 1, 1))
    assert [(g.count, len(g.operators)) for g in groups] == [(2, 5), (3, 5)]


def test_blocks_apart_are_found() -> None:
    counts = [(g.count, len(g.operators)) for g in find_repeats(stack(3, 1, 3, 1))]
    assert (2, 10) in counts


def test_unlike_blocks_are_no_group() -> None:
    b = Build()
    x = b.x([1, 4, 8, 8])
    b.y(b.op("Tanh", b.op("Sigmoid", b.op("Relu", conv(b, x, 4, 4)))))
    assert find_repeats(b.model()) == []


def test_short_runs_are_left_out_on_request() -> None:
    assert find_repeats(stack(3, 3), minimum=6) == []


def test_the_model_is_not_changed_and_the_answer_is_the_same_again() -> None:
    model = stack(3, 3, 3)
    before = ops(model)
    first = [g.digest for g in find_repeats(model)]
    assert (
        first == [g.digest for g in find_repeats(model)] == [g.digest for g in find_repeats(stack(3, 3, 3))]
    )
    assert ops(model) == before


def single(make: Callable[[Build, str], str], seed: int = 0, shape: Any = (1, 4, 8, 8)) -> str:
    b = Build(seed=seed)
    x = b.x(list(shape))
    start = len(b.nodes)
    b.y(make(b, x))
    return structural_hash(list(b.model().graph)[start:])


def test_names_and_weights_do_not_count() -> None:
    plain = single(lambda b, x: b.op("Relu", conv(b, x, 4, 4)), seed=1)
    assert plain == single(lambda b, x: b.op("Relu", conv(b, x, 4, 4), name="other"), seed=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.op("Relu", conv(b, x, 4, 4, k=1)),
        lambda b, x: b.op("Relu", conv(b, x, 4, 4, groups=2)),
        lambda b, x: b.op("Relu", conv(b, x, 4, 4, bias=False)),
        lambda b, x: b.op("Sigmoid", conv(b, x, 4, 4)),
        lambda b, x: b.op("Relu", conv(b, x, 4, 6)),
    ],
)
def test_structure_counts(make: Callable[[Build, str], str]) -> None:
    assert single(make) != single(lambda b, x: b.op("Relu", conv(b, x, 4, 4)))


def test_shapes_and_small_integers_count() -> None:
    def reshaped(*shape: int) -> str:
        return single(lambda b, x: b.op("Relu", b.op("Reshape", x, b.ints(*shape))))

    assert reshaped(1, 256) != reshaped(2, 128)
    make: Callable[[Build, str], str] = lambda b, x: b.op("Relu", x)  # noqa: E731
    assert single(make) != single(make, shape=(2, 4, 8, 8))


def test_who_reads_whom_counts() -> None:
    def pair(twice: bool) -> str:
        b = Build()
        x, z = b.x([4]), b.x([4], name="z")
        first = b.op("Add", x, z)
        b.y(b.op("Mul", first, first if twice else x))
        return structural_hash(list(b.model().graph))

    assert pair(True) != pair(False)


def test_what_leaves_the_segment_counts() -> None:
    def pair(outer: bool) -> str:
        b = Build()
        mid = b.op("Relu", b.x([4]))
        b.y(b.op("Neg", mid), *([mid] if outer else []))
        return structural_hash(list(b.model().graph))

    assert pair(True) != pair(False)


def test_many_layers_are_fast_enough_to_look_at() -> None:
    b = Build()
    x = b.x([1, 8])
    for index in range(600):
        x = b.op(["Relu", "Neg", "Abs"][index % 3], b.op("Add", x, b.w(np.full(8, index))))
    (group,) = find_repeats(b.y(x).model())
    assert group.count == 200
