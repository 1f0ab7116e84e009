"""Every error that edgefuse raises on purpose.

    EdgefuseError
    ├── InputError          your input: model, data, option, configuration file        exit 1
    │   └── UsageError      the command line itself: unknown target, bad option        exit 2
    ├── DeviceError         your device: unreachable, out of memory, wrong hardware    exit 3
    ├── UnsupportedError    understood, and not possible here, with the reason         exit 1
    │   └── ToolMissingError    possible once a package or tool is installed           exit 1
    ├── ArtifactError       an artifact that is altered, cut short or too new          exit 1
    ├── ToolError           a tool that we call failed: command, code, stderr tail     exit 1
    └── InternalError       our bug                                                    exit 1

A message says what was being done and to which node or device; `expected` and `got` say the difference;
`hint` says what to do next. Callers match on the class, never on the text.
This file runs under Python 3.6 (it is part of the robot's runtime).
"""

from typing import List, Optional, Sequence

__all__ = [
    "ArtifactError",
    "DeviceError",
    "EdgefuseError",
    "InputError",
    "InternalError",
    "ToolError",
    "ToolMissingError",
    "UnsupportedError",
    "UsageError",
    "did_you_mean",
]


class EdgefuseError(Exception):
    """Base of the tree.

    message: what was being done, to which node, file or device, and what went wrong (one line).
    expected, got: the difference, where there is one.  hint: the next step.
    """

    exit_code = 1
    kind = "error"

    def __init__(
        self,
        message: str,
        expected: Optional[str] = None,
        got: Optional[str] = None,
        hint: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        lines: List[str] = [self.message]
        if self.expected is not None:
            lines.append("  expected: " + self.expected)
        if self.got is not None:
            lines.append("  got:      " + self.got)
        if self.hint is not None:
            lines.append("  try:      " + self.hint)
        return "\n".join(lines)


class InputError(EdgefuseError):
    """The user's model, data, option or configuration file is not what the step needs."""

    kind = "input"


class UsageError(InputError):
    """The command line cannot be understood or asks for what can never be (exit code 2)."""

    exit_code = 2
    kind = "usage"


class DeviceError(EdgefuseError):
    """The device cannot be reached, or is not able to do what was asked (exit code 3)."""

    exit_code = 3
    kind = "device"


class UnsupportedError(EdgefuseError):
    """The request is understood, and the target or edgefuse cannot do it; the message says why."""

    kind = "unsupported"


class ToolMissingError(UnsupportedError):
    """A package or tool that this step needs is not installed; the hint names the install command."""

    kind = "missing"


class ArtifactError(EdgefuseError):
    """An artifact is altered, cut short, unsigned where a signature is needed, or of a newer schema."""

    kind = "artifact"


class ToolError(EdgefuseError):
    """A tool that edgefuse called failed.

    command: argument list;  code: exit status;  stderr: its last lines.
    """

    kind = "tool"

    def __init__(
        self, message: str, command: Sequence[str], code: int, stderr: str, hint: Optional[str] = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.command = list(command)
        self.code = code
        self.stderr = stderr

    def __str__(self) -> str:
        tail = "\n".join("    " + line for line in self.stderr.strip().splitlines()[-12:])
        text = super().__str__()
        return "{}\n  command:  {}\n  exit:     {}\n{}".format(text, " ".join(self.command), self.code, tail)


class InternalError(EdgefuseError):
    """edgefuse broke one of its own promises: a bug of ours, worth a report with the message."""

    kind = "internal"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return ", did you mean 'x'?" for the nearest known word, or "" when none is near.

    >>> did_you_mean("jetson-nono", ["jetson-nano", "jetson-tx2"])
    ", did you mean 'jetson-nano'?"
    >>> did_you_mean("zzz", ["jetson-nano"])
    ''
    """
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return ", did you mean '{}'?".format(near[0]) if near else ""
