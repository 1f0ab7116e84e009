"""Progress of long work: bars on stderr, only where stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Progress", "silent", "terminal_progress"]


class Progress(Protocol):
    """Called with what is being done, how much is done, and of how much (0 = not known)."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done of `what`."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@contextlib.contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Yield a progress that draws one bar a step on stderr, or `silent` where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield silent
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
