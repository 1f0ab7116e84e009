"""The one place that runs the solver library.

HiGHS runs on one thread, set before anything runs: a Highs object that once ran with more makes a later
single-threaded run return kNotset without an exception. The limit is a node count, never seconds, so the same
problem gives the same plan on every machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from edgefuse.errors import InternalError

__all__ = ["Answer", "Program", "run"]

NODE_LIMIT = 20_000


@dataclass
class Program:
    """A linear program over variables in [0, 1]: costs, and rows as they are written down.

    whole: bool for each variable, which of them are whole numbers in the integer program.
    scale: what the costs were multiplied by. The solver's tolerances are absolute (1e-7 for reduced costs);
    costs of some microseconds, in ms, would be lost in them.
    """

    costs: np.ndarray
    whole: np.ndarray
    scale: float = 1.0
    starts: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def variable(self, whole: bool) -> int:
        """Return the index of one more variable, of cost 0."""
        self.costs = np.append(self.costs, 0.0)
        self.whole = np.append(self.whole, whole)
        return len(self.costs) - 1

    def add(self, terms: dict[int, float], lower: float, upper: float) -> None:
        """Write the row lower <= sum of terms <= upper; terms: variable -> coefficient."""
        self.starts.append(len(self.index))
        self.index.extend(terms)
        self.value.extend(terms.values())
        self.lower.append(lower)
        self.upper.append(upper)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the solver found. objective and bound are in the program's units; reduced: reduced costs (LP)."""

    status: Literal["optimal", "feasible", "infeasible"]
    values: np.ndarray
    objective: float
    bound: float
    reduced: np.ndarray
    nodes: int
    version: str


def run(
    program: Program,
    *,
    whole: bool,
    gap: float = 0.0,
    allowed: np.ndarray | None = None,
    start: np.ndarray | None = None,
    node_limit: int = NODE_LIMIT,
) -> Answer:
    """Return the solver's answer to the program (whole: as an integer program).

    allowed: bool for each variable; the others are held at 0.  start: a feasible point to begin with.
    Raises InternalError where the solver ends in any other way than optimal, infeasible or at its node limit.
    """
    import highspy

    with _quiet_stdout():
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("threads", 1),
        ("output_flag", False),
        ("random_seed", 0),
        ("mip_rel_gap", gap),
        ("mip_abs_gap", 1e-9),
        ("mip_max_nodes", node_limit),
        ("parallel", "off"),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(_model(highspy, program, whole, allowed))
    if start is not None:
        point = highspy.HighsSolution()
        point.col_value = start
        solver.setSolution(point)
    solver.run()
    answer = _answer(highspy, solver, len(program.costs))
    if start is not None and answer.status != "infeasible":
        # HiGHS 1.16 was seen to name an objective below the relaxation's, with the values of the start, for a
        # program with a start and most variables held at 0. Without the start its answer was right.
        real = float(program.costs @ answer.values)
        if abs(real - answer.objective) > 1e-5 * max(abs(real), 1.0):
            return run(program, whole=whole, gap=gap, allowed=allowed, node_limit=node_limit)
    return answer


def _model(highspy: Any, program: Program, whole: bool, allowed: np.ndarray | None) -> Any:
    lp = highspy.HighsLp()
    count = len(program.costs)
    lp.num_col_, lp.num_row_ = count, len(program.lower)
    lp.col_cost_ = program.costs
    lp.col_lower_ = np.zeros(count)
    lp.col_upper_ = np.ones(count) if allowed is None else allowed.astype(np.float64)
    lp.row_lower_, lp.row_upper_ = np.array(program.lower), np.array(program.upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array([*program.starts, len(program.index)])
    lp.a_matrix_.index_ = np.array(program.index)
    lp.a_matrix_.value_ = np.array(program.value)
    if whole:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if w else kinds.kContinuous for w in program.whole]
    return lp


def _answer(highspy: Any, solver: Any, count: int) -> Answer:
    status, info, solution = solver.getModelStatus(), solver.getInfo(), solver.getSolution()
    version = f"HiGHS {solver.versionMajor()}.{solver.versionMinor()}.{solver.versionPatch()}"
    names = highspy.HighsModelStatus
    if status == names.kInfeasible:
        return Answer("infeasible", np.zeros(count), np.inf, np.inf, np.zeros(0), 0, version)
    stopped = status in (names.kSolutionLimit, names.kIterationLimit) and info.primal_solution_status == 2
    if status != names.kOptimal and not stopped:
        raise InternalError(f"the solver ended with status {solver.modelStatusToString(status)}")
    objective = float(info.objective_function_value)
    bound = float(info.mip_dual_bound) if info.mip_node_count >= 0 else objective
    return Answer(
        "feasible" if stopped else "optimal",
        np.array(solution.col_value),
        objective,
        min(bound, objective),
        np.array(solution.col_dual),
        int(info.mip_node_count),
        version,
    )


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Send what C code prints to nowhere: Highs() writes a banner before any option can be set.

    stdout is the result of a verb, so a line more makes `--json` unreadable.
    """
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError, AttributeError):  # no file behind stdout
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
