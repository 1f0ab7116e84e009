"""Lets the suites of this folder import `node_cases`, which pytest's importlib mode does not do by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
