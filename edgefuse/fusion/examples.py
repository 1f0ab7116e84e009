"""Small graphs written as lines, for the examples and the proofs of the rules.

    x: [N,8,H,W]                      an input; float32, or `ids: int64[N,S]`
    c = Conv(x, $[16,8,3,3], pads=[1,1,1,1])
    n = Clip(c, 0.0, 6.0)             0.5: float32;  [1, -1]: int64;  [0.5, 2.0]: float32;  -: left out
    y = Mul(n, $+[16,1,1])            $[..]: random constant;  $+[..]: a positive one
    a, b = Split(y, axis=1, num_outputs=2)
    -> a, b                           the outputs; without this line the results of the last one

Sizes in capitals are symbols: each proof draws them anew. `2*C` and `H//2` are allowed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgefuse.errors import InputError
from edgefuse.fusion.conditions import compile_expression
from edgefuse.fusion.pattern import split_arguments
from edgefuse.graph import (
    CANONICAL_OPSET,
    Attr,
    AttributeType,
    DataType,
    Graph,
    Model,
    Node,
    Shape,
    TensorType,
    Value,
    add_constant,
    infer_shapes,
)

__all__ = ["draw_sizes", "feeds_for", "model_from_lines", "nodes_from_lines", "symbols"]

_INPUT = re.compile(r"(\w+)\s*:\s*([a-z]+\d*)?\s*\[(.*)\]")
_NODE = re.compile(r"([\w, ]+?)\s*=\s*(\w+)\((.*)\)")
_ATTRIBUTE = re.compile(r"([a-z_]\w*)\s*=(?!=)\s*(.+)")
_RANDOM = re.compile(r"\$(\+?)\[(.*)\]")
_TYPES = {"float32": DataType.FLOAT, "int64": DataType.INT64, "int32": DataType.INT32, "bool": DataType.BOOL}
_SIZES = (2, 6)


def symbols(text: str) -> list[str]:
    """Return the size symbols of a text (capitals inside brackets), in order of first use."""
    sizes = re.findall(r"\[([^\[\]]*)\]", text)
    return list(dict.fromkeys(name for size in sizes for name in re.findall(r"\b[A-Z][A-Z0-9]*\b", size)))


def draw_sizes(
    text: str, limits: Mapping[str, tuple[int, int]], random: np.random.Generator
) -> dict[str, int]:
    """Return a size for each symbol of `text`, within `limits` (2 to 6 where none are given)."""
    found = {}
    for name in symbols(text):
        least, most = limits.get(name, _SIZES)
        found[name] = int(random.integers(least, most + 1))
    return found


def model_from_lines(
    text: str, sizes: Mapping[str, int], random: np.random.Generator, where: str = "example"
) -> Model:
    """Return the model, its shapes inferred; raises InputError naming the line that cannot be read."""
    graph = Graph([], [], nodes=[], opset_imports={"": CANONICAL_OPSET}, name="example")
    known: dict[str, Value] = {}
    outputs: list[str] = []
    last: list[str] = []
    for line in (part.split("#")[0].strip() for part in text.strip().splitlines()):
        found = _INPUT.fullmatch(line)
        if found is not None:
            value = Value(
                name=found[1],
                type=TensorType(_TYPES[found[2] or "float32"]),
                shape=Shape(_dimensions(found[3], sizes, where)),
            )
            graph.inputs.append(value)
            known[found[1]] = value
        elif line.startswith("->"):
            outputs = [name.strip() for name in line[2:].split(",")]
        elif line:
            last = nodes_from_lines(graph, line, known, sizes, random, where)
    for name in outputs or last:
        if name not in known:
            raise InputError(f"{where}: the output {name!r} is not defined", expected=", ".join(known))
        graph.outputs.append(known[name])
    model = Model(graph, ir_version=11)
    infer_shapes(model)
    return model


def nodes_from_lines(
    graph: Graph,
    text: str,
    known: dict[str, Value],
    sizes: Mapping[str, int],
    random: np.random.Generator,
    where: str,
) -> list[str]:
    """Append the nodes of `text` to `graph`, entering their results in `known`; returns the last names."""
    names: list[str] = []
    for line in (part.strip() for part in text.strip().splitlines()):
        found = _NODE.fullmatch(line)
        if found is None:
            raise InputError(f"{where}: cannot read the line {line!r}", expected="name = Operator(arguments)")
        names = [name.strip() for name in found[1].split(",")]
        inputs: list[Value | None] = []
        attributes: list[Attr] = []
        for argument in split_arguments(found[3]):
            pair = _ATTRIBUTE.fullmatch(argument)
            if pair is not None:
                attributes.append(_attribute(pair[1], pair[2], {**known, **sizes}, where))
            else:
                inputs.append(_argument(graph, argument, known, sizes, random, where))
        results = [Value(name=f"{name}_value" if name == "_" else name) for name in names]
        node = Node("", found[2], inputs, attributes, outputs=results, name=f"{names[0]}_node")
        graph.append(node)
        known.update(zip(names, results, strict=True))
    return names


def feeds_for(model: Model, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random inputs: normal floats, integers 0 and 1 (valid for any index), bools."""
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        shape = tuple(int(d) for d in value.shape or () if isinstance(d, int))
        kind = (value.dtype or DataType.FLOAT).numpy()
        if kind.kind == "f":
            feeds[value.name or ""] = random.normal(size=shape).astype(kind)
        else:
            feeds[value.name or ""] = random.integers(0, 2, shape).astype(kind)
    return feeds


def _dimensions(text: str, sizes: Mapping[str, int], where: str) -> list[int]:
    return [
        int(compile_expression(part, list(sizes), where)(sizes)) for part in split_arguments(text) if part
    ]


def _argument(
    graph: Graph,
    text: str,
    known: Mapping[str, Value],
    sizes: Mapping[str, int],
    random: np.random.Generator,
    where: str,
) -> Value | None:
    if text == "-":
        return None
    if text.lstrip("$") in known:
        return known[text.lstrip("$")]
    drawn = _RANDOM.fullmatch(text)
    if drawn is not None:
        array = random.normal(size=_dimensions(drawn[2], sizes, where))
        return add_constant(
            graph, (np.abs(array) + 0.5 if drawn[1] else array).astype(np.float32), "constant"
        )
    if text.startswith("["):
        parts = split_arguments(text[1:-1])
        given = [compile_expression(part, list(sizes), where)(sizes) for part in parts]
        kind = np.int64 if all(isinstance(number, int) for number in given) else np.float32
        return add_constant(graph, np.array(given, kind), "constant")
    try:
        number = ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise InputError(
            f"{where}: {text!r} is no tensor of the example", expected=", ".join(known)
        ) from error
    return add_constant(
        graph, np.array(number, np.float32 if isinstance(number, float) else np.int64), "constant"
    )


def _attribute(name: str, text: str, known: Mapping[str, Any], where: str) -> Attr:
    """Return an attribute from an expression over sizes and tensors (`number(E)`), or a list of them."""
    value = compile_expression(text, list(known), where)(known)
    if isinstance(value, tuple):
        kind = AttributeType.INTS if all(isinstance(v, int) for v in value) else AttributeType.FLOATS
        return Attr(name, kind, list(value))
    if isinstance(value, str):
        return Attr(name, AttributeType.STRING, value)
    if isinstance(value, int):
        return Attr(name, AttributeType.INT, int(value))
    return Attr(name, AttributeType.FLOAT, float(value))
