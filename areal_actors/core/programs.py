"""Commands in hints: they work where they are printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """Returns the shortest command for a program of this interpreter's environment: its name if it is on the PATH, else its path."""
    here = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(here) or not here.exists() else shlex.quote(os.path.relpath(here))
