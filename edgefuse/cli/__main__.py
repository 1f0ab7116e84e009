"""`python -m edgefuse.cli`."""

import sys

from edgefuse.cli.main import main

sys.exit(main())
