"""Logs: one JSON object per line in a file for each process, and readable lines on a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import structlog

from areal_actors.core.foreign_text import show_controls

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso"),
]


VERBOSE_LIBRARIES = ("httpx", "httpx2", "httpcore", "openai")
"""Libraries that log every request of an agent; the run's own log already has it."""
CLIENT_ERROR_LOGGERS = ("aiohttp.server",)
"""Loggers with a traceback for each invalid HTTP request; the gateway logs its own failures."""
EMPTY_WARNING = "returning true from eof_received() has no effect when using ssl"
"""Warning of asyncio's streams whenever the server ends an encrypted connection."""
NOT_REDACTED = ("timestamp", "process", "level", "logger", "pid", "actors")
"""Fields of a line without texts of people, in which a rule may see a number."""
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
"""Without local variables: they may contain session keys and client data."""


class _RedactingFormatter(logging.Formatter):
    """Redacts the texts of each line of JSON that another formatter writes."""

    def __init__(self, inner: logging.Formatter, redact: Callable[[str], str]) -> None:
        super().__init__()
        self.inner, self.redact = inner, redact

    def format(self, record: logging.LogRecord) -> str:
        fields = json.loads(self.inner.format(record))
        kept = {name: value if name in NOT_REDACTED else self._without(value) for name, value in fields.items()}
        return json.dumps(kept)

    def _without(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {name: self._without(entry) for name, entry in value.items()}
        return [self._without(entry) for entry in value] if isinstance(value, list) else value


def redact_log(redact: Callable[[str], str]) -> None:
    """Redact all texts that this process writes into its log from here on, those of errors included."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.FileHandler and handler.formatter is not None:
            handler.setFormatter(_RedactingFormatter(handler.formatter, redact))


def log_to_file(path: Path, process: str) -> None:
    """Send the log of this process, its libraries included, to a file."""
    structlog.contextvars.bind_contextvars(process=process)
    final = [_TRACEBACKS, structlog.processors.JSONRenderer()]
    _install(logging.FileHandler(path), final, logging.INFO)


def log_to_terminal() -> None:
    """Send warnings and errors to standard error in readable form."""
    _install(
        logging.StreamHandler(sys.stderr),
        [
            _show_controls,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
        ],
        logging.WARNING,
    )


def _show_controls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace control characters in the texts of an event, which may be those of models and agents."""
    event.update({name: show_controls(value) for name, value in event.items() if isinstance(value, str)})
    return event


def _write_traceback(stream: TextIO, exception: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exception)
    stream.write(show_controls(text.getvalue()))


@contextmanager
def logging_to_terminal() -> Iterator[None]:
    """Send warnings and errors to standard error in readable form, until the block ends."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log_to_terminal()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


def _install(handler: logging.Handler, final: list[Any], level: int) -> None:
    removed = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=[removed, *final]))
    handler.addFilter(lambda record: record.msg != EMPTY_WARNING)
    root = logging.getLogger()
    # A process that starts a second run leaves the first run's file here; subclasses belong to the program that made
    # them.
    replaced = [existing for existing in root.handlers if type(existing) is logging.FileHandler]
    root.handlers[:] = [handler]
    for existing in replaced:
        existing.close()
    root.setLevel(level)
    for name in VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in CLIENT_ERROR_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
