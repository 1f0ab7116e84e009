"""Lowering: a canonical model in the operators that a limited or older reader takes. Names no vendor.

bind shapes, fold ─► decompose ─► fold ─► step down the forms ─► settle element types ─► check
"""

from edgefuse.lowering.biases import apply_biases, bias_of
from edgefuse.lowering.lower import LoweringNotes, lower_model
from edgefuse.lowering.reader import OLDEST_TARGET_OPSET, OperatorLimit

__all__ = ["OLDEST_TARGET_OPSET", "LoweringNotes", "OperatorLimit", "apply_biases", "bias_of", "lower_model"]
