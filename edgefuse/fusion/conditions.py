"""The expression language of a rule's `where`: Python's syntax, read by ast, from a fixed list of forms.

A condition is compiled once into closures; no text is ever run as code. A fact that the graph does not know
(an open dimension in arithmetic, the rank of an untyped tensor) makes the whole condition unknown, and an
unknown condition refuses the match: a fusion is offered only where its conditions are known to hold.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefuse.errors import InputError, did_you_mean
from edgefuse.fusion.facts import FACTS, Unknown

__all__ = ["Condition", "compile_condition", "compile_expression"]

Bindings = Mapping[str, Any]
_Closure = Callable[[Bindings], Any]

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_MAX_POWER = 64  # an exponent beyond this is a mistake, and could take for ever


@dataclass(frozen=True, slots=True)
class Condition:
    """One `where` line.

    text: as written.  names: the tensors of the pattern that it speaks of.  among: "same" or "differ" for a
    line `same(...)` or `differ(...)`, which compares a value among siblings; else "".  order: names, sorted.
    form: the text with places in `order` for the names, so that rules that ask the same share the answer.
    """

    text: str
    names: frozenset[str]
    among: str
    order: tuple[str, ...]
    form: str
    _evaluate: _Closure

    def holds(self, bindings: Bindings) -> bool:
        """Return whether the condition is known to hold of the bound tensors."""
        try:
            return bool(self._evaluate(bindings))
        except Unknown:
            return False

    def value(self, bindings: Bindings) -> Any:
        """Return the value of a `same(...)` or `differ(...)` line for one sibling; raises Unknown."""
        return self._evaluate(bindings)


def compile_condition(text: str, names: Collection[str], where: str) -> Condition:
    """Return the condition written in `text`, which may speak of the tensors in `names`.

    where: the rule, for the message. Raises InputError for a form, a function or a name outside the lists.
    """
    tree = _parse(text, where)
    name = tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
    among = name if name in ("same", "differ") else ""
    if among:
        if len(tree.args) != 1 or tree.keywords:
            raise InputError(f"{where}: {among}() takes one expression", got=text)
        tree = tree.args[0]
    used: set[str] = set()
    closure = _compile(tree, frozenset(names), used, f"{where}: condition {text!r}")
    order = tuple(sorted(used))
    return Condition(text, frozenset(used), among, order, _form(tree, order), closure)


def compile_expression(text: str, names: Collection[str], where: str) -> _Closure:
    """Return a closure from bindings to the value of the expression; raises as `compile_condition` does."""
    return _compile(_parse(text, where), frozenset(names), set(), f"{where}: expression {text!r}")


def _form(tree: Any, order: tuple[str, ...]) -> str:
    """Return the expression with the place in `order` for each name; spends `tree`, compiled before."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in order:
            node.id = f"_{order.index(node.id)}"
    return ast.unparse(tree)


def _parse(text: str, where: str) -> Any:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise InputError(f"{where}: {text!r} is not an expression: {error.msg}") from error


def _compile(node: Any, names: frozenset[str], used: set[str], what: str) -> _Closure:
    """Return the closure of one syntax node."""

    def part(child: Any) -> _Closure:
        return _compile(child, names, used, what)

    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, bool, type(None))):
        constant = node.value
        return lambda bindings: constant
    if isinstance(node, ast.Name):
        return _name(node.id, names, used, what)
    if isinstance(node, (ast.Tuple, ast.List)):
        members = [part(child) for child in node.elts]
        return lambda bindings: tuple(member(bindings) for member in members)
    if isinstance(node, ast.BoolOp):
        return _boolean(isinstance(node.op, ast.And), [part(child) for child in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        apply: Callable[[Any], Any] = operator.not_ if isinstance(node.op, ast.Not) else operator.neg
        inner = part(node.operand)
        return lambda bindings: _known(apply, inner(bindings))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _binary(node, part, what)
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        return _comparison(node, part)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return _slice(node, part, what)
    if isinstance(node, ast.Subscript):
        base, index = part(node.value), part(node.slice)
        return lambda bindings: _known(lambda a, i: a[i], base(bindings), index(bindings))
    if isinstance(node, ast.Call):
        return _call(node, part, what)
    raise InputError(f"{what}: {type(node).__name__} is not part of the language", hint="see docs/fusion.md")


def _name(name: str, names: frozenset[str], used: set[str], what: str) -> _Closure:
    if name not in names:
        near = did_you_mean(name, sorted(names))
        raise InputError(f"{what}: the pattern has no {name!r}{near}", expected=", ".join(sorted(names)))
    used.add(name)
    return lambda bindings: bindings[name]


def _boolean(conjunction: bool, parts: list[_Closure]) -> _Closure:
    if conjunction:
        return lambda bindings: all(part(bindings) for part in parts)
    return lambda bindings: any(part(bindings) for part in parts)


def _binary(node: ast.BinOp, part: Callable[[Any], _Closure], what: str) -> _Closure:
    apply = _BINARY[type(node.op)]
    if isinstance(node.op, ast.Pow):
        exponent = node.right.value if isinstance(node.right, ast.Constant) else None
        if not isinstance(exponent, (int, float)) or abs(exponent) > _MAX_POWER:
            raise InputError(f"{what}: an exponent is a number of at most {_MAX_POWER}")
    left, right = part(node.left), part(node.right)
    return lambda bindings: _known(apply, left(bindings), right(bindings))


def _comparison(node: ast.Compare, part: Callable[[Any], _Closure]) -> _Closure:
    first = part(node.left)
    rest = [(_COMPARE[type(op)], part(child)) for op, child in zip(node.ops, node.comparators, strict=True)]

    def compare(bindings: Bindings) -> bool:
        left = first(bindings)
        for apply, closure in rest:
            right = closure(bindings)
            if not _known(apply, left, right):
                return False
            left = right
        return True

    return compare


def _slice(node: ast.Subscript, part: Callable[[Any], _Closure], what: str) -> _Closure:
    found = node.slice
    if not isinstance(found, ast.Slice) or found.step is not None:
        raise InputError(f"{what}: a slice has a beginning and an end, and no step")
    base = part(node.value)
    ends = [part(end) if end is not None else (lambda bindings: None) for end in (found.lower, found.upper)]
    return lambda bindings: _known(lambda a, i, j: a[i:j], base(bindings), *(end(bindings) for end in ends))


def _known(apply: Callable[..., Any], *operands: Any) -> Any:
    """Return apply(*operands); an operand of a kind that it cannot take (an open dimension) is unknown."""
    try:
        found = apply(*operands)
        return bool(found) if isinstance(found, np.ndarray) else found
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise Unknown(str(error)) from error


def _call(node: ast.Call, part: Callable[[Any], _Closure], what: str) -> _Closure:
    if not isinstance(node.func, ast.Name) or node.func.id not in FACTS:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        raise InputError(
            f"{what}: no function {name!r}{did_you_mean(name, sorted(FACTS))}",
            expected="one of " + ", ".join(sorted(FACTS)),
        )
    if node.keywords or any(isinstance(child, ast.Starred) for child in node.args):
        raise InputError(f"{what}: {node.func.id}() takes plain arguments only")
    fact = FACTS[node.func.id]
    least, most = fact.arity
    if not least <= len(node.args) <= most:
        raise InputError(f"{what}: {node.func.id}() takes {least} to {most} arguments", got=ast.unparse(node))
    arguments = [part(child) for child in node.args]
    function = fact.function
    return lambda bindings: _known(function, *[argument(bindings) for argument in arguments])
