"""`areal-actors export`: the log of a run as one file, or its episodes as demonstrations, pairs or trajectories."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from areal_actors import __version__
from areal_actors.core.errors import SetupError
from areal_actors.display.monitor import export as export_log
from areal_actors.export.atif import to_atif
from areal_actors.export.defaults import LEAST_REWARD
from areal_actors.export.examples import demonstration_rows, preference_row
from areal_actors.export.judged import edit_rows, preferred_rows
from areal_actors.export.selection import Selection, groups_of, reward_of, select_best, select_pairs
from areal_actors.reader.feedback import JudgedSessions, judge_sessions, read_ledger
from areal_actors.reader.run import Run, open_run
from areal_actors.recipe.recipe import recorded_recipe
from areal_actors.sequences.credit import Credit

JSONL = ".jsonl"


def export(
    run: str,
    destination: Path,
    *,
    kind: str = "log",
    best: int = 1,
    least_reward: float = LEAST_REWARD,
    margin: float = 0.0,
    folder: Path = Path("runs"),
) -> int:
    """Write a run's log or episodes to a file; returns the exit status.

    Args:
        run: name or folder of the run, or for episodes an exported log.
        destination: the file; for `atif` also a folder, which gets a file for each episode.
        kind: `log`, `sft`, `preferences` or `atif`.
        best: demonstrations: largest number of episodes of a group.
        least_reward: demonstrations: smallest reward.
        margin: pairs: smallest difference of the rewards.
        folder: where runs are written.

    Raises:
        SetupError: there is no such run, or it has no episode of this kind; the message names the remedy.
        BusError: its log cannot be read.
    """
    if kind == "log":
        return export_log(run, destination, folder=folder)
    opened = open_run(run, folder=folder)
    if kind == "atif":
        return _write_trajectories(opened, destination)
    judged = judge_sessions(opened.records.ended.values(), *read_ledger(opened.history))
    ended = judged.ended()
    if kind == "sft":
        selection = select_best(ended, best=best, least_reward=least_reward)
        rows = [*_demonstrations(opened, selection), *_edits(opened, judged)]
        if not rows:
            raise SetupError(_no_demonstration(opened, selection, least_reward))
    else:
        selection = select_pairs(ended, margin=margin)
        rows = [preference_row(better, worse, opened.text) for better, worse in selection.pairs]
        preferred = [row for session in judged.sessions for row in preferred_rows(session, opened.text)]
        preferences = sum(len(session.feedback.judgements("preference")) for session in judged.sessions)
        selection.left_out["a preferred call whose prompt is not that of the other"] += preferences - len(preferred)
        rows += preferred
        if not rows:
            raise SetupError(f"run '{opened.name}' has no pair: its groups have {_counts(selection.left_out)}")
    selection.left_out += judged.left_out
    _write_lines(destination, rows)
    noun = "demonstrations" if kind == "sft" else "pairs"
    left = f"; left out: {_counts(selection.left_out)}" if selection.left_out.total() else ""
    sys.stdout.write(f"{len(rows)} {noun} of run '{opened.name}' written to {destination}{left}\n")
    return 0


def _demonstrations(run: Run, selection: Selection) -> Iterator[dict[str, Any]]:
    credit = Credit.of(recorded_recipe(run.recipe).task)
    for attempt in selection.chosen:
        rows = list(demonstration_rows(attempt, credit, run.text))
        if not rows:
            selection.left_out["no sampled tokens, or images"] += 1
        yield from rows


def _edits(run: Run, judged: JudgedSessions) -> Iterator[dict[str, Any]]:
    if (tokenizer := run.tokenizer) is not None:
        for session in judged.sessions:
            yield from edit_rows(session, tokenizer.encode, run.text)


def _no_demonstration(run: Run, selection: Selection, least_reward: float) -> str:
    if selection.highest is None:
        return f"run '{run.name}' has no exported episode yet"
    if selection.highest < least_reward:
        return (
            f"run '{run.name}' has no episode with a reward of at least {least_reward:g}; its highest is"
            f" {selection.highest:g}: write --least-reward {selection.highest:g} or lower"
        )
    return f"run '{run.name}' has no demonstration: {_counts(selection.left_out)}"


def _counts(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} with {reason}" for reason, count in left_out.items() if count)


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines; the file appears under its name once it is complete."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            for row in rows:
                file.write(msgspec.json.encode(row) + b"\n")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise SetupError(f"{path} cannot be written: {error}; free space, or name another file") from error


def _write_trajectories(run: Run, destination: Path) -> int:
    model = str(run.recipe.get("model") or "")

    def text(ids: list[int]) -> str | None:
        return run.tokenizer.decode(ids, skip_special=True) if run.tokenizer else None

    attempts = [attempt for group in groups_of(run.records.ended.values()) for attempt in group]
    if not attempts:
        raise SetupError(f"run '{run.name}' has no exported episode yet")
    documents = (
        to_atif(attempt.trajectory, run=run.name, version=__version__, model=model, time=attempt.time, text=text)
        for attempt in attempts
        if attempt.trajectory is not None
    )
    if destination.suffix == JSONL:
        _write_lines(destination, documents)
    else:
        destination.mkdir(parents=True, exist_ok=True)
        for attempt, document in zip(attempts, documents, strict=True):
            _write_lines(destination / f"{attempt.episode}.json", [document])
    rewards = [reward_of(attempt) for attempt in attempts]
    mean = sum(rewards) / len(rewards)
    sys.stdout.write(
        f"{len(attempts)} trajectories of run '{run.name}' written to {destination}; mean reward {mean:.3f}\n"
    )
    return 0
