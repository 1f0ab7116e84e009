"""Which tensors share a scale vector, and every reason why a stream is refused."""

from __future__ import annotations

import pytest

from edgefuse.graph import Model
from edgefuse.quant.streams import Stream, find_streams
from tests.passes.graphs import Build, conv


def _stream(model: Model, writer: str) -> Stream:
    return next(s for s in find_streams(model) if any(n.name == writer for n in s.writers))


def _names(stream: Stream) -> tuple[set[str], set[str], set[str]]:
    return tuple({n.name or "" for n in held} for held in (stream.writers, stream.readers, stream.through))  # type: ignore[return-value]


def test_a_residual_stream_is_one_with_all_its_writers_and_readers() -> None:
    b = Build()
    x = b.x([1, 3, 8, 8])
    a = conv(b, x, 3, 4, name="stem")
    inner = b.op("Relu", conv(b, a, 4, 6, name="expand"), name="relu")
    total = b.op("Add", conv(b, inner, 6, 4, name="project"), a, name="add")
    model = b.y(conv(b, total, 4, 2, name="head")).model()
    found = _stream(model, "stem")
    assert found.refused == ""
    assert found.channels == 4
    assert _names(found) == ({"stem", "project"}, {"expand", "head"}, {"add"})
    assert _names(_stream(model, "expand")) == ({"expand"}, {"project"}, {"relu"})


@pytest.mark.parametrize(
    "op",
    ["Relu", "LeakyRelu", "MaxPool", "GlobalAveragePool", "ReduceMean", "Pad", "Resize", "Mul", "Transpose"],
)
def test_scales_pass_through_what_is_homogeneous(op: str) -> None:
    b = Build()
    a = conv(b, b.x([1, 3, 8, 8]), 3, 4, name="one")
    made = {
        "Relu": lambda: b.op("Relu", a),
        "LeakyRelu": lambda: b.op("LeakyRelu", a, alpha=0.1),
        "MaxPool": lambda: b.op("MaxPool", a, kernel_shape=[2, 2]),
        "GlobalAveragePool": lambda: b.op("GlobalAveragePool", a),
        "ReduceMean": lambda: b.op("ReduceMean", a, b.ints(2, 3)),
        "Pad": lambda: b.op("Pad", a, b.ints(0, 0, 1, 1, 0, 0, 1, 1)),
        "Resize": lambda: b.op("Resize", a, "", b.w([1, 1, 2, 2], dtype="float32"), mode="nearest"),
        "Mul": lambda: b.op("Mul", a, b.rand(4, 1, 1)),
        "Transpose": lambda: b.op("Transpose", b.op("Transpose", a, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2]),
    }[op]()
    found = _stream(b.y(conv(b, made, 4, 2, name="two")).model(), "one")
    assert found.refused == ""
    assert _names(found)[1] == {"two"}


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("Sigmoid", "Sigmoid"),
        ("HardSwish", "HardSwish"),
        ("Softmax", "Softmax"),
        ("Concat", "Concat"),
        ("Pad with ones", "Pad"),
        ("ReduceMean over channels", "ReduceMean"),
        ("Clip from -1", "Clip"),
        ("Add with an input", "input of the model"),
        ("Add of a picture", "more than one number"),
        ("output", "output of the model"),
        ("output behind", "output of the model"),
        ("product with itself", "twice"),
    ],
)
def test_a_stream_says_why_it_cannot_be_scaled(op: str, why: str) -> None:
    b = Build()
    x = b.x([1, 4, 8, 8])
    a = conv(b, x, 4, 4, name="one")
    made = a
    if op in ("Sigmoid", "HardSwish", "Softmax"):
        made = b.op(op, a)
    elif op == "Concat":
        made = b.op("Slice", b.op("Concat", a, a, axis=1), b.ints(0), b.ints(4), b.ints(1))
    elif op == "Pad with ones":
        made = b.op("Pad", a, b.ints(0, 0, 1, 1, 0, 0, 1, 1), b.w(1.0))
    elif op == "ReduceMean over channels":
        made = b.op("Mul", a, b.op("ReduceMean", a, b.ints(1)))
    elif op == "Clip from -1":
        made = b.op("Clip", a, b.w(-1.0), b.w(1.0))
    elif op == "Add with an input":
        made = b.op("Add", a, x)
    elif op == "Add of a picture":
        made = b.op("Add", a, b.rand(4, 8, 8))
    elif op == "output":
        b.y(a)
    elif op == "output behind":
        made = b.op("Relu", a)
        b.y(made)
    if op == "product with itself":
        flat = b.op("MatMul", b.x([4, 4], name="z"), b.rand(4, 4), name="one")
        model = b.y(b.op("MatMul", flat, flat)).model()
        found = next(s for s in find_streams(model) if s.writers[0].op_type == "MatMul")
        assert found.refused
        return
    model = b.y(conv(b, made, 4, 2, name="two")).model()
    assert why in _stream(model, "one").refused


def test_clips_from_zero_are_noted_and_a_clip_without_upper_bound_is_a_relu() -> None:
    b = Build()
    a = b.op("Clip", conv(b, b.x([1, 3, 8, 8]), 3, 4, name="one"), b.w(0.0), b.w(6.0))
    c = b.op("Clip", conv(b, a, 4, 4, name="two"), b.w(0.0))
    model = b.y(conv(b, c, 4, 2, name="three")).model()
    assert len(_stream(model, "one").clips) == 1
    assert _stream(model, "two").clips == []
    assert not _stream(model, "one").refused


def test_a_computed_bias_and_a_computed_weight_write_no_stream() -> None:
    b = Build()
    x = b.x([1, 4, 4, 4])
    bias = b.op("ReduceMean", x, b.ints(0, 2, 3), keepdims=0)
    a = b.op("Conv", x, b.rand(4, 4, 1, 1), bias, name="one")
    model = b.y(conv(b, a, 4, 2, name="two")).model()
    assert not any(n.name == "one" for s in find_streams(model) for n in s.writers)
