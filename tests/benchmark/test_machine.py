from __future__ import annotations

import json
from pathlib import Path

from edgefuse.benchmark import machine_fingerprint
from edgefuse.benchmark.machine import memory_mb

X86 = """processor\t: 0
model name\t: Toy CPU 9000
flags\t\t: fpu sse2 avx avx2 fma movbe

processor\t: 1
model name\t: Other
"""
ARM = """processor\t: 0
Features\t: fp asimd aes asimddp

Hardware\t: BCM2835
Model\t\t: Raspberry Pi 4 Model B
"""


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_an_x86_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", X86)
    write(tmp_path, "proc/loadavg", "0.52 0.58 0.59 1/600 12345\n")
    write(tmp_path, "proc/meminfo", "MemTotal:        8048576 kB\nMemFree: 1 kB\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    facts = machine_fingerprint(tmp_path)
    assert facts["cpu"] == "Toy CPU 9000"
    assert facts["flags"] == ["avx", "avx2", "fma"]
    assert facts["load_average"] == [0.52, 0.58, 0.59]
    assert facts["governor"] == "performance"
    assert facts["memory_mb"] == 7859.9


def test_an_arm_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", ARM)
    facts = machine_fingerprint(tmp_path)
    assert facts["cpu"] == "Raspberry Pi 4 Model B"
    assert facts["flags"] == ["asimd", "asimddp"]


def test_what_is_not_told_is_null(tmp_path: Path) -> None:
    write(tmp_path, "proc/loadavg", "strange")
    write(tmp_path, "proc/meminfo", "MemTotal: many kB")
    facts = machine_fingerprint(tmp_path)
    assert facts["flags"] == []
    assert [facts[name] for name in ("cpu", "governor", "load_average", "memory_mb")] == [None] * 4


def test_this_machine_is_json() -> None:
    facts = machine_fingerprint()
    assert json.loads(json.dumps(facts)) == facts
    assert 1 <= facts["usable_cores"] <= facts["cores"]
    memory = memory_mb()
    assert memory["now"] is not None
    assert memory["peak"] is not None
    assert 1 < memory["now"] <= memory["peak"]
