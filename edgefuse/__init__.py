"""edgefuse: an ONNX model in, a verified artifact for one named device out, loaded by a robot in one line.

    import edgefuse
    with edgefuse.load("model.efa") as model:
        outputs = model(frame)

Importing this package imports nothing else: each function loads its own room when it is called. It runs
under Python 3.6, where only `load` and what it needs is used (the build side needs Python 3.10 and the
[build] extra).
"""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

if TYPE_CHECKING:
    import os

    import numpy as np

    from edgefuse.compose.build import BuildResult
    from edgefuse.plans import Plan
    from edgefuse.runtime import Model

__version__ = "0.1.0"

__all__ = ["__version__", "bench", "build", "inspect", "load", "plan", "rules", "run", "targets", "verify"]


def load(path: "Union[str, os.PathLike[str]]", simulate: bool = False, **options: Any) -> "Model":
    """Return the artifact at `path` as a `Model`, ready to be called.

    path: a `.efa` file.  simulate: run in the exact reference of the target's arithmetic, for a device that
    is not here (needs [build]).
    options: `threads` (int >= 1), `family` (which payload family to prefer), `payload`, `self_test`.
    Raises ArtifactError (altered, cut short, too new), DeviceError (made for other hardware),
    ToolMissingError (the runtime that the payload needs is not installed).
    """
    from edgefuse.runtime import load as load_artifact

    if not simulate:
        return load_artifact(path, **options)
    missing = _simulator_missing()
    if not missing:
        from edgefuse.compose.simulate import load_simulated

        return load_simulated(path, **options)
    from edgefuse.errors import ToolMissingError, UnsupportedError

    try:  # a payload may simulate by itself
        return load_artifact(path, simulate=True, **options)
    except UnsupportedError as error:
        raise ToolMissingError(
            "{} is simulated by the build side of edgefuse, which is not here".format(path),
            expected="Python 3.10 or newer, with edgefuse[build]",
            got=missing,
            hint="pip install 'edgefuse[build]' on a host; on the device itself, load it without simulate",
        ) from error


def _simulator_missing() -> str:
    """Return what the host's rooms lack here, or ""."""
    import importlib.util
    import sys

    if sys.version_info < (3, 10):
        return "Python {}.{}".format(*sys.version_info[:2])
    lacking = [name for name in ("msgspec", "onnx", "onnx_ir") if importlib.util.find_spec(name) is None]
    return "no package {}".format(", ".join(lacking)) if lacking else ""


def build(model: "Optional[Union[str, os.PathLike[str]]]" = None, **options: Any) -> "BuildResult":
    """Build `model` for a device; return a BuildResult with `.artifact`, `.plan` and `.report`.

    model: path of an ONNX file.  options: target ("host"), output, calib, eval, metric, max_drop (0.01),
    precision ("auto" | "fp32" | "fp16" | "int8"), preprocess, labels, shapes (input -> sizes), threads,
    prune ("channels=30%"), low_rank (0.5), sparsity ("2:4").
    What is left out comes from edgefuse.toml in the working folder.
    Raises the errors of edgefuse.errors: InputError, UsageError, UnsupportedError, ToolMissingError.
    """
    from edgefuse.compose.build import build as build_artifact

    return build_artifact(model, **options)


def plan(model: "Optional[Union[str, os.PathLike[str]]]" = None, **options: Any) -> "Plan":
    """Return the Plan that a build with the same options would begin with; its times are estimates."""
    from edgefuse.compose.verbs import plan as make_plan

    return make_plan(model, **options)


def inspect(path: "Union[str, os.PathLike[str]]", **options: Any) -> Dict[str, Any]:
    """Return what is in an ONNX model (with `target` and `shapes`) or in a `.efa`, as JSON values."""
    from edgefuse.compose.verbs import inspect as inspect_file

    return inspect_file(path, **options)


def rules() -> List[Dict[str, Any]]:
    """Return one row a fusion rule: id, family, kind, variants, and why there is one."""
    from edgefuse.report.rules import list_rules

    return list_rules()


def run(
    artifact: "Union[str, os.PathLike[str]]",
    source: "Union[str, os.PathLike[str]]",
    target: "Optional[Union[str, os.PathLike[str]]]" = None,
    **options: Any,
) -> "Dict[str, np.ndarray[Any, Any]]":
    """Return the outputs of an artifact for the arrays of a `.npz`; write them to `target` where given."""
    from edgefuse.compose.verbs import run as run_artifact

    return run_artifact(artifact, source, target, **options)


def verify(artifact: "Union[str, os.PathLike[str]]", **options: Any) -> Dict[str, Any]:
    """Return the verification of an artifact; options: `model`, `data`, `metric`, `max_drop`, `threads`."""
    from edgefuse.compose.verbs import verify as verify_artifact

    return verify_artifact(artifact, **options)


def bench(artifact: "Union[str, os.PathLike[str]]", **options: Any) -> Dict[str, Any]:
    """Return the latency report of an artifact on this machine: `threads`, `seconds`, `payload`, `gates`."""
    from edgefuse.compose.verbs import bench as bench_artifact

    return bench_artifact(artifact, **options)


def targets() -> List[Dict[str, Any]]:
    """Return one row a device that can be built for: name, family, precisions, usable, and why not.

    `edgefuse.targets` is also the package of the families; once that is imported, the package itself is
    called (docs/decisions/0001).
    """
    from edgefuse.compose.targets import list_targets

    return list_targets()
