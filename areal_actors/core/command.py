"""The name of the command line, in hints and messages."""

from __future__ import annotations

from typing import Final

COMMAND: Final = "areal-actors"
"""As `uvx areal-actors` and `pip install areal-actors` have it: another project of this field is called areal."""
