"""What a person reads: progress on a terminal, tables, and the report file of a build."""

from edgefuse.report.json_text import json_text
from edgefuse.report.progress import Progress, silent, terminal_progress
from edgefuse.report.tables import print_table, render_table

__all__ = ["Progress", "json_text", "print_table", "render_table", "silent", "terminal_progress"]
