"""The arena: no two living tensors overlap, in-place writes are legal, the peak is near what is possible."""

from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import onnx
import pytest
from hypothesis import given, settings

from edgefuse.analysis import (
    ALIGNMENT_BYTES,
    Lifetime,
    check_plan,
    liveness,
    memory_plan,
    plan_lifetimes,
)
from edgefuse.errors import InternalError
from edgefuse.graph import Model, model_from_proto, read_model

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
BINDINGS = {
    "basic_pitch": {"unk__749": 1},
    "magika_v3_3": {"unk__214": 1},
    "pplcnet_orientation": {"DynamicDimension.0": 1},
    "ppocr_cls": {"x_dim0": 1, "x_dim2": 48, "x_dim3": 192},
    "ppocrv4_det": {
        "p2o.DynamicDimension.0": 1,
        "p2o.DynamicDimension.1": 320,
        "p2o.DynamicDimension.2": 320,
    },
    "ppocrv4_rec": {"p2o.DynamicDimension.0": 1, "x_dim2": 48, "p2o.DynamicDimension.1": 320},
}


def parsed(body: str, inputs: str = "float[1,16] x", outputs: str = "float[1,16] y") -> Model:
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {body}'
    return model_from_proto(onnx.parser.parse_model(text))


def buffers(model: Model) -> dict[str, int]:
    return {life.name: life.buffer for life in liveness(model).lifetimes}


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda p: p.stem)
def test_light_models_are_within_five_percent_of_the_bound(path: Path) -> None:
    plan = memory_plan(read_model(path))
    assert plan.complete
    assert plan.lower_bound_bytes <= plan.peak_bytes <= 1.05 * plan.lower_bound_bytes
    assert plan.peak_bytes < plan.naive_bytes / 2


@pytest.mark.shared
def test_efficientnet_lite0_reaches_the_bound(shared_dir: Path) -> None:
    plan = memory_plan(read_model(shared_dir / "zoo/efficientnet_lite0.onnx"))
    assert plan.complete
    # Two tensors of the second block live together: 96 x 112 x 112 before, 96 x 56 x 56 after the stride.
    assert plan.peak_bytes == plan.lower_bound_bytes == 4 * 96 * (112 * 112 + 56 * 56)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BINDINGS))
def test_zoo_models_are_within_five_percent_of_the_bound(shared_dir: Path, name: str) -> None:
    plan = memory_plan(read_model(shared_dir / f"zoo/{name}.onnx"), BINDINGS[name])
    assert plan.complete
    assert plan.peak_bytes <= 1.05 * plan.lower_bound_bytes


def test_elementwise_chain_is_one_buffer() -> None:
    model = parsed("{ a = Exp(x)  b = Relu(a)  c = Neg(b)  y = Abs(c) }")
    found = buffers(model)
    assert found["a"] == found["b"] == found["c"] == found["y"]
    assert found["x"] != found["a"]  # a graph input is never written over
    plan = memory_plan(model)
    assert (plan.peak_bytes, plan.lower_bound_bytes, plan.naive_bytes) == (128, 128, 5 * 64)
    assert plan.in_place == 3


def test_a_value_that_is_read_again_is_not_written_over() -> None:
    found = buffers(parsed("{ a = Exp(x)  b = Relu(a)  y = Add(a, b) }"))
    assert found["b"] != found["a"]
    assert found["y"] == found["a"]


def test_a_graph_output_is_not_written_over() -> None:
    model = parsed("{ a = Exp(x)  y = Relu(a) }", outputs="float[1,16] a, float[1,16] y")
    assert buffers(model)["a"] != buffers(model)["y"]
    assert memory_plan(model).peak_bytes == 2 * 64  # x is dead when y is written


def test_what_a_view_still_reads_is_not_written_over() -> None:
    model = parsed(
        """<int64[2] s = {16, 1}>
           { a = Exp(x)  v = Reshape(a, s)  b = Relu(a)  w = Transpose(v)  y = Add(b, w) }"""
    )
    found = {life.name: life for life in liveness(model).lifetimes}
    assert found["a"].storage == found["v"].storage
    assert found["b"].buffer != found["a"].buffer
    assert memory_plan(model).views == 1


def test_a_view_that_ends_may_be_written_over() -> None:
    model = parsed("<int64[2] s = {1, 16}> { a = Exp(x)  v = Reshape(a, s)  y = Relu(v) }")
    assert len({buffers(model)[name] for name in "avy"}) == 1


@pytest.mark.parametrize(
    "body",
    [
        "<int64[2] s = {1, 16}> { v = Reshape(x, s)  y = Relu(v) }",  # a view of a graph input
        "{ y = Softmax(x) }",  # not elementwise
        "<float w = {1}> { y = Add(x, w) }",  # weights are not in the arena
    ],
)
def test_graph_inputs_and_weights_are_left_alone(body: str) -> None:
    found = buffers(parsed(body))
    assert "w" not in found
    assert [name for name, buffer in found.items() if buffer == found["x"]] == ["x"]


def test_broadcast_bools_of_the_same_bytes_do_not_overlay_the_floats() -> None:
    model = parsed(
        "{ a = Exp(x)  b = Neg(z)  y = Greater(a, b) }",
        inputs="float[1,4] x, float[4,1] z",
        outputs="bool[4,4] y",
    )
    lives = {life.name: life for life in liveness(model).lifetimes}
    assert lives["a"].bytes == lives["y"].bytes == 16
    assert lives["y"].buffer not in (lives["a"].buffer, lives["b"].buffer)


def test_a_tensor_read_inside_a_body_lives_until_its_node() -> None:
    model = parsed(
        """{ a = Exp(x)  b = Relu(x)
             y = If(c) < then_branch = t () => (float[1,16] p) { p = Relu(a) },
                         else_branch = e () => (float[1,16] q) { q = Relu(b) } > }""",
        inputs="bool c, float[1,16] x",
    )
    lives = {life.name: life for life in liveness(model).lifetimes}
    assert lives["a"].last == lives["b"].last == 2
    plan = memory_plan(model)
    assert len(plan.unplanned) == 1
    assert not plan.complete


def test_unknown_sizes_are_named_not_guessed() -> None:
    model = parsed("{ y = Relu(x) }", inputs='float["n",4] x', outputs='float["n",4] y')
    plan = memory_plan(model)
    assert not plan.complete
    assert plan.unknown == {
        "x": "dimension n of x is not a number",
        "y": "dimension n of y is not a number",
    }
    assert (plan.peak_bytes, plan.placed) == (0, ())
    assert memory_plan(model, {"n": 3}).complete


def test_offsets_by_name() -> None:
    plan = memory_plan(parsed("{ a = Exp(x)  y = Softmax(a) }"))
    assert set(plan.offsets) == {"x", "a", "y"}
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in plan.offsets.values())


LIVES = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(-1, 30), st.integers(0, 15)), min_size=0, max_size=24
)


@settings(max_examples=60)
@given(LIVES)
def test_random_lifetimes_never_overlap(rows: list[tuple[int, int, int]]) -> None:
    lifetimes = [
        Lifetime(f"t{k}", size, first, first + length, k, k) for k, (size, first, length) in enumerate(rows)
    ]
    plan = plan_lifetimes(lifetimes)
    assert plan.peak_bytes >= plan.lower_bound_bytes
    # Moments where the most lives, by brute force.
    moments = range(-1, 50)
    bound = max(sum(x.bytes for x in lifetimes if x.first <= t <= x.last) for t in moments)
    assert plan.lower_bound_bytes == bound
    for i, a in enumerate(plan.placed):
        assert a.offset % ALIGNMENT_BYTES == 0
        for b in plan.placed[:i]:
            together = a.lifetime.first <= b.lifetime.last and b.lifetime.first <= a.lifetime.last
            assert not (together and a.offset < b.end and b.offset < a.end)
    assert plan_lifetimes(lifetimes) == plan


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Relu", "Add", "Softmax", "Transpose", "Reshape"]),
            st.integers(0, 7),
            st.integers(0, 7),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_random_graphs_give_checked_plans(steps: list[tuple[str, int, int]]) -> None:
    names, lines = ["x"], []
    for at, (op, one, two) in enumerate(steps):
        a, b = names[-1 - one % len(names)], names[-1 - two % len(names)]
        operands = {"Add": f"{a}, {b}", "Reshape": f"{a}, s"}.get(op, a)
        lines.append(f"v{at} = {op}({operands})")
        names.append(f"v{at}")
    model = parsed(
        "<int64[2] s = {4, 4}> { " + "  ".join(lines) + " }", "float[4,4] x", f"float[4,4] {names[-1]}"
    )
    plan = memory_plan(model)
    assert plan.complete
    assert plan.lower_bound_bytes <= plan.peak_bytes <= plan.naive_bytes
    replay(model, plan.offsets)


def replay(model: Model, offsets: dict[str, int]) -> None:
    """Walk the graph writing value names into the arena; every read must find what its writer left.

    Independent of lifetimes: an illegal in-place write or overlap shows as a foreign tag.
    """
    tag: dict[str, str] = {value.name or "": value.name or "" for value in model.graph.inputs}
    arena = {offsets[name]: name for name in tag}
    for node in model.graph:
        for value in node.inputs:
            if value is not None and value.const_value is None:
                name = value.name or ""
                assert arena[offsets[name]] == tag[name], f"{name} was overwritten before {node.name}"
        output = node.outputs[0].name or ""
        source = node.inputs[0].name or "" if node.inputs[0] is not None else ""
        view = node.op_type == "Reshape" and offsets[source] == offsets[output]
        tag[output] = tag[source] if view else output
        arena[offsets[output]] = tag[output]
    for value in model.graph.outputs:
        name = value.name or ""
        assert arena[offsets[name]] == tag[name]


def life(name: str, first: int, last: int, storage: int, buffer: int, size: int = 64) -> Lifetime:
    return Lifetime(name, size, first, last, storage, buffer)


def test_the_checker_finds_what_is_wrong() -> None:
    plan = plan_lifetimes([life("a", 0, 2, 0, 0), life("b", 1, 3, 1, 1)])
    check_plan(plan)
    a, b = plan.placed
    with pytest.raises(InternalError, match="a and b overlap at node 1"):
        check_plan(replace(plan, placed=(a, replace(b, offset=a.offset))))
    with pytest.raises(InternalError, match="outside or unaligned"):
        check_plan(replace(plan, placed=(a, replace(b, offset=a.offset + 32))))
    with pytest.raises(InternalError, match="outside or unaligned"):
        check_plan(replace(plan, placed=(a, replace(b, offset=640))))
    with pytest.raises(InternalError, match="below what lives"):
        check_plan(replace(plan, peak_bytes=128, lower_bound_bytes=129))


@pytest.mark.parametrize(
    "lifetimes",
    [
        # Written over while it is still read later.
        [life("a", 0, 3, 0, 0), life("b", 2, 4, 1, 0)],
        # Two results of one node.
        [life("a", 0, 2, 0, 0), life("b", 0, 2, 1, 0)],
        # The storage lives on in a view that is read after the write.
        [life("a", 0, 2, 0, 0), life("v", 1, 5, 0, 0), life("b", 2, 4, 1, 0)],
    ],
)
def test_the_checker_refuses_an_illegal_in_place_write(lifetimes: list[Lifetime]) -> None:
    with pytest.raises(InternalError, match="overlap at node"):
        plan_lifetimes(lifetimes)


def test_a_legal_in_place_write_passes() -> None:
    plan = plan_lifetimes([life("a", 0, 2, 0, 0), life("v", 1, 2, 0, 0), life("b", 2, 4, 1, 0)])
    assert (plan.peak_bytes, plan.views, plan.in_place) == (64, 1, 1)


def test_hill_climbing_reaches_the_bound_where_every_order_fails() -> None:
    model = read_model(LIGHT / "light_densenet121.onnx")
    plan = memory_plan(model)
    assert plan.order.endswith("improved")
    assert plan.peak_bytes == plan.lower_bound_bytes == 7_225_344
    assert memory_plan(model) == plan
