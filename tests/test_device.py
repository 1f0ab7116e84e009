"""The descriptors: every file loads, every number has a source, the claims about devices hold."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edgefuse import device as device_module
from edgefuse.device import (
    Device,
    Figure,
    Runtime,
    Support,
    Target,
    devices,
    families,
    load_device,
    load_runtime,
    probe_host,
    resolve_target,
    runtimes,
)
from edgefuse.errors import DeviceError, InputError, UsageError

NEEDED = {
    "tensorrt": [
        "jetson-agx-orin",
        "jetson-agx-xavier",
        "jetson-nano",
        "jetson-orin-nano",
        "jetson-orin-nano-super",
        "jetson-orin-nx",
        "jetson-thor",
        "jetson-tx2",
        "jetson-xavier-nx",
    ],
    "openvino": ["intel-gpu", "x86-amx", "x86-avx2", "x86-avx512-vnni"],
    "tflite": ["android-arm64", "raspberry-pi-4", "raspberry-pi-5", "x86-litert"],
    "kunlun": ["kunlun-k200", "kunlun-r200"],
}
EVERY_DEVICE = [device for family in families(examples=True) for device in devices(family)]
EVERY_RUNTIME = [runtime for family in families(examples=True) for runtime in runtimes(family)]
UNITS = ("_gflops", "_gops", "_gb_s", "_gb", "_kb", "_mhz", "_us", "_bits")
COUNTS = {"compute_units", "registers", "tensor_core_multiple", "dla_cores", "opset"}


def figures(described: Device | Runtime) -> Iterator[tuple[str, Figure]]:
    for field in msgspec.structs.fields(described):
        value = getattr(described, field.name)
        if isinstance(value, Figure):
            yield field.name, value


def described_id(described: Device | Runtime) -> str:
    return f"{described.family}-{described.name}"


@pytest.mark.parametrize("described", [*EVERY_DEVICE, *EVERY_RUNTIME], ids=described_id)
def test_every_number_has_unit_source_and_confidence(described: Device | Runtime) -> None:
    found = dict(figures(described))
    assert found
    for key, figure in found.items():
        assert key.endswith(UNITS) or key in COUNTS, f"{key} names no unit"
        assert figure.value > 0
        assert figure.confidence in ("measured", "published", "recalled", "guess")
        assert len(figure.source) >= 10, f"{key}: the source says nothing"
        # A measurement says when and on what; a bare guess may not call itself anything better.
        if figure.confidence == "measured":
            assert "2026-" in figure.source, key
        if figure.source.startswith(("no source", "no measurement")):
            assert figure.confidence == "guess", key


@pytest.mark.parametrize("described", EVERY_DEVICE, ids=lambda d: d.name)
def test_every_device_resolves_with_each_of_its_runtimes(described: Device) -> None:
    assert resolve_target(described.name).runtime.name == described.default_runtime
    for name in described.runtimes:
        target = resolve_target(f"{described.name}@{name}")
        assert target.string == f"{described.name}@{name}"
        assert target.device == described
        assert target.family == target.runtime.family == described.family
    for alias in described.aliases:
        assert load_device(alias) == described


def test_the_promised_devices_are_there_and_names_are_unique() -> None:
    assert set(families()) == set(NEEDED)
    assert set(families(examples=True)) - set(families()) == {"_example"}
    for family, names in NEEDED.items():
        assert [device.name for device in devices(family)] == names
    names = [name for device in EVERY_DEVICE for name in (device.name, *device.aliases)]
    assert len(names) == len(set(names))
    assert "host" not in names
    for family in families():
        words = [word for runtime in runtimes(family) for word in (runtime.name, *runtime.aliases)]
        assert len(words) == len(set(words))
    assert not [device for device in devices() if device.family.startswith("_")]


def test_what_is_not_measured_says_what_is_unverified() -> None:
    for device in devices():
        assert device.unverified
        if not device.measured:
            assert not [
                key
                for key, figure in figures(device)
                if figure.confidence == "measured" and key != "int8_weight_bits"
            ]


@pytest.mark.parametrize("name", ["jetson-nano", "jetson-tx2"])
def test_boards_without_int8_say_why(name: str) -> None:
    target = resolve_target(name)
    assert target.device.int8 == "none"
    assert target.device.precisions == ("fp32", "fp16")
    assert target.device.int8_gops is None
    assert target.device.peak_gops("int8") is None
    with pytest.raises(UsageError) as caught:
        target.require_precision("int8")
    assert "NVIDIA/TensorRT#3157" in str(caught.value)
    assert caught.value.exit_code == 2
    assert target.support("Conv", "int8") == Support("no", target.device.int8_reason)
    target.require_precision("fp16")


def test_every_other_device_has_int8() -> None:
    without = {device.name for device in EVERY_DEVICE if device.int8 == "none"}
    assert without == {"jetson-nano", "jetson-tx2"}
    for name in ("x86-avx2", "x86-litert", "x86-amx"):
        with pytest.raises(UsageError, match=f"fp16 is not possible on {name}"):
            resolve_target(name).require_precision("fp16")


def test_claims_about_software() -> None:
    old = load_runtime("tensorrt", "jetpack-4.6")
    assert (old.version, int(old.opset), old.python, old.index_dtype) == ("8.2.1", 13, "3.6", "int32")
    assert old.static_shapes
    assert len(old.readable_ops) == 129
    for absent in ("LayerNormalization", "HardSwish", "Gelu", "GridSample", "Mod", "QLinearConv"):
        assert not old.reads(absent)
    expected = {"jetpack-5.1": (17, 142), "jetpack-6.2": (20, 150)}
    for name, (opset, count) in expected.items():
        runtime = load_runtime("tensorrt", name)
        assert (int(runtime.opset), len(runtime.readable_ops)) == (opset, count)
        assert runtime.reads("HardSwish")
        assert not runtime.reads("QLinearMatMul")
    assert load_runtime("tensorrt", "jetpack-7.2").int8_forms == ("strong",)
    for runtime in EVERY_RUNTIME:
        assert list(runtime.readable_ops) == sorted(set(runtime.readable_ops))
        assert runtime.reads("Conv")


def test_support_takes_the_stricter_of_hardware_and_software() -> None:
    xavier = resolve_target("jetson-xavier-nx@jetpack-4.6")
    assert xavier.support("Resize", "int8").level == "no"
    assert "FP32 or FP16 only" in xavier.support("Resize", "int8").reason
    assert resolve_target("jetson-xavier-nx").support("Resize", "int8") == Support("yes", "")
    assert not xavier.support("Gelu", "fp16").allowed
    assert "does not read Gelu" in xavier.support("Gelu", "fp16").reason
    cpu = resolve_target("x86-avx2")
    assert cpu.support("Softmax", "int8").level == "float-output"
    assert cpu.support("Softmax", "int8").allowed
    assert cpu.support("Softmax", "fp32") == Support("yes", "")
    assert cpu.support("MatMul", "int8").level == "slow"
    assert resolve_target("x86-amx").support("MatMul", "int8").level == "yes"
    assert int(cpu.device.int8_weight_bits or 0) == 7
    assert int(load_device("x86-avx512-vnni").int8_weight_bits or 0) == 8


def test_peak_counts_threads_for_cpus_only() -> None:
    cpu = load_device("raspberry-pi-5")
    one, four = cpu.peak_gops("fp32"), cpu.peak_gops("fp32", threads=4)
    assert one is not None
    assert four is not None
    assert four.value == pytest.approx(4 * one.value)
    assert cpu.peak_gops("fp32", threads=64) == four
    board = load_device("jetson-nano")
    assert board.peak_gops("fp16", threads=8) == board.fp16_gflops


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jetson-nono", "did you mean 'jetson-nano'"),
        ("", "unknown target ''"),
        ("hosst", "did you mean 'host'"),
        ("jetson-nano@", "ends in '@'"),
        ("jetson-nano@jetpak-4.6", "did you mean 'jetpack-4.6'"),
        ("jetson-nano@jetpack-6.2", "does not run on jetson-nano"),
        ("jetson-nano@openvino-2026.4", "belongs to the family openvino"),
        ("host@jetpack-4.6", "belongs to the family tensorrt"),
        ("x86-avx2@nothing-like-it", "unknown runtime"),
    ],
)
def test_wrong_target_is_a_usage_error_that_helps(text: str, words: str, fake_root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_target(text)
    assert words in str(caught.value)
    assert caught.value.expected


def test_unknown_family_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="did you mean 'tensorrt'"):
        devices("tensort")


@pytest.fixture
def fake_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with AVX2 only, taken for the host by `resolve_target("host")`."""
    write_cpuinfo(tmp_path, "flags\t\t: fpu avx avx2 fma sse4_2", "model name\t: Test CPU")
    real = device_module.probe_host
    monkeypatch.setattr(device_module, "probe_host", lambda: real(tmp_path, "x86_64"))
    return tmp_path


def write_cpuinfo(root: Path, *lines: str, cores: int = 2) -> None:
    (root / "proc").mkdir(exist_ok=True)
    block = "\n".join(["processor\t: {}", *lines])
    (root / "proc/cpuinfo").write_text("\n\n".join(block.format(core) for core in range(cores)) + "\n")


def test_host_is_probed_generically(fake_root: Path) -> None:
    (fake_root / "proc/meminfo").write_text("MemTotal:        8388608 kB\nMemFree: 1 kB\n")
    cache = fake_root / "sys/devices/system/cpu/cpu0/cache/index0"
    cache.mkdir(parents=True)
    for name, text in (("level", "1\n"), ("type", "Data\n"), ("size", "32K\n")):
        (cache / name).write_text(text)
    target = resolve_target("host")
    assert target.string == "x86-avx2@openvino-2026.4"
    assert target.device == load_device("x86-avx2")
    facts = target.probed
    assert facts is not None
    assert (facts.cpu_model, facts.cores, facts.memory_gb) == ("Test CPU", 2, 8.0)
    assert facts.caches_kb == {"L1d": 32}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("avx avx2 fma avx512f avx512bw avx512_vnni", "x86-avx512-vnni"),
        ("avx avx2 fma avx512f avx512bw avx512_vnni amx_tile amx_int8", "x86-amx"),
        ("avx avx2 fma avx512f avx512bw", "x86-avx2"),
        ("avx avx2 fma avx_vnni", "x86-avx2"),
    ],
)
def test_host_on_x86(tmp_path: Path, flags: str, name: str) -> None:
    write_cpuinfo(tmp_path, f"flags\t\t: {flags}")
    assert probe_host(tmp_path, "x86_64").device.name == name


@pytest.mark.parametrize(
    ("board", "name"),
    [
        ("Raspberry Pi 5 Model B Rev 1.0\0", "raspberry-pi-5"),
        ("Raspberry Pi 4 Model B Rev 1.4\0", "raspberry-pi-4"),
        ("Radxa ROCK 5B\0", "android-arm64"),
        ("", "android-arm64"),
    ],
)
def test_host_on_arm(tmp_path: Path, board: str, name: str) -> None:
    write_cpuinfo(tmp_path, "Features\t: fp asimd crc32", cores=4)
    (tmp_path / "proc/device-tree").mkdir()
    (tmp_path / "proc/device-tree/model").write_text(board)
    target = probe_host(tmp_path, "aarch64")
    assert target.device.name == name
    assert target.family == "tflite"


@pytest.mark.parametrize(
    ("machine", "flags"), [("x86_64", "flags\t: sse2"), ("riscv64", ""), ("x86_64", "Features\t: asimd")]
)
def test_host_that_nothing_fits_is_a_device_error(tmp_path: Path, machine: str, flags: str) -> None:
    write_cpuinfo(tmp_path, flags)
    with pytest.raises(DeviceError, match="no described device") as caught:
        probe_host(tmp_path, machine)
    assert caught.value.exit_code == 3


def test_host_without_proc_is_a_device_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no described device"):
        probe_host(tmp_path, "x86_64")


GOOD = """
name = "board"
family = "new"
title = "Board"
kind = "cpu"
architecture = "x86_64"
default_runtime = "soft-1"
runtimes = ["soft-1"]
precisions = ["fp32"]
peak_scope = "core"
compute_units = { value = 2, source = "data sheet", confidence = "published" }
fp32_gflops = { value = 10.5, source = "data sheet", confidence = "published" }
dram_bandwidth_gb_s = { value = 10, source = "data sheet", confidence = "published" }
memory_gb = { value = 2, source = "data sheet", confidence = "published" }
kernel_overhead_us = { value = 2, source = "no measurement", confidence = "guess" }
int8 = "none"
int8_reason = "no int8"
measured = false
[ops.Softmax]
fp16 = "no"
reason = "a reason"
"""


@pytest.fixture
def new_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A targets folder with one family, `new`; returns the file of its only device."""
    folder = tmp_path / "new" / "devices"
    folder.mkdir(parents=True)
    (tmp_path / "Not-a-family" / "devices").mkdir(parents=True)
    (tmp_path / "no_devices").mkdir()
    monkeypatch.setattr(device_module, "_targets_folder", lambda: tmp_path)
    return folder / "board.toml"


def test_a_new_device_is_one_file(new_family: Path) -> None:
    new_family.write_text(GOOD)
    assert families() == ("new",)
    assert load_device("board").fp32_gflops.value == 10.5
    assert load_device("board").ops["Softmax"].fp16 == "no"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory_gb", "memory_bg", "unknown key 'memory_bg', did you mean 'memory_gb'"),
        ('"no int8"', '"no int8"\nspeed = 3', "unknown key 'speed'"),
        ("value = 10.5", "valu = 10.5", "fp32_gflops: unknown key 'valu', did you mean 'value'"),
        ('fp16 = "no"', 'fp61 = "no"', "[ops.Softmax]: unknown key 'fp61', did you mean 'fp16'"),
        ('fp16 = "no"', 'fp16 = "maybe"', "maybe"),
        ('reason = "a reason"', 'reason = " "', "reason must say why"),
        ("value = 10.5", "value = 0", "finite number above 0"),
        ("value = 10.5", "value = -1.0", "finite number above 0"),
        ("value = 10.5", "value = nan", "finite number above 0"),
        ("value = 10.5", "value = inf", "finite number above 0"),
        ("value = 10.5", 'value = "10.5"', "fp32_gflops"),
        ("value = 10.5", "value = true", "fp32_gflops"),
        ('{ value = 10.5, source = "data sheet", confidence = "published" }', "10.5", "fp32_gflops"),
        ('value = 2, source = "data sheet", conf', 'value = 2, source = "", conf', "source must say"),
        ('confidence = "guess"', 'confidence = "sure"', "sure"),
        ('precisions = ["fp32"]', 'precisions = ["fp32", "fp16"]', "needs its peak, fp16_gflops"),
        ('int8 = "none"', 'int8 = "symmetric"', "contradicts precisions"),
        ('int8_reason = "no int8"', "", "needs int8_reason"),
        ('runtimes = ["soft-1"]', 'runtimes = ["soft-2"]', "default_runtime 'soft-1' is not among"),
        ('name = "board"', 'name = "bard"', "must be those of its place"),
        ('family = "new"', 'family = "old"', "must be those of its place"),
        ('title = "Board"', "title = ", "not valid TOML"),
        ('kind = "cpu"', 'kind = "cpu"\nhost = { architecture = "x86_64", priorty = 1 }', "'priority'"),
        ('title = "Board"\n', "", "title"),
    ],
)
def test_a_broken_descriptor_is_refused_by_name(new_family: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    new_family.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_device("board")
    assert words in str(caught.value)
    assert "new/devices/board.toml" in str(caught.value)


def test_figure_as_a_number() -> None:
    figure = Figure(7, "a source", "guess")
    assert (int(figure), float(figure)) == (7, 7.0)
    with pytest.raises(ValueError, match="not a whole number"):
        int(Figure(7.5, "a source", "guess"))


def test_exports() -> None:
    for name in device_module.__all__:
        assert hasattr(device_module, name)
    assert isinstance(resolve_target("x86-avx2"), Target)
