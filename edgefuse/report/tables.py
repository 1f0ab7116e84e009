"""Plain tables: aligned columns, no colour where the output is no terminal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["print_table", "render_table"]


def render_table(headings: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> str:
    """Return rows under headings as text, two spaces between columns.

    right: indices of columns aligned to the right (numbers).

    >>> print(render_table(["op", "ms"], [["Conv", "1.25"], ["Relu", "0.5"]], right=[1]))
    op      ms
    Conv  1.25
    Relu   0.5
    """
    texts = [[str(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(headings))]
    lines = []
    for row in texts:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> None:
    """Print a table on stdout."""
    print(render_table(headings, rows, right))
