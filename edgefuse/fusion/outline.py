"""A group taken out of its graph: the group as a model of its own, and the graph that is left around it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edgefuse.graph import Model, Value, clone_model, constant

__all__ = ["outline", "reads_of"]


def reads_of(model: Model, names: Collection[str]) -> list[str]:
    """Return the computed tensors that the named nodes read and do not write, in order of first use."""
    inside = [node for node in model.graph if (node.name or "") in names]
    written = {id(value) for node in inside for value in node.outputs}
    read = [v for node in inside for v in node.inputs if v is not None and id(v) not in written]
    return list(dict.fromkeys(v.name or "" for v in read if constant(v) is None))


def outline(model: Model, names: Collection[str], writes: Sequence[str]) -> tuple[Model, Model]:
    """Return (the named nodes alone, the model without them).

    writes: the tensors that the group hands on; in the second model they are further inputs. Where something
    else of the group is read outside, the second model cannot be built: ValueError names the tensor.
    """
    reads = reads_of(model, names)
    return _part(model, names, reads, list(writes), keep=True), _part(
        model, names, list(writes), [], keep=False
    )


def _part(
    model: Model, names: Collection[str], inputs: Sequence[str], outputs: Sequence[str], *, keep: bool
) -> Model:
    copy = clone_model(model)
    graph = copy.graph
    values: dict[str, Value] = {v.name or "": v for v in graph.inputs}
    for node in graph:
        values.update({v.name or "": v for v in node.outputs})
    fed = _replaced(values, inputs, graph.inputs if keep else ())
    gone = [node for node in graph if ((node.name or "") in names) != keep]
    kept = [node for node in graph if ((node.name or "") in names) == keep]
    if keep:
        graph.outputs.clear()
        graph.outputs.extend(values[name] for name in outputs)
        graph.inputs.clear()
        graph.inputs.extend(fed)
    else:
        exits = dict(zip(inputs, fed, strict=True))
        for place, value in enumerate(graph.outputs):
            if (value.name or "") in exits and value is not exits[value.name or ""]:
                graph.outputs[place] = exits[value.name or ""]
        graph.inputs.extend(fed)
    for node in kept:
        for read in node.inputs:
            producer = read.producer() if read is not None else None
            if read is not None and producer is not None and producer in gone:
                raise ValueError(f"{read.name!r} is read outside the group and is none of its outputs")
    for node in reversed(gone):
        graph.remove(node, safe=False)
    return copy


def _replaced(values: dict[str, Value], names: Sequence[str], own: Collection[Value]) -> list[Value]:
    """Return a fresh input for each name, and let every reader read it in the place of what wrote it."""
    fed = []
    for name in names:
        old = values[name]
        if any(old is value for value in own):
            fed.append(old)
            continue
        new = Value(name=name, type=old.type, shape=old.shape)
        for user, index in tuple(old.uses()):
            user.replace_input_with(index, new)
        fed.append(new)
    return fed
