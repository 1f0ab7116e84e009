"""How one family makes integers: `scheme.toml` in its folder, read and checked.

    rounding = "half_even"
    [activations.8]
    low = 0
    high = 255
    symmetric = false
    bias = "float"

Every rule stands beside its source. Unknown keys are refused with a did-you-mean.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgefuse.errors import InputError, InternalError, ToolMissingError, UnsupportedError, did_you_mean

__all__ = [
    "Activations",
    "BiasKind",
    "FixedOutput",
    "Rounding",
    "SchemeFile",
    "SchemeOverride",
    "read_scheme",
]

Rounding = Literal["half_even", "half_away"]
BiasKind = Literal["int32", "int64", "float"]


class FixedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scale (> 0) and zero point that an operator's output always has, whatever was observed."""

    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be a finite number above 0, got {self.scale}")


class Activations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How activations of one width become integers.

    low, high: the integer range.  symmetric: zero point 0, and the scale is max|x| / high.
    bias: integers with scale (input scale x weight scale), or float.  fixed_outputs: by ONNX operator.
    """

    low: int
    high: int
    symmetric: bool
    bias: BiasKind
    fixed_outputs: dict[str, FixedOutput] = {}

    def __post_init__(self) -> None:
        if not self.low <= 0 < self.high:
            raise ValueError(f"low <= 0 < high must hold, got {self.low} and {self.high}")
        if self.symmetric and -self.low not in (self.high, self.high + 1):
            raise ValueError(f"a symmetric range is [-h, h] or [-h-1, h], got [{self.low}, {self.high}]")
        for op_type, fixed in self.fixed_outputs.items():
            if not self.low <= fixed.zero_point <= self.high:
                raise ValueError(f"fixed_outputs.{op_type}: zero point {fixed.zero_point} is out of range")
            if self.symmetric and fixed.zero_point:
                raise ValueError(f"fixed_outputs.{op_type}: a symmetric scheme has zero point 0")


class SchemeOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one runtime of the family does differently, and where that is known from."""

    source: str
    rounding: Rounding | None = None
    requantization: Rounding | None = None
    per_tensor_weights: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ValueError("source must say where the difference is known from")


class SchemeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family's rules.

    activations: by bits, "8" always, "16" where the family has it.
    rounding: of float to integer.  requantization: of an accumulator to an int8 output.
    per_channel: weights have a scale for each output channel, but for the operators in per_tensor_weights.
    grouped_transposed: a grouped ConvTranspose has "own" scales for each (group, channel), or "shared" ones
    over the groups (what one axis of a DequantizeLinear can say).
    depthwise_saturates: false where the depthwise kernel adds no pairs in int16 on devices that do elsewhere.
    saturating_weights: the weights of devices that add pairs of products in int16: "7" bits, or "pair" where
    the kernels are known to pair neighbouring input channels.
    same_scale: operators whose int8 inputs and outputs have one scale.
    sources: for each rule above that is not ONNX's own, where it is known from.
    """

    activations: dict[str, Activations]
    rounding: Rounding
    requantization: Rounding
    per_channel: bool
    per_tensor_weights: tuple[str, ...] = ()
    grouped_transposed: Literal["own", "shared"]
    depthwise_saturates: bool
    saturating_weights: Literal["7", "pair"] = "7"
    same_scale: tuple[str, ...] = ()
    sources: dict[str, str]
    runtimes: dict[str, SchemeOverride] = {}

    def __post_init__(self) -> None:
        if "8" not in self.activations:
            raise ValueError("activations.8 is missing")
        for bits, held in self.activations.items():
            if bits not in ("8", "16") or held.high - held.low >= 2 ** int(bits):
                raise ValueError(f"activations.{bits} cannot hold the range [{held.low}, {held.high}]")
        known = _fields(SchemeFile)
        for key, text in self.sources.items():
            if key not in known or not text.strip():
                raise ValueError(f"sources.{key}: it must name a rule of this file and say its source")

    def for_runtime(self, runtime: str) -> SchemeFile:
        """Return the rules with what `runtime` does differently put in."""
        found = self.runtimes.get(runtime)
        if found is None:
            return self
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(found).items()
            if name != "source" and value is not None
        }
        return msgspec.structs.replace(self, **changes)


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    return sorted(field.name for field in msgspec.structs.fields(kind))


@functools.cache
def read_scheme(family: str, folder: Path | None = None) -> SchemeFile:
    """Return the rules of a family.

    folder: another place than the installed families' (for tests). Raises UnsupportedError where the family
    has no scheme.toml, InputError where it is broken.
    """
    path = (folder or _targets_folder()) / family / "scheme.toml"
    what = f"{family}/scheme.toml"
    if not path.is_file():
        raise UnsupportedError(
            f"the target family {family} says nothing about int8", expected=what, hint="--precision fp32"
        )
    try:
        data = msgspec.toml.decode(path.read_bytes())
    except ImportError as error:
        raise ToolMissingError("reading TOML needs the package tomli", hint="pip install tomli") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{what} is not valid TOML: {error}") from error
    _refuse_unknown(data, what)
    try:
        return msgspec.convert(data, SchemeFile)
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: {error}") from error


def _targets_folder() -> Path:
    # The spec only says where the folder is: this room may not import the families above it.
    spec = importlib.util.find_spec("edgefuse.targets")
    if spec is None or not spec.submodule_search_locations:
        raise InternalError("the package edgefuse.targets is not installed", hint="reinstall edgefuse")
    return Path(next(iter(spec.submodule_search_locations)))


def _refuse_unknown(data: Mapping[str, Any], what: str) -> None:
    _check_keys(data, _fields(SchemeFile), what)
    for bits, table in _tables(data, "activations"):
        _check_keys(table, _fields(Activations), f"{what} [activations.{bits}]")
        for op_type, fixed in _tables(table, "fixed_outputs"):
            place = f"{what} [activations.{bits}.fixed_outputs.{op_type}]"
            _check_keys(fixed, _fields(FixedOutput), place)
    for runtime, table in _tables(data, "runtimes"):
        _check_keys(table, _fields(SchemeOverride), f"{what} [runtimes.{runtime}]")


def _tables(data: Mapping[str, Any], key: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    found = data.get(key)
    if isinstance(found, dict):
        yield from ((name, table) for name, table in found.items() if isinstance(table, dict))


def _check_keys(table: Mapping[str, Any], known: list[str], what: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(
                f"{what}: unknown key {key!r}{did_you_mean(key, known)}",
                expected="one of " + ", ".join(known),
                got=key,
            )
