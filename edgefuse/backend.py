"""The contract between the planner and a vendor family, checked where it is used.

A family is a folder `targets/<family>/` with `backend.py` (a class `FamilyBackend(Backend)`), `engine.py`,
`devices/*.toml` and `runtimes/*.toml`. The public methods below check the promises; a family writes the
underscored ones. Families are found by listing the folder: nothing is registered.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgefuse.device import Target
from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.graph import Model, Node, Value
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quantized import Quantized

__all__ = [
    "Backend",
    "Candidate",
    "GroupReadback",
    "Kernel",
    "Lowered",
    "Probe",
    "Readback",
    "Verdict",
    "load_backend",
]


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a family's runtime is usable on this machine: its version, or what to install."""

    available: bool
    version: str = ""
    detail: str = ""
    install: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Yes, or no with the reason that the user reads."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Verdict(True)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Nodes that might run as one kernel.

    nodes: in topological order.  anchor: the node that gives the group its kind (a convolution, a matmul), or
    the first node.  outputs: values of the group read outside it.  variants: the ways it can be written.
    """

    nodes: tuple[Node, ...]
    anchor: Node
    rule: str
    outputs: tuple[Value, ...]
    variants: tuple[str, ...] = ("plain",)
    why: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the internal node names."""
        return tuple(node.name or "" for node in self.nodes)

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the operator types, in the order of the nodes."""
        return tuple(node.op_type for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Lowered:
    """The files of one payload.

    files: relative path -> bytes.  entry: the file that the engine opens.  options: what the engine is told
    (threads, hints), all of it stated in the manifest.  requires: what the runtime must be, as text.
    notes: what the user should know (an operator rewritten, a check that needs hardware).
    """

    files: Mapping[str, bytes]
    entry: str
    options: Mapping[str, Any] = field(default_factory=dict)
    requires: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as the runtime reports it.

    nodes: names of the graph nodes inside it, as far as the runtime tells.  precision: the runtime's word.
    ms: time of one run in milliseconds, or None where the runtime gives none.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    precision: str
    implementation: str = ""
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class GroupReadback:
    """What became of one planned group: confirmed as one kernel in the planned precision, or why not.

    fallen: it was planned in int8, and its kernel computes in float.
    """

    group: str
    confirmed: bool
    kernel: str
    precision: str
    ms: float | None
    why: str = ""
    fallen: bool = False


@dataclass(frozen=True, slots=True)
class Readback:
    """What the runtime really runs, beside the plan."""

    kernels: tuple[Kernel, ...]
    groups: tuple[GroupReadback, ...]

    def honoured(self, plan: Plan) -> float:
        """Return the share of planned groups of >= 2 compute nodes that were confirmed, weighted by ms.

        Times are the runtime's own where it gives them for a group, else the plan's. 1.0 where the plan has
        no such group.
        """
        rows = {row.group: row for row in self.groups}
        total = good = 0.0
        for group in plan.groups:
            if group.compute_nodes < 2:
                continue
            row = rows.get(group.id)
            weight = row.ms if row is not None and row.ms else group.predicted_ms
            total += weight
            good += weight if row is not None and row.confirmed else 0.0
        return good / total if total else 1.0


class Backend(abc.ABC):
    """One vendor family. Subclasses write the underscored methods; callers use the public ones."""

    family: str = ""

    @abc.abstractmethod
    def probe(self) -> Probe:
        """Return whether the family's runtime is usable here. Never raises, imports no more than it must."""

    def legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        """Return whether the target can run `candidate` so, or the reason why not (never an empty one)."""
        verdict = self._legal(candidate, variant, precision, output, target)
        if not verdict.ok and not verdict.reason:
            raise InternalError(f"{self.family}: refused {candidate.rule} without a reason")
        return verdict

    def lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        """Return the payload for `plan`. Pure: same arguments, same bytes; `model` is not changed.

        Integers are encoded as quant/ gave them, never computed here.
        """
        lowered = self._lower(model, plan, quantized, target)
        if lowered.entry not in lowered.files:
            raise InternalError(f"{self.family}: the entry {lowered.entry!r} is not among the files")
        for path in lowered.files:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", path):
                raise InternalError(f"{self.family}: {path!r} is not a plain relative path")
        return lowered

    def prepare(self, model: Model, target: Target) -> Model:
        """Return the model in the operators that the target reads, before planning; the default is `model`.

        Node names in the plan are those of the model returned here. Must keep the model's float meaning.
        """
        return self._prepare(model, target)

    def readback(self, engine: Any, plan: Plan) -> Readback:
        """Return what `engine` (made by the family's engine.py) really runs for `plan`."""
        found = self._readback(engine, plan)
        unknown = {row.group for row in found.groups} - {group.id for group in plan.groups}
        if unknown:
            raise InternalError(
                f"{self.family}: readback names groups that are not in the plan: {sorted(unknown)}"
            )
        return found

    @abc.abstractmethod
    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict: ...

    @abc.abstractmethod
    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered: ...

    def _prepare(self, model: Model, target: Target) -> Model:
        return model

    @abc.abstractmethod
    def _readback(self, engine: Any, plan: Plan) -> Readback: ...


def load_backend(family: str) -> Backend:
    """Return the backend of a family; raises UnsupportedError where this version only describes it."""
    name = f"edgefuse.targets.{family}.backend"
    if not re.fullmatch(r"_?[a-z][a-z0-9_]*", family) or importlib.util.find_spec(name) is None:
        raise UnsupportedError(
            f"the family {family!r} has device descriptions, and no backend in this version of edgefuse",
            hint="`edgefuse targets` lists what can be built",
        )
    module = importlib.import_module(name)
    backend = module.FamilyBackend()
    if not isinstance(backend, Backend) or backend.family != family:
        raise InternalError(f"{name}.FamilyBackend is not a Backend of family {family!r}")
    return backend
