"""Schemes: what each family's scheme.toml says, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefuse.device import devices, families, resolve_target
from edgefuse.errors import InputError, UnsupportedError, UsageError
from edgefuse.quant.scheme import PAIR_SUM_LIMIT, PAIR_SUM_STEPS, SMALLEST_SCALE, Scheme, scheme_of
from edgefuse.quant.scheme_file import read_scheme

TARGETS = Path(__file__).resolve().parents[2] / "targets"
AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)


def _int8_devices() -> list[str]:
    return [
        device.name
        for family in families(examples=True)
        for device in devices(family)
        if device.int8 != "none"
    ]


@pytest.mark.parametrize("name", _int8_devices())
@pytest.mark.parametrize("weight", [None, "8", "7", "pair"])
def test_every_int8_device_has_a_scheme_in_every_weight_mode(name: str, weight: str | None) -> None:
    target = resolve_target(name)
    scheme = scheme_of(target, weight)
    assert scheme.symmetric == (target.device.int8 == "symmetric")
    assert scheme.activation_bits == 8
    saturating = read_scheme(target.family).saturating_weights if scheme.saturates_pairs else "8"
    mode = weight or saturating
    assert scheme.pair_aware == (mode == "pair")
    assert scheme.weight_limit == (63 if mode == "7" else 127)


def test_devices_that_add_pairs_take_what_their_kernels_are_known_for() -> None:
    assert scheme_of(resolve_target("x86-avx2")).name == "static_w8pc_a8"
    assert scheme_of(resolve_target("x86-avx512-vnni")).name == "static_w8c_a8"
    assert read_scheme("_example").saturating_weights == "7"


def test_each_family_in_its_own_words() -> None:
    tensorrt = scheme_of(resolve_target("jetson-orin-nano"))
    assert (tensorrt.activation_low, tensorrt.activation_high, tensorrt.bias) == (-128, 127, "float")
    softmax = tensorrt.fixed_output("Softmax")
    assert softmax is not None
    assert softmax.scale == pytest.approx(1 / 127, rel=1e-15)
    kunlun = scheme_of(resolve_target("kunlun-r200"))
    assert (kunlun.activation_low, kunlun.activation_high) == (-127, 127), "never -128"
    assert not kunlun.is_per_channel("Conv")
    assert kunlun.is_per_channel("Gemm")
    litert = scheme_of(resolve_target("raspberry-pi-4"))
    assert (litert.activation_low, litert.activation_high, litert.bias) == (-128, 127, "int32")
    fixed = {name: (f.scale, f.zero_point) for name, f in litert.fixed_outputs}
    assert fixed == {
        "LogSoftmax": (16 / 256, 127),
        "Sigmoid": (1 / 256, -128),
        "Softmax": (1 / 256, -128),
        "Tanh": (1 / 128, 0),
    }
    assert {"Concat", "MaxPool", "Reshape"} <= set(litert.same_scale)
    assert not litert.shared_groups
    openvino = scheme_of(resolve_target("x86-avx2"))
    assert (openvino.activation_low, openvino.activation_high, openvino.bias) == (0, 255, "float")
    assert openvino.saturates_pairs
    assert not openvino.depthwise_saturates
    assert not scheme_of(resolve_target("x86-avx512-vnni")).saturates_pairs
    assert scheme_of(resolve_target("example-cpu")).depthwise_saturates


def test_a_runtime_may_round_otherwise() -> None:
    assert scheme_of(resolve_target("raspberry-pi-4@litert-2.3")).rounding == "half_even"
    old = scheme_of(resolve_target("raspberry-pi-4@tflite-runtime-2.14"))
    assert (old.rounding, old.requantization) == ("half_away", "half_away")
    assert old.bias == "int32"


def test_runtimes_that_a_scheme_names_exist() -> None:
    for family in families(examples=True):
        known = {path.stem for path in (TARGETS / family / "runtimes").glob("*.toml")}
        assert set(read_scheme(family).runtimes) <= known


def test_16_bit_activations_where_the_family_has_them() -> None:
    wide = scheme_of(resolve_target("raspberry-pi-5"), activation_bits=16)
    assert (wide.activation_low, wide.activation_high, wide.bias) == (-32768, 32767, "int64")
    assert (wide.symmetric, wide.activation_bits, wide.name) == (True, 16, "static_w8c_a16s")
    with pytest.raises(UnsupportedError, match="no 16-bit activations"):
        scheme_of(resolve_target("x86-avx2"), activation_bits=16)


def test_names_say_bits_pairs_granularity_and_symmetry() -> None:
    target = resolve_target("x86-avx2")
    assert [scheme_of(target, w).name for w in ("8", "7", "pair")] == [
        "static_w8c_a8",
        "static_w7c_a8",
        "static_w8pc_a8",
    ]
    assert replace(AFFINE, per_channel=False).name == "static_w8t_a8"
    assert scheme_of(resolve_target("kunlun-r200")).name == "static_w8c_a8s"


def test_the_digest_tells_any_two_schemes_apart() -> None:
    every = [scheme_of(resolve_target(name), w) for name in _int8_devices() for w in ("8", "7", "pair")]
    assert len({s.digest for s in every}) == len(set(every))
    assert replace(AFFINE, bias="int32").digest != AFFINE.digest
    assert Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True).digest == AFFINE.digest


def test_the_pair_limits_hold_for_every_activation() -> None:
    """Two products of one sign with activations of 255 stay in int16; one step more does not."""
    assert 255 * PAIR_SUM_LIMIT <= 2**15 - 1 < 255 * (PAIR_SUM_LIMIT + 1)
    assert PAIR_SUM_STEPS + 2 * 0.5 < PAIR_SUM_LIMIT + 1, "rounding cannot reach the next integer sum"
    assert 255 * (64 + 64) <= 2**15 - 1 < 255 * (64 + 65), "7 bits: 64 is the last safe integer, 63 is used"


@given(st.floats(-1e30, 0), st.floats(0, 1e30), st.booleans())
def test_the_grid_holds_zero_and_its_range(low: float, high: float, symmetric: bool) -> None:
    scheme = (
        replace(AFFINE, activation_low=-128, activation_high=127, symmetric=True) if symmetric else AFFINE
    )
    scale, zero = (float(x) for x in scheme.grid(low, high))
    assert scale >= SMALLEST_SCALE
    assert zero == int(zero)
    assert scheme.activation_low <= zero <= scheme.activation_high
    assert (scheme.activation_high - zero) * scale >= high - 0.5001 * scale
    if not symmetric:
        assert (scheme.activation_low - zero) * scale <= low + 0.5001 * scale


def test_the_grid_by_hand() -> None:
    scale, zero = AFFINE.grid(np.array([-1.0, 0.0, 0.0, -2.55]), np.array([1.55, 2.55, 0.0, 0.0]))
    np.testing.assert_allclose(scale, [0.01, 0.01, 1.0, 0.01])
    np.testing.assert_array_equal(zero, [100, 0, 0, 255])


def test_a_device_without_int8_and_an_unknown_mode_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="jetson-nano has no int8"):
        scheme_of(resolve_target("jetson-nano"))
    with pytest.raises(UsageError, match="unknown weight mode '4'"):
        scheme_of(resolve_target("x86-avx2"), "4")


def _broken(tmp_path: Path, old: str, new: str, family: str = "tflite") -> Path:
    text = (TARGETS / family / "scheme.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / family).mkdir()
    (tmp_path / family / "scheme.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return tmp_path


def test_a_copy_reads_the_same(tmp_path: Path) -> None:
    shutil.copytree(TARGETS / "tflite", tmp_path / "tflite")
    assert read_scheme("tflite", tmp_path) == read_scheme("tflite")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounding =", "ronding =", "unknown key 'ronding'.*did you mean.*rounding"),
        ("low = -128", "lowest = -128", r"\[activations.8\]: unknown key 'lowest'"),
        ('bias = "int32"', 'bias = "int16"', "activations"),
        ('bias = "int32"', 'bias = "int32"\nfixd_outputs = 3', "did you mean.*fixed_outputs"),
        ("zero_point = -128 }", "zero = -128 }", r"fixed_outputs.Sigmoid\]: unknown key 'zero'"),
        ("scale = 0.00390625", "scale = -1.0", "above 0"),
        ("zero_point = -128 }", "zero_point = -129 }", "zero point -129 is out of range"),
        ("low = -128\nhigh = 127\n", "low = -129\nhigh = 127\n", "cannot hold the range"),
        ("low = -32768", "low = -32000", "a symmetric range"),
        ("zero_point = 0 }  # 1/32768", "zero_point = 1 }  # 1/32768", "symmetric scheme has zero point 0"),
        ("low = -128\n", "low = 1\n", "low <= 0 < high"),
        (
            "[sources]\n",
            '[activations.12]\nlow = -8\nhigh = 7\nsymmetric = true\nbias = "float"\n[sources]\n',
            "activations.12 cannot hold",
        ),
        ("[activations.8]", "[activations.16]", "not valid TOML|activations.8 is missing"),
        ("[sources]\n", '[sources]\nspeed = "x"\n', "sources.speed"),
        ('rounding = "half_away"', 'rounding = "up"', "runtimes"),
        ('source = "no XNNPACK', 'sauce = "no XNNPACK', r"\[runtimes.tflite-runtime-2.14\]: unknown key"),
        ("per_channel = true", "per_channel = 1", "per_channel"),
        ("depthwise_saturates = false\n", "", "depthwise_saturates"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=f"(?s)tflite/scheme.toml.*({message})"):
        read_scheme("tflite", _broken(tmp_path, old, new))


def test_an_empty_source_is_refused(tmp_path: Path) -> None:
    text = read_scheme("tflite").runtimes["tflite-runtime-2.14"].source
    with pytest.raises(InputError, match="source must say"):
        read_scheme("tflite", _broken(tmp_path, f'source = "{text}"', 'source = " "'))


def test_a_family_without_a_scheme_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="says nothing about int8"):
        read_scheme("tflite", tmp_path)
    (tmp_path / "tflite").mkdir()
    (tmp_path / "tflite" / "scheme.toml").write_text("rounding = ", encoding="utf-8")
    with pytest.raises(InputError, match="not valid TOML"):
        read_scheme("tflite", tmp_path / "")


def test_a_device_that_contradicts_its_family_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    target = resolve_target("x86-avx2")
    wrong = read_scheme("kunlun")
    monkeypatch.setattr("edgefuse.quant.scheme.read_scheme", lambda family: wrong)
    with pytest.raises(InputError, match="contradict each other"):
        scheme_of(target)
