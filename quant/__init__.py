"""Ranges, quantization schemes, repairs and measured loss; names no vendor."""

from edgefuse.quant.calibrate import Range, collect_ranges
from edgefuse.quant.choose_ranges import choose_ranges
from edgefuse.quant.fake_quant import simulated_graph
from edgefuse.quant.quantize import quantize_plan
from edgefuse.quant.repair import Repair, RepairLog, joined, repair_after, repair_before
from edgefuse.quant.scheme import Scheme, scheme_of
from edgefuse.quant.sensitivity import measure_losses

__all__ = [
    "Range",
    "Repair",
    "RepairLog",
    "Scheme",
    "choose_ranges",
    "collect_ranges",
    "joined",
    "measure_losses",
    "quantize_plan",
    "repair_after",
    "repair_before",
    "scheme_of",
    "simulated_graph",
]
