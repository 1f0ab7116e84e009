"""name_dimensions: sizes behind Reshape and Expand get their old names back, and no others."""

from __future__ import annotations

from edgefuse.graph import dims, infer_shapes
from edgefuse.passes import canonicalize
from edgefuse.passes.name_dimensions import name_dimensions
from tests.passes.graphs import Build, ops

Dims = list[int | str]


def after_reshape(shape: Dims, *target: int) -> tuple[int | str | None, ...]:
    b = Build()
    x = b.op("Relu", b.x(shape))
    y = b.op("Neg", b.op("Reshape", x, b.ints(*target)))
    b.y(b.op("Concat", y, y, axis=0), b.op("Abs", y))
    model = b.model()
    name_dimensions(model)
    infer_shapes(model)
    found = dims(next(n.outputs[0] for n in model.graph if n.op_type == "Neg"))
    assert found is not None
    return found


def test_the_rest_of_a_reshape_is_the_batch() -> None:
    assert after_reshape(["N", 3, 4], -1, 12) == ("N", 12)
    assert after_reshape(["N", 3, 4], -1, 3, 1, 4) == ("N", 3, 1, 4)
    assert after_reshape(["N", "M", 4], 0, -1, 2, 2) == ("N", "M", 2, 2)


def test_a_rest_that_is_no_lone_size_keeps_a_name_of_its_own() -> None:
    for shape, target in ((["N", "M", 4], (-1, 4)), (["N", 3, 4], (-1, 4)), (["N", 3], (-1, 2))):
        assert after_reshape(shape, *target)[0] not in ("N", "M", 3)  # type: ignore[arg-type]


def test_names_travel_through_several_reshapes() -> None:
    b = Build()
    y = b.x(["N", 3, 4])
    for target in ((-1, 12), (-1, 2, 6), (-1, 12)):
        y = b.op("Sigmoid", b.op("Reshape", b.op("Relu", y), b.ints(*target)))
    b.y(y)
    model = b.model()
    assert name_dimensions(model)
    assert {(dims(v) or ("",))[0] for n in model.graph for v in n.outputs} == {"N"}
    infer_shapes(model)
    assert {(dims(v) or ("",))[0] for n in model.graph for v in n.outputs} == {"N"}
    assert name_dimensions(model) == 0


def test_what_the_user_named_stays() -> None:
    b = Build()
    b.y(b.op("Reshape", b.x(["N", 3, 4]), b.ints(-1, 12), out="y"), shape=["batch", 12])  # type: ignore[list-item]
    model = b.model()
    name_dimensions(model)
    assert dims(model.graph.inputs[0]) == ("N", 3, 4)
    assert dims(model.graph.outputs[0]) == ("batch", 12)


def test_an_expansion_to_the_batch_is_seen_to_do_nothing() -> None:
    b = Build()
    x = b.x(["N", 6])
    flat = b.op("Reshape", b.op("Relu", x), b.ints(-1, 2, 3))
    wanted = b.op("Concat", b.op("Gather", b.op("Shape", x), b.ints(0)), b.ints(2, 3), axis=0)
    b.y(b.op("Neg", b.op("Expand", flat, wanted)))
    model = b.model()
    canonicalize(model)
    assert ops(model) == {"Relu": 1, "Reshape": 1, "Neg": 1}


def test_an_expansion_of_a_size_that_may_be_one_stays() -> None:
    b = Build()
    x, z = b.x(["N", 6]), b.x(["M", 6], name="z")
    b.y(b.op("Neg", b.op("Expand", z, b.op("Shape", x))))
    model = b.model()
    canonicalize(model)
    assert ops(model)["Expand"] == 1
