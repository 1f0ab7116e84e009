"""What OpenVINO really runs: the compiled model's own list of kernels, beside the plan."""

from __future__ import annotations

from typing import Any

from edgefuse.backend import GroupReadback, Kernel, Readback
from edgefuse.plans import Group, Plan
from edgefuse.targets.openvino.emit import FAKE_QUANTIZE_SUFFIX

__all__ = ["kernels", "read_back"]

# Layers that are no work of ours, or folded away at compile time.
_NO_WORK = frozenset({"Const", "Input", "Output", "Parameter", "Result"})
# The reader's own additions to a node's name.
_ADDED = ("/WithoutBiases", "/DequantizationMultiply", "/DequantizationSubtract", "_original")


def kernels(compiled: Any) -> list[Kernel]:
    """Return the kernels of a compiled model in execution order; ms where profiling was on and a run made."""
    found = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        kind = _text(info, "layerType")
        if kind in _NO_WORK:
            continue
        microseconds = _text(info, "execTimeMcs")
        names = tuple(name for name in _text(info, "originalLayersNames").split(",") if name)
        found.append(
            Kernel(
                name=op.get_friendly_name(),
                kind=kind,
                nodes=tuple(dict.fromkeys(_plain(name) for name in names)),
                precision=_text(info, "runtimePrecision"),
                implementation=_text(info, "primitiveType"),
                ms=int(microseconds) / 1000 if microseconds.isdigit() else None,
            )
        )
    return found


def _text(info: Any, key: str) -> str:
    if key not in info:
        return ""
    value = info[key]
    return str(value.astype(str)) if hasattr(value, "astype") else str(value)


def _plain(name: str) -> str:
    """Return a layer's name without what OpenVINO adds, in layers, to the node's own."""
    while added := next((text for text in _ADDED if name.endswith(text)), ""):
        name = name[: -len(added)]
    return name


def read_back(found: list[Kernel], plan: Plan) -> Readback:
    """Return for each planned group whether one kernel holds it in the planned precision.

    OpenVINO lists the layers that went into a kernel by name and drops some (a folded constant, a convolution
    renamed by a fusion); what writes a graph output it calls by the output. So a group is confirmed if its
    last node that OpenVINO still names stands in one kernel with every other node of the group that it names,
    and, for int8, if that kernel is an int8 one.
    """
    home: dict[str, list[int]] = {}
    for index, kernel in enumerate(found):
        for name in kernel.nodes:
            home.setdefault(name, []).append(index)
    return Readback(tuple(found), tuple(_row(group, home, found) for group in plan.groups))


def _row(group: Group, home: dict[str, list[int]], found: list[Kernel]) -> GroupReadback:
    where = {name: home[name] for name in group.nodes if name in home}
    written = [name for name in group.writes if name in home and group.nodes[-1] not in home]
    if group.nodes[-1] not in home and not written and where:
        # A rounding to int8 that runs in the kernel stands for what it rounds; alone it is no kernel of ours.
        written = [name for name in (w + FAKE_QUANTIZE_SUFFIX for w in group.writes) if name in home]
    where.update((name, home[name]) for name in written)
    if not where:
        return GroupReadback(group.id, False, "", "", None, "folded away, or not named by the runtime")
    candidates = set.intersection(*(set(indices) for indices in where.values()))
    if not candidates:
        split = sorted({i for indices in where.values() for i in indices})
        kinds = " + ".join(found[i].kind for i in split)
        ms = _sum([found[i].ms for i in split])
        return GroupReadback(group.id, False, found[split[-1]].name, "", ms, f"split into {kinds}")
    kernel = found[min(candidates)]
    is_int8 = kernel.implementation.lower().endswith("_i8")
    if group.precision == "int8" and not is_int8:
        why = f"planned int8, ran {kernel.precision or 'float'} ({kernel.implementation})"
        return GroupReadback(group.id, False, kernel.name, kernel.precision, kernel.ms, why, fallen=True)
    if group.compute_nodes > 1 and len(where) == 1 and len(kernel.nodes) == 1 and len(group.nodes) > 1:
        only = next(iter(where))
        if only not in (group.nodes[-1], *written):
            return GroupReadback(
                group.id, False, kernel.name, kernel.precision, kernel.ms, "only one node of it is named"
            )
    return GroupReadback(group.id, True, kernel.name, "int8" if is_int8 else kernel.precision, kernel.ms)


def _sum(times: list[float | None]) -> float | None:
    known = [t for t in times if t is not None]
    return sum(known) if known else None
