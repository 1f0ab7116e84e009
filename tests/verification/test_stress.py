"""Level 3: what the stress inputs are, what fails, and the NaN policy in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefuse.runtime.tensors import TensorInfo
from edgefuse.verification import InputRange, StressReport, run_stress, stress_inputs

Array = np.ndarray[Any, Any]

INPUT = (TensorInfo("x", "float32", (1, 4)),)
SAMPLE = {"x": np.array([[0.5, -1.0, 2.0, 0.1]], np.float32)}
RANGES = {"x": InputRange(-1.0, 2.0)}


def double(feeds: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return {"y": feeds["x"] * np.float32(2.0)}


def stress(deployed: Any, precision: str = "fp32", reference: Any = double) -> StressReport:
    return run_stress(deployed, reference, INPUT, SAMPLE, RANGES, precision=precision)


def result(report: StressReport, kind: str) -> Any:
    return next(r for r in report.results if r.kind == kind)


def test_the_inputs_are_what_they_are_called() -> None:
    made = {kind: (inside, feeds["x"]) for kind, inside, feeds in stress_inputs(INPUT, SAMPLE, RANGES)}
    assert (made["zeros"][1] == 0).all()
    assert np.signbit(made["negative zeros"][1]).all()
    tiny = made["denormals"][1]
    assert (tiny > 0).all()
    assert (tiny < np.finfo(np.float32).tiny).all()
    assert (made["all at the low end of the range"][1] == -1.0).all()
    assert (made["all at the high end of the range"][1] == 2.0).all()
    assert made["low and high end by turns"][1].tolist() == [[-1.0, 2.0, -1.0, 2.0]]
    assert np.count_nonzero(made["one value at the high end, the rest 0"][1]) == 1
    assert np.isnan(made["one NaN"][1]).sum() == 1
    assert made["100 times the data"][1].max() == pytest.approx(200.0)
    assert next(kind for kind, (inside, _) in made.items() if not inside) == "100 times the data"
    assert all(feeds.dtype == np.float32 and feeds.shape == (1, 4) for _, feeds in made.values())
    assert SAMPLE["x"][0, 0] == np.float32(0.5), "the sample itself is not changed"


def test_a_half_precision_input_holds_no_more_than_it_can() -> None:
    inputs = (TensorInfo("x", "float16", (1, 2)),)
    made = {
        kind: feeds["x"]
        for kind, _, feeds in stress_inputs(inputs, {"x": np.ones((1, 2), np.float16)}, RANGES)
    }
    assert all(array.dtype == np.float16 for array in made.values())
    assert np.isinf(made["1e30 everywhere"]).all()


def test_indices_stay_legal_and_pixels_go_to_their_ends() -> None:
    inputs = (TensorInfo("ids", "int64", (1, 3)), TensorInfo("image", "uint8", (1, 2)))
    sample = {"ids": np.array([[5, 6, 7]]), "image": np.array([[9, 9]], np.uint8)}
    made = {kind: feeds for kind, _, feeds in stress_inputs(inputs, sample, {})}
    assert list(made) == ["zeros in whole numbers", "255 in raw pixels"]
    assert (made["zeros in whole numbers"]["ids"] == 0).all()
    assert made["255 in raw pixels"]["ids"].tolist() == [[5, 6, 7]]
    assert (made["255 in raw pixels"]["image"] == 255).all()


def test_the_same_model_passes_and_passes_nan_on() -> None:
    report = stress(double)
    assert report.ok
    assert report.policy[0] == "NaN policy: a NaN in an input comes out as NaN, as in the float model"
    assert "infinity, as in the float model" in report.policy[1]
    assert report.as_json()["ok"] is True


def test_hidden_nan_is_told_and_does_not_fail() -> None:
    report = stress(lambda feeds: double({"x": np.nan_to_num(feeds["x"], posinf=9.0, neginf=-9.0)}))
    assert "is hidden: finite numbers come out; in the float model it comes out as NaN" in report.policy[0]
    assert report.ok


def test_nan_where_the_float_model_has_none_fails() -> None:
    def fragile(feeds: dict[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return {"y": double(feeds)["y"] * (feeds["x"] / feeds["x"])}  # 0 / 0

    report = stress(fragile, "int8")
    assert not report.ok
    assert "gives NaN, the float model does not" in result(report, "zeros").why
    assert any(line.startswith("FAILED zeros") for line in report.lines())


def test_overflow_of_a_narrow_format_fails() -> None:
    def half(feeds: dict[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return {"y": double({"x": feeds["x"].astype(np.float16)})["y"].astype(np.float16)}

    report = stress(half, "fp16", lambda feeds: {"y": double(feeds)["y"].astype(np.float16)})
    assert result(report, "zeros").why == ""
    report = stress(half, "fp16")
    assert "gives infinite" in result(report, "65504 everywhere (the end of float16)").why


@pytest.mark.parametrize(
    ("precision", "ok"), [("fp32", False), ("fp16", True), ("int8", True), ("mixed", True)]
)
def test_only_float_is_held_to_an_error(precision: str, ok: bool) -> None:
    assert stress(lambda feeds: {"y": double(feeds)["y"] * np.float32(1.01)}, precision).ok is ok


def test_errors_beyond_the_data_are_told_only() -> None:
    def saturating(feeds: dict[str, Array]) -> dict[str, Array]:
        return double({"x": np.clip(feeds["x"], -1.0, 2.0)})

    report = stress(saturating)
    assert report.ok
    assert result(report, "100 times the data").error == pytest.approx(0.99)
    assert any("outside the range" in line for line in report.lines())


def test_an_exception_of_the_runtime_fails() -> None:
    def raising(feeds: dict[str, Array]) -> dict[str, Array]:
        if not np.isfinite(feeds["x"]).all():
            raise RuntimeError("bad number\nmore")
        return double(feeds)

    report = stress(raising)
    assert result(report, "one NaN").why == "the deployed payload raised RuntimeError: bad number"
    assert "is refused with an error" in report.policy[0]


def test_what_the_float_model_refuses_says_nothing() -> None:
    def picky(feeds: dict[str, Array]) -> dict[str, Array]:
        if (feeds["x"] == 0).all():
            raise ValueError("no zeros")
        return double(feeds)

    kinds = [r.kind for r in stress(double, reference=picky).results]
    assert "zeros" not in kinds
    assert "denormals" in kinds


def test_rounding_of_nothing_is_no_error() -> None:
    report = stress(lambda feeds: {"y": double(feeds)["y"] + np.float32(1e-7)})
    assert report.ok, "relative to what the output usually is, not to the zeros of this input"


def test_another_shape_fails() -> None:
    report = stress(lambda feeds: {"y": double(feeds)["y"][:, :2]})
    assert "off by inf" in result(report, "zeros").why
