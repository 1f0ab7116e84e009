"""Progress of long work on stderr: bars on a terminal, elsewhere one line a stage."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Progress", "silent", "stage_lines", "terminal_progress"]


class Progress(Protocol):
    """Called with what is being done, how much is done, and of how much (0 = not known)."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done of `what`."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


def stage_lines() -> Progress:
    """Return a progress that writes one line on stderr when a stage begins, with the seconds since now.

    A log of a build that takes minutes then tells a stage that is long from a program that hangs.
    """
    started = time.monotonic()
    seen: set[str] = set()

    def show(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            of = f" ({total})" if total > 1 else ""
            print(f"[{time.monotonic() - started:6.1f} s] {what}{of}", file=sys.stderr, flush=True)

    return show


@contextlib.contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Yield a progress that draws one bar a stage on stderr, or `stage_lines` where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield stage_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, int] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = int(bars.add_task(what, total=total or None))
            bars.update(tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

        yield show
