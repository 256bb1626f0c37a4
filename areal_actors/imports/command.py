"""`areal-actors import`: rollouts of another program become a log."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.imports.foreign_episode import COLUMNS, ForeignEpisode, read_row
from areal_actors.imports.write_log import count_episodes, write_log
from areal_actors.messages.run import IMPORTED
from areal_actors.tasks.sources import open_source

NOT_IN_RUN_NAMES = re.compile(r"[^a-z0-9]+")


def import_rollouts(
    files: Sequence[str], destination: Path, *, column: Sequence[str] = (), run: str = "", model: str = ""
) -> int:
    """Write the log of the episodes of these files; returns the exit status.

    Args:
        files: files or folders of rows (JSON lines, Parquet, CSV), or of ATIF documents.
        destination: the log.
        column: `KIND=NAME` for columns with other names.
        run: name of the run; empty for that of the file.
        model: name of the model, for readers.

    Raises:
        RecipeError: a column is named wrongly.
        SetupError: a file cannot be read, or a row is no episode; the message names it.
    """
    columns = dict(_read_column(word) for word in column)
    episodes = [read_row(row, columns, place) for file in files for place, row in _rows(file)]
    if not episodes:
        raise SetupError(f"{', '.join(files)}: no row found")
    name = NOT_IN_RUN_NAMES.sub("-", (run or destination.name.partition(".")[0]).lower()).strip("-") or IMPORTED
    time = min((Path(file).stat().st_mtime for file in files if Path(file).exists()), default=0.0)  # others: patterns
    source = str(Path(files[0]).absolute().parent)
    try:
        events = write_log(destination, name, episodes, source=source, model=model, time=time)
    except OSError as error:
        raise SetupError(f"{destination} cannot be written: {error}; free space, or name another file") from error
    sys.stdout.write(f"{_describe(episodes)} written to {destination}, {events} events\n")
    return 0


def _describe(episodes: Sequence[ForeignEpisode]) -> str:
    steps = {episode.step for episode in episodes if episode.step}
    unscored = sum(episode.reward is None for episode in episodes)
    return count_episodes(episodes) + "".join(
        (
            f" of {len(steps)} steps" if steps else "",
            f", {unscored} of them without a reward (abandoned)" if unscored else "",
            "" if any(episode.trajectory for episode in episodes) else ", texts without tokens",
        )
    )


def _read_column(word: str) -> tuple[str, str]:
    kind, equals, name = word.partition("=")
    if kind not in COLUMNS or not equals or not name:
        raise RecipeError(f"--column {word}: write one of {', '.join(COLUMNS)} = the name of a column")
    return kind, name


def _rows(file: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the rows of a file or folder with their places; a `.json` file may be one ATIF document."""
    path = Path(file)
    documents = sorted(path.glob("*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
    for document in documents:
        try:
            value = msgspec.json.decode(document.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise SetupError(f"{document} cannot be read: {error}") from error
        if isinstance(value, Mapping):
            yield str(document), value
        elif isinstance(value, list):
            yield from ((f"{document}, row {number}", row) for number, row in enumerate(value, start=1))
    if not documents:
        rows = open_source(file).train
        yield from ((f"{file}, row {number + 1}", rows.row(number)) for number in range(len(rows)))
