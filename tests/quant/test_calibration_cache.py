"""Calibration results kept between builds: exact, or not at all."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefuse.compose import planning
from edgefuse.compose.prepare import find_target, prepare
from edgefuse.errors import InputError
from edgefuse.quant import calibration_cache
from edgefuse.quant.calibration_cache import (
    cache_folder,
    cached_losses,
    cached_ranges,
    calibration_key,
    samples_digest,
)
from edgefuse.quant.observers import Range
from edgefuse.quant.repair import Repair
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.sensitivity import Losses
from tests.passes.graphs import Build, conv

pytestmark = pytest.mark.slow  # files are cut at every byte: seconds in all

AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
SYMMETRIC = Scheme(-128, 127, symmetric=True, weight_bits=8, per_channel=True)
LOSSES = Losses({"c0": 1 / 3}, {"c0": {"y[0]": 0.1, "y[1]": 1e-300}})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGEFUSE_NO_CACHE", raising=False)
    return tmp_path / "cache" / "edgefuse" / "calibration"


HELD = {"a": Range(-1.5, 0.1), "ü:0": Range(0.0, 1e-30), "c": Range(np.float64(1 / 3), np.float32(2.0))}
TRIED = (Repair("ranges by mse", True, 0.1 + 0.2, ("against minmax",)), Repair("headroom", False, None))
RANGES = (HELD, TRIED)


def _never() -> Any:
    raise AssertionError("the kept result was not used")


def test_a_result_is_kept_exactly(cache: Path) -> None:
    found, notes = cached_ranges("k1", lambda: RANGES)
    assert found == RANGES
    assert notes == ()
    again, notes = cached_ranges("k1", _never)
    assert again == RANGES
    assert notes == ()
    assert [path.name for path in cache.iterdir()] == ["k1.json"], "no part of a file is left"


def test_another_key_is_another_result(cache: Path) -> None:
    cached_ranges("k1", lambda: RANGES)
    assert cached_ranges("k2", lambda: ({}, ()))[0] == ({}, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff\xfe",
        '{"schema": 2}',
        '{"schema": 1, "key": "k1", "result": {"ranges": {}, "tried": []}}',
        '{"schema": 2, "key": "k2", "result": {"ranges": {}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": [], "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {}}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {"a": [1.0]}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {"a": [2.0, 1.0]}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {"a": [NaN, 1.0]}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {"a": [0.0, Infinity]}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {"a": [true, 1.0]}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {"a": ["0", 1.0]}, "tried": []}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {}, "tried": [["a", 1, null, []]]}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {}, "tried": [["a", true, "1", []]]}}',
        '{"schema": 2, "key": "k1", "result": {"ranges": {}, "tried": [["a", true]]}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_entry_is_ignored_with_a_note_and_replaced(cache: Path, text: str) -> None:
    cache.mkdir(parents=True)
    (cache / "k1.json").write_bytes(text.encode("latin-1"))
    found, notes = cached_ranges("k1", lambda: RANGES)
    assert found == RANGES
    assert "k1 was ignored" in notes[0]
    assert cached_ranges("k1", _never)[0] == RANGES


def test_a_cut_entry_is_ignored(cache: Path) -> None:
    cached_ranges("k1", lambda: RANGES)
    file = cache / "k1.json"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert cached_ranges("k1", lambda: RANGES)[0] == RANGES
    assert json.loads(file.read_bytes())["key"] == "k1"


def test_the_cache_can_be_turned_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEFUSE_NO_CACHE", "1")
    assert cache_folder() is None
    assert cached_ranges("k1", lambda: RANGES) == (RANGES, ())
    assert not cache.exists()


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGEFUSE_NO_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "edgefuse" / "calibration"


def test_a_place_that_cannot_be_written_costs_a_note_only(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    found, notes = cached_ranges("k1", lambda: RANGES)
    assert found == RANGES
    assert any("could not be cached" in note for note in notes)


def test_an_error_in_the_calibration_is_the_callers(cache: Path) -> None:
    def fails() -> Any:
        raise InputError("bad sample")

    with pytest.raises(InputError, match="bad sample"):
        cached_ranges("k1", fails)
    assert not cache.exists()


def test_the_oldest_entries_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_cache, "_KEPT", 3)
    for number in range(5):
        cached_ranges(f"k{number}", lambda: RANGES)
        os.utime(cache / f"k{number}.json", (number, number))
    cached_ranges("last", lambda: RANGES)
    assert {path.stem for path in cache.iterdir()} == {"k3", "k4", "last"}


def test_losses_are_kept_exactly_and_checked(cache: Path) -> None:
    assert cached_losses("k1", lambda: LOSSES) == (LOSSES, ())
    assert cached_losses("k1", _never) == (LOSSES, ())
    file = cache / "k1.json"
    for broken in (
        {"total": {"c0": 1.0}, "groups": {}},
        {"total": {"c0": 1}, "groups": {"c0": {}}},
        {"total": {"c0": 1.0}, "groups": {"c0": []}},
        {"total": {"c0": 1.0}, "groups": {"c0": {"y": "0"}}},
        [],
    ):
        entry = {"schema": 2, "key": "k1", "result": broken}
        file.write_text(json.dumps(entry), encoding="utf-8")
        found, notes = cached_losses("k1", lambda: LOSSES)
        assert found == LOSSES
        assert "was ignored" in notes[0]


def test_a_loss_that_is_not_finite_is_not_kept(cache: Path) -> None:
    lost = Losses({"c0": math.inf}, {"c0": {}})
    found, notes = cached_losses("k1", lambda: lost)
    assert found == lost
    assert "could not be cached" in notes[0]
    assert not list(cache.glob("*.json"))


def test_builds_at_the_same_time_each_have_a_whole_result(cache: Path) -> None:
    big = ({f"t{i}": Range(-float(i), float(i)) for i in range(2000)}, ())
    wrong: list[object] = []

    def build() -> None:
        for _ in range(10):
            found, notes = cached_ranges("k1", lambda: big)
            if found != big or notes:
                wrong.append(notes)
            (cache / "k1.json").unlink(missing_ok=True)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _key(**changes: object) -> str:
    parts: dict[str, object] = {"model": "m", "samples": "d", "scheme": AFFINE, "names": ["a", "b"]}
    return calibration_key(**{"kind": "ranges", **parts, **changes})  # type: ignore[arg-type]


def test_the_key_holds_all_that_decides_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[dict[str, object]] = [
        {"kind": "losses"},
        {"model": "n"},
        {"samples": "e"},
        {"scheme": SYMMETRIC},
        {"names": ["a"]},
        {"names": ["b", "a"]},
    ]
    keys = [_key(), *(_key(**change) for change in changed)]
    assert len(set(keys)) == len(keys)
    assert _key(names=["a", "b", "a"]) == _key()
    for what in ("_code_digest", "_machine"):
        monkeypatch.setattr(calibration_cache, what, lambda: "another")
        assert _key() not in keys
        keys.append(_key())


def test_the_digest_of_samples_is_of_what_the_model_is_fed() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    first = samples_digest([{"x": x, "n": np.array(3)}])
    assert samples_digest(iter([{"n": np.array(3), "x": x.copy(order="F")}])) == first
    others = [
        [{"x": x, "m": np.array(3)}],
        [{"x": x.reshape(4, 3), "n": np.array(3)}],
        [{"x": x.astype(np.float64), "n": np.array(3)}],
        [{"x": x.view(np.int32), "n": np.array(3)}],
        [{"x": x, "n": np.array(4)}],
        [{"x": x, "n": np.array(3)}] * 2,
        [{"x": x}, {"n": np.array(3)}],
        [],
    ]
    digests = [samples_digest(samples) for samples in others]
    assert len({first, *digests}) == len(others) + 1
    assert samples_digest([{"s": np.array(["a", "b"])}]) != samples_digest([{"s": np.array(["a", "c"])}])


def test_tables_are_the_same_with_and_without_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Build(seed=3)
    first = b.op("Relu", conv(b, b.x([1, 4, 8, 8]), 4, 8, name="c0"))
    prepared = prepare(b.y(conv(b, first, 8, 4, name="c1")).model(), find_target("x86-avx2"))
    rng = np.random.default_rng(5)
    samples = [{"x": rng.standard_normal((1, 4, 8, 8)).astype(np.float32)} for _ in range(12)]
    stages: list[str] = []

    def tables(given: list[dict[str, np.ndarray]]) -> planning.Int8Tables:
        return planning.measure_tables(prepared, given, lambda what, done, of: stages.append(what))

    monkeypatch.setenv("EDGEFUSE_NO_CACHE", "1")
    plain = tables(samples)
    assert not cache.exists()
    monkeypatch.delenv("EDGEFUSE_NO_CACHE")
    stored = tables(samples)
    assert len(list(cache.iterdir())) == 2
    assert {"ranges", "losses"} <= set(stages)
    stages.clear()
    read = tables(samples)
    assert stages == [], "nothing was measured again"
    assert plain == stored == read
    assert plain.group_losses
    assert tables(samples[:-1]) != plain
    assert len(list(cache.iterdir())) == 4
