"""Devices (hardware) and runtimes (software): what a target can do, read from the families' TOML files.

A device is `devices/NAME.toml` and a runtime is `runtimes/NAME.toml` in a family's folder of
`edgefuse.targets`; families, devices and runtimes are found by listing folders, so a new device is one file.
A target is written `NAME[@RUNTIME]`. Every number stands in a table with its source and confidence:

    dram_bandwidth_gb_s = { value = 25.6, source = "module datasheet", confidence = "published" }

Unknown keys are refused. `host` is the machine that runs this program (`probe_host`).
"""

import functools
import importlib.util
import math
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

from edgefuse.errors import (
    DeviceError,
    InputError,
    InternalError,
    ToolMissingError,
    UsageError,
    did_you_mean,
)

__all__ = [
    "Confidence",
    "Device",
    "Figure",
    "HostFacts",
    "HostMatch",
    "OpSupport",
    "Precision",
    "Runtime",
    "Support",
    "Target",
    "devices",
    "families",
    "load_device",
    "load_runtime",
    "probe_host",
    "resolve_target",
    "runtimes",
]

Confidence = Literal["measured", "published", "recalled", "guess"]
Precision = Literal["fp32", "fp16", "int8"]
Level = Literal["yes", "slow", "float-output", "no"]

_PEAK_OF = {"fp32": "fp32_gflops", "fp16": "fp16_gflops", "int8": "int8_gops"}
_FAMILY_NAME = re.compile(r"_?[a-z][a-z0-9_]*")
_Described = TypeVar("_Described", "Device", "Runtime")


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of a descriptor: its value, where it comes from, and how far it can be trusted.

    value: finite and > 0, in the unit that ends the key's name (a key without a unit is a count).
    `float(figure)` and `int(figure)` give the value; int raises ValueError where it is not whole.
    """

    value: float
    source: str
    confidence: Confidence

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"value must be a finite number above 0, got {self.value}")
        if not self.source.strip():
            raise ValueError("source must say where the number comes from")

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        if not float(self.value).is_integer():
            raise ValueError(f"{self.value} is not a whole number")
        return int(self.value)


class OpSupport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one ONNX operator can do per precision; only operators that differ from "yes" are listed.

    yes: runs.  slow: runs, but leaves the fast path.  float-output: reads this precision, its result must
    stay float.  no: does not run.  reason: the sentence that the user reads.
    """

    fp32: Level = "yes"
    fp16: Level = "yes"
    int8: Level = "yes"
    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("reason must say why the operator is limited")


class HostMatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a machine counts as this device for `--target host`.

    architecture: as `platform.machine()` says it.  requires_flags: CPU feature flags, all needed.
    requires_model: text that the board's model name must hold ("" = any).  priority: the highest wins.
    """

    architecture: str
    requires_flags: tuple[str, ...] = ()
    requires_model: str = ""
    priority: int


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One piece of hardware. A figure that is None does not exist there or is not known.

    peak_scope: the peaks are of the whole "device", or of one "core" (a CPU; n threads have n times it).
    fp32_gflops, fp16_gflops, int8_gops: dense peak (1 MAC = 2 operations); absent = no such arithmetic.
    last_level_cache_kb: KiB.  local_memory_kb: KiB of scratch or first-level memory per compute unit.
    registers: 32-bit registers per compute unit.  kernel_overhead_us: dispatch of one kernel.
    tensor_core_multiple: channels that the int8 matrix unit wants a multiple of.
    int8: "none", "symmetric" (zero point 0 everywhere) or "asymmetric" (activations with a zero point).
    int8_reason: why int8 is "none".  int8_weight_bits: bits that weights may use without saturation.
    measured: the device was timed by us.  unverified: what nobody has checked on it.
    """

    name: str
    family: str
    title: str
    kind: Literal["cpu", "gpu", "npu"]
    architecture: Literal["x86_64", "aarch64"]
    default_runtime: str
    runtimes: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    isa: tuple[str, ...] = ()
    compute_capability: str = ""
    precisions: tuple[Precision, ...]
    peak_scope: Literal["device", "core"]
    compute_units: Figure
    clock_mhz: Figure | None = None
    fp32_gflops: Figure
    fp16_gflops: Figure | None = None
    int8_gops: Figure | None = None
    dram_bandwidth_gb_s: Figure
    memory_gb: Figure
    last_level_cache_kb: Figure | None = None
    local_memory_kb: Figure | None = None
    registers: Figure | None = None
    kernel_overhead_us: Figure
    tensor_core_multiple: Figure | None = None
    dla_cores: Figure | None = None
    int8: Literal["none", "symmetric", "asymmetric"]
    int8_reason: str = ""
    int8_weight_bits: Figure | None = None
    measured: bool
    unverified: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ops: dict[str, OpSupport] = {}
    host: HostMatch | None = None

    def __post_init__(self) -> None:
        for precision in self.precisions:
            if getattr(self, _PEAK_OF[precision]) is None:
                raise ValueError(f"precision {precision} needs its peak, {_PEAK_OF[precision]}")
        if (self.int8 == "none") == ("int8" in self.precisions):
            raise ValueError(f'int8 = "{self.int8}" contradicts precisions {list(self.precisions)}')
        if self.int8 == "none" and not self.int8_reason.strip():
            raise ValueError('int8 = "none" needs int8_reason, the sentence that the user reads')
        if self.default_runtime not in self.runtimes:
            raise ValueError(f"default_runtime {self.default_runtime!r} is not among runtimes")

    def peak_gops(self, precision: Precision, threads: int = 1) -> Figure | None:
        """Return the peak at `precision` in 10^9 operations a second, or None where there is none.

        threads: counts only where peak_scope is "core"; more threads than cores give no more.
        """
        figure: Figure | None = getattr(self, _PEAK_OF[precision])
        if figure is None or self.peak_scope == "device" or threads <= 1:
            return figure
        used = min(threads, int(self.compute_units))
        return Figure(figure.value * used, f"{used} x {figure.source}", figure.confidence)


class Runtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of a vendor's software.

    vendor_package, version: what runs the payload.  model_format: what the payload is written in.
    opset: newest ONNX opset that may be lowered from or written.  readable_ops: the ONNX operators that its
    reader takes; empty = its reader says by itself.  cannot_read: sentences about what it refuses.
    int8_forms: how int8 is said to it ("implicit" calibration table, "explicit" Q/DQ, "strong" = by type).
    index_dtype: the integer type of shapes and indices.  static_shapes: every size must be a number.
    python: version on the device ("3.6").  requirements: pip requirements of the engine.  install_hint: what
    to type to have it.  verified: what was checked with the real software, in words.
    """

    name: str
    family: str
    title: str
    vendor_package: str
    version: str
    model_format: str
    opset: Figure
    readable_ops: tuple[str, ...] = ()
    cannot_read: tuple[str, ...] = ()
    int8_forms: tuple[Literal["implicit", "explicit", "strong"], ...] = ()
    index_dtype: Literal["int32", "int64"]
    static_shapes: bool
    python: str
    requirements: tuple[str, ...] = ()
    install_hint: str
    aliases: tuple[str, ...] = ()
    verified: str
    notes: tuple[str, ...] = ()
    ops: dict[str, OpSupport] = {}

    def reads(self, op_type: str) -> bool:
        """Return whether the runtime's reader takes the ONNX operator (True where it keeps no list)."""
        return not self.readable_ops or op_type in self.readable_ops


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine says of itself: CPU model, logical cores, memory in GiB, cache sizes in KiB."""

    architecture: str
    cpu_model: str
    board_model: str
    cores: int
    memory_gb: float
    caches_kb: dict[str, int]
    flags: tuple[str, ...]


class Support(msgspec.Struct, frozen=True):
    """Whether an operator runs at a precision, and the reason where it is limited."""

    level: Level
    reason: str

    @property
    def allowed(self) -> bool:
        """True unless the level is "no"."""
        return self.level != "no"


class Target(msgspec.Struct, frozen=True):
    """A device with the software that runs on it; `probed` holds the machine's own facts for `host`.

    The descriptor's figures are never replaced by probed ones: a plan made for a device is the same on
    every machine that counts as it.
    """

    device: Device
    runtime: Runtime
    probed: HostFacts | None = None

    @property
    def string(self) -> str:
        """The exact text that `--target` takes for this target."""
        return f"{self.device.name}@{self.runtime.name}"

    @property
    def family(self) -> str:
        """The family's name, which is its folder's."""
        return self.device.family

    def support(self, op_type: str, precision: Precision) -> Support:
        """Return what hardware and software together can do with the operator at `precision`."""
        if precision not in self.device.precisions:
            return Support("no", self._no_precision(precision))
        if not self.runtime.reads(op_type):
            return Support("no", f"{self.runtime.title} does not read {op_type}")
        order: tuple[Level, ...] = get_args(Level)
        worst = Support("yes", "")
        for table in (self.device.ops, self.runtime.ops):
            limit = table.get(op_type)
            level: Level = getattr(limit, precision) if limit else "yes"
            if limit and order.index(level) > order.index(worst.level):
                worst = Support(level, limit.reason)
        return worst

    def require_precision(self, precision: Precision) -> None:
        """Raise UsageError, with the device's own reason, where it has no such arithmetic."""
        if precision not in self.device.precisions:
            raise UsageError(
                f"--precision {precision} is not possible on {self.device.name}",
                expected=" or ".join(self.device.precisions),
                got=f"{precision}: {self._no_precision(precision)}",
                hint="--precision auto, which plans with what the device has",
            )

    def _no_precision(self, precision: Precision) -> str:
        if precision == "int8" and self.device.int8_reason:
            return self.device.int8_reason
        return f"{self.device.title} has no {precision} arithmetic"


@functools.cache
def _targets_folder() -> Path:
    # The spec only says where the folder is: this room may not import the families above it.
    spec = importlib.util.find_spec("edgefuse.targets")
    if spec is None or not spec.submodule_search_locations:
        raise InternalError("the package edgefuse.targets is not installed", hint="reinstall edgefuse")
    return Path(next(iter(spec.submodule_search_locations)))


def families(examples: bool = False) -> tuple[str, ...]:
    """Return the names of the target families, sorted.

    examples: also the folders that begin with "_" (teaching backends, never offered to a user).
    """
    names = [
        folder.name
        for folder in _targets_folder().iterdir()
        if _FAMILY_NAME.fullmatch(folder.name) and (folder / "devices").is_dir()
    ]
    return tuple(sorted(name for name in names if examples or not name.startswith("_")))


def devices(family: str | None = None) -> list[Device]:
    """Return the devices of one family, or of all families but the examples, sorted by family and name.

    Raises UsageError for an unknown family, InputError for a broken descriptor.
    """
    return [_read(path, Device) for path in _files("devices", family)]


def runtimes(family: str) -> list[Runtime]:
    """Return the runtimes of one family, sorted by name. Raises UsageError, InputError as `devices`."""
    return [_read(path, Runtime) for path in _files("runtimes", family)]


def _files(folder: str, family: str | None) -> Iterator[Path]:
    if family is not None and family not in families(examples=True):
        known = families()
        raise UsageError(
            f"unknown target family {family!r}{did_you_mean(family, known)}", expected=", ".join(known)
        )
    for name in families() if family is None else (family,):
        yield from sorted((_targets_folder() / name / folder).glob("*.toml"), key=lambda path: path.stem)


def load_device(name: str) -> Device:
    """Return the device called `name` (its name or an alias; example families included).

    Raises UsageError with a did-you-mean for an unknown name.
    """
    known: list[str] = []
    for family in families(examples=True):
        for device in devices(family):
            if name == device.name or name in device.aliases:
                return device
            if not family.startswith("_"):
                known += [device.name, *device.aliases]
    raise UsageError(
        f"unknown target {name!r}{did_you_mean(name, [*known, 'host'])}",
        expected="a device name, or host for this machine",
        hint="`edgefuse targets` lists them",
    )


def load_runtime(family: str, name: str) -> Runtime:
    """Return the runtime called `name` (its name or an alias) of a family.

    Raises UsageError: unknown (with a did-you-mean), or of another family (naming that family).
    """
    known = runtimes(family)
    for runtime in known:
        if name == runtime.name or name in runtime.aliases:
            return runtime
    for other in families(examples=True):
        if any(name == runtime.name or name in runtime.aliases for runtime in runtimes(other)):
            raise UsageError(
                f"runtime {name!r} belongs to the family {other}, the device to {family}",
                expected="one of " + ", ".join(runtime.name for runtime in known),
                got=name,
            )
    names = [runtime.name for runtime in known]
    raise UsageError(f"unknown runtime {name!r}{did_you_mean(name, names)}", expected=", ".join(names))


def resolve_target(text: str) -> Target:
    """Return the target that `NAME[@RUNTIME]` names; `host` is this machine.

    Without a runtime the device's default is taken. Raises UsageError (unknown name, runtime of another
    family, runtime that does not run on the device) and DeviceError (`host` on a machine that nothing fits).
    """
    name, at, runtime_name = text.partition("@")
    if at and not runtime_name:
        raise UsageError(f"target {text!r} ends in '@'", expected="NAME or NAME@RUNTIME", got=text)
    probed = probe_host() if name == "host" else None
    device = probed.device if probed else load_device(name)
    runtime = load_runtime(device.family, runtime_name or device.default_runtime)
    if runtime.name not in device.runtimes:
        raise UsageError(
            f"runtime {runtime.name} does not run on {device.name}",
            expected="one of " + ", ".join(device.runtimes),
            got=runtime.name,
        )
    return Target(device, runtime, probed.probed if probed else None)


@functools.cache
def _read(path: Path, kind: type[_Described]) -> _Described:
    """Return the descriptor in one TOML file, checked against its place in the tree."""
    what = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    try:
        data = msgspec.toml.decode(path.read_bytes())
    except ImportError as error:
        raise ToolMissingError("reading TOML needs the package tomli", hint="pip install tomli") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{what} is not valid TOML: {error}") from error
    _refuse_unknown(data, kind, what)
    try:
        described = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: {error}") from error
    expected = (path.parent.parent.name, path.stem)
    if (described.family, described.name) != expected:
        raise InputError(
            f"{what}: family and name must be those of its place",
            expected="/".join(expected),
            got=f"{described.family}/{described.name}",
        )
    return described


def _refuse_unknown(data: Mapping[str, Any], kind: type[msgspec.Struct], what: str) -> None:
    """Raise InputError with a did-you-mean for the first key that `kind` does not have."""
    known = {field.name for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        if key not in known:
            raise InputError(
                f"{what}: unknown key {key!r}{did_you_mean(key, sorted(known))}",
                expected="one of " + ", ".join(sorted(known)),
                got=key,
            )
        if not isinstance(value, dict):
            continue
        if key == "ops" and kind is not OpSupport:
            for op_type, table in value.items():
                if isinstance(table, dict):
                    _refuse_unknown(table, OpSupport, f"{what} [ops.{op_type}]")
        else:
            _refuse_unknown(value, HostMatch if key == "host" else Figure, f"{what} {key}")


def probe_host(root: Path | None = None, machine: str | None = None) -> Target:
    """Return the target that this machine counts as, with what it says of itself in `probed`.

    The device with the highest [host] priority whose architecture, CPU flags and board model fit.
    root, machine: another place of /proc and /sys, another architecture (for tests).
    Raises DeviceError where none fits.
    """
    facts = _host_facts(root or Path("/"), machine or platform.machine())
    fitting = [device for device in devices() if device.host and _fits(device.host, facts)]
    if not fitting:
        raise DeviceError(
            "no described device fits this machine",
            expected="an x86-64 CPU with AVX2, or 64-bit Arm",
            got=f"{facts.architecture}, {facts.cpu_model or 'unknown CPU'}",
            hint="name a target (`edgefuse targets` lists them)",
        )
    best = max(fitting, key=lambda device: (device.host.priority if device.host else 0, device.name))
    return Target(best, load_runtime(best.family, best.default_runtime), facts)


def _fits(match: HostMatch, facts: HostFacts) -> bool:
    return (
        match.architecture == facts.architecture
        and set(match.requires_flags) <= set(facts.flags)
        and match.requires_model in facts.board_model
    )


def _host_facts(root: Path, machine: str) -> HostFacts:
    """Return what /proc and /sys under `root` say; a file that is missing leaves its fact empty or 0."""
    cpuinfo = _text(root / "proc/cpuinfo")
    fields = dict(re.findall(r"^([^\t:\n]+?)\s*:[ \t]*(.*)$", cpuinfo, re.MULTILINE))
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return HostFacts(
        architecture={"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine),
        cpu_model=fields.get("model name") or fields.get("Model") or "",
        board_model=_text(root / "proc/device-tree/model").rstrip("\0\n"),
        cores=len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)),
        memory_gb=round(int(memory.group(1)) / 2**20, 2) if memory else 0.0,
        caches_kb=_caches_kb(root / "sys/devices/system/cpu/cpu0/cache"),
        flags=tuple(sorted((fields.get("flags") or fields.get("Features") or "").split())),
    )


def _caches_kb(folder: Path) -> dict[str, int]:
    """Return cache sizes in KiB by name ("L1d", "L1i", "L2", "L3") of the first core."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        letter = {"Data": "d", "Instruction": "i"}.get(_text(index / "type").strip(), "")
        size = re.fullmatch(r"(\d+)([KM])", _text(index / "size").strip())
        if size:
            factor = 1024 if size.group(2) == "M" else 1
            sizes[f"L{_text(index / 'level').strip()}{letter}"] = int(size.group(1)) * factor
    return sizes


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
