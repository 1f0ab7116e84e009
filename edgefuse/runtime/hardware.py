"""Is this the hardware that an artifact was built for? Python 3.6."""

import os
import platform
from typing import Any, FrozenSet, Mapping, Optional

from edgefuse.errors import DeviceError

__all__ = ["check_hardware", "cpu_flags"]

_SAME = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


def _architecture(name: str) -> str:
    return _SAME.get(name.lower(), name.lower())


def cpu_flags(path: str = "/proc/cpuinfo") -> Optional[FrozenSet[str]]:
    """Return the CPU's feature flags as Linux names them, or None where they cannot be read."""
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip().lower() in ("flags", "features"):
                    return frozenset(value.split())
    except OSError:
        return None
    return None


def check_hardware(
    target: Mapping[str, Any], machine: Optional[str] = None, flags: Optional[FrozenSet[str]] = None
) -> None:
    """Raise DeviceError when the manifest's `target` needs other hardware than this machine.

    machine, flags: what this machine is (default: asked from the system); a fact that the system does not
    tell is not held against the artifact.
    """
    needs = target["requirements"]
    here = _architecture(platform.machine() if machine is None else machine)
    wanted = needs.get("architecture")
    hint = "build for this machine (--target host), or load it with simulate=True (--simulate)"
    if wanted is not None and here and _architecture(wanted) != here:
        raise DeviceError(
            "the artifact was built for other hardware: {}".format(target["device"]),
            expected=wanted,
            got=here,
            hint=hint,
        )
    present = cpu_flags() if flags is None else flags
    missing = sorted(set(needs.get("cpu_flags", ())) - present) if present is not None else []
    if missing:
        raise DeviceError(
            "the artifact was built for other hardware: {}".format(target["device"]),
            expected="a CPU with " + ", ".join(needs["cpu_flags"]),
            got="one without " + ", ".join(missing),
            hint=hint,
        )
    memory = needs.get("memory_bytes")
    total = _memory_bytes()
    if memory is not None and total is not None and total < memory:
        raise DeviceError(
            "the artifact needs more memory than this machine has",
            expected="{} MiB".format(memory >> 20),
            got="{} MiB".format(total >> 20),
            hint="build with --max-memory-mb",
        )


def _memory_bytes() -> Optional[int]:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None
