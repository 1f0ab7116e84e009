"""Which values are known before the model runs."""

from __future__ import annotations

from edgefuse.graph import Model, Node, Value, has_subgraphs

__all__ = ["foldable_values"]

# Their outputs differ from run to run although they read nothing.
_RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


def foldable_values(model: Model) -> frozenset[Value]:
    """Return the values of the main graph that depend on constants only: initializers and all made of them.

    An engine computes these once, when it is built: they count as weights, not as activations. Graph outputs
    are left out (they must be written on every run), and so are nodes with a body.
    """
    known: set[Value] = set(model.graph.initializers.values())
    for node in model.graph:
        if _is_foldable(node, known):
            known.update(node.outputs)
    return frozenset(value for value in known if not value.is_graph_output())


def _is_foldable(node: Node, known: set[Value]) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM or has_subgraphs(node):
        return False
    return all(value is None or value in known for value in node.inputs)
