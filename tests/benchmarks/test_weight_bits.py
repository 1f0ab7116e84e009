"""The table of weight kinds: what it asks is what issue 3 asks, and its interval is Wilson's."""

from __future__ import annotations

import pytest

from benchmarks.weight_bits import agreement_interval, cells, rows


def test_every_row_asks_for_decibels_of_a_known_scheme() -> None:
    asked = rows()
    assert {row.weights for row in asked.values()} == {"8", "7", "pair"}
    assert all(row.least_db >= 20 for row in asked.values())
    assert all(row.least_db == 27 for row in asked.values() if row.float_layers)


@pytest.mark.parametrize(
    ("equal", "count", "low", "high"),
    [(396, 400, 0.9746, 0.9961), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634)],
)
def test_the_interval_is_that_of_wilson(equal: int, count: int, low: float, high: float) -> None:
    assert agreement_interval(equal, count) == pytest.approx((low, high), abs=2e-4)


def test_a_line_shows_what_was_measured() -> None:
    found = {
        "interval": (0.975, 0.996),
        "scheme": "static_w8c_a8",
        "share": 1.0,
        "sqnr_db": 26.41,
        "agreement": 0.99,
        "kept": ["bias_correct"],
        "build_cpu_s": 48.2,
    }
    name, row = next(iter(rows().items()))
    assert cells(name, row, found)[3:6] == ["26.4", f"{row.least_db:g}", "0.9900 (0.975-0.996)"]
