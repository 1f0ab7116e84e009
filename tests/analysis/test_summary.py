"""Whole models: golden figures that were checked by hand or against published ones, and binding."""

from pathlib import Path

import onnx
import pytest

from edgefuse.analysis import bound_model, roofline, summarize
from edgefuse.device import load_device
from edgefuse.errors import UnsupportedError, UsageError
from edgefuse.graph import Model, dims, model_from_proto, read_model

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def light(name: str) -> Model:
    path = LIGHT / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip(f"the onnx package has no {path.name}")
    return read_model(path)


# (stride, channels out, kernel, expansion, repeats) of EfficientNet-Lite0 (Tan & Le 2019, table 1, width and
# depth 1.0; Lite: no squeeze-excite, stem and head not scaled).
STAGES = [
    (1, 16, 3, 1, 1),
    (2, 24, 3, 6, 2),
    (2, 40, 5, 6, 2),
    (2, 80, 3, 6, 3),
    (1, 112, 5, 6, 3),
    (2, 192, 5, 6, 4),
    (1, 320, 3, 6, 1),
]


def efficientnet_lite0() -> tuple[int, int]:
    """MACs of convolutions and the classifier, and parameters with BatchNorm folded, from the table."""
    side, channels = 112, 32
    macs, parameters = side * side * 32 * 27, 32 * 27 + 32
    for stride, out, kernel, expansion, repeats in STAGES:
        for repeat in range(repeats):
            wide = channels * expansion
            if expansion > 1:
                macs += side * side * channels * wide
                parameters += channels * wide + wide
            if repeat == 0:
                side //= stride
            macs += side * side * wide * (kernel * kernel + out)
            parameters += wide * kernel * kernel + wide + wide * out + out
            channels = out
    macs += side * side * 320 * 1280 + 1280 * 1000
    return macs, parameters + 320 * 1280 + 1280 + 1280 * 1000 + 1000


@pytest.mark.shared
def test_efficientnet_lite0_by_its_published_table(shared_dir: Path) -> None:
    summary = summarize(read_model(shared_dir / "zoo/efficientnet_lite0.onnx"))
    macs, parameters = efficientnet_lite0()
    assert summary.unknown == ()
    assert summary.total.macs == macs
    assert summary.total.parameters == parameters
    # 4 652 008 are published with two BatchNorm vectors a convolution; folding leaves one bias.
    assert parameters == 4_652_008 - 21_008
    assert summary.weight_storage_bytes == pytest.approx(4 * parameters, rel=1e-4)
    assert summary.operators[0].op_type == "Conv"
    assert summary.operators[0].flops_share > 0.95


# Parameters: torchvision's counts for AlexNet (the two-group original), VGG-19 and ResNet-50 (its 25 557 032
# plus 2 x 26 560 running means and variances that ONNX stores too). MACs: Conv and Gemm of the papers.
@pytest.mark.parametrize(
    ("name", "parameters", "giga_macs"),
    [
        ("bvlc_alexnet", 60_965_224, 0.65),
        ("vgg19", 143_667_240, 19.6),
        ("resnet50", 25_557_032 + 2 * 26_560, 4.09),
        ("squeezenet", 1_235_496, 0.35),
        ("shufflenet", None, 0.125),
        ("densenet121", None, 2.83),
        ("inception_v1", None, 1.43),
        ("inception_v2", None, 2.02),
        ("zfnet512", None, 1.48),
    ],
)
def test_known_models(name: str, parameters: int | None, giga_macs: float) -> None:
    summary = summarize(light(name))
    assert summary.unknown == ()
    assert summary.total.macs / 1e9 == pytest.approx(giga_macs, rel=0.01)
    if parameters is not None:
        assert summary.total.parameters == parameters
    assert sum(share.cost.flops for share in summary.operators) == summary.total.flops
    assert sum(share.flops_share for share in summary.operators) == pytest.approx(1)
    assert sum(share.bytes_share for share in summary.operators) == pytest.approx(1)
    assert [s.cost.flops for s in summary.operators] == sorted(
        (s.cost.flops for s in summary.operators), reverse=True
    )


TEXT = """<ir_version: 10, opset_import: ["": 21]>
    g (float["batch",8] x, float["other"] o) => (float["batch",8] y, float["other"] p)
    <float[8,8] w = {ONES}>
    { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w)  p = Relu(o) }""".replace("ONES", ",".join(["1"] * 64))


@pytest.fixture
def loose() -> Model:
    """Two inputs with one symbolic dimension each, and one weight that two nodes read."""
    return model_from_proto(onnx.parser.parse_model(TEXT))


def test_symbolic_dimensions_are_reported(loose: Model) -> None:
    summary = summarize(loose)
    assert len(summary.unknown) == len(summary.nodes) == 4
    assert summary.total.flops == 0
    assert {node.cost.unknown.split()[1] for node in summary.unknown} == {"batch", "other"}
    assert summary.total.parameters == 64


def test_binding_is_partial_and_leaves_the_model_alone(loose: Model) -> None:
    summary = summarize(loose, {"batch": 3})
    assert [node.op_type for node in summary.unknown] == ["Relu"]
    assert "other" in summary.unknown[0].cost.unknown
    assert summary.total.macs == 2 * 3 * 64
    assert summary.total.flops == 4 * 3 * 64 + 24
    assert dims(loose.graph.inputs[0]) == ("batch", 8)
    whole = summarize(loose, {"batch": 3, "other": 5})
    assert whole.unknown == ()
    assert whole.total.flops == summary.total.flops + 5


def test_a_shared_weight_is_one_parameter_and_is_read_twice(loose: Model) -> None:
    summary = summarize(loose, {"batch": 1})
    assert summary.total.parameters == 64
    assert summary.weight_storage_bytes == 256
    assert summary.total.weight_bytes == 512


def test_nothing_to_bind_gives_the_model_itself(loose: Model) -> None:
    assert bound_model(loose, None) is loose
    assert bound_model(loose, {}) is loose


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ({"bacth": 1}, "did you mean 'batch'"),
        ({"batch": 0}, "whole number above 0"),
        ({"batch": -1}, "whole number above 0"),
        ({"batch": 1.5}, "whole number above 0"),
        ({"batch": True}, "whole number above 0"),
    ],
)
def test_wrong_binding(loose: Model, binding: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        summarize(loose, binding)


def test_binding_a_fixed_model_says_that_there_is_nothing_to_bind() -> None:
    with pytest.raises(UsageError, match="every dimension is a number"):
        summarize(light("squeezenet"), {"batch": 1})


def test_top_nodes() -> None:
    summary = summarize(light("squeezenet"))
    flops = [node.cost.flops for node in summary.top(5)]
    assert flops == sorted((node.cost.flops for node in summary.nodes), reverse=True)[:5]
    moved = [node.cost.traffic_bytes for node in summary.top(3, by="bytes")]
    assert moved == sorted((node.cost.traffic_bytes for node in summary.nodes), reverse=True)[:3]
    assert summary.top(1, by="parameters")[0].op_type == "Conv"
    assert all(node.source for node in summary.nodes)


def test_roofline_of_a_node_by_hand() -> None:
    summary = summarize(light("vgg19"))
    conv = next(node for node in summary.nodes if node.op_type == "Conv").cost
    board = load_device("jetson-nano")
    found = roofline(conv, board, "fp16")
    assert found.ridge == pytest.approx(472 / 25.6)
    assert found.compute_ms == pytest.approx(conv.flops / 472e9 * 1e3)
    assert found.memory_ms == pytest.approx(conv.traffic_bytes / 2 / 25.6e9 * 1e3)
    assert found.ms_estimate == pytest.approx(max(found.compute_ms, found.memory_ms) + 0.012)
    assert found.bound == ("compute" if found.intensity > found.ridge else "memory")
    assert (found.provenance, found.confidence, found.kernels) == ("estimate", "guess", 1)
    assert "datasheet" in found.source


def test_roofline_of_a_model() -> None:
    cpu = load_device("x86-avx2")
    summary = summarize(light("vgg19"))
    one = roofline(summary, cpu, "fp32", threads=1)
    parts = [roofline(node.cost, cpu, "fp32") for node in summary.nodes]
    assert one.ms_estimate == pytest.approx(sum(part.ms_estimate for part in parts))
    assert one.bound == "compute"
    assert one.kernels == sum(part.kernels for part in parts)
    two = roofline(summary, cpu, "fp32", threads=2)
    assert one.ms_estimate / 2 < two.ms_estimate < one.ms_estimate
    assert roofline(summary, cpu, "int8").memory_ms < one.memory_ms
    assert roofline(summary, cpu, "int8").intensity == pytest.approx(4 * one.intensity)
    small = roofline(summarize(light("shufflenet")), load_device("jetson-thor"), "fp16")
    assert small.bound == "overhead"


def test_views_launch_no_kernel() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[4,4] x) => (float[16] y) <int64[1] s = {16}> { y = Reshape(x, s) }""")
    found = roofline(summarize(model_from_proto(proto)), load_device("x86-avx2"))
    assert (found.kernels, found.ms_estimate, found.intensity) == (0, 0.0, 0.0)


@pytest.mark.parametrize(("device", "precision"), [("jetson-tx2", "int8"), ("x86-avx2", "fp16")])
def test_no_roofline_without_the_arithmetic(device: str, precision: str, loose: Model) -> None:
    with pytest.raises(UnsupportedError, match=f"{device} has no {precision} roofline"):
        roofline(summarize(loose), load_device(device), precision)  # type: ignore[arg-type]


def test_no_roofline_for_a_node_of_unknown_cost(loose: Model) -> None:
    cost = summarize(loose).nodes[0].cost
    with pytest.raises(UnsupportedError, match="unknown cost: dimension batch"):
        roofline(cost, load_device("x86-avx2"))
