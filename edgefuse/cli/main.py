"""The group of verbs: found by listing the folder, loaded when called, failing in one clear line."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence

from edgefuse import __version__
from edgefuse.errors import (
    EdgefuseError,
    InputError,
    InternalError,
    ToolMissingError,
    UsageError,
    did_you_mean,
)

try:
    import click
except ImportError:  # the robot's plain install has no command line
    print(
        "error: the edgefuse command needs the host's packages\n  try:      pip install 'edgefuse[build]'",
        file=sys.stderr,
    )
    sys.exit(1)

__all__ = ["main"]

_NO_VERBS = {"main", "options", "__main__"}
# Set to anything, the traceback of an unforeseen exception is shown instead of one line.
_TRACE = "EDGEFUSE_TRACEBACK"


class Verbs(click.Group):
    """Commands by module name; `--help` imports each verb's file, and those import nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, sorted."""
        package = importlib.import_module("edgefuse.cli")
        return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NO_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command, or fail with the nearest known one."""
        if cmd_name not in self.list_commands(ctx):
            known = self.list_commands(ctx)
            raise UsageError(
                f"no such verb {cmd_name!r}{did_you_mean(cmd_name, known)}", expected=", ".join(known)
            )
        command: click.Command = importlib.import_module(f"edgefuse.cli.{cmd_name}").command
        return command


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgefuse")
def edgefuse() -> None:
    """ONNX in, a verified artifact for one named device out, loaded by a robot in one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; an error is one block on stderr, whatever raised it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(edgefuse.get_help(click.Context(edgefuse, info_name="edgefuse")), file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not end the program
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        # click returns the code of context.exit(); a verb itself returns None.
        code = edgefuse.main(args=given, prog_name="edgefuse", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt) as stop:
        if isinstance(stop.__cause__, EOFError):  # click takes one for ^D at a prompt; there are none here
            return _report(_explained(stop.__cause__), "--json" in given)
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except SystemExit as left:  # click ends the program itself when the reader of stdout has gone
        _drop_stdout()
        return left.code if isinstance(left.code, int) else 1
    except Exception as error:
        return _report(_explained(error), "--json" in given)
    return code if isinstance(code, int) else 0


def _drop_stdout() -> None:
    """Point stdout at nothing: its reader has gone, and the flush at exit would complain of it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explained(error: Exception) -> EdgefuseError:
    """Return what the user reads; an exception that nobody foresaw is a bug of ours, and is called one."""
    if isinstance(error, EdgefuseError):
        return error
    if os.environ.get(_TRACE):
        raise error
    if isinstance(error, click.UsageError):
        context = error.ctx
        where = f"`{context.command_path} --help`" if context is not None else "`edgefuse --help`"
        return UsageError(error.format_message(), hint=where)
    if isinstance(error, click.ClickException):
        return UsageError(error.format_message())
    if isinstance(error, ImportError) and not (error.name or "").startswith("edgefuse"):
        return ToolMissingError(
            f"this verb needs the package {error.name!r}, which is not installed",
            hint="pip install 'edgefuse[build]'",
        )
    if isinstance(error, MemoryError):
        return InputError(
            f"the memory of this machine is too small for this: {str(error) or 'no more could be had'}",
            hint="smaller sizes (--shape), fewer samples, or a machine with more memory",
        )
    if isinstance(error, OSError) and error.filename is not None:
        return InputError(f"{os.fspath(error.filename)!r} cannot be used: {error.strerror}")
    text = " ".join(str(error).split())[:300]
    return InternalError(
        f"a bug of edgefuse: {type(error).__name__}: {text}",
        hint=f"please report it with the model; {_TRACE}=1 shows where it happened",
    )


def _report(error: EdgefuseError, as_json: bool) -> int:
    print(f"error: {error}", file=sys.stderr)
    if as_json:
        from edgefuse.report import json_text

        body = {
            "kind": error.kind,
            "message": error.message,
            "expected": error.expected,
            "got": error.got,
            "hint": error.hint,
        }
        print(json_text({"error": body}))
    return error.exit_code
