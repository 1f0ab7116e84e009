"""Where the rules hold in a graph: every match, overlapping ones too, and why the others were refused.

The rarest operator of a pattern is the anchor; from each node of that operator the other lines are bound one
by one, forward over the readers of a tensor or backward to its producer, with backtracking. Siblings are
found at the tensor that they read, in one pass over its readers, so that k siblings cost k steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edgefuse.fusion.conditions import Condition
from edgefuse.fusion.facts import Unknown
from edgefuse.fusion.index import ABSENT, GraphIndex
from edgefuse.fusion.library import Rule, load_rules
from edgefuse.fusion.pattern import Argument, Line, Neighbours
from edgefuse.graph import Model, Node, Value

__all__ = ["Match", "Matches", "Refused", "find_matches"]

MAX_CHAIN = 8  # longer chains are cut: kernels stop gaining, and the number of columns grows squared
_Env = dict[str, int]


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a rule holds.

    nodes: in the order of the graph.  outputs: the tensors read outside, or named as outputs by the rule.
    bound: name of the pattern -> tensor; None for an optional input that is not there. For a line of siblings
    its names stand for the first of them.  siblings: the nodes of that line.
    """

    rule: Rule
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    bound: Mapping[str, Value | None]
    siblings: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that a pattern fits and that are no match: the `where` line, "read outside" or "not convex"."""

    rule: str
    nodes: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Matches:
    """All matches and refusals, by rule and place.  steps: nodes tried, the measure of the work."""

    matches: tuple[Match, ...]
    refused: tuple[Refused, ...]
    steps: int


@dataclass(slots=True)
class _Found:
    """What one rule found: node numbers -> (environment, siblings), and node numbers -> refusing line."""

    matches: dict[frozenset[int], tuple[_Env, tuple[int, ...]]] = field(default_factory=dict)
    refused: dict[frozenset[int], str] = field(default_factory=dict)

    def refuse(self, nodes: frozenset[int], by: str) -> None:
        self.refused.setdefault(nodes, by)


def find_matches(model: Model, rules: Sequence[Rule] | None = None) -> Matches:
    """Return where the rules (all of the library by default) hold in the main graph of `model`.

    Deterministic. A rule matches a set of nodes once. Where a rule with an open chain and one without match
    the same nodes, the one without names them.
    """
    index = GraphIndex(model)
    searches = [_Search(index, rule) for rule in (load_rules() if rules is None else rules)]
    results = [search.run() for search in searches]
    named = {
        nodes
        for search, found in zip(searches, results, strict=True)
        if not search.rule.pattern.open
        for nodes in found.matches
    }
    matches: list[Match] = []
    refused: list[Refused] = []
    for search, found in zip(searches, results, strict=True):
        for nodes in sorted(found.matches, key=sorted):
            if search.rule.pattern.open:
                if nodes in named:
                    continue
                named.add(nodes)
            matches.append(_match(index, search.rule, nodes, *found.matches[nodes]))
        for nodes in sorted(found.refused.keys() - found.matches.keys(), key=sorted):
            names = tuple([index.names[i] for i in sorted(nodes)])
            refused.append(Refused(search.rule.id, names, found.refused[nodes]))
    return Matches(tuple(matches), tuple(refused), sum(search.steps for search in searches))


def _match(
    index: GraphIndex, rule: Rule, nodes: frozenset[int], env: _Env, siblings: tuple[int, ...]
) -> Match:
    bound = {name: None if t == ABSENT else index.values[t] for name, t in env.items()}
    return Match(
        rule=rule,
        nodes=tuple(index.nodes[i] for i in sorted(nodes)),
        outputs=tuple([index.values[t] for t in index.leaving(nodes)]),
        bound=bound,
        siblings=tuple(index.nodes[i] for i in siblings),
    )


class _Search:
    """The search for one rule in one graph."""

    def __init__(self, index: GraphIndex, rule: Rule) -> None:
        self.index = index
        self.rule = rule
        self.steps = 0
        self.found = _Found()
        self.alias: Mapping[str, str] = {}
        self.order: list[Line] = []
        self.allowed: list[set[int]] = []
        self.siblings: Line | None = None
        self.spoken_of = sorted({name for condition in rule.conditions for name in condition.names})

    def run(self) -> _Found:
        """Return what the rule found."""
        pattern = self.rule.pattern
        for lines, around, alias in zip(
            pattern.alternatives, pattern.neighbours, pattern.aliases, strict=True
        ):
            places = self._places(lines, around)
            if places is None:
                continue
            self.alias = alias
            self.siblings = next((line for line in lines if line.siblings), None)
            fixed = [line for line in lines if not line.siblings]
            if not fixed:
                self._all_siblings()
                continue
            anchor = min((line for line in fixed if not line.chain), key=lambda line: len(places[line]))
            self.order = _ordered(fixed, anchor)
            self.allowed = [set() if line.chain else set(places[line]) for line in self.order]
            for node in sorted(places[anchor]):
                for env in self._bind(anchor, node, {}):
                    self._extend(1, env, (node,))
        return self.found

    def _places(self, lines: Sequence[Line], around: Sequence[Neighbours]) -> dict[Line, list[int]] | None:
        """Return the nodes that each line may be, by the operators around them; None where a line has none.

        Nodes with the same operators around them are judged once, so that this costs little on any graph.
        """
        alike = self.index.alike
        found: dict[Line, list[int]] = {}
        for line, wanted in zip(lines, around, strict=True):
            if line.chain:
                continue
            nodes: list[int] = []
            for op in line.operators & alike.keys():
                for (after, before), members in alike[op].items():
                    if any(after.isdisjoint(operators) for operators in wanted.after):
                        continue
                    if not any(before.isdisjoint(operators) for operators in wanted.before):
                        nodes += members
            if not nodes:
                return None
            found[line] = nodes
        return found

    def _extend(self, depth: int, env: _Env, nodes: tuple[int, ...]) -> None:
        if depth == len(self.order):
            if self.siblings is not None:
                self._with_siblings(env, nodes)
            else:
                self._judge(env, frozenset(nodes), ())
            return
        line = self.order[depth]
        if line.chain:
            for added, extended in self._chains(line, env, nodes):
                self._extend(depth + 1, extended, nodes + added)
            return
        allowed = self.allowed[depth]
        for node in self._candidates(line, env):
            if node in allowed and node not in nodes:
                for extended in self._bind(line, node, env):
                    self._extend(depth + 1, extended, (*nodes, node))

    def _candidates(self, line: Line, env: _Env) -> Sequence[int]:
        """Return the nodes that may be the line: the producer of a bound result, or readers of an input."""
        for name in line.outs:
            tensor = env.get(name)
            if tensor is not None:
                producer = self.index.producer[tensor] if tensor != ABSENT else ABSENT
                return () if producer == ABSENT else (producer,)
        best: Sequence[int] | None = None
        for name in line.reads:
            tensor = env.get(name, ABSENT)
            if tensor != ABSENT:
                readers = self.index.readers[tensor]
                if best is None or len(readers) < len(best):
                    best = readers
        return best or ()

    def _bind(self, line: Line, node: int, env: _Env) -> Sequence[_Env]:
        """Return the ways in which the node can be the line, as extended environments."""
        self.steps += 1
        index, arguments = self.index, line.arguments
        written, read = index.outputs[node], index.inputs[node]
        if len(line.outs) > len(written):
            return ()
        for name, tensor in zip(line.outs, written, strict=False):
            if env.get(name, tensor) != tensor:
                return ()
        count, wanted = len(read), len(arguments)
        if index.commuting[node] and wanted + line.rest > 1:
            if count < wanted or (count > wanted and not line.rest):
                return ()
            return list(self._in_any_order(arguments, read, self._with_results(line, written, env)))
        if count > wanted and not line.rest and any(tensor != ABSENT for tensor in read[wanted:]):
            return ()
        extended = self._with_results(line, written, env)
        constant = index.constant
        for place, argument in enumerate(arguments):
            tensor = read[place] if place < count else ABSENT
            name = argument.name
            if tensor == ABSENT:
                if not argument.optional or extended.get(name, ABSENT) != ABSENT:
                    return ()
            elif not name:
                continue
            elif argument.constant != constant[tensor] or extended.get(name, tensor) != tensor:
                return ()
            extended[name] = tensor
        return (extended,)

    @staticmethod
    def _with_results(line: Line, written: tuple[int, ...], env: _Env) -> _Env:
        extended = env.copy()
        for name, tensor in zip(line.outs, written, strict=False):
            if name:
                extended[name] = tensor
        return extended

    def _in_any_order(
        self, arguments: tuple[Argument, ...], read: tuple[int, ...], env: _Env
    ) -> Iterator[_Env]:
        if not arguments:
            yield env
            return
        first = arguments[0]
        for place, tensor in enumerate(read):
            if tensor in read[:place] or not self._fits(first, tensor, env):
                continue
            extended = {**env, first.name: tensor} if first.name else env
            yield from self._in_any_order(arguments[1:], read[:place] + read[place + 1 :], extended)

    def _fits(self, argument: Argument, tensor: int, env: _Env) -> bool:
        """Return whether a tensor may be the operand of a commuting operator."""
        if tensor == ABSENT:
            return False
        if argument.name and argument.constant != self.index.constant[tensor]:
            return False
        return not argument.name or env.get(argument.name, tensor) == tensor

    def _chains(
        self, line: Line, env: _Env, taken: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], _Env]]:
        """Yield the chains that the line may be: (nodes, environment), the empty one first."""
        source, result = line.arguments[0].name, line.outs[0]
        forward = source in env
        start = env[source] if forward else env[result]
        wanted = env.get(result) if forward else None
        stack: list[tuple[int, tuple[int, ...]]] = [(start, ())]
        while stack:
            tensor, nodes = stack.pop()
            if (nodes or line.chain == "chain*") and wanted in (None, tensor):
                yield nodes, {**env, (result if forward else source): tensor}
            if len(nodes) < MAX_CHAIN:
                stack += [
                    (after, (*nodes, node)) for after, node in self._links(tensor, forward, (*taken, *nodes))
                ]

    def _links(self, tensor: int, forward: bool, taken: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Yield (next tensor, node) one pointwise node on, or back; between them nobody else reads."""
        index = self.index
        node = index.sole_reader(tensor) if forward else index.producer[tensor]
        if node == ABSENT or node in taken or len(index.outputs[node]) != 1 or not self._pointwise(node):
            return
        self.steps += 1
        if forward:
            after = index.outputs[node][0]
            if index.keeps_shape(tensor, after):
                yield after, node
            return
        for before in dict.fromkeys(index.inputs[node]):
            if before != ABSENT and not index.constant[before] and index.sole_reader(before) == node:
                if index.keeps_shape(before, tensor):
                    yield before, node

    def _pointwise(self, node: int) -> bool:
        return any(self.index.ops[node] in line.operators for line in self.order if line.chain)

    def _all_siblings(self) -> None:
        """Find siblings at every tensor that two or more nodes read."""
        line = self.siblings
        if line is None or not line.reads:
            return
        nodes = sorted(n for op in line.operators for n in self.index.by_op.get(op, ()))
        times = Counter(t for n in nodes for t in set(self.index.inputs[n]) if t != ABSENT)
        for tensor in sorted(tensor for tensor, count in times.items() if count > 1):
            if not self.index.constant[tensor]:
                self._with_siblings({line.reads[0]: tensor}, ())

    def _with_siblings(self, env: _Env, nodes: tuple[int, ...]) -> None:
        """Judge each set of two or more siblings that the rule's `same` lines hold together."""
        line = self.siblings
        if line is None:
            return
        own = {*line.outs, *(a.name for a in line.arguments)} - env.keys() - {""}
        filters = [c for c in self.rule.conditions if not own.isdisjoint(c.names)]
        classes: dict[tuple[object, ...], list[tuple[int, _Env]]] = {}
        refused: dict[str, list[int]] = {}
        for node in self._candidates(line, env):
            if node in nodes or self.index.ops[node] not in line.operators:
                continue
            for extended in self._bind(line, node, env):
                by, key = _sorted_by(filters, self._values(extended))
                if by:
                    refused.setdefault(by, []).append(node)
                    continue
                classes.setdefault(key, []).append((node, extended))
                break
        alone = [members[0][0] for members in classes.values() if len(members) == 1]
        if len(classes) > 1 and alone:
            refused.setdefault(_parting(filters, list(classes)), []).extend(alone)
        for by, nodes_refused in refused.items():
            self.found.refuse(frozenset((*nodes_refused, *nodes)), by)
        for members in (members for members in classes.values() if len(members) > 1):
            together = tuple(node for node, _ in members)
            equal = _equal_among(filters, [self._values(extended) for _, extended in members])
            if equal:
                self.found.refuse(frozenset((*nodes, *together)), equal)
                continue
            self._judge(members[0][1], frozenset((*nodes, *together)), together)

    def _values(self, env: _Env) -> dict[str, Value | None]:
        """Return the tensors that the rule's conditions speak of."""
        values: dict[str, Value | None] = {}
        for name in self.spoken_of:
            tensor = env.get(self.alias.get(name, name), ABSENT)
            values[name] = None if tensor == ABSENT else self.index.values[tensor]
        return values

    def _holds(self, condition: Condition, env: _Env) -> bool:
        """Return whether a condition holds; rules that ask the same of the same tensors share the answer."""
        alias = self.alias
        tensors = [env.get(alias.get(name, name) if alias else name, ABSENT) for name in condition.order]
        key = (condition.form, *tensors)
        known = self.index.answers.get(key)
        if known is None:
            values = self.index.values
            bound = {
                n: None if t == ABSENT else values[t] for n, t in zip(condition.order, tensors, strict=True)
            }
            known = self.index.answers[key] = condition.holds(bound)
        return known

    def _judge(self, env: _Env, nodes: frozenset[int], siblings: tuple[int, ...]) -> None:
        """Record a match, or what refuses it."""
        if nodes in self.found.matches:
            return
        if self.alias:
            env = {**env, **{name: env[stands_for] for name, stands_for in self.alias.items()}}
        exits = {env[name] for name in self.rule.pattern.outputs if name in env}
        exits.update(t for n in siblings for t in self.index.outputs[n])
        if not self.index.closed(nodes, exits):
            self.found.refuse(nodes, "read outside")
            return
        for condition in self.rule.conditions:
            if not condition.among and not self._holds(condition, env):
                self.found.refuse(nodes, condition.text)
                return
        if len(exits) > 1 and not self.index.convex(nodes):
            self.found.refuse(nodes, "not convex")
            return
        self.found.matches[nodes] = (env, siblings)


def _ordered(lines: Sequence[Line], anchor: Line) -> list[Line]:
    """Return the lines, the anchor first, each sharing a tensor with those before it, chains late."""
    order, rest = [anchor], [line for line in lines if line is not anchor]
    reached = {*anchor.reads, *anchor.outs} - {""}
    while rest:
        touching = [line for line in rest if not reached.isdisjoint({*line.reads, *line.outs})]
        # A chain binds its other end, so that a line behind it may be waiting for it.
        chosen = next((line for line in touching if not line.chain), touching[0])
        order.append(chosen)
        rest.remove(chosen)
        reached |= {*chosen.reads, *chosen.outs} - {""}
    return order


def _sorted_by(
    filters: Sequence[Condition], bindings: Mapping[str, Value | None]
) -> tuple[str, tuple[object, ...]]:
    """Return ("", values of the `same` lines) for one sibling, or (the line that refuses it, ())."""
    values: list[object] = []
    for condition in filters:
        if not condition.among:
            if not condition.holds(bindings):
                return condition.text, ()
            continue
        try:
            value = condition.value(bindings)
        except Unknown:
            return condition.text, ()
        if condition.among == "same":
            values.append(value)
    return "", tuple(values)


def _equal_among(filters: Sequence[Condition], members: Sequence[Mapping[str, Value | None]]) -> str:
    """Return the `differ` line on whose value all siblings agree, or ""."""
    for condition in (c for c in filters if c.among == "differ"):
        if len({condition.value(bindings) for bindings in members}) == 1:
            return condition.text
    return ""


def _parting(filters: Sequence[Condition], keys: Sequence[tuple[object, ...]]) -> str:
    """Return the first `same` line on whose value the siblings differ."""
    lines = [condition.text for condition in filters if condition.among == "same"]
    return next(line for i, line in enumerate(lines) if len({key[i] for key in keys}) > 1)
