"""What every family promises, whatever its runtime: probe, legal, prepare, lower."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import CORPUS
from families import FAMILIES, backend_of, first_device, refusal, way

from edgefuse.backend import Lowered
from edgefuse.device import devices, resolve_target
from edgefuse.errors import UnsupportedError
from edgefuse.fusion import fusion_candidates, vertical_candidates
from edgefuse.graph import model_to_bytes
from edgefuse.plans import Format, Precision
from edgefuse.quantized import Quantized

pytestmark = pytest.mark.slow  # whole builds and executions: seconds in all

EVERY_DEVICE = [(family, device.name) for family in FAMILIES for device in devices(family)]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")


def digest(lowered: Lowered) -> str:
    found = hashlib.sha256(
        json.dumps([lowered.entry, lowered.options, lowered.requires], sort_keys=True).encode()
    )
    for path, data in sorted(lowered.files.items()):
        found.update(path.encode() + hashlib.sha256(data).digest())
    return found.hexdigest()


def test_the_suite_covers_more_than_one_vendor() -> None:
    assert {"openvino", "tensorrt", "_example"} <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_probe_says_a_version_or_what_to_install(family: str) -> None:
    probe = backend_of(family).probe()
    if probe.available:
        assert probe.version or probe.detail
    else:
        assert len(probe.install) > 10
    # A probe imports nothing that costs: `edgefuse targets` asks every family.
    asked = (
        "import sys; from edgefuse.backend import load_backend; "
        f"load_backend({family!r}).probe(); "
        "print(sorted({'openvino', 'tensorrt', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("family", "device"), EVERY_DEVICE)
def test_legal_answers_every_question_with_a_reason(family: str, device: str) -> None:
    backend, target = backend_of(family), resolve_target(device)
    allowed = 0
    for name in ("residual", "perceptron", "squeeze_excite"):
        model = way(name, first_device("openvino")).prepared.costed
        for candidate in fusion_candidates(model):
            for precision in PRECISIONS:
                for dtype in ("float32", "float16", "int8"):
                    verdict = backend.legal(candidate, "plain", precision, Format(dtype), target)
                    assert verdict.ok or len(verdict.reason) > 10
                    allowed += verdict.ok
                    if precision not in target.device.precisions:
                        assert not verdict.ok, f"{device} has no {precision}"
    assert allowed > 20


@pytest.mark.parametrize(("family", "device"), EVERY_DEVICE)
def test_every_node_alone_can_run_in_some_float_precision(family: str, device: str) -> None:
    backend, target = backend_of(family), resolve_target(device)
    if refusal("residual", device):
        pytest.fail(str(refusal("residual", device)))
    for candidate in vertical_candidates(way("residual", device).prepared.costed):
        if len(candidate.nodes) == 1:
            assert backend.legal(candidate, "plain", "fp32", Format(), target), candidate.operators


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("family", FAMILIES)
def test_lower_is_pure(family: str, name: str) -> None:
    device = first_device(family)
    error = refusal(name, device)
    if error is not None:
        if backend_of(family).probe().available:
            pytest.fail(f"{family} refuses {name}: {error}")
        assert isinstance(error, UnsupportedError)
        assert len(error.message) > 20
        pytest.skip(f"{family} refuses {name}: {error.message}")
    made = way(name, device)
    backend, plan, target = backend_of(family), made.built.plan, made.prepared.target
    before = model_to_bytes(made.prepared.model)
    again = backend.lower(made.prepared.model, plan, Quantized(), target)
    assert model_to_bytes(made.prepared.model) == before
    assert digest(again) == digest(made.built.lowered)
    assert again.entry in again.files
    assert all(path and not path.startswith("/") and ".." not in path for path in again.files)
    json.dumps([again.options, again.requires, again.notes])


_ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])
from families import first_device, way
from test_contract import digest
for name in sys.argv[3].split(","):
    for precision in sys.argv[4].split(","):
        print(digest(way(name, first_device(sys.argv[2]), precision).built.lowered))
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_another_process_writes_the_same_bytes(family: str) -> None:
    names, precisions = ["residual", "odd_names", "classifier"], ["fp32"]
    if "int8" in resolve_target(first_device(family)).device.precisions and family != "tensorrt":
        precisions.append("int8")
    here = [
        digest(way(name, first_device(family), precision).built.lowered)
        for name in names
        for precision in precisions
    ]
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            _ELSEWHERE,
            folder,
            family,
            ",".join(names),
            ",".join(precisions),
        ],
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == here


@pytest.mark.parametrize("family", FAMILIES)
def test_prepare_keeps_the_users_inputs_and_outputs(family: str) -> None:
    for name in CORPUS:
        if refusal(name, first_device(family)):
            continue
        prepared = way(name, first_device(family)).prepared
        before, after = prepared.original.graph, prepared.model.graph
        assert [v.name for v in after.outputs] == [v.name for v in before.outputs], name
        assert [v.name for v in after.inputs] == [v.name for v in before.inputs], name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_holds_every_node_once(family: str) -> None:
    for name in CORPUS:
        if refusal(name, first_device(family)):
            continue
        made = way(name, first_device(family))
        planned = [node for group in made.built.plan.groups for node in group.nodes]
        assert sorted(planned) == sorted(node.name or "" for node in made.prepared.model.graph), name
