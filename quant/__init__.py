"""Ranges, quantization schemes and measured loss; names no vendor."""

from edgefuse.quant.calibrate import Range, collect_ranges
from edgefuse.quant.fake_quant import simulated_graph
from edgefuse.quant.quantize import quantize_plan
from edgefuse.quant.scheme import Scheme, scheme_of
from edgefuse.quant.sensitivity import measure_losses

__all__ = [
    "Range",
    "Scheme",
    "collect_ranges",
    "measure_losses",
    "quantize_plan",
    "scheme_of",
    "simulated_graph",
]
