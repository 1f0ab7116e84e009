"""Operator classes that fusion and cost agree on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgefuse.graph import Node

__all__ = ["ANCHORS", "CLASSES", "COMMUTING", "MOVEMENT", "POINTWISE", "compute_nodes"]

# The operators that give a group its kind: compute-heavy, with room for an epilogue.
ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

# One output element from the elements at the same place: what an epilogue or a chain is made of.
POINTWISE = frozenset(
    """
    Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Celu Clip Cos Cosh Div Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish LeakyRelu Log Max Mean Min Mish Mul Neg PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign
    Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu
    """.split()
)

# They move or rename data and compute nothing; a fusion is not counted for having swallowed them.
MOVEMENT = frozenset(
    """
    Cast Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND Identity
    Pad Reshape Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze
    """.split()
)

# The order of their inputs does not matter, however many there are.
COMMUTING = frozenset({"Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"})

# What a pattern may write as @name.
CLASSES: Mapping[str, frozenset[str]] = {
    # One comparison an element: free in every kernel, and it only narrows a range.
    "saturating": frozenset({"Clip", "Relu"}),
    # Two slopes: one multiplication and a comparison.
    "two_slope": frozenset({"LeakyRelu", "PRelu", "ThresholdedRelu", "Shrink"}),
    # Exponentials: expensive where there is no table, a table in int8.
    "squashing": frozenset({"HardSigmoid", "Sigmoid", "Softsign", "Tanh"}),
    "exponential": frozenset({"Celu", "Elu", "Selu", "Softplus"}),
    # x times a gate of itself.
    "self_gated": frozenset({"Gelu", "HardSwish", "Mish", "Swish"}),
    "activation": frozenset(
        """
        Celu Clip Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus
        Softsign Swish Tanh ThresholdedRelu
        """.split()
    ),
    "unary": POINTWISE - {"Add", "Div", "Max", "Mean", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum", "Clip"},
    "pointwise": POINTWISE,
    "anchor": ANCHORS,
    "reduction": frozenset(
        """
        ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare
        """.split()
    ),
    "norm": frozenset(
        {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
    ),
    "pool": frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"}),
}


def compute_nodes(nodes: Iterable[Node]) -> int:
    """Return how many of the nodes compute something."""
    return sum(node.op_type not in MOVEMENT for node in nodes)
