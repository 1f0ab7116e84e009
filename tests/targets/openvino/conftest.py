"""Lets the tests of this folder import `fused`, which pytest's importlib mode does not do by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
