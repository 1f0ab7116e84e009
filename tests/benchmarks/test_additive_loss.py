"""The figures of the loss and calibration benchmarks: known values, limits that are broken."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.additive_loss import random_plans, ranks, spearman
from benchmarks.calibration import failures


def test_ranks_share_ties() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]


def test_spearman_is_of_the_order_alone() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert spearman(a, np.exp(a)) == pytest.approx(1.0)
    assert spearman(a, -a) == pytest.approx(-1.0)
    assert spearman(a, np.array([1.0, 3.0, 2.0, 4.0, 5.0])) == pytest.approx(0.9)
    assert math.isnan(spearman(a, np.ones(5)))


def test_random_plans_reach_from_few_nodes_to_nearly_all() -> None:
    nodes = [f"n{i}" for i in range(40)]
    plans = random_plans(nodes, 60, np.random.default_rng(0))
    sizes = [len(plan) for plan in plans]
    assert len(plans) == 60
    assert min(sizes) < 8
    assert max(sizes) > 32
    assert plans == random_plans(nodes, 60, np.random.default_rng(0))


def _row(samples: int, seconds: float = 1.0, peak: float = 3e8) -> dict[str, object]:
    return {"observer": "minmax", "samples": samples, "cpu_s": seconds, "peak_bytes": peak}


def test_calibration_keeps_its_limits_or_says_which_it_broke() -> None:
    assert failures([_row(100), _row(1000, seconds=500.0)]) == []
    assert "over 60" in failures([_row(100, seconds=61.0)])[0]
    assert "over 1500" in failures([_row(100, peak=1.6e9)])[0]
    assert "memory grows" in failures([_row(100), _row(1000, peak=4e8)])[0]
