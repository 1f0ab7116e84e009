from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import edgefuse
from edgefuse.artifact import array_to_bytes, open_artifact, write_artifact
from edgefuse.errors import (
    ArtifactError,
    DeviceError,
    InputError,
    InternalError,
    ToolMissingError,
    UnsupportedError,
    UsageError,
)
from edgefuse.runtime import TensorInfo, load

Make = Callable[..., Path]
X = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
FROZEN = Path(__file__).parent.parent / "artifact/frozen/v1.efa"


def scale(value: float, name: str = "planned", **more: Any) -> dict[str, bytes]:
    import json

    return {f"payloads/{name}/scale.json": json.dumps({"scale": value, **more}).encode()}


def test_one_line_loads_and_one_call_runs(make: Make, toy: Any) -> None:
    with edgefuse.load(make()) as model:
        np.testing.assert_array_equal(model(X)["y"], 2 * X)
        assert model.inputs == (TensorInfo("x", "float32", ("batch", 2, 3), None),)
        assert [info.name for info in model.outputs] == ["y"]
        assert (model.payload, model.family, model.notes) == ("planned", "_toy", [])
        assert str(model.inputs[0]) == "x float32[batch, 2, 3]"
        assert list(model(X)) == ["y"]
        described = model.describe()
    assert described["engine"]["runtime"] == "toy"
    assert described["payload"] == "planned"
    assert toy.opened[0].closed == 1


def test_the_frozen_artifact_still_runs(toy: Any) -> None:
    with edgefuse.load(FROZEN) as model:
        assert model.self_test() == {"y": 0.0}
        image = np.zeros((4, 6, 3), np.uint8)
        image[..., 0] = 255  # red, and the model's order is BGR: its last plane is the largest
        result = model.predict(image)
    assert [entry["index"] for entry in result["top"]] == [12, 13, 14]
    assert [entry["label"] for entry in result["top"]] == ["class 12", "class 13", "class 14"]
    assert result["outputs"]["y"].shape == (1, 3, 2, 3)
    assert toy.opened[0].options == {"threads": 2, "hints": {"latency": True}}


def test_files_and_options_reach_the_engine(make: Make, toy: Any, samples: ModuleType) -> None:
    payloads = [
        samples.payload("planned", options={"threads": None, "hint": "latency"}),
        samples.payload("float"),
    ]
    path = make(payloads=payloads)
    with load(path) as model:
        model(X)
    with load(path, threads=3, payload="float") as model:
        assert model.payload == "float"
        assert model.describe()["engine"]["threads"] == 3
    first, second = toy.opened
    assert first.options == {"hint": "latency"}
    assert (list(first.files), first.entry) == (["scale.json"], "scale.json")
    assert second.options == {"threads": 3}


@pytest.mark.parametrize("threads", [0, -1, True, "2", 1.5])
def test_bad_threads_and_self_test_are_refused(make: Make, threads: Any) -> None:
    with pytest.raises(UsageError, match="threads"):
        load(make(), threads=threads)
    with pytest.raises(UsageError, match="self_test"):
        load(make(), self_test="some")


def test_unknown_payload_and_family_are_refused(make: Make, toy: Any) -> None:
    with pytest.raises(InputError, match="did you mean 'planned'"):
        load(make(), payload="planed")
    with pytest.raises(InputError, match="no family 'other'"):
        load(make(), family="other")
    assert toy.opened == []


def test_family_picks_among_the_payloads(make: Make, toy: Any, samples: ModuleType) -> None:
    path = make(payloads=[samples.payload("planned", family="_none"), samples.payload("float")])
    with load(path, family="_toy") as model:
        assert (model.payload, model.notes) == ("float", [])
    with pytest.raises(UnsupportedError, match="no engine for family '_none'"):
        load(path, family="_none")


def test_a_missing_family_falls_back_and_says_so(make: Make, toy: Any, samples: ModuleType) -> None:
    path = make(payloads=[samples.payload("planned", family="_none"), samples.payload("float")])
    with load(path) as model:
        assert model.payload == "float"
        assert model.notes == [
            "payload 'planned' was passed over: this edgefuse has no engine for family '_none'"
        ]


@pytest.mark.parametrize("how", ["on import", "on load"])
def test_a_missing_vendor_package_names_the_command(
    make: Make, samples: ModuleType, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def load_engine(files: Any, entry: str, options: Any) -> Any:
        raise ModuleNotFoundError("No module named 'toy_vendor'", name="toy_vendor")

    if how == "on load":
        module = ModuleType("edgefuse.targets._toy.engine")
        module.load_engine = load_engine  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    else:
        from importlib import import_module

        def fail(name: str) -> Any:
            if name == "edgefuse.targets._toy.engine":
                raise ModuleNotFoundError("No module named 'toy_vendor'", name="toy_vendor")
            return import_module(name)

        monkeypatch.setattr("edgefuse.runtime.engine.importlib.import_module", fail)
    target = {**samples.manifest()["target"], "requirements": {"packages": ["toy-vendor>=1,<2"]}}
    with pytest.raises(ToolMissingError, match="toy_vendor") as caught:
        load(make(target=target, payloads=[samples.payload("planned")]))
    assert caught.value.hint == "pip install 'toy-vendor>=1,<2'"
    with pytest.raises(ToolMissingError, match=r"no payload of .* runs here"):
        load(make(target=target))


def test_a_failing_self_test_falls_back_and_says_so(make: Make, toy: Any) -> None:
    with load(make(scale(2.1))) as model:
        assert model.payload == "float"
        assert "self-test of payload 'planned' failed: output 'y'" in model.notes[0]
        np.testing.assert_array_equal(model(X)["y"], 2 * X)
    assert toy.opened[0].closed == 1


def test_self_test_can_be_left_out_or_run_as_a_whole(make: Make, toy: Any, samples: ModuleType) -> None:
    with load(make(scale(2.1)), self_test=False) as model:
        assert model.payload == "planned"
        assert toy.opened[0].seen == []
        with pytest.raises(DeviceError, match="vector 0") as caught:
            model.self_test()
        assert caught.value.got is not None
        assert "0.05" in caught.value.got
    second = {**samples.VECTOR, "outputs": {"y": "self_test/1/y.npy"}}
    payloads = [samples.payload("planned", self_test=[samples.VECTOR, second])]
    path = make({"self_test/1/y.npy": array_to_bytes(3 * X)}, payloads=payloads)
    with load(path) as model:
        assert model.notes == []
    with pytest.raises(DeviceError, match="vector 1"):
        load(path, self_test="all")


@pytest.mark.parametrize(
    ("expected", "tolerance", "passes"),
    [
        (2 * X, 0.0, True),
        (2 * X * np.float32(1 + 1e-4), 1e-3, True),
        (2 * X * np.float32(1 + 1e-2), 1e-3, False),
        (np.where(X == 3, np.float32(np.nan), 2 * X), 1.0, False),
        (np.where(X == 3, np.float32(np.inf), 2 * X), 1.0, False),
        (2 * X.astype(np.float64), 1.0, False),
        (2 * X[:, :1], 1.0, False),
    ],
)
def test_tolerance_is_of_the_largest_expected_value(
    make: Make, toy: Any, samples: ModuleType, expected: Any, tolerance: float, passes: bool
) -> None:
    vector = {**samples.VECTOR, "tolerances": {"y": tolerance}}
    path = make(
        {"self_test/0/y.npy": array_to_bytes(np.ascontiguousarray(expected))},
        payloads=[samples.payload("planned", self_test=[vector])],
    )
    if passes:
        load(path).close()
    else:
        with pytest.raises(DeviceError, match="self-test"):
            load(path)


def test_an_output_that_is_left_out_fails_the_self_test_or_the_call(
    make: Make, toy: Any, samples: ModuleType
) -> None:
    path = make(scale(2.0, output="z"), payloads=[samples.payload("planned")])
    with pytest.raises(DeviceError, match="output 'y'"):
        load(path)
    with load(path, self_test=False) as model, pytest.raises(InternalError, match="left out output"):
        model(X)


def test_a_vendor_crash_becomes_a_device_error(make: Make, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: Any, feeds: Any) -> Any:
        raise RuntimeError("vendor says no")

    monkeypatch.setattr(toy, "run", crash)
    with pytest.raises(DeviceError, match="no payload") as caught:
        load(make())
    assert caught.value.got is not None
    assert "vendor says no" in caught.value.got
    assert "planned" in caught.value.got
    assert "float" in caught.value.got


def test_an_altered_artifact_is_never_passed_over(make: Make, toy: Any) -> None:
    path = make()
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"scale": 2.0}\n', b'{"scale": 9.0}\n', 1))
    with pytest.raises(ArtifactError, match="is altered"):
        load(path)
    assert toy.opened == []


def test_what_is_not_an_engine_is_our_bug(
    make: Make, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("edgefuse.targets._toy.engine")
    module.load_engine = lambda files, entry, options: object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(InternalError, match="not an Engine"):
        load(make(payloads=[samples.payload("planned")]))


@pytest.mark.parametrize(
    ("requirements", "match"),
    [({"architecture": "riscv64"}, "other hardware"), ({"cpu_flags": ["flag_of_no_cpu"]}, "other hardware")],
)
def test_other_hardware_is_refused_by_name(
    make: Make, toy: Any, samples: ModuleType, requirements: dict[str, Any], match: str
) -> None:
    target = {**samples.manifest()["target"], "requirements": requirements}
    with pytest.raises(DeviceError, match=match) as caught:
        load(make(target=target))
    assert "toy-board" in caught.value.message
    assert caught.value.exit_code == 3
    assert caught.value.hint is not None
    assert "--simulate" in caught.value.hint


def test_memory_that_is_not_there_is_refused(make: Make, toy: Any, samples: ModuleType) -> None:
    target = {**samples.manifest()["target"], "requirements": {"memory_bytes": 1 << 60}}
    with pytest.raises(DeviceError, match="more memory"):
        load(make(target=target))


def test_simulate_needs_a_payload_that_simulates(make: Make, toy: Any, samples: ModuleType) -> None:
    with pytest.raises(UnsupportedError, match="cannot be simulated") as caught:
        edgefuse.load(make(), simulate=True)
    assert caught.value.got == "payloads planned (_toy), float (_toy)"
    target = {**samples.manifest()["target"], "requirements": {"architecture": "riscv64"}}
    payloads = [samples.payload("planned"), samples.payload("float", simulates=True)]
    path = make(target=target, payloads=payloads)
    with edgefuse.load(path, simulate=True) as model:
        assert model.payload == "float"
    with pytest.raises(UnsupportedError, match="only simulations"):
        load(make(payloads=[samples.payload("float", simulates=True)]))


def test_close_is_final_and_may_be_repeated(make: Make, toy: Any) -> None:
    model = load(make())
    model.close()
    model.close()
    assert toy.opened[0].closed == 1
    for use in (lambda: model(X), model.describe, model.self_test, model.example_inputs):
        with pytest.raises(InputError, match="is closed"):
            use()


def test_calls_from_several_threads_run_one_after_the_other(
    make: Make, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = 0
    worst = 0
    real = toy.run

    def slow(self: Any, feeds: Any) -> Any:
        nonlocal inside, worst
        inside += 1
        worst = max(worst, inside)
        threading.Event().wait(0.002)
        inside -= 1
        return real(self, feeds)

    with load(make()) as model:
        monkeypatch.setattr(toy, "run", slow)
        wrong: list[int] = []

        def work(number: int) -> None:
            results = [model(X * number)["y"] for _ in range(5)]
            wrong.extend(number for result in results if not np.array_equal(result, 2 * X * number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert worst == 1


def test_example_inputs_are_the_first_vector(make: Make, toy: Any, samples: ModuleType) -> None:
    with load(make()) as model:
        feeds = model.example_inputs()
        assert feeds is not None
        np.testing.assert_array_equal(feeds["x"], X)
    with load(make(payloads=[samples.payload("planned", self_test=[])])) as model:
        assert model.example_inputs() is None


def test_an_altered_vector_is_an_artifact_error(tmp_path: Path, toy: Any, samples: ModuleType) -> None:
    """A member whose digest is right and whose content is no array (a build that went wrong)."""
    write_artifact(
        tmp_path / "a.efa", samples.manifest(), {**samples.FILES, "self_test/0/y.npy": b"no array"}
    )
    with pytest.raises(ArtifactError, match=r"self_test/0/y\.npy.*not a \.npy"):
        load(tmp_path / "a.efa")
    with open_artifact(tmp_path / "a.efa") as artifact:
        assert artifact.read("self_test/0/y.npy") == b"no array"
