"""Operator classes that fusion and cost agree on."""

from __future__ import annotations

from collections.abc import Iterable

from edgefuse.graph import Node

__all__ = ["ANCHORS", "MOVEMENT", "POINTWISE", "compute_nodes"]

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


def compute_nodes(nodes: Iterable[Node]) -> int:
    """Return how many of the nodes compute something."""
    return sum(node.op_type not in MOVEMENT for node in nodes)
