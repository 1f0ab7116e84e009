"""What is asked of int8 on held inputs, and the metrics that builds are asked with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import held_accuracy
from benchmarks.held_accuracy import FastestDet, Held, TextDetector, table
from benchmarks.metrics import METRICS
from edgefuse.verification import make_metric


def test_every_model_of_the_table_has_the_score_that_is_asked() -> None:
    asked = table()
    assert {"fastestdet", "basic_pitch", "ppocrv4_det", "ppocr_cls", "pplcnet_orientation"} <= set(asked)
    for name, held in asked.items():
        assert name in METRICS
        assert make_metric(held.metric).samples == 0, "the metric of the build can be made by its name"
        assert 0 < held.share <= 1
        assert held.calibration >= 16


def _maps(seed: int, flip: float = 0.0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    values = rng.random((1, 1, 16, 16)) < 0.5
    flipped = values ^ (rng.random(values.shape) < flip)
    return {"sigmoid_0.tmp_0": flipped.astype(np.float32)}


def test_a_text_map_is_judged_over_all_samples_together() -> None:
    metric = make_metric("benchmarks.held_accuracy:TextDetector")
    for seed in range(3):
        metric.update(_maps(seed), _maps(seed), None)
    assert metric.value() == metric.reference_value() == 1.0
    assert metric.drop() == 0.0
    metric.update(_maps(3, flip=0.5), _maps(3), None)
    assert metric.value() < 0.9


def test_boxes_that_vanish_are_a_drop() -> None:
    output = np.zeros((1, 85, 4, 4), np.float32)
    output[0, 0, 1, 1] = output[0, 7, 1, 1] = 0.9
    nothing = {"y": np.zeros_like(output)}
    found, lost = FastestDet(), FastestDet()
    found.update({"y": output}, {"y": output}, None)
    lost.update(nothing, {"y": output}, None)
    assert found.value() == 1.0
    assert lost.value() == 0.0


@pytest.mark.parametrize(
    ("value", "share", "holds"), [(0.98, 0.8, "yes"), (0.96, 0.8, "no"), (0.98, 0.6, "no"), (None, 0.0, "no")]
)
def test_a_row_holds_only_with_accuracy_and_share(value: float | None, share: float, holds: str) -> None:
    held = Held("iou", 0.97, 0.7, "benchmarks.held_accuracy:TextDetector", 0.02, 40, 40)
    exact = None if value is None else {"iou": value, "sqnr_db": 20.0}
    row = {
        "model": "m",
        "metric": held.metric,
        "share": share,
        "exact": exact,
        "real": None,
        "build_cpu_s": 1.0,
    }
    cells = held_accuracy._cells({**row, "max_drop": 0.02}, held)
    assert cells[8] == holds
    assert TextDetector.model == "ppocrv4_det"
