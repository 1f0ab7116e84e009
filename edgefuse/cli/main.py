"""The group of verbs: found by listing the folder, loaded when called, failing in one clear line."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

from edgefuse import __version__
from edgefuse.errors import EdgefuseError, ToolMissingError, did_you_mean

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
            ctx.fail(f"no such verb {cmd_name!r}{did_you_mean(cmd_name, known)}\n  verbs: {', '.join(known)}")
        command: click.Command = importlib.import_module(f"edgefuse.cli.{cmd_name}").command
        return command


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgefuse")
def edgefuse() -> None:
    """ONNX in, a verified artifact for one named device out, loaded by a robot in one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        edgefuse.main(args=given, prog_name="edgefuse", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.Abort:
        print("interrupted", file=sys.stderr)
        return 130
    except click.ClickException as error:
        error.show()
        return int(error.exit_code)
    except EdgefuseError as error:
        return _report(error, "--json" in given)
    except ImportError as error:
        if (error.name or "").startswith("edgefuse"):
            raise
        missing = ToolMissingError(
            f"this verb needs the package {error.name!r}, which is not installed",
            hint="pip install 'edgefuse[build]'",
        )
        return _report(missing, "--json" in given)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return 0


def _report(error: EdgefuseError, as_json: bool) -> int:
    print(f"error: {error}", file=sys.stderr)
    if as_json:
        import json

        body = {
            "kind": error.kind,
            "message": error.message,
            "expected": error.expected,
            "got": error.got,
            "hint": error.hint,
        }
        print(json.dumps({"error": body}))
    return error.exit_code
