"""Where loss is measured: at the outputs, but before a Softmax that saturates.

A classifier's probabilities are 0 and 1 on most samples and change on a few near ties only, so that the error
of eight samples is that of one of them, and sums of it rank nothing. What the Softmax reads says the same of
every sample. Sixty random plans of a two-class model, bias corrected, sum of the nodes' losses against the
measured loss on other samples: Spearman .91 before the Softmax and .83 behind it; the measured losses of two
halves of the samples agree at .90 and .62.
"""

from __future__ import annotations

from edgefuse.graph import Model, clone_model, constant, is_float

__all__ = ["before_softmax"]

_SATURATING = frozenset({"LogSoftmax", "Softmax"})


def before_softmax(model: Model) -> Model:
    """Return a copy of `model` whose Softmax outputs are replaced by what the Softmax reads.

    An output keeps its place. Left alone: a Softmax of a graph input or of another output.
    """
    copy = clone_model(model)
    outputs = list(copy.graph.outputs)
    for position, value in enumerate(outputs):
        node = value.producer()
        if node is None or node.domain or node.op_type not in _SATURATING:
            continue
        read = node.inputs[0]
        if read is None or read.producer() is None or not is_float(read) or constant(read) is not None:
            continue
        if not any(read is other for other in outputs):
            outputs[position] = read
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(outputs)
    return copy
