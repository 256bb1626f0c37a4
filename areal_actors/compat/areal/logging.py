"""AReaL's `logging`: loggers that write to the terminal, and to a file once one is set up."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

__all__ = ["getLogger", "setup_file_logging"]

FORMAT = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
_LOGGERS: dict[str, logging.Logger] = {}
_HANDLERS: list[logging.Handler] = []


def getLogger(name: str | None = None, **_: object) -> logging.Logger:  # noqa: N802 - the standard library's name
    """The logger of this name, with handlers of its own: those of a run replace the ones of the root."""
    key = name or "areal"
    if key not in _LOGGERS:
        logger = _LOGGERS[key] = logging.getLogger(key)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        terminal = logging.StreamHandler(sys.stdout)
        terminal.setFormatter(FORMAT)
        for handler in (terminal, *_HANDLERS):
            logger.addHandler(handler)
    return _LOGGERS[key]


def setup_file_logging(log_dir: str, filename: str = "main.log") -> None:
    """Write the messages of all these loggers to a file of a folder, too, which is made."""
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(Path(log_dir) / filename, encoding="utf-8")
    handler.setFormatter(FORMAT)
    _HANDLERS.append(handler)
    for logger in _LOGGERS.values():
        logger.addHandler(handler)


def __getattr__(name: str) -> object:
    """Everything else is the standard library's."""
    return getattr(logging, name)
