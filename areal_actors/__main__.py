"""`python -m areal_actors` is the command line."""

from __future__ import annotations

import sys

from areal_actors.cli import main

if __name__ == "__main__":
    sys.exit(main())
