"""Lets the tests of this folder import `tiny_models` of tests/cli: test folders are no packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
