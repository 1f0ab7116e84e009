"""Channels that leave: what goes together, what must stay and why, and that nothing else is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefuse.analysis import summarize
from edgefuse.errors import InputError, UsageError
from edgefuse.graph import Model, attribute, clone_model, constant, model_to_bytes, static_shape
from edgefuse.graph.reference import Reference
from edgefuse.quant.channel_units import find_units
from edgefuse.quant.prune_channels import choose_units, prune_channels, score_units
from edgefuse.quant.prune_weights import set_weight
from tests.passes.graphs import Build, conv

Samples = list[dict[str, np.ndarray]]


def samples_of(*shape: int, count: int = 4) -> Samples:
    rng = np.random.default_rng(1)
    return [{"x": rng.uniform(-1, 1, shape).astype(np.float32)} for _ in range(count)]


def shape_of(model: Model, name: str) -> tuple[int, ...]:
    node = next(n for n in model.graph if n.name == name)
    weight = constant(node.inputs[1])
    assert weight is not None
    return weight.shape


def masked(model: Model, gone: frozenset[int]) -> Model:
    """Return the whole model with every weight that reads a removed channel set to zero."""
    copy = clone_model(model)
    nodes = {n.name: n for n in copy.graph}
    for node, units in find_units(model).readers:
        twin = nodes[node.name]
        weight = constant(twin.inputs[1])
        assert weight is not None
        array = weight.copy()
        groups = int(attribute(node, "group", 1))
        for channel, unit in enumerate(units.tolist()):
            if unit in gone:
                _zero(node.op_type, bool(attribute(node, "transB", 0)), array, channel, groups)
        set_weight(copy, twin, array)
    return copy


def _zero(kind: str, turned: bool, array: np.ndarray, channel: int, groups: int) -> None:
    if kind == "Conv":
        inner, outer = array.shape[1], array.shape[0] // groups
        group, place = divmod(channel, inner)
        array[group * outer : (group + 1) * outer, place] = 0
    elif kind == "ConvTranspose" or (kind == "Gemm" and not turned):
        array[channel] = 0
    elif kind == "Gemm":
        array[:, channel] = 0
    else:
        array[channel, :] = 0


def assert_only_the_removed_is_missing(model: Model, samples: Samples, share: float = 0.5) -> Model:
    """Hold the pruned model to the whole one whose readers do not see the channels; return it."""
    units = find_units(model)
    gone = choose_units(units, score_units(model, units, "l2"), share=share, multiple=1)
    assert gone
    before = model_to_bytes(model)
    pruned = prune_channels(model, share=share, criterion="l2", multiple=1).model
    assert model_to_bytes(model) == before
    onnx.checker.check_model(onnx.load_model_from_string(model_to_bytes(pruned)), full_check=True)
    exact, smaller = Reference(masked(model, gone)), Reference(pruned)
    for feeds in samples:
        wanted, found = exact.run(feeds), smaller.run(feeds)
        assert list(wanted) == list(found)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-9 * max(1.0, np.abs(array).max()))
    assert summarize(pruned).total.macs < summarize(model).total.macs
    return pruned


def test_a_chain_shrinks_and_its_output_stays() -> None:
    b = Build(seed=3)
    value = b.op("Relu", conv(b, b.x([1, 3, 6, 6]), 3, 8, name="one"))
    value = b.op("Relu", conv(b, value, 8, 12, name="two"))
    model = b.y(conv(b, value, 12, 5, name="three")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 6, 6))
    assert [shape_of(pruned, n)[:2] for n in ("one", "two", "three")] == [(4, 3), (6, 4), (5, 6)]
    assert static_shape(pruned.graph.outputs[0]) == (1, 5, 6, 6)
    assert "an output of the model" in prune_channels(model, share=0.5).refused["three"]


def test_all_branches_of_a_residual_stream_lose_the_same_channels() -> None:
    b = Build(seed=3)
    stem = conv(b, b.x([1, 3, 6, 6]), 3, 8, name="stem")
    inner = b.op("Relu", conv(b, stem, 8, 6, name="inner"))
    first = b.op("Add", conv(b, inner, 6, 8, name="branch"), stem)
    second = b.op("Add", first, conv(b, first, 8, 8, name="more"))
    model = b.y(conv(b, second, 8, 2, name="head")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 6, 6))
    assert {shape_of(pruned, n)[0] for n in ("stem", "branch", "more")} == {4}
    units = find_units(model)
    masks = {n.name: tuple(u) for n, u in units.writers if n.name in ("stem", "branch", "more")}
    assert len(set(masks.values())) == 1


def test_a_depthwise_convolution_goes_with_what_it_reads() -> None:
    b = Build(seed=3)
    value = b.op("Clip", conv(b, b.x([1, 3, 8, 8]), 3, 8, name="expand"), b.w(0.0), b.w(6.0))
    value = conv(b, value, 8, 16, groups=8, name="dw", strides=[2, 2])
    model = b.y(conv(b, value, 16, 4, k=1, name="project")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 8, 8))
    node = next(n for n in pruned.graph if n.name == "dw")
    assert attribute(node, "group") == 4
    assert [shape_of(pruned, n)[:2] for n in ("expand", "dw", "project")] == [(4, 3), (8, 1), (4, 8)]


def test_groups_lose_equal_places() -> None:
    b = Build(seed=3)
    value = conv(b, b.x([1, 3, 5, 5]), 3, 8, name="in")
    value = b.op("Relu", conv(b, value, 8, 12, groups=2, name="grouped"))
    model = b.y(conv(b, value, 12, 4, name="out")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 5, 5))
    node = next(n for n in pruned.graph if n.name == "grouped")
    assert attribute(node, "group") == 2
    assert shape_of(pruned, "grouped")[:2] == (6, 2)


def test_a_squeeze_and_excite_branch_shares_the_mask_of_what_it_scales() -> None:
    b = Build(seed=3)
    main = b.op("HardSwish", conv(b, b.x([1, 3, 6, 6]), 3, 8, name="main"))
    gate = conv(b, b.op("GlobalAveragePool", main), 8, 4, k=1, name="squeeze")
    gate = b.op("HardSigmoid", conv(b, b.op("Relu", gate), 4, 8, k=1, name="excite"))
    model = b.y(conv(b, b.op("Mul", main, gate), 8, 3, k=1, name="next")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 6, 6))
    assert [shape_of(pruned, n)[:2] for n in ("squeeze", "excite", "next")] == [(2, 4), (4, 2), (3, 4)]


def test_flatten_and_reshape_carry_blocks_into_a_gemm() -> None:
    for flat in ("Flatten", "Reshape"):
        b = Build(seed=3)
        value = b.op(
            "MaxPool", conv(b, b.x([2, 3, 6, 6]), 3, 6, name="c"), kernel_shape=[2, 2], strides=[2, 2]
        )
        value = b.op("Flatten", value) if flat == "Flatten" else b.op("Reshape", value, b.ints(2, 54))
        value = b.op("Relu", b.op("Gemm", value, b.rand(10, 54), b.rand(10), transB=1, name="g"))
        model = b.y(b.op("MatMul", value, b.rand(10, 3), name="m")).model()
        pruned = assert_only_the_removed_is_missing(model, samples_of(2, 3, 6, 6))
        assert shape_of(pruned, "g") == (5, 27)
        assert shape_of(pruned, "m") == (5, 3)


def test_concat_split_slice_pad_and_norms_follow() -> None:
    b = Build(seed=3)
    x = b.x([1, 3, 6, 6])
    left, right = conv(b, x, 3, 4, name="left"), b.bn(conv(b, x, 3, 8, name="right"), 8)
    both = b.op("PRelu", b.op("Concat", left, right, axis=1), b.rand(12, 1, 1))
    both = b.op("Pad", both, b.ints(0, 0, 1, 1, 0, 0, 1, 1))
    out = b.op("Slice", both, b.ints(2), b.ints(10), b.ints(1))
    model = b.y(conv(b, out, 8, 2, name="head")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 6, 6))
    assert shape_of(pruned, "left")[0] + shape_of(pruned, "right")[0] == 6


def test_a_split_with_sizes_is_followed() -> None:
    b = Build(seed=3)
    whole = conv(b, b.x([1, 3, 4, 4]), 3, 8, name="whole")
    b.nodes.append(onnx.helper.make_node("Split", [whole, b.ints(3, 5)], ["p", "q"], axis=1, name="split"))
    head = b.op("Add", conv(b, "p", 3, 2, name="a"), conv(b, "q", 5, 2, name="b"))
    model = b.y(head).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 3, 4, 4))
    assert shape_of(pruned, "a")[1] + shape_of(pruned, "b")[1] == 4


def test_weights_shared_by_two_layers_are_cut_for_each() -> None:
    b = Build(seed=3)
    shared, x = b.rand(6, 6, 1, 1), b.x([1, 6, 4, 4])
    first = b.op("Relu", b.op("Conv", x, shared, name="one"))
    model = b.y(b.op("Conv", first, shared, name="two")).model()
    pruned = assert_only_the_removed_is_missing(model, samples_of(1, 6, 4, 4))
    assert shape_of(pruned, "one") == (3, 6, 1, 1)
    assert shape_of(pruned, "two") == (6, 3, 1, 1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda b, v: b.op("Softmax", v, axis=1, name="spoil"), "normalises over channels"),
        (lambda b, v: b.op("Reshape", v, b.ints(1, 2, 4, 16), name="spoil"), "takes the channel axis apart"),
        (lambda b, v: b.op("DepthToSpace", v, blocksize=2, name="spoil"), "mixes channels"),
        (lambda b, v: b.op("ReduceMean", v, b.ints(1), name="spoil"), "over channels"),
        (lambda b, v: b.op("Add", v, b.op("Relu", b.x([1, 8, 4, 4], "z")), name="spoil"), "not followed"),
        (lambda b, v: b.op("Mul", v, b.op("MatMul", v, v), name="spoil"), "mixes channels"),
        (lambda b, v: b.op("Pad", v, b.ints(0, 1, 0, 0, 0, 0, 0, 0), name="spoil"), "adds channels"),
        (lambda b, v: b.op("Slice", v, b.ints(0), b.ints(8), b.ints(1), b.ints(2), name="spoil"), "by steps"),
    ],
)
def test_what_mixes_channels_keeps_them_and_says_why(spoil: object, why: str) -> None:
    b = Build(seed=3)
    value = conv(b, b.x([1, 3, 4, 4]), 3, 8, name="first")
    model = b.y(spoil(b, value)).model()  # type: ignore[operator]
    found = prune_channels(model, share=0.5, multiple=1)
    assert not found.removed
    assert why in found.refused["first"]
    assert model_to_bytes(found.model) == model_to_bytes(model)


def test_a_tensor_that_is_an_output_too_keeps_its_channels() -> None:
    b = Build(seed=3)
    middle = conv(b, b.x([1, 3, 4, 4]), 3, 8, name="first")
    model = b.y(middle, conv(b, middle, 8, 8, name="second")).model()
    assert not prune_channels(model, share=0.5, multiple=1).removed


def test_criteria_rank_by_what_they_say() -> None:
    b = Build(seed=3)
    weight = np.ones((3, 1, 1, 1))
    weight[:, 0, 0, 0] = [1.0, 2.0, 3.0]
    reads = np.array([9.0, 2.0, 1.0]).reshape(1, 3, 1, 1)
    hidden = b.op("Conv", b.x([1, 1, 2, 2]), b.w(weight), b.w([0.0, 0.0, 10.0]), name="one")
    model = b.y(b.op("Conv", hidden, b.w(reads), name="two")).model()
    units = find_units(model)
    samples = samples_of(1, 1, 2, 2)
    one = next(u for n, u in units.writers if n.name == "one").tolist()

    def ranked(criterion: str) -> list[int]:
        scores = score_units(model, units, criterion, samples)  # type: ignore[arg-type]
        return sorted(range(3), key=lambda c: scores[one[c]])

    assert ranked("l1") == ranked("l2") == [0, 1, 2]
    assert ranked("deviation") == [2, 1, 0]
    assert ranked("activation") == [1, 0, 2]  # the bias of channel 2 is activation, and no deviation


def test_a_threshold_is_a_part_of_the_layers_mean() -> None:
    b = Build(seed=3)
    weight = np.ones((8, 2, 1, 1)) * np.array([1, 1, 1, 0.1, 0.2, 1, 1, 1]).reshape(8, 1, 1, 1)
    hidden = b.op("Conv", b.x([1, 2, 2, 2]), b.w(weight), name="one")
    model = b.y(conv(b, hidden, 8, 2, name="two")).model()
    found = prune_channels(model, threshold=0.5, criterion="l1", multiple=1)
    assert found.removed == {"one": (2, 8)}
    ((axis, stay),) = [row for name, row in found.kept.items()]
    assert axis == 1
    assert stay.tolist() == [0, 1, 2, 5, 6, 7]


def test_what_stays_is_a_multiple_and_never_nothing() -> None:
    b = Build(seed=3)
    value = conv(b, b.x([1, 3, 4, 4]), 3, 20, name="one")
    value = conv(b, value, 20, 6, name="two")
    model = b.y(conv(b, value, 6, 2, name="three")).model()
    assert prune_channels(model, share=0.5, multiple=8).removed == {"one": (4, 20)}
    assert prune_channels(model, share=0.99, multiple=1).removed == {"one": (19, 20), "two": (5, 6)}


@pytest.mark.parametrize("amount", [{}, {"share": 0.3, "threshold": 0.1}, {"share": 0.0}, {"share": 1.0}])
def test_a_wrong_amount_is_refused(amount: dict[str, float]) -> None:
    b = Build(seed=3)
    model = b.y(conv(b, b.x([1, 3, 4, 4]), 3, 4)).model()
    with pytest.raises(UsageError, match="share between 0 and 1"):
        prune_channels(model, **amount)  # type: ignore[arg-type]


def test_a_criterion_of_activations_needs_samples() -> None:
    b = Build(seed=3)
    model = b.y(conv(b, conv(b, b.x([1, 3, 4, 4]), 3, 8), 8, 4)).model()
    with pytest.raises(UsageError, match="needs calibration data"):
        prune_channels(model, share=0.5, criterion="activation")
    with pytest.raises(InputError, match="no sample"):
        prune_channels(model, share=0.5, criterion="deviation", samples=[])


@settings(max_examples=20)
@given(st.data())
def test_random_nets_miss_only_what_was_removed(data: st.DataObject) -> None:
    b = Build(seed=data.draw(st.integers(0, 99)))
    value, channels = b.x([1, 4, 6, 6]), 4
    for _ in range(data.draw(st.integers(2, 5))):
        kind = data.draw(st.sampled_from(["conv", "depthwise", "grouped", "residual", "gate", "both"]))
        width = channels
        if kind == "depthwise":
            made = conv(b, value, channels, channels, groups=channels)
        elif kind == "grouped":
            made = conv(b, value, channels, channels, groups=2)
        elif kind == "residual":
            made = b.op("Add", conv(b, b.op("Relu", conv(b, value, channels, 6)), 6, channels), value)
        elif kind == "gate":
            made = conv(b, value, channels, channels)
            made = b.op("Mul", made, b.op("Sigmoid", conv(b, made, channels, channels, k=1)))
        elif kind == "both":
            made, width = b.op("Concat", value, conv(b, value, channels, 4), axis=1), channels + 4
        else:
            width = data.draw(st.sampled_from([4, 6, 8]))
            made = conv(b, value, channels, width)
        value, channels = data.draw(st.sampled_from([made, b.op("Relu", made)])), width
    value = conv(b, conv(b, value, channels, 8), 8, 3)
    model = b.y(value).model()
    assert_only_the_removed_is_missing(
        model, samples_of(1, 4, 6, 6, count=1), data.draw(st.sampled_from([0.3, 0.6]))
    )


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet_lite0", "pplcnet_orientation", "ppocrv4_det", "fastestdet"])
def test_trained_models_shrink_and_run(name: str, zoo_dir: Path, repository: Path) -> None:
    import msgspec

    from edgefuse.graph import bind_dimensions, read_model
    from edgefuse.graph.reference import judge_session
    from edgefuse.passes import canonicalize

    entry = msgspec.toml.decode((repository / "examples/zoo.toml").read_bytes())["models"][name]
    model = read_model(str(zoo_dir / f"{name}.onnx"))
    bind_dimensions(model, entry["shapes"])
    canonicalize(model)
    found = prune_channels(model, share=0.3)
    assert summarize(found.model).total.macs < 0.85 * summarize(model).total.macs
    ((value, shape),) = entry["shapes"].items()
    outputs = judge_session(model_to_bytes(found.model)).run(None, {value: np.ones(shape, np.float32)})
    assert [o.shape for o in outputs] == [static_shape(v) for v in model.graph.outputs]
