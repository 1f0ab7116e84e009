"""Ranges from a model's own tensors, and results kept between builds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgefuse.errors import InputError, InternalError, UsageError
from edgefuse.graph import Model
from edgefuse.quant.calibrate import (
    collect_channel_ranges,
    collect_histograms,
    collect_ranges,
    observe,
)
from edgefuse.quant.observers import OBSERVERS, make_observer, range_of
from edgefuse.quant.scheme import Scheme
from tests.passes.graphs import Build

AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
SYMMETRIC = Scheme(-128, 127, symmetric=True, weight_bits=8, per_channel=True)


def _net() -> Model:
    b = Build(seed=3)
    x = b.x(["n", 3, 8, 8])
    b.y(b.op("Relu", b.op("Conv", x, b.rand(5, 3, 1, 1), name="conv", out="c"), name="relu", out="r"))
    return b.model()


def _samples(count: int = 5) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.laplace(0, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


# Ranges


@pytest.mark.parametrize("observer", [*OBSERVERS, "mse@2.4", "percentile@99"])
@pytest.mark.parametrize("scheme", [AFFINE, SYMMETRIC])
def test_ranges_are_what_the_observer_says_of_the_same_values(observer: str, scheme: Scheme) -> None:
    samples = _samples()
    found = collect_ranges(_net(), ["x"], samples, observer=observer, scheme=scheme)
    alone = make_observer(observer, scheme)
    for sample in samples:
        alone.update(sample["x"])
    assert found == {"x": alone.range()}


def test_the_default_is_minmax() -> None:
    net, samples = _net(), _samples()
    assert collect_ranges(net, ["c", "r"], samples) == collect_ranges(
        net, ["c", "r"], samples, observer="minmax"
    )


def test_an_unknown_observer_is_refused_before_the_model_runs() -> None:
    samples = iter(_samples())
    with pytest.raises(UsageError, match="unknown observer 'minmx', did you mean 'minmax'"):
        collect_ranges(_net(), ["c"], samples, observer="minmx")
    assert len(list(samples)) == 5, "none was taken"


def test_an_unknown_tensor_is_our_bug() -> None:
    with pytest.raises(InternalError, match="no tensor 'nowhere'"):
        collect_ranges(_net(), ["nowhere"], _samples())


def test_samples_may_come_from_a_generator_and_are_not_kept() -> None:
    big = Build()
    big.y(big.op("Relu", big.x([1, 3, 256, 256]), name="relu", out="r"))
    model = big.model()

    def stream(count: int) -> Iterator[dict[str, np.ndarray]]:
        for seed in range(count):
            yield {"x": np.random.default_rng(seed).random((1, 3, 256, 256), np.float32)}

    def peak(count: int) -> int:
        tracemalloc.start()
        assert set(collect_ranges(model, ["x", "r"], stream(count), observer="mse")) == {"x", "r"}
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    assert peak(12) < peak(2) + 2**20, "ten samples of 0.75 MiB more went by"


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("observer", ["minmax", "entropy"])
def test_a_value_that_is_not_finite_names_sample_and_tensor(number: float, observer: str) -> None:
    samples = _samples(3)
    samples[2]["x"][0, 1, 2, 3] = number
    with pytest.raises(InputError, match=r"calibration sample 2: tensor '[xcr]' is not finite"):
        collect_ranges(_net(), ["x", "c"], samples, observer=observer)


@pytest.mark.parametrize("observer", ["minmax", "mse"])
def test_an_empty_tensor_has_no_range(observer: str) -> None:
    samples = [{"x": np.zeros((0, 3, 8, 8), np.float32)}]
    assert collect_ranges(_net(), ["x", "c"], samples, observer=observer) == {}


def test_no_samples_are_refused_everywhere() -> None:
    for call in (
        lambda: collect_ranges(_net(), ["c"], []),
        lambda: collect_channel_ranges(_net(), {"c": 1}, []),
        lambda: collect_histograms(_net(), ["c"], []),
    ):
        with pytest.raises(InputError, match="no sample"):
            call()


def test_one_histogram_pass_gives_every_rule() -> None:
    net, samples = _net(), _samples()
    histograms = collect_histograms(net, ["x", "c", "r"], samples)
    for observer in ("minmax", "percentile", "mse", "entropy"):
        found = collect_ranges(net, ["x", "c", "r"], samples, observer=observer, scheme=AFFINE)
        assert found == {name: range_of(h, observer, AFFINE) for name, h in histograms.items()}


@pytest.mark.parametrize("observer", ["minmax", "percentile@90"])
def test_channel_ranges(observer: str) -> None:
    samples = _samples()
    found = collect_channel_ranges(_net(), {"x": 1}, samples, observer=observer)["x"]
    assert found.low.shape == found.high.shape == (3,)
    if observer == "minmax":
        everything = np.concatenate([s["x"] for s in samples])
        np.testing.assert_array_equal(found.low, everything.min(axis=(0, 2, 3)))
        np.testing.assert_array_equal(found.high, everything.max(axis=(0, 2, 3)))
    else:
        whole = collect_channel_ranges(_net(), {"x": 1}, samples)["x"]
        assert (found.low > whole.low).all()
        assert (found.high < whole.high).all()


def test_progress_counts_samples() -> None:
    seen: list[int] = []
    observe(_net(), {"c": make_observer("minmax")}, _samples(3), seen.append)
    assert seen == [1, 2, 3]


# The real thing

_SCRIPT = """
import sys
import msgspec
from pathlib import Path
import numpy as np
from PIL import Image
from edgefuse.graph import constant, is_float, read_model
from edgefuse.passes import canonicalize
from edgefuse.quant.calibrate import collect_ranges
from edgefuse.runtime.preprocess import from_dict

model_path, zoo, times, observer, *photos = sys.argv[1:]
steps = from_dict(msgspec.toml.decode(Path(zoo).read_bytes())["models"]["efficientnet_lite0"]["preprocess"])
model = read_model(model_path)
canonicalize(model)
read = [v for n in model.graph for v in n.inputs if v is not None and is_float(v)]
names = [v.name for v in read if constant(v) is None]

def samples():
    for _ in range(int(times)):
        for path in photos:
            yield {"image": steps.apply(np.asarray(Image.open(path).convert("RGB")))}

found = collect_ranges(model, names, samples(), observer=observer)
# not ru_maxrss: a child begins with the largest size of the process that forked it
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(len(found), int(peak.split()[1]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("observer", ["minmax", "mse"])
def test_efficientnet_memory_does_not_grow_with_photos(
    shared_dir: Path, repository: Path, observer: str
) -> None:
    photos = sorted(
        (shared_dir / "data" / "photos").glob("*.jpg"),
        key=lambda path: hashlib.sha256(path.name.encode()).hexdigest(),
    )[:10]
    if not photos:
        pytest.skip("no photos in ../shared/data")
    peaks = []
    for times in ("1", "4"):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _SCRIPT,
                str(shared_dir / "zoo" / "efficientnet_lite0.onnx"),
                str(repository / "examples" / "zoo.toml"),
                times,
                observer,
                *map(str, photos),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        count, peak = done.stdout.split()
        assert int(count) > 80
        peaks.append(float(peak))
    assert max(peaks) < 1.5e9
    assert peaks[1] < 1.1 * peaks[0], "four times the samples need no more memory"
