"""The plan: pure data, the same for every target.

A plan says which nodes run as one group, in which precision, what each group writes and why. It is JSON with
a digest; the same model, target and options give the same bytes. Times in it are predictions with their
provenance; nothing measured enters a plan except through a fit file whose digest stands in it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

__all__ = [
    "Conversion",
    "CostTerm",
    "Format",
    "Group",
    "Plan",
    "Precision",
    "Provenance",
    "Rejection",
    "ScaleGroup",
]

Precision = Literal["fp32", "fp16", "int8"]
Provenance = Literal["measured", "fitted", "estimate"]


class Format(msgspec.Struct, frozen=True, order=True):
    """How a tensor lies between groups.

    dtype: "float32" | "float16" | "int8".  layout: "plain" where the runtime chooses for itself.
    place: "main", or the name of another engine of the device (a DLA).
    """

    dtype: str = "float32"
    layout: str = "plain"
    place: str = "main"


class CostTerm(msgspec.Struct, frozen=True):
    """One term of a predicted time.

    name: "compute" | "memory" | "overhead" | "conversion".  ms: milliseconds, >= 0.
    source: where the figure comes from (device file, fit file), for the reader.
    """

    name: str
    ms: float
    provenance: Provenance
    source: str


class Group(msgspec.Struct, frozen=True):
    """Nodes that run as one kernel.

    nodes: internal names in topological order; sources: the user's names of the same nodes; writes: the
    tensors that leave the group.
    loss: predicted relative mean squared error at the outputs if this group runs in `precision` (0 = none).
    compute_nodes: how many of `nodes` compute (reshapes and the like do not count for fusion).
    reason: one line that a user reads: why this grouping and this precision.
    """

    id: str
    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    operators: tuple[str, ...]
    writes: tuple[str, ...]
    rule: str
    variant: str
    precision: Precision
    output: Format
    cost: tuple[CostTerm, ...]
    loss: float
    compute_nodes: int
    reason: str

    @property
    def predicted_ms(self) -> float:
        """Return the sum of the cost terms, in milliseconds."""
        return sum(term.ms for term in self.cost)


class Conversion(msgspec.Struct, frozen=True):
    """A change of format of one tensor that no group takes into itself; cost as in `Group`."""

    tensor: str
    source: Format
    target: Format
    cost: CostTerm


class ScaleGroup(msgspec.Struct, frozen=True):
    """Tensors that must share one scale and zero point, and why."""

    tensors: tuple[str, ...]
    reason: str


class Rejection(msgspec.Struct, frozen=True):
    """Something that was considered and not taken, with the reason a user reads."""

    nodes: tuple[str, ...]
    what: str
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """Groups that cover every node of the model once, for one target.

    model: sha256 of the ONNX file.  target: "NAME@RUNTIME".  requested: the --precision that was asked for.
    predicted_ms: groups plus conversions.  budget, budget_used: in the units of `Group.loss`; budget is None
    where no accuracy limit was set.  status: "optimal" | "feasible"; gap: relative, 0 = proven optimal.
    fit: sha256 of the cost fit that the figures come from ("" = device file only).
    """

    model: str
    target: str
    requested: str
    groups: tuple[Group, ...]
    conversions: tuple[Conversion, ...] = ()
    scale_groups: tuple[ScaleGroup, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    predicted_ms: float = 0.0
    budget: float | None = None
    budget_used: float = 0.0
    status: str = "optimal"
    gap: float = 0.0
    solver: str = ""
    fit: str = ""
    schema: int = 1

    def to_json(self) -> bytes:
        """Return canonical JSON: the same plan gives the same bytes."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic"), indent=1) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> Plan:
        """Return the plan held in `data`; raises msgspec.ValidationError where a field is wrong."""
        return msgspec.json.decode(data, type=Plan)

    @property
    def digest(self) -> str:
        """Return the sha256 of the canonical JSON."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def group_of(self, node: str) -> Group | None:
        """Return the group that holds the node (internal or user's name) or writes the tensor, or None."""
        for names in ("nodes", "sources", "writes"):
            for group in self.groups:
                if node in getattr(group, names):
                    return group
        return None

    def count(self, precision: Precision) -> int:
        """Return how many groups run in `precision`."""
        return sum(group.precision == precision for group in self.groups)
