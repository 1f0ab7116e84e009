"""rules.yaml against reality: what it calls one kernel is one in the compiled model, what it refuses not."""

from __future__ import annotations

import itertools
import random

import pytest
from fused import ANCHORS, BINARY, Branches, Found, read_back

from edgefuse.device import probe_host
from edgefuse.errors import EdgefuseError
from edgefuse.plans import Precision
from edgefuse.targets.openvino.legality import rules

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'edgefuse[openvino]'")
pytestmark = pytest.mark.slow

# Not in the rules of any anchor: measured to be kernels of their own.
APART = ["Ceil", "Celu", "Cos", "Erf", "Exp", "Floor", "Max", "Min", "Pow", "Selu", "Sign", "Sin", "Softsign"]


SUMS = {"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"}


@pytest.fixture(autouse=True)
def _this_class_of_cpu() -> None:
    try:
        name = probe_host().device.name
    except EdgefuseError as error:
        pytest.skip(f"no OpenVINO host: {error.message}")
    if name != "x86-avx2":
        pytest.skip(f"the rules were measured on x86-avx2; this machine is {name}")


def forms(operator: str) -> list[str]:
    return ["scalar", "channel"] if operator in BINARY else [""]


def label(epilogue: list[tuple[str, str]]) -> str:
    return " ".join(f"{operator}/{form}" if form else operator for operator, form in epilogue)


def found(
    anchor: str, epilogues: list[list[tuple[str, str]]], precision: Precision, tail: bool = False
) -> list[Found]:
    branches = Branches(anchor, tail)
    for epilogue in epilogues:
        branches.add(label(epilogue), epilogue)
    rows = read_back(branches, precision, "int8" if tail and precision == "int8" else "float32")
    assert len(rows) == len(epilogues)
    return rows


def assert_confirmed(anchor: str, rows: list[Found]) -> None:
    illegal = [f"{anchor} {row.label}: {row.verdict.reason}" for row in rows if not row.verdict.ok]
    assert not illegal, "\n".join(illegal)
    split = [f"{anchor} {row.label}: {row.why}" for row in rows if not row.confirmed]
    assert not split, "legal, and not one kernel:\n" + "\n".join(split)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("anchor", ANCHORS)
def test_each_epilogue_is_one_kernel(anchor: str, precision: Precision) -> None:
    if precision == "int8" and ANCHORS[anchor] not in rules()["int8"]["anchors"]:
        pytest.skip(f"no int8 for {ANCHORS[anchor]}")
    operators = rules()["anchors"][ANCHORS[anchor]]["epilogue"]
    epilogues = [[(operator, form)] for operator in operators for form in forms(operator)]
    for tail in (False, True):
        assert_confirmed(anchor, found(anchor, epilogues, precision, tail))


@pytest.mark.parametrize("anchor", ["conv3x3", "conv1x1", "depthwise", "conv_without_bias"])
def test_a_sum_is_done_in_place_unless_an_activation_came_first(anchor: str) -> None:
    rule = rules()["anchors"]["Conv"]
    total = (rule["residual"], "branch")
    before = [[(op, form), total] for op in rule["before_residual"] for form in forms(op)]
    after = [[total, (op, form)] for op in rule["epilogue"] for form in forms(op)]
    assert_confirmed(anchor, found(anchor, [[total], *before, *after], "fp32"))
    activations = set(rule["epilogue"]) - {"Add", "Sub", *rule["before_residual"]}
    for row in found(anchor, [[(op, forms(op)[0]), total] for op in sorted(activations)], "fp32"):
        assert not row.verdict.ok
        assert not row.confirmed, row.label


def test_nothing_joins_a_kernel_after_softplus() -> None:
    chains = [[(last, ""), (op, "")] for last in rules()["last"] for op in ("Elu", "Relu", "Sigmoid")]
    for anchor in ("conv3x3", "gemm"):
        for row in found(anchor, chains, "fp32"):
            assert "nothing joins" in row.verdict.reason
            assert not row.confirmed, f"{anchor} {row.label}"


@pytest.mark.parametrize("anchor", ["conv3x3", "depthwise", "transposed", "gemm", "matmul"])
def test_chains_of_two_and_three_are_one_kernel(anchor: str) -> None:
    generator = random.Random(anchor)
    single = [(op, form) for op in rules()["anchors"][ANCHORS[anchor]]["epilogue"] for form in forms(op)]
    last = set(rules()["last"])
    pairs = generator.sample(list(itertools.product(single, repeat=2)), 24)
    triples = generator.sample(list(itertools.product(single, repeat=3)), 24)
    epilogues = [
        list(chain) for chain in [*pairs, *triples] if not last & {operator for operator, _ in chain[:-1]}
    ]
    assert len(epilogues) > 36
    assert_confirmed(anchor, found(anchor, epilogues, "fp32"))
    if ANCHORS[anchor] in rules()["int8"]["anchors"]:
        finite = [chain for chain in epilogues if "Sqrt" not in {operator for operator, _ in chain[1:]}]
        assert_confirmed(anchor, found(anchor, finite, "int8"))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("anchor", ["conv3x3", "gemm", "matmul"])
def test_what_is_refused_is_a_kernel_of_its_own(anchor: str, precision: Precision) -> None:
    epilogues = [[(operator, "scalar" if operator in BINARY else "")] for operator in APART]
    epilogues += [[("HardSigmoid", "")], [("Mul", "branch")]]
    for row in found(anchor, epilogues, precision):
        assert not row.verdict.ok
        assert row.verdict.reason
        assert not row.confirmed, f"{anchor} {row.label} became one kernel: the rules may say so"


@pytest.mark.parametrize("head", ["Add", "Clip", "Exp", "Neg", "Pow", "Relu", "Softsign", "Swish"])
def test_pointwise_chains_are_one_kernel(head: str) -> None:
    operators = rules()["pointwise"]
    single = [(op, form) for op in operators for form in (*forms(op), *(["branch"] if op in SUMS else []))]
    generator = random.Random(head)
    triples = generator.sample(list(itertools.product(single, repeat=2)), 20)
    chains = [[step] for step in single if step != (head, "")] + [list(chain) for chain in triples]
    assert_confirmed(head, found(head, chains, "fp32"))


@pytest.mark.parametrize("head", ["Mish", "HardSigmoid", "Softplus", "Log", "Sin"])
def test_other_pointwise_operators_are_kernels_of_their_own(head: str) -> None:
    for row in found(head, [[("Relu", "")], [("Mul", "scalar")], [("Tanh", "")]], "fp32"):
        assert head in row.verdict.reason
        assert not row.confirmed, row.label


def test_an_activation_after_a_transposed_convolution_is_a_kernel_of_its_own() -> None:
    for row in found("transposed", [[("Relu", "")], [("Clip", "")], [("Sigmoid", "")]], "fp32"):
        assert not row.verdict.ok
        assert not row.confirmed, row.label


def test_an_int8_sum_is_refused_and_split() -> None:
    for row in found("conv3x3", [[("Add", "branch")], [("Add", "branch"), ("Relu", "")]], "int8", tail=True):
        assert row.verdict.reason == rules()["int8"]["sum_reason"]
        assert not row.confirmed
        assert "split" in row.why
