"""Milliseconds of a group on a device, and where the figure comes from."""

from edgefuse.cost.model import CostModel

__all__ = ["CostModel"]
