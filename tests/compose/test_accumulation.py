"""Sums over 16k elements in a build: told with their error before and after, split where it asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgefuse
from edgefuse.compose.accumulation import settle_sums
from edgefuse.compose.prepare import Prepared, find_target, prepare
from edgefuse.graph import model_from_proto
from edgefuse.graph.reference import Reference
from edgefuse.lowering.split_reductions import summed_elements
from tests.passes.graphs import Build

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all


def norm_and_sum() -> Build:
    """Return a LayerNormalization over 16,384 elements and a sum over 65,536."""
    b = Build(opset=20)
    x = b.x([4, 16384])
    b.op("LayerNormalization", x, b.w(np.ones(16384)), name="norm", out="n")
    wide = b.op("Exp", b.op("Reshape", x, b.ints(1, 65536)))
    b.op("ReduceSum", wide, b.ints(1), name="total", out="sum", keepdims=0)
    return b.y("n", "sum")


def long_mean(elements: int) -> Prepared:
    b = Build(opset=20)
    x = b.x([1, elements])
    b.y(b.op("ReduceMean", x, b.ints(1), name="mean", out="y", keepdims=0))
    return prepare(model_from_proto(b.proto()), find_target("jetson-orin-nano"))


def test_float16_before_float32_after_and_the_report_shows_it(tmp_path: Path) -> None:
    (tmp_path / "long.onnx").write_bytes(norm_and_sum().proto().SerializeToString())
    result = edgefuse.build(
        tmp_path / "long.onnx", target="jetson-orin-nano", max_drop=1.0, output=tmp_path / "a.efa"
    )
    rows: dict[str, Any] = {row["node"]: row for row in result.report["long_sums"]}
    assert (rows["norm"]["elements"], rows["total"]["elements"]) == (16384, 65536)
    for row in rows.values():
        assert row["before"] >= 10 * row["after"]
        assert row["after"] < 1e-5
        assert row["action"] == "kept in float32"
        assert "error" in row["line"]
        half, single = row["emulated"]
        assert (half["dtype"], single["dtype"]) == ("float16", "float32")
        assert single["errors"]["plain"] > single["errors"]["kahan"]
    precisions = {group.sources[0]: group.precision for group in result.plan.groups}
    assert precisions["norm"] == precisions["total"] == "fp32"


def test_a_float32_sum_that_is_off_is_written_in_two_stages() -> None:
    prepared = long_mean(1 << 20)
    feeds = {"x": np.random.default_rng(0).random((1, 1 << 20)).astype(np.float32)}
    made, (row,) = settle_sums(prepared, feeds, "fp32", False)
    assert row.split
    assert row.before > 1e-5
    assert row.before >= 10 * row.after
    assert row.action == "written in two stages"
    assert [summed_elements(n) for n in made.model.graph if n.op_type == "ReduceMean"] == [1024, 1024]
    assert [summed_elements(n) for n in made.costed.graph if n.op_type == "ReduceMean"] == [1024, 1024]
    assert len(list(prepared.model.graph)) == 1, "what was given is not changed"
    wanted, got = (Reference(m).run(feeds)["y"] for m in (prepared.model, made.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_a_sum_that_is_close_enough_is_left_as_it_is() -> None:
    prepared = long_mean(16384)
    feeds = {"x": np.random.default_rng(0).random((1, 16384)).astype(np.float32)}
    made, (row,) = settle_sums(prepared, feeds, "fp32", False)
    assert made is prepared
    assert (row.action, row.before) == ("left as it is", row.after)


@pytest.mark.parametrize("elements", [16383, 100])
def test_short_sums_are_not_mentioned(elements: int) -> None:
    prepared = long_mean(elements)
    assert settle_sums(prepared, {}, "fp32", False) == (prepared, ())


def test_a_length_that_cannot_be_split_is_told() -> None:
    prepared = long_mean(1048573)  # a prime
    feeds = {"x": np.random.default_rng(0).random((1, 1048573)).astype(np.float32)}
    made, (row,) = settle_sums(prepared, feeds, "fp32", False)
    assert made is prepared
    assert not row.split
    assert row.before > 1e-5
    assert row.as_json()["action"] == "left as it is"
