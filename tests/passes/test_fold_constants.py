"""fold_constants: what can be known at build time, sizes among unknown dimensions included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from edgefuse.graph import Model, attribute, constant, dims, infer_shapes
from edgefuse.passes.contract import PassResult
from edgefuse.passes.fold_constants import SMALL_BYTES, fold_constants
from edgefuse.passes.remove_dead_code import remove_dead_code
from edgefuse.passes.shape_values import Size
from tests.passes.graphs import Build, apply, ops
from tests.passes.random_graphs import ModelCase, random_models


def folded(model: Model) -> PassResult:
    result = fold_constants(model)
    infer_shapes(model)
    remove_dead_code(model)
    return result


def test_chains_of_constants_become_one() -> None:
    b = Build()
    w = b.op("Mul", b.op("Transpose", b.rand(3, 4), perm=[1, 0]), b.op("Sqrt", b.w(4)))
    b.y(b.op("MatMul", b.x([2, 4]), w))
    model = b.model()
    assert apply(folded, model).changed == 3
    assert ops(model) == {"MatMul": 1}


def test_half_weights_behind_a_cast_become_floats() -> None:
    b = Build()
    w = b.op("Cast", b.w(np.ones((4, 4)), dtype=np.float16), to=TensorProto.FLOAT)
    b.y(b.op("MatMul", b.x([2, 4]), w))
    model = b.model()
    assert apply(folded, model).changed == 1
    assert next(iter(model.graph.initializers.values())).const_value.numpy().dtype == np.float32  # type: ignore[union-attr]


def test_an_output_that_is_constant_keeps_its_name() -> None:
    b = Build()
    b.y(b.op("Neg", b.w([1, 2]), out="minus"), b.op("Relu", b.x([2])))
    model = b.model()
    assert apply(folded, model).changed == 1
    assert model.graph.outputs[0].name == "minus"
    assert ops(model) == {"Identity": 1, "Relu": 1}


def test_several_outputs() -> None:
    b = Build()
    b.nodes.append(helper.make_node("Split", [b.w([1, 2, 3, 4])], ["s", "t"], axis=0, num_outputs=2))
    x = b.x([2])
    b.y(b.op("Add", b.op("Mul", x, "s"), "t"))
    model = b.model()
    assert apply(folded, model).changed == 1
    assert ops(model) == {"Mul": 1, "Add": 1}


def test_the_users_quantization_stays() -> None:
    b = Build()
    zero = b.w(0, dtype=np.int8)
    q = b.op("QuantizeLinear", b.rand(3, 4), b.w(0.01), zero)
    d = b.op("DequantizeLinear", q, b.w(0.01), zero)
    eight = b.op(
        "DequantizeLinear", b.op("Transpose", b.w(np.ones((4, 3)), dtype=np.int8), perm=[1, 0]), b.w(0.1)
    )
    b.y(b.op("MatMul", b.op("MatMul", b.x([2, 3]), d), b.op("Transpose", eight, perm=[1, 0])))
    model = b.model()
    assert apply(folded, model).changed == 1  # the Transpose of the int8 weights
    assert ops(model) == {"QuantizeLinear": 1, "DequantizeLinear": 2, "Transpose": 1, "MatMul": 2}


@pytest.mark.parametrize("random", ["RandomNormalLike", "Bernoulli"])
def test_random_operators_stay(random: str) -> None:
    b = Build()
    b.y(b.op("Add", b.x([2]), b.op(random, b.w([0.5, 0.5]))))
    model = b.model()
    assert not fold_constants(model)
    assert ops(model)[random] == 1


def filled(shape: tuple[int, ...]) -> tuple[Build, str]:
    b = Build()
    return b, b.op("ConstantOfShape", b.ints(*shape), value=numpy_helper.from_array(np.float32([0.5])))


def test_a_large_filling_that_is_data_stays() -> None:
    size = SMALL_BYTES // 4 + 1
    b, big = filled((size,))
    b.y(b.op("ReduceSum", b.op("Concat", big, b.x([1]), axis=0), keepdims=1))
    model = b.model()
    assert not fold_constants(model)


def test_a_small_filling_and_a_large_weight_are_stored() -> None:
    b, big = filled((1100, 1000))
    assert SMALL_BYTES < 1100 * 1000 * 4
    b.y(b.op("MatMul", b.x([1, 1100]), big))
    model = b.model()
    assert folded(model).changed == 1
    assert ops(model) == {"MatMul": 1}
    b, small = filled((3, 4))
    b.y(b.op("Add", small, b.x([3, 4])))
    assert apply(folded, b.model()).changed == 1


def test_a_large_expansion_of_a_constant_stays() -> None:
    b = Build()
    big = b.op("Expand", b.w([[1.0]]), b.ints(1200, 1000))
    b.y(b.op("Add", big, b.x([1200, 1000])))
    assert not fold_constants(b.model())


def test_custom_operators_and_strings_stay() -> None:
    texts = helper.make_tensor("t", TensorProto.STRING, [1], [b"a"])
    b = Build()
    b.constants.append(texts)
    b.y(b.op("Identity", b.op("StringConcat", "t", "t")), element=TensorProto.STRING)
    assert not fold_constants(b.model())


def test_what_is_inside_a_branch_stays_and_what_it_reads_is_folded() -> None:
    b = Build()
    c, x = b.x([], name="c", element=TensorProto.BOOL), b.x([2])
    w = b.op("Neg", b.w([1, 2]))
    info = helper.make_tensor_value_info
    branches = [
        helper.make_graph([helper.make_node(op, [x, w], [op])], op, [], [info(op, TensorProto.FLOAT, [2])])
        for op in ("Add", "Mul")
    ]
    b.nodes.append(helper.make_node("If", [c], ["y"], then_branch=branches[0], else_branch=branches[1]))
    model = b.y("y").model()
    assert folded(model).changed == 1
    assert ops(model) == {"If": 1, "Add": 1, "Mul": 1}


# --- sizes -------------------------------------------------------------------------------------------------


def pick(b: Build, x: str, *axes: int) -> str:
    """Return the sizes of some dimensions of x, as exporters read them."""
    return b.op("Gather", b.op("Shape", x), b.ints(*axes))


def halves(b: Build, size: str) -> str:
    """Twice a size, by way of floats."""
    scaled = b.op("Mul", b.op("Cast", size, to=TensorProto.FLOAT), b.w([2.0]))
    return b.op("Cast", b.op("Floor", scaled), to=TensorProto.INT64)


def one(b: Build, x: str, axis: int) -> str:
    """Return one size, read as a scalar and made a list again."""
    scalar = b.op("Gather", b.op("Shape", x), b.w(axis, dtype=np.int64))
    return b.op("Unsqueeze", scalar, b.ints(0))


def numbers(b: Build, *n: int) -> str:
    return b.ints(*n)


RESHAPES: dict[str, tuple[list[int | str], Callable[[Build, str], str], list[int]]] = {
    "one unknown": (
        ["N", 3, 4],
        lambda b, x: b.op("Concat", pick(b, x, 0), numbers(b, 12), axis=0),
        [-1, 12],
    ),
    "unknown and rest": (
        ["N", 3, 4],
        lambda b, x: b.op("Concat", one(b, x, 0), numbers(b, -1), axis=0),
        [-1, 12],
    ),
    "two copied": (
        ["N", "M", 4],
        lambda b, x: b.op("Concat", pick(b, x, 0, 1), numbers(b, 2, 2), axis=0),
        [0, 0, 2, 2],
    ),
    "copied and rest": (
        ["N", "M", 4],
        lambda b, x: b.op("Concat", pick(b, x, 0), numbers(b, -1), axis=0),
        [0, -1],
    ),
    "product": (
        ["N", "M", 4],
        lambda b, x: b.op("Concat", b.op("Mul", one(b, x, 0), one(b, x, 1)), numbers(b, 4), axis=0),
        [-1, 4],
    ),
    "quotient": (
        ["N", 6, 4],
        lambda b, x: b.op(
            "Concat", pick(b, x, 0), b.op("Div", pick(b, x, 1), numbers(b, 2)), numbers(b, 8), axis=0
        ),
        [-1, 3, 8],
    ),
    "slice of the shape": (
        ["N", "M", 4, 2],
        lambda b, x: b.op(
            "Concat", b.op("Slice", b.op("Shape", x), numbers(b, 0), numbers(b, 2)), numbers(b, -1), axis=0
        ),
        [0, 0, 8],
    ),
    "start and end": (
        ["N", "M", 4],
        lambda b, x: b.op("Concat", b.op("Shape", x, start=0, end=2), numbers(b, 4, 1), axis=0),
        [0, 0, 4, 1],
    ),
    "sum of unlike": (
        ["N", 3, 4],
        lambda b, x: b.op(
            "Concat",
            b.op("Sub", b.op("Add", pick(b, x, 0), numbers(b, 1)), numbers(b, 1)),
            numbers(b, 3, 4),
            axis=0,
        ),
        [-1, 3, 4],
    ),
    "chosen by Where": (
        ["N", 3, 4],
        lambda b, x: (lambda s: b.op("Where", b.op("Equal", s, numbers(b, -1)), numbers(b, 1), s))(
            b.op("Concat", pick(b, x, 0), numbers(b, 12), axis=0)
        ),
        [-1, 12],
    ),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_reshape_targets(name: str) -> None:
    shape, make, wanted = RESHAPES[name]
    b = Build()
    x = b.x(shape)
    b.y(b.op("Reshape", x, make(b, x)))
    model = b.model()
    assert apply(folded, model, N=5, M=7)
    assert ops(model) == {"Reshape": 1}
    array = constant(next(iter(model.graph)).inputs[1])
    assert array is not None
    assert array.tolist() == wanted


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.op("Concat", pick(b, x, 1, 0), numbers(b, 4), axis=0),
        lambda b, x: b.op(
            "Concat", b.op("Mul", one(b, x, 1), numbers(b, 2)), pick(b, x, 0), numbers(b, 2), axis=0
        ),
        lambda b, x: b.op("Concat", b.op("Mul", pick(b, x, 1), numbers(b, 2)), numbers(b, -1), axis=0),
    ],
    ids=["swapped", "doubled", "doubled and rest"],
)
def test_targets_with_two_unknown_sizes_stay(make: Callable[[Build, str], str]) -> None:
    b = Build()
    x = b.x(["N", "M", 4])
    b.y(b.op("Reshape", x, make(b, x)))
    model = b.model()
    apply(folded, model, N=3, M=5)
    assert ops(model)["Shape"]


def test_a_known_dimension_among_unknown_ones_is_a_number() -> None:
    b = Build()
    x = b.x(["N", 3, "H", 8])
    b.y(b.op("Cast", b.op("Mul", pick(b, x, 1, 3), numbers(b, 2)), to=TensorProto.FLOAT))
    model = b.model()
    assert apply(folded, model, N=2, H=4)
    assert ops(model) == {"Identity": 1}


def test_size_of_an_unknown_shape_stays() -> None:
    b = Build()
    b.y(b.op("Size", b.x(["N", 3])), element=TensorProto.INT64)
    assert not apply(folded, b.model(), N=2)


def test_an_allowzero_reshape_may_copy() -> None:
    b = Build()
    x = b.x(["N", "M", 4])
    b.y(b.op("Reshape", x, b.op("Concat", pick(b, x, 0, 1), numbers(b, 2, 2), axis=0), allowzero=1))
    model = b.model()
    assert apply(folded, model, N=2, M=3)
    assert attribute(next(iter(model.graph)), "allowzero", 0) == 0


def test_expand_to_its_own_unknown_size() -> None:
    b = Build()
    x = b.x(["N", 1, 4])
    b.y(b.op("Expand", x, b.op("Concat", pick(b, x, 0), numbers(b, 3, 4), axis=0)))
    model = b.model()
    assert apply(folded, model, N=2)
    assert constant(next(iter(model.graph)).inputs[1]).tolist() == [1, 3, 4]  # type: ignore[union-attr]


def test_expand_to_another_unknown_size_stays() -> None:
    b = Build()
    x, z = b.x(["N", 4]), b.x([1, 4], name="z")
    b.y(b.op("Expand", z, b.op("Shape", x)))
    model = b.model()
    apply(folded, model, N=2)
    assert ops(model)["Shape"] == 1


def test_slice_to_its_own_size() -> None:
    b = Build()
    x = b.x(["N", "M", 4])
    b.y(b.op("Slice", x, numbers(b, 1), pick(b, x, 1), numbers(b, 1)))
    model = b.model()
    assert apply(folded, model, N=2, M=5)
    assert ops(model) == {"Slice": 1}


@pytest.mark.parametrize("step", [-1, 1])
def test_slice_to_another_size_or_backwards_stays(step: int) -> None:
    b = Build()
    x = b.x(["N", "M", 4])
    end = pick(b, x, 0 if step > 0 else 1)
    b.y(b.op("Slice", x, numbers(b, -1 if step < 0 else 0), end, numbers(b, 1), numbers(b, step)))
    model = b.model()
    apply(folded, model, N=2, M=5)
    assert ops(model)["Gather"] == 1


def resize(b: Build, x: str, sizes: str, **attrs: str) -> str:
    attrs.setdefault("mode", "linear")
    return b.op("Resize", x, "", "", sizes, **attrs)


def test_resize_by_a_whole_factor_takes_scales() -> None:
    b = Build()
    x = b.x(["N", 3, "H", "W"])
    sizes = b.op("Concat", pick(b, x, 0, 1), halves(b, one(b, x, 2)), halves(b, one(b, x, 3)), axis=0)
    b.y(resize(b, x, sizes))
    model = b.model()
    assert apply(folded, model, N=1, H=3, W=5)
    assert ops(model) == {"Resize": 1}
    assert constant(next(iter(model.graph)).inputs[2]).tolist() == [1, 1, 2, 2]  # type: ignore[union-attr]


def test_resize_to_known_sizes_names_the_axes() -> None:
    b = Build()
    x = b.x(["N", 3, "H", "W"])
    b.y(resize(b, x, b.op("Concat", pick(b, x, 0, 1), numbers(b, 7, 9), axis=0)))
    model = b.model()
    assert apply(folded, model, N=2, H=3, W=5)
    assert attribute(next(iter(model.graph)), "axes") == (2, 3)


def test_resize_to_the_size_of_another_tensor_stays() -> None:
    b = Build()
    x, z = b.x(["N", 3, "H", "W"]), b.x(["N", 3, "K", "L"], name="z")
    b.y(resize(b, x, b.op("Concat", pick(b, x, 0, 1), pick(b, z, 2, 3), axis=0)))
    model = b.model()
    apply(folded, model, N=1, H=3, W=5, K=4, L=6)
    assert ops(model)["Shape"] == 2


def test_unnamed_dimensions_are_not_one_another() -> None:
    b = Build()
    x = b.x(["N", 4])
    kept = b.op("Compress", x, b.x([8], name="k", element=TensorProto.BOOL), axis=0)
    other = b.op("Compress", x, b.x([8], name="l", element=TensorProto.BOOL), axis=0)
    b.y(b.op("Expand", kept, b.op("Shape", other)))
    model = b.model()
    fold_constants(model)
    expand = model.graph.outputs[0].producer()
    assert expand is not None
    assert constant(expand.inputs[1]) is None


def test_a_cast_to_bool_is_no_size() -> None:
    b = Build()
    x = b.x(["N", 4])
    flag = b.op("Cast", b.op("Cast", pick(b, x, 0), to=TensorProto.BOOL), to=TensorProto.INT64)
    b.y(b.op("Reshape", x, b.op("Concat", flag, numbers(b, 2, -1), axis=0)))
    model = b.model()
    apply(folded, model, N=6)
    assert ops(model)["Shape"] == 1


def test_sizes_compute() -> None:
    n, h = Size(1, ("N",)), Size(1, ("H",))
    assert n.times(h) == h.times(n)
    assert n.plus(n) == Size(2, ("N",))
    assert n.plus(Size(-1, ("N",))) == Size(0)
    assert n.plus(h) == h.plus(n)
    assert not n.plus(h).is_positive
    assert n.times(h).over(h) == n
    assert n.over(h) is None
    assert Size(3).over(Size(2)) is None
    assert Size(3).over(Size(0)) is None


def test_dims_reach_what_is_read_later() -> None:
    b = Build()
    x = b.x(["N", 3, 4])
    b.y(b.op("Relu", b.op("Reshape", x, b.op("Concat", pick(b, x, 0), numbers(b, 12), axis=0))))
    model = b.model()
    folded(model)
    shape = dims(model.graph.outputs[0])
    assert shape is not None
    assert shape[1] == 12


@settings(max_examples=25)
@given(random_models())
def test_random_graphs_keep_their_meaning(case: ModelCase) -> None:
    case.check(fold_constants)
