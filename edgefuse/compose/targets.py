"""`edgefuse targets`: what can be built for, and what is usable here."""

from __future__ import annotations

from typing import Any

import msgspec

from edgefuse.backend import load_backend
from edgefuse.device import Device, Runtime, devices, load_runtime, probe_host
from edgefuse.errors import EdgefuseError, UnsupportedError

__all__ = ["describe_target", "list_targets"]


def list_targets() -> list[dict[str, Any]]:
    """Return one row a device: name, family, title, runtime, precisions, buildable, usable, and why not."""
    host = _host_name()
    rows = []
    for device in devices():
        status = _status(device)
        rows.append(
            {
                "name": device.name,
                "family": device.family,
                "title": device.title,
                "runtime": device.default_runtime,
                "precisions": list(device.precisions),
                "int8": device.int8,
                "host": device.name == host,
                **status,
            }
        )
    return rows


def describe_target(name: str) -> dict[str, Any]:
    """Return everything known of one target, figures with source and confidence."""
    from edgefuse.compose.prepare import find_target

    target = find_target(name)
    device = target.device
    runtimes: dict[str, Runtime] = {n: load_runtime(device.family, n) for n in device.runtimes}
    described: dict[str, Any] = {
        "name": device.name,
        "string": target.string,
        **_status(device),
        "device": msgspec.to_builtins(device),
        "runtimes": {n: msgspec.to_builtins(r) for n, r in runtimes.items()},
    }
    if target.probed is not None:
        described["probed"] = msgspec.to_builtins(target.probed)
    return described


def _host_name() -> str:
    try:
        return probe_host().device.name
    except EdgefuseError:
        return ""


def _status(device: Device) -> dict[str, Any]:
    """Return buildable, usable (runtime installed, and this machine counts as the device), and why not."""
    try:
        backend = load_backend(device.family)
    except UnsupportedError as error:
        return {"buildable": False, "usable": False, "backend": "", "why": error.message}
    probe = backend.probe()
    if not probe.available:
        return {
            "buildable": True,
            "usable": False,
            "backend": "",
            "why": f"not installed here: {probe.install}",
        }
    here = device.name == _host_name()
    why = "" if here else "the runtime is installed; this machine is another device"
    return {
        "buildable": True,
        "usable": here,
        "backend": f"{device.family} {probe.version}".strip(),
        "why": why,
    }
