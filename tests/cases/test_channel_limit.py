"""What a limit on channel groups refuses, why, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from case_families import CALIBRATION, decibel_limit, ready, samples_of
from case_models import KINDS

from edgefuse.compose.channel_limit import channel_errors, refuse_spoilers, spoilers
from edgefuse.compose.planning import Int8Tables, int8_plan, measure_tables
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.reversion import Reverted
from edgefuse.compose.simulate import exact_call
from edgefuse.graph import model_from_proto
from edgefuse.graph.reference import Reference
from edgefuse.verification import OutputError

Feeds = dict[str, np.ndarray]


def measured(name: str) -> tuple[Prepared, Int8Tables, list[Feeds]]:
    proto, sampler = KINDS[name]()
    prepared = ready(model_from_proto(proto), "x86-avx2", sampler)
    samples = samples_of(sampler, CALIBRATION, 1000)
    return prepared, measure_tables(prepared, samples, lambda what, done, of: None), samples


def row(name: str, group: str, error: float) -> OutputError:
    return OutputError(name, error, error, group, error, 2)


def test_the_node_that_spoils_a_group_is_refused_and_the_plan_says_why() -> None:
    prepared, tables, samples = measured("offset_that_cancels")
    refused, rows = refuse_spoilers(prepared, tables, "int8", 1, samples, {}, decibel_limit(25))
    assert list(refused) == ["difference"]
    assert "matmul2" in refused["difference"]
    assert "at least 25.0 asked for" in refused["difference"]
    assert rows[0].nodes == ("difference",)
    assert "reverted to float" in rows[0].note()
    plan, quantized = int8_plan(prepared, tables, "int8", 1, None, refused=refused)
    group = plan.group_of("difference")
    assert group is not None
    assert group.precision == "fp32"
    assert refused["difference"] in group.reason
    assert plan.count("int8") == 1
    call = exact_call(prepared.model, plan, quantized, tables.scheme)
    assert min(r.worst_group_sqnr_db for r in channel_errors(prepared.original, call, samples)) >= 25


def test_nothing_is_refused_where_every_group_is_within_the_limit() -> None:
    prepared, tables, samples = measured("pairs_of_one_sign")
    assert refuse_spoilers(prepared, tables, "int8", 1, samples, {}, decibel_limit(25)) == ({}, [])


def test_what_was_refused_before_stays_refused() -> None:
    prepared, tables, samples = measured("offset_that_cancels")
    given = {"difference": "level 1: because"}
    refused, rows = refuse_spoilers(prepared, tables, "int8", 1, samples, given, decibel_limit(25))
    assert refused == given
    assert rows == []


def test_a_note_names_a_few_nodes_and_counts_the_rest() -> None:
    many = Reverted(tuple(f"n{i}" for i in range(9)), "because", 1.0, 1)
    assert "n5 and 3 more is reverted to float: because" in many.note()
    assert "n6" not in many.note()
    assert len(many.as_json()["nodes"]) == 9


def test_a_limit_that_nothing_in_int8_keeps_leaves_all_in_float() -> None:
    prepared, tables, samples = measured("leaky_and_parametric_relu")
    refused, _ = refuse_spoilers(prepared, tables, "int8", 1, samples, {}, 1e-6)
    plan, quantized = int8_plan(prepared, tables, "int8", 1, None, refused=refused)
    assert not quantized
    assert plan.count("int8") == 0


def test_spoilers_are_taken_in_order_until_the_rest_is_within_the_limit() -> None:
    losses = {
        "small": {"y": np.array([0.0, 1.0])},
        "large": {"y": np.array([0.0, 6.0])},
        "other": {"y": np.array([9.0, 3.0])},
    }
    worst = row("y", "y[:, 1]", 0.2)
    # 10 parts give 0.04 of the power: 0.1 allows 2.5 parts, 0.19 allows 9.
    assert spoilers(losses, worst, 0.1) == ("large", "other")
    assert spoilers(losses, worst, 0.19) == ("large",)


def test_spoilers_of_an_output_without_losses_is_the_last_node() -> None:
    assert spoilers({"first": {}, "last": {}}, row("indices", "indices", 0.5), 0.1) == ("last",)


def test_spoilers_of_an_infinite_error_is_one_node_at_a_time() -> None:
    losses = {"a": {"y": np.array([1.0])}, "b": {"y": np.array([2.0])}}
    assert spoilers(losses, row("y", "y", float("inf")), 0.1) == ("b",)


@pytest.mark.parametrize("name", ["boxes_beside_scores", "half_precision_inside"])
def test_channel_errors_of_the_reference_itself_are_zero(name: str) -> None:
    proto, sampler = KINDS[name]()
    model = model_from_proto(proto)
    rows = channel_errors(model, Reference(model).run, samples_of(sampler, 2, 5))
    assert [r.worst_group_relative_error for r in rows] == [0.0]
