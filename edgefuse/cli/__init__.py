"""The command line: `edgefuse VERB ...`, one file a verb in this folder.

stdout is the result, stderr is progress and errors. Exit codes: 0 done, 1 failure, 2 usage, 3 device.
"""

from edgefuse.cli.main import main

__all__ = ["main"]
