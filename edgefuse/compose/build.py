"""`edgefuse build`: one model and one target in, one artifact out.

prepare ─► float plan ─► float payload ─┐
   └─► ranges, losses ─► int8 plan ─► int8 payload ─► accuracy ─► speed ─► which goes first ─► artifact
                            ▲            │ over the budget: rescale it, plan again
                            └────────────┘
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefuse.compose.accumulation import settle_sums
from edgefuse.compose.accuracy import Judge, open_judge
from edgefuse.compose.budget import BudgetSearch
from edgefuse.compose.channel_limit import refuse_spoilers
from edgefuse.compose.compression import compress_prepared
from edgefuse.compose.decisions import (
    choose_order,
    loses_in_half,
    require_float_accuracy,
    require_int8_kernels,
)
from edgefuse.compose.imported import brings_quantizers, imported_notes, made_up_data
from edgefuse.compose.interface import check_labels, check_tensors
from edgefuse.compose.options import BuildOptions, with_config
from edgefuse.compose.outputs import require_artifact_place
from edgefuse.compose.package import pack
from edgefuse.compose.payloads import Built, lower_payload, race_payloads, read_back, runs_here
from edgefuse.compose.planning import (
    PROBE_SAMPLES,
    Int8Tables,
    float_plan,
    int8_plan,
    measure_tables,
    repair_prepared,
    round_prepared,
)
from edgefuse.compose.prepare import Prepared, PreparedFeeds, find_target, load_model, prepare, tensor_info
from edgefuse.compose.regions import REGION_SAMPLES
from edgefuse.compose.reporting import build_report, report_path
from edgefuse.compose.reversion import level_one, revert_failing
from edgefuse.datasets import Dataset, open_dataset
from edgefuse.errors import InputError, UsageError
from edgefuse.plans import Plan
from edgefuse.quant import RepairLog, joined, repair_after
from edgefuse.quant.compress import compression_requests
from edgefuse.quantized import Quantized
from edgefuse.report import Progress, silent
from edgefuse.runtime.preprocess import Preprocess, read_toml
from edgefuse.verification.fidelity import WorstGroup

__all__ = ["BuildResult", "build", "build_from_options"]

# How many calibration samples are used at most.
CALIBRATION_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build made.

    artifact: path of the .efa file.  plan: of its first payload.  report: everything as plain JSON values,
    also written to `OUT.report.json`.
    """

    artifact: Path
    plan: Plan
    report: dict[str, Any]


def build(
    model: str | os.PathLike[str] | None = None, *, progress: Progress = silent, **options: Any
) -> BuildResult:
    """Build `model` for a target and return the artifact's path, its plan and the report.

    options: as the command line's, with underscores: target, output, calib, eval, metric, max_drop,
    precision, preprocess, labels, shapes (input -> sizes), threads, name, prune, low_rank, sparsity. What is
    left out comes from edgefuse.toml in the working folder. Raises the errors of edgefuse.errors.
    """
    return build_from_options({"model": None if model is None else os.fspath(model), **options}, progress)


def build_from_options(given: Mapping[str, Any], progress: Progress = silent) -> BuildResult:
    """Return the build of the options that are not None, the rest from edgefuse.toml and the defaults."""
    return _Build(resolve_options(given), progress).run()


def resolve_options(given: Mapping[str, Any]) -> BuildOptions:
    """Return checked options; raises UsageError for an unknown one."""
    set_here = {name: value for name, value in given.items() if value is not None}
    known = {f.name for f in fields(BuildOptions)}
    unknown = sorted(set(set_here) - known)
    if unknown:
        raise UsageError(f"build has no option {unknown[0]!r}", expected=", ".join(sorted(known)))
    for name in ("model", "output", "calib", "eval", "preprocess", "labels"):
        if name in set_here:
            set_here[name] = os.fspath(set_here[name])
            if not set_here[name]:
                raise UsageError(f"{name}: the path is empty", hint="is a variable of the shell not set?")
    options = with_config(replace(BuildOptions(), **set_here), frozenset(set_here))
    options.check()
    return options


class _Build:
    """One build, step by step; each step is a method that reads and adds to the state."""

    def __init__(self, options: BuildOptions, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        self.notes: list[str] = []
        self.started = time.monotonic()
        self.threads = options.threads or 1
        self.target = find_target(options.target)
        if options.precision != "auto":
            self.target.require_precision(options.precision)  # type: ignore[arg-type]
        if options.precision == "int8" and options.calib is None:
            if not brings_quantizers(options.model or ""):
                raise UsageError("--precision int8 needs calibration data", hint="--calib PATH")
        self.preprocess: Preprocess | None = read_toml(options.preprocess) if options.preprocess else None
        self.labels = read_labels(options.labels)
        self.compression: Sequence[Mapping[str, Any]] = ()

    def run(self) -> BuildResult:
        """Return the finished build."""
        output = self._output()
        prepared, calibration = self._prepare()
        here = runs_here(prepared)
        if not here:
            self._note(
                f"unchecked, for {prepared.target.device.name} is not here: times, and which kernels its "
                "runtime makes of the plan"
            )
        judge = open_judge(
            prepared, self.options.metric, self._evaluation(prepared, calibration), self.labels
        )
        prepared, judge = self._compressed(prepared, calibration, judge, here)
        prepared, sums = settle_sums(prepared, judge.example, self.options.precision, here)
        judge.prepared = prepared
        payloads = [self._float_payload(prepared)]
        int8 = self._int8_payload(prepared, calibration, judge, here)
        self._finish(payloads[0], prepared, judge, here)
        payloads = [self._wide_enough(payloads[0], prepared, judge, here)]
        drop = self.options.max_drop
        self._note(require_float_accuracy(payloads[0], drop, judge.nan, judge.made_up))
        times = None
        if int8 is not None:
            self._finish(int8, prepared, judge, here)
            payloads, times = self._order(payloads[0], int8, prepared, judge, here)
        elif here:
            times = race_payloads(payloads, prepared, judge.example, self.threads)
        pack(output, prepared, payloads, self.options, self.preprocess, self.labels, simulation=True)
        report = build_report(
            output,
            prepared,
            payloads,
            self.options,
            judge,
            times,
            [*prepared.notes, *self.notes],
            seconds=time.monotonic() - self.started,
            here=here,
            threads=self.threads,
            sums=sums,
            compression=self.compression,
        )
        return BuildResult(output, payloads[0].plan, report)

    def _output(self) -> Path:
        """Return where the artifact goes; raises InputError now where it cannot be written."""
        assert self.options.model is not None
        name = self.options.output or f"{Path(self.options.model).stem}.{self.target.device.name}.efa"
        output = Path(name)
        require_artifact_place(output)
        if report_path(output).is_dir():
            raise InputError(f"the report cannot be written: {report_path(output)} is a folder")
        return output

    def _prepare(self) -> tuple[Prepared, Dataset | None]:
        options = self.options
        assert options.model is not None
        self.progress("read and canonicalise", 0, 1)
        original = load_model(options.model, options.shapes)
        data, sizes = None, {}
        if options.calib is not None:
            infos = tuple(tensor_info(value) for value in original.graph.inputs)
            data = open_dataset(options.calib, infos, self.preprocess, labels=self.labels)
            data = data.spread(CALIBRATION_SAMPLES)
            sizes = {name: array.shape for name, array in data[0].feeds.items()}
        prepared = prepare(original, self.target, sizes)
        if options.precision == "int8" and data is None and not prepared.imported:
            raise UsageError(
                "--precision int8 needs calibration data: the quantizers of the model give no range",
                hint="--calib PATH",
            )
        check_tensors(prepared.inputs, prepared.outputs)
        check_labels(self.labels, prepared.outputs)
        self.progress("read and canonicalise", 1, 1)
        return prepared, data

    def _evaluation(self, prepared: Prepared, calibration: Dataset | None) -> Dataset | None:
        if self.options.eval is None:
            if calibration is not None:
                self.notes.append("no --eval: accuracy was measured on the calibration data itself")
            return calibration
        return open_dataset(self.options.eval, prepared.inputs, self.preprocess, labels=self.labels)

    def _compressed(
        self, prepared: Prepared, calibration: Dataset | None, judge: Judge, here: bool
    ) -> tuple[Prepared, Judge]:
        """Return the model after what --prune, --low-rank and --sparsity ask for, within --max-drop."""
        options = self.options
        requests = compression_requests(options.prune, options.low_rank, options.sparsity)
        if not requests:
            return prepared, judge
        found = compress_prepared(
            prepared,
            requests,
            None if calibration is None else _Feeds(calibration),
            judge,
            precision=options.precision,
            max_drop=options.max_drop,
            threads=self.threads,
            here=here,
            progress=self.progress,
        )
        self.notes.extend(found.notes)
        self.compression = found.rows
        return found.prepared, replace(judge, prepared=found.prepared)

    def _float_payload(self, prepared: Prepared) -> Built:
        self.progress("plan and lower float", 0, 1)
        plan = float_plan(prepared, self.options.precision, self.threads)
        built = lower_payload("float", prepared, plan, Quantized())
        self.progress("plan and lower float", 1, 1)
        self.notes.extend(built.lowered.notes)
        return built

    def _wide_enough(self, built: Built, prepared: Prepared, judge: Judge, here: bool) -> Built:
        """Return the float payload, or one in fp32 where float16 loses more than is allowed."""
        if not loses_in_half(built, self.options, judge.made_up or bool(judge.nan)):
            return built
        self.notes.append(
            f"fp16 loses {built.accuracy.drop:.4g} of {built.accuracy.metric} (allowed "
            f"{self.options.max_drop:g}), worst {built.accuracy.worst_group}: planned in fp32; "
            f"--precision fp16 or a larger --max-drop keeps it"
        )
        plan = float_plan(prepared, "fp32", self.threads)
        wide = lower_payload("float", prepared, plan, Quantized())
        self._finish(wide, prepared, judge, here)
        return wide

    def _int8_payload(
        self, prepared: Prepared, calibration: Dataset | None, judge: Judge, here: bool
    ) -> Built | None:
        wanted = self.options.precision
        if wanted not in ("auto", "int8"):
            return None
        device = prepared.target.device
        if device.int8 == "none":
            self.notes.append(f"no int8 on {device.name}: {device.int8_reason}")
            return None
        made_up = calibration is None
        if calibration is None:
            if not prepared.imported:
                self.notes.append("no --calib: no int8")
                return None
            calibration = made_up_data(prepared, PROBE_SAMPLES)
        samples = PreparedFeeds(prepared.model, _Feeds(calibration))
        repairs = RepairLog()
        if prepared.imported is None:
            prepared, repairs = repair_prepared(prepared, samples, self.progress)
        else:  # what was trained is not repaired
            prepared = round_prepared(prepared)
        tables = measure_tables(prepared, samples, self.progress, made_up=made_up)
        self.notes.extend(tables.notes)
        repairs = replace(repairs, repairs=(*repairs.repairs, *tables.tried))
        if not tables.losses:
            self.notes.append("no int8: no node of this model can run in int8 on this target")
            return None
        return self._within_budget(prepared, tables, samples, repairs, judge, here)

    def _within_budget(
        self,
        prepared: Prepared,
        tables: Int8Tables,
        samples: Sequence[Mapping[str, np.ndarray]],
        repairs: RepairLog,
        judge: Judge,
        here: bool,
    ) -> Built | None:
        """Plan, measure the drop, and plan again under a smaller budget until it is within --max-drop."""
        precision = self.options.precision
        refused, reverted = revert_failing(prepared, tables, precision, self.threads, samples, here)
        if judge.metric == WorstGroup.name:
            refused, spoiling = refuse_spoilers(
                prepared, tables, precision, self.threads, samples, refused, self.options.max_drop
            )
            reverted += spoiling
        self.notes.extend(row.note() for row in reverted)

        whole: list[Plan] = []  # the plan without a limit, of which each budget is a share

        def plan_at(budget: float | None) -> tuple[Plan, Quantized]:
            groups = None if budget is None or not whole else tables.group_budget(whole[0], budget)
            found = int8_plan(
                prepared, tables, precision, self.threads, budget, group_budget=groups, refused=refused
            )
            whole.append(found[0])
            return found

        def payload(plan: Plan, quantized: Quantized) -> Built:
            more = RepairLog()
            if prepared.imported is None:
                quantized, more = repair_after(prepared.model, plan, quantized, samples, tables.scheme)
            built = lower_payload("int8", prepared, plan, quantized)
            built.repairs = joined(repairs, more) if prepared.imported is None else None
            built.reverted = reverted
            built.accuracy = judge.compare(built, here, limit=self.options.max_drop)
            return built

        search = BudgetSearch(
            plan_at,
            payload,
            self.options.max_drop,
            judge.metric,
            lambda done, of: self.progress("int8 within the budget", done, of),
        )
        found = search.run()
        self.notes.extend(search.notes)
        if found is not None:
            self.notes.extend(imported_notes(prepared, found.plan, found.quantized))
            self.notes.extend(note for note in found.lowered.notes if note not in self.notes)
        return found

    def _finish(self, built: Built, prepared: Prepared, judge: Judge, here: bool) -> None:
        """Add what only a run tells: accuracy, regions, readback, self-test vectors."""
        if built.accuracy is None:
            built.accuracy = judge.compare(built, here)
        built.regions, note = level_one(prepared, built, here, _Feeds(judge.data.spread(REGION_SAMPLES)))
        self._note(note)
        if here:
            built.readback = read_back(built, prepared, judge.example, self.threads)
            require_int8_kernels(built)
        built.self_test = judge.self_test(built, here)

    def _order(
        self, float_one: Built, int8: Built, prepared: Prepared, judge: Judge, here: bool
    ) -> tuple[list[Built], Any]:
        """Return the payloads, the one that runs first in front, and their race where there was one."""
        race = None
        if here:
            race = race_payloads([float_one, int8], prepared, judge.example, self.threads)
        order, note = choose_order(float_one, int8, self.options.precision, race)
        self._note(note)
        return order, race

    def _note(self, text: str) -> None:
        if text:
            self.notes.append(text)


class _Feeds(Sequence[Mapping[str, np.ndarray]]):
    """The feeds of a data set, read again at each pass: nothing is kept."""

    def __init__(self, data: Dataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._data[i].feeds for i in range(*index.indices(len(self._data)))]
        return self._data[index].feeds


def read_labels(path: str | None) -> list[str] | None:
    """Return the class names in a file, one a line; raises InputError where it cannot be read."""
    if path is None:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"the labels {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the labels {path} are not UTF-8 text: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise InputError(f"the labels {path} hold no name", expected="one class name a line")
    return names
