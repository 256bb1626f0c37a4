"""The log of a process: a second one closes the first's file."""

from __future__ import annotations

import logging
from pathlib import Path

from areal_actors.folder.process_logs import log_to_file, log_to_terminal


def test_a_second_log_closes_the_file_of_the_first(tmp_path: Path) -> None:
    log_to_file(tmp_path / "first.jsonl", "first")
    (first,) = logging.getLogger().handlers
    assert isinstance(first, logging.FileHandler)
    assert first.stream is not None
    file = first.stream
    log_to_file(tmp_path / "second.jsonl", "second")
    logging.getLogger("test").warning("a line for the second")
    assert file.closed
    assert "a line for the second" in (tmp_path / "second.jsonl").read_text()
    assert (tmp_path / "first.jsonl").read_text() == ""
    log_to_terminal()
    assert not any(isinstance(handler, logging.FileHandler) for handler in logging.getLogger().handlers)


def test_handlers_of_others_stay_open(tmp_path: Path) -> None:
    class Foreign(logging.FileHandler):
        """A handler of the program that uses the library."""

    foreign = Foreign(tmp_path / "foreign.log")
    logging.getLogger().handlers[:] = [foreign]
    log_to_terminal()
    assert foreign.stream is not None
    assert not foreign.stream.closed
    foreign.close()
