"""The pattern of a rule: SSA lines, read into what the matcher searches for.

c = Conv(x, $W, $b?)          x: a computed tensor; $W: a constant; $b?: may be left out
m? = Mul(c, $s)               the whole node may be missing (then m is c)
a = Relu|@self_gated(m)       one of these operators, or of a class of fusion/operators.py
y = chain*(a)                 any number of pointwise nodes, each the sole reader of the one before
y = Add(a, r, ...)            operands of Add, Mul, Max, ... in any order; `...`: whatever else; `_`: anything
q, k = Split(y, _)            several results
s* = Conv(x, $W, ...)         all siblings (two or more) that read x so; `same(...)` sorts them
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgefuse.errors import InputError, did_you_mean
from edgefuse.fusion.operators import CLASSES, COMMUTING

__all__ = ["Argument", "Line", "Neighbours", "Pattern", "parse_pattern", "split_arguments"]

_LINE = re.compile(r"(?P<outs>[\w?*, ]+?)\s*=\s*(?P<operators>chain[*+]|[@\w|]+)\((?P<arguments>.*)\)")
_ARGUMENT = re.compile(r"(?P<constant>\$?)(?P<name>[A-Za-z_]\w*)(?P<optional>\??)")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Argument:
    """One input of a line: its name ("" for `_`), whether it must be constant, whether it may be missing."""

    name: str
    constant: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One node, chain, or set of siblings.

    outs: names of its results ("" for `_`).  reads: names of its computed inputs.
    """

    outs: tuple[str, ...]
    operators: frozenset[str]
    arguments: tuple[Argument, ...]
    rest: bool = False
    optional: bool = False
    siblings: bool = False
    chain: str = ""
    reads: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        computed = tuple(a.name for a in self.arguments if a.name and not a.constant)
        object.__setattr__(self, "reads", computed)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What the pattern wants beside a node: operators among its readers, and among those that it reads."""

    after: tuple[frozenset[str], ...]
    before: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The lines, once for each way to leave out optional nodes.

    alternatives: lists of lines without optional nodes.  outputs: the names that may be read outside.
    neighbours: for each of them and each line, what stands beside it.
    aliases: for each alternative, what a missing node's name stands for.  names: all names.
    """

    alternatives: tuple[tuple[Line, ...], ...]
    neighbours: tuple[tuple[Neighbours, ...], ...]
    aliases: tuple[Mapping[str, str], ...]
    outputs: tuple[str, ...]
    names: frozenset[str]
    open: bool


def parse_pattern(text: str, outputs: tuple[str, ...], where: str) -> Pattern:
    """Return the pattern; `outputs` empty means the results of the last line.

    Raises InputError naming the rule (`where`) and the line that cannot be read.
    """
    lines = [_line(line.strip(), where) for line in text.strip().splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{where}: the pattern is empty")
    defined = [name for line in lines for name in line.outs if name]
    if len(set(defined)) != len(defined):
        raise InputError(f"{where}: a name is defined twice", got=", ".join(defined))
    both = {a.name for line in lines for a in line.arguments if a.constant}.intersection(defined)
    if both:
        raise InputError(f"{where}: a result is named as a constant too", got=", ".join(sorted(both)))
    outputs = outputs or tuple(name for name in lines[-1].outs if name)
    for name in outputs:
        if name not in defined:
            raise InputError(f"{where}: the output {name!r} is no result{did_you_mean(name, defined)}")
    if sum(line.siblings for line in lines) > 1:
        raise InputError(f"{where}: one line of siblings is all that a pattern may have")
    optional = [i for i, line in enumerate(lines) if line.optional]
    alternatives, aliases = [], []
    for gone in itertools.product((False, True), repeat=len(optional)):
        missing = {i for i, left_out in zip(optional, gone, strict=True) if left_out}
        kept, alias = _without(lines, missing)
        if not kept:
            continue
        _check_connected(kept, where)
        alternatives.append(kept)
        aliases.append(alias)
    names = frozenset(defined) | {a.name for line in lines for a in line.arguments if a.name}
    neighbours = tuple(_neighbours(kept) for kept in alternatives)
    is_open = any(line.chain for line in lines)
    return Pattern(tuple(alternatives), neighbours, tuple(aliases), outputs, names, is_open)


def split_arguments(text: str) -> list[str]:
    """Return the parts of `text` between commas that stand outside brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def _line(text: str, where: str) -> Line:
    found = _LINE.fullmatch(text)
    if found is None:
        raise InputError(f"{where}: cannot read the line {text!r}", expected="name = Operator(arguments)")
    outs = [out.strip() for out in found["outs"].split(",")]
    optional, siblings = outs[0].endswith("?"), outs[0].endswith("*")
    names = tuple(out.rstrip("?*") for out in outs)
    if not all(_NAME.fullmatch(name) for name in names) or ((optional or siblings) and len(outs) > 1):
        raise InputError(f"{where}: cannot read the results of {text!r}")
    names = tuple("" if name == "_" else name for name in names)
    arguments = split_arguments(found["arguments"])
    rest = bool(arguments) and arguments[-1] == "..."
    parsed = tuple(_argument(a, text, where) for a in (arguments[:-1] if rest else arguments))
    chain = found["operators"] if found["operators"].startswith("chain") else ""
    operators = CLASSES["pointwise"] if chain else _operators(found["operators"], where)
    line = Line(names, operators, parsed, rest, optional, siblings, chain)
    if chain and (len(parsed) != 1 or len(names) != 1 or rest or parsed[0].constant or optional or siblings):
        raise InputError(f"{where}: a chain has one input and one result", got=text)
    if any(a.optional for a in parsed) and not operators.isdisjoint(COMMUTING):
        raise InputError(f"{where}: an operand in any order cannot be optional", got=text)
    return line


def _argument(text: str, line: str, where: str) -> Argument:
    found = _ARGUMENT.fullmatch(text)
    if found is None:
        raise InputError(f"{where}: cannot read the argument {text!r} of {line!r}")
    name = "" if found["name"] == "_" else found["name"]
    return Argument(name, bool(found["constant"]), bool(found["optional"]))


def _operators(text: str, where: str) -> frozenset[str]:
    found: set[str] = set()
    for name in text.split("|"):
        if name.startswith("@"):
            if name[1:] not in CLASSES:
                near = did_you_mean(name[1:], list(CLASSES))
                raise InputError(f"{where}: no operator class {name!r}{near}", expected=", ".join(CLASSES))
            found |= CLASSES[name[1:]]
        else:
            found.add(name)
    return frozenset(found)


def _without(lines: list[Line], missing: set[int]) -> tuple[tuple[Line, ...], dict[str, str]]:
    """Return the lines without some optional nodes, their readers reading what those would have read."""
    alias: dict[str, str] = {}
    kept = []
    for i, line in enumerate(lines):
        renamed = tuple(replace(a, name=alias.get(a.name, a.name)) for a in line.arguments)
        line = replace(line, arguments=renamed, optional=False)
        if i in missing:
            alias[line.outs[0]] = line.reads[0]
        else:
            kept.append(line)
    return tuple(kept), alias


def _neighbours(lines: tuple[Line, ...]) -> tuple[Neighbours, ...]:
    """Return what each line wants beside it; a chain may be empty, so that it asks for nothing."""
    fixed = [line for line in lines if not line.chain]
    found = []
    for line in lines:
        after = [other.operators for other in fixed if not set(line.outs).isdisjoint(other.reads)]
        before = [other.operators for other in fixed if not set(line.reads).isdisjoint(other.outs)]
        found.append(Neighbours(tuple(dict.fromkeys(after)), tuple(dict.fromkeys(before))))
    return tuple(found)


def _check_connected(lines: tuple[Line, ...], where: str) -> None:
    reached = {*lines[0].reads, *lines[0].outs}
    rest = list(lines[1:])
    while rest:
        touching = [line for line in rest if not reached.isdisjoint({*line.reads, *line.outs} - {""})]
        if not touching:
            raise InputError(f"{where}: {rest[0].outs[0]!r} shares no tensor with the rest of the pattern")
        for line in touching:
            reached |= {*line.reads, *line.outs}
            rest.remove(line)
