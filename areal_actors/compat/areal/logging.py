"""AReaL's `logging`: the standard library's, with a file beside it."""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["getLogger", "setup_file_logging"]

getLogger = logging.getLogger  # noqa: N816 - the standard library's name


def setup_file_logging(log_dir: str, filename: str = "main.log") -> None:
    """Write the messages of all loggers to a file of a folder, too, which is made."""
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(Path(log_dir) / filename, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)


def __getattr__(name: str) -> object:
    """Everything else is the standard library's."""
    return getattr(logging, name)
