"""Segments that a model repeats: found, and named by a digest so that their planning is done once."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.graph import Model, Node, Value, attribute, constant, dims, has_subgraphs
from edgefuse.passes.eliminate_common_subexpressions import attribute_key

__all__ = ["RepeatedGroup", "find_repeats", "structural_hash"]

# Integer constants up to this size are structure (axes, shapes, pads); larger ones and floats are weights.
_STRUCTURE_ELEMENTS = 16
# Candidates looked at, the longest first; a model with more has its short repeats left out.
_MOST_CANDIDATES = 2000


@dataclass(frozen=True, slots=True)
class RepeatedGroup:
    """One segment and all places where it stands.

    digest: structural_hash of every instance.  instances: node by node the same operators, in graph order;
    instances never share a node.
    """

    digest: str
    instances: tuple[tuple[Node, ...], ...]

    @property
    def count(self) -> int:
        """How often the segment stands in the model (at least 2)."""
        return len(self.instances)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of one instance, in graph order."""
        return tuple(node.op_type for node in self.instances[0])

    def __str__(self) -> str:
        names = list(self.operators)
        shown = " ".join(names if len(names) <= 8 else [*names[:7], f"... ({len(names)} nodes)"])
        return f"x{self.count}: {shown}, first at {self.instances[0][0].name}"


def find_repeats(model: Model, minimum: int = 2) -> list[RepeatedGroup]:
    """Return the segments of at least `minimum` nodes that stand more than once, in order of first place.

    Two segments are the same where structural_hash says so: operators, attributes, connections, dtypes and
    shapes are equal; weights count by shape, not by value (equal values with equal inputs were merged by
    eliminate_common_subexpressions).  A segment is a run of nodes in graph order; each node belongs to one
    group at most, groups that cover most nodes come first.  Deterministic; the model is not changed. Not
    found: repeats whose nodes stand interleaved in another order, and repeats inside bodies.
    """
    nodes = list(model.graph)
    numbers: dict[str, int] = {}
    tokens = np.array([numbers.setdefault(_token(n), len(numbers)) for n in nodes], np.int64)
    groups = []
    for length, starts in _chosen(tokens, _crossings(nodes), minimum):
        by_digest: dict[str, list[tuple[Node, ...]]] = {}
        for start in starts:
            segment = tuple(nodes[start : start + length])
            by_digest.setdefault(structural_hash(segment), []).append(segment)
        groups += [RepeatedGroup(d, tuple(found)) for d, found in by_digest.items() if len(found) > 1]
    place = {node: index for index, node in enumerate(nodes)}
    return sorted(groups, key=lambda g: place[g.instances[0][0]])


def structural_hash(nodes: Sequence[Node]) -> str:
    """Return a digest (16 hex digits) of what a planner sees of a segment: everything but names and weights.

    Counts: operators and attributes, who reads whom, dtypes and dimensions, which values leave the segment,
    which outer values are one and the same. Equal digests mean that a plan for one serves the other.
    """
    inside = {value: f"i{n}.{k}" for n, node in enumerate(nodes) for k, value in enumerate(node.outputs)}
    members = set(nodes)
    outer: dict[Value, str] = {}
    digest = hashlib.sha256()
    for node in nodes:
        words = [_token(node)]
        for value in node.inputs:
            if value is None:
                words.append("-")
            elif value in inside:
                words.append(inside[value])
            else:
                words.append(outer.setdefault(value, f"o{len(outer)}"))
        for value in node.outputs:
            leaves = value.is_graph_output() or any(use.node not in members for use in value.uses())
            words.append("leaves" if leaves else "stays")
        digest.update("|".join(words).encode())
    return digest.hexdigest()[:16]


def _token(node: Node) -> str:
    """Return what is known of a node alone: operator, attributes, dtypes and shapes around it."""
    words = [node.domain, node.op_type]
    if has_subgraphs(node):
        words += [
            structural_hash(tuple(attribute(node, n))) for n in sorted(node.attributes) if _is_body(node, n)
        ]
        words += [repr(attribute(node, n)) for n in sorted(node.attributes) if not _is_body(node, n)]
    else:
        words.append(repr(attribute_key(node)))
    words += [_described(value) for value in node.inputs]
    words.append("->")
    words += [_described(value) for value in node.outputs]
    return " ".join(words)


def _is_body(node: Node, name: str) -> bool:
    return hasattr(attribute(node, name), "initializers")


def _described(value: Value | None) -> str:
    if value is None:
        return "-"
    array = constant(value)
    text = f"{value.dtype}{dims(value)}"
    if array is None:
        return text
    if array.dtype.kind in "iub" and array.size <= _STRUCTURE_ELEMENTS:
        return f"{text}={array.reshape(-1).tolist()}"
    return f"{text}=weight"


def _crossings(nodes: Sequence[Node]) -> np.ndarray:
    """Return int64 [nodes + 1]: how many values are written before each place and read at or after it."""
    place = {node: index for index, node in enumerate(nodes)}
    change = np.zeros(len(nodes) + 2, np.int64)
    for node, index in place.items():
        for value in node.outputs:
            last = max((place.get(use.node, index) for use in value.uses()), default=index)
            change[index + 1] += 1
            change[last + 1] -= 1
    return np.cumsum(change)[: len(nodes) + 1]


def _chosen(tokens: np.ndarray, crossings: np.ndarray, minimum: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (length, starts) of repeated runs that share no place, those that cover most first."""
    count = len(tokens)
    free = np.ones(count, bool)
    hashes = _prefix_hashes(tokens)
    heap = []
    for start, length in _candidates(tokens, crossings, minimum):
        places = _places(hashes, start, length, free)
        heap.append((-(len(places) - 1) * length, -length, start))
    heapq.heapify(heap)
    while heap:
        gain, negative, start = heapq.heappop(heap)
        places = _places(hashes, start, -negative, free)
        if len(places) < 2:
            continue
        now = (len(places) - 1) * negative
        if now != gain:
            heapq.heappush(heap, (now, negative, start))
            continue
        for place in places:
            free[place : place - negative] = False
        yield -negative, places


def _candidates(tokens: np.ndarray, crossings: np.ndarray, minimum: int) -> list[tuple[int, int]]:
    """Return (start, length) of runs that stand again at some distance, longest first, each content once.

    Where a run follows itself, it may begin at several places: the one with the fewest values crossing it is
    where a person would draw the line between two blocks.
    """
    found: dict[int, tuple[int, int]] = {}
    hashes = _prefix_hashes(tokens)
    runs = []
    for distance in range(minimum, len(tokens)):
        same = np.concatenate([[0], (tokens[:-distance] == tokens[distance:]).view(np.int8), [0]])
        edges = np.flatnonzero(np.diff(same))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            length = min(int(end - start), distance)
            if length >= minimum:
                spare = (int(end - start) % distance if end - start >= distance else 0) + 1
                places = crossings[start : start + spare][::-1]  # the last of equals: Relu ends a block
                runs.append((length, int(start) + spare - 1 - int(np.argmin(places))))
    for length, start in sorted(runs, key=lambda r: (-r[0], r[1])):
        if len(found) >= _MOST_CANDIDATES:
            break
        found.setdefault(hash((length, _window(hashes, start, length))), (start, length))
    return list(found.values())


_BASE = 1_000_003
_MODULUS = (1 << 61) - 1


def _prefix_hashes(tokens: np.ndarray) -> list[int]:
    prefix = [0]
    for token in tokens.tolist():
        prefix.append((prefix[-1] * _BASE + token + 1) % _MODULUS)
    return prefix


def _window(hashes: list[int], start: int, length: int) -> int:
    return (hashes[start + length] - hashes[start] * pow(_BASE, length, _MODULUS)) % _MODULUS


def _places(hashes: list[int], start: int, length: int, free: np.ndarray) -> list[int]:
    """Return where the run at `start` stands, from the left, on free places only, without overlap."""
    power = pow(_BASE, length, _MODULUS)
    wanted = (hashes[start + length] - hashes[start] * power) % _MODULUS
    places, index = [], 0
    while index + length < len(hashes):
        if (hashes[index + length] - hashes[index] * power) % _MODULUS == wanted and free[
            index : index + length
        ].all():
            places.append(index)
            index += length
        else:
            index += 1
    return places
