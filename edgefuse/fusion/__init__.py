"""Which nodes might run as one kernel: rules, their matches and proofs, chains and grown groups."""

from edgefuse.fusion.candidates import fusion_candidates
from edgefuse.fusion.library import Rule, load_rules, rule_named, rules_from_text
from edgefuse.fusion.match import Match, Matches, Refused, find_matches
from edgefuse.fusion.operators import ANCHORS, MOVEMENT, POINTWISE, compute_nodes
from edgefuse.fusion.vertical import vertical_candidates

__all__ = [
    "ANCHORS",
    "MOVEMENT",
    "POINTWISE",
    "Match",
    "Matches",
    "Refused",
    "Rule",
    "compute_nodes",
    "find_matches",
    "fusion_candidates",
    "load_rules",
    "rule_named",
    "rules_from_text",
    "vertical_candidates",
]
