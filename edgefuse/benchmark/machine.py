"""Which machine measured: what a figure needs beside it to be compared later."""

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["machine_fingerprint", "memory_mb"]

# Flags that decide which kernels a runtime takes, as Linux names them on x86 and Arm.
DECIDING_FLAGS = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "fphp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip().splitlines()[0]
    except (OSError, IndexError):
        return None


def _cpuinfo(path: Path) -> dict[str, str]:
    """Return the first value of every key in /proc/cpuinfo; empty where it cannot be read."""
    facts: dict[str, str] = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return facts
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            facts.setdefault(key.strip(), value.strip())
    return facts


def machine_fingerprint(root: str | os.PathLike[str] = "/") -> dict[str, Any]:
    """Return what this machine is, as JSON values; null for what the system does not tell.

    cpu (model name), architecture, kernel, cores (of the machine), usable_cores (this process may run on),
    flags (those that decide which kernels run), governor (cpufreq's of core 0), load_average (1, 5 and
    15 minutes: above 0 before a measurement means that somebody else was working), memory_mb (total).
    root: where /proc and /sys are.
    """
    base = Path(root)
    facts = _cpuinfo(base / "proc/cpuinfo")
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": facts.get("model name") or facts.get("Model") or facts.get("Hardware"),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "flags": [flag for flag in DECIDING_FLAGS if flag in flags],
        "governor": _first_line(base / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": _load_average(base / "proc/loadavg"),
        "memory_mb": _memory_field(base / "proc/meminfo", "MemTotal"),
    }


def _load_average(path: Path) -> list[float] | None:
    line = _first_line(path)
    try:
        return [float(word) for word in line.split()[:3]] if line else None
    except ValueError:
        return None


def _memory_field(path: Path, field: str) -> float | None:
    """Return a kB field of a /proc file in MiB."""
    value = _cpuinfo(path).get(field, "").split()
    return round(int(value[0]) / 1024, 1) if value and value[0].isdigit() else None


def memory_mb() -> dict[str, float | None]:
    """Return this process's memory in MiB: `now` (resident) and `peak` (resident, so far)."""
    status = Path("/proc/self/status")
    return {"now": _memory_field(status, "VmRSS"), "peak": _memory_field(status, "VmHWM")}
