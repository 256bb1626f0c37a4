"""`areal-actors show`: the episodes of a run, and one of them call by call."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table as ScreenTable
from rich.text import Text

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.foreign_text import escape_controls
from areal_actors.display.sentences import count_of
from areal_actors.messages.episode_ends import describe_party
from areal_actors.reader.attempt_rows import episode_row, interaction_rows
from areal_actors.reader.described_spans import describe_spans
from areal_actors.reader.feedback import describe_feedback
from areal_actors.reader.listing import output
from areal_actors.reader.missing_texts import describe_gaps, reason_without_texts
from areal_actors.reader.records import EndedEpisode, describe_outcome
from areal_actors.reader.run import INTERACTIONS, Run, open_run
from areal_actors.reader.table import Table

LONGEST_NAME = 24
NAMES_SHOWN = 8


ENDED = "SELECT count(*) FROM attempt WHERE episode = ? AND ended IS NOT NULL"
TRACE = re.compile("[0-9a-f]{32}")
OF_TRACE = """
SELECT DISTINCT episode FROM attempt JOIN call ON attempt_id = id WHERE trace = ? AND ended IS NOT NULL
"""
LATEST = """
SELECT * FROM attempt WHERE ended IS NOT NULL AND ? IN ('', outcome) AND (? IS NULL OR step = ?) AND ? IN ('', task)
ORDER BY ended DESC LIMIT ?
"""


class EpisodeFilter(msgspec.Struct, frozen=True):
    """Selection of ended episodes for the list."""

    outcome: str = ""
    """One of `OUTCOMES`; empty for all."""
    step: int | None = None
    """Only episodes that this step trained."""
    task: str = ""
    """Only episodes of the task with this id."""
    last: int = 20
    """The latest ones."""

    def of(self, run: Run) -> list[dict[str, Any]]:
        """Returns the rows of the latest attempts that match, oldest first."""
        rows = run.history.records(LATEST, self.outcome, self.step, self.step, self.task, self.last or -1)
        return rows[::-1]


def show(
    run: str,
    episode: str = "",
    *,
    folder: Path,
    chosen: EpisodeFilter | None = None,
    tokens: bool = False,
    as_json: bool = False,
    console: Console | None = None,
) -> int:
    """Print the latest episodes of a run, or all attempts at one episode, call by call; returns the exit status.

    Args:
        run: name, folder or exported log; empty for the latest run.
        episode: name of an episode, or the id of a client's trace, for all episodes with a call in it; empty for the
            list.
        folder: where runs are written.
        chosen: what the list has.
        tokens: also print every sampled token.
        as_json: print rows as JSON lines, nothing else.
        console: prints.

    Raises:
        SetupError: there is no such run or episode.
        BusError: its log cannot be read.
    """
    screen, opened = console or output(), open_run(run, folder=folder)
    if opened.notice and not as_json:
        screen.print(Text(opened.notice, style="yellow"))
    rows = [] if episode else (chosen or EpisodeFilter()).of(opened)
    names = {episode} if episode else {row["episode"] for row in rows}
    if TRACE.fullmatch(episode):
        names = set(opened.history.query(OF_TRACE, episode))
        if not names:
            raise SetupError(f"run '{opened.name}' has no ended episode with a call in the trace {episode}")
    elif episode and not opened.history.value(ENDED, episode):
        raise SetupError(_not_found(opened, episode))
    if not episode and not as_json:
        hint = Text(f"\nOne episode, call by call: {COMMAND} show {opened.name} EPISODE", style="dim")
        screen.print(_list(rows), hint)
        return 0
    part = opened.only(names)
    attempts = (ended for name in sorted(names) for ended in part.records.attempts(name))
    episodes = list(attempts) if episode else [part.records.ended[row["ended"]] for row in rows]
    if as_json:
        for ended in episodes:
            line = episode_row(ended) | {
                "interactions": list(Table.of("interactions", INTERACTIONS, interaction_rows(ended, part.text)))
            }
            screen.print(
                escape_controls(json.dumps(line, ensure_ascii=False, default=str)),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    else:
        for ended in episodes:
            screen.print(_page(part, ended, tokens=tokens))
    return 0


def _not_found(run: Run, episode: str) -> str:
    names = run.history.query(
        "SELECT episode FROM attempt WHERE ended IS NOT NULL GROUP BY episode ORDER BY min(ended) DESC"
    )
    if not names:
        return f"run '{run.name}' has no ended episode yet"
    shown = ", ".join(names[:NAMES_SHOWN][::-1])
    return f"run '{run.name}' has no ended episode '{episode}'; the latest of its {len(names):,}: {shown}"


def _list(rows: Iterable[dict[str, Any]]) -> RenderableType:
    table = ScreenTable(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for name in ("episode", "outcome", "reward", "calls", "tokens", "task"):
        table.add_column(
            name,
            justify="right" if name in ("reward", "calls", "tokens") else "left",
            no_wrap=True,
            max_width=LONGEST_NAME,
        )
    table.add_column("output", ratio=1, overflow="ellipsis", no_wrap=True)
    for row in rows:
        reward = "" if row["reward"] is None else f"{row['reward']:.3g}"
        outcome = describe_outcome(row["outcome"], row["reason"] or row["drop_reason"], row["step"])
        cells = (
            row["episode"],
            outcome,
            reward,
            str(row["calls"]),
            str(row["completion_tokens"]),
            row["task"],
            row["output"],
        )
        table.add_row(*map(Text, cells))
    return table


def _page(run: Run, ended: EndedEpisode, *, tokens: bool) -> RenderableType:
    calls = interaction_rows(ended, run.text)
    parts: list[RenderableType] = [
        Rule(f"{run.name} · episode {ended.episode} · attempt {ended.attempt}"),
        _facts(run, ended),
    ]
    before = ""
    for number, call in enumerate(calls, start=1):
        parts += [Text(), *_call(call, f"call {number} of {len(calls)}", before)]
        if line := _spans(run, ended, call["interaction"]):
            parts.append(Text(line, style="dim"))
        if tokens and call.get("mean_logprob") is not None:
            parts.append(_tokens(run, ended, call["interaction"]))
        before = call["interaction"]
    if ended.conversation is not None and (gaps := describe_gaps(ended.conversation)):
        parts.append(Text(f"\n{gaps}", style="dim"))
    elif not ended.interactions and calls:
        parts.append(Text(f"\n{reason_without_texts(run.history, run.recipe, ended.id)}", style="dim"))
    if ended.output:
        parts += [Text("\nThe agent returned", style="bold"), Text(ended.output)]
    return Group(*parts)


def _spans(run: Run, ended: EndedEpisode, name: str) -> str:
    """Returns the rewards of parts of a call's completion; empty without any."""
    call = next((call for call in ended.interactions if call.id == name), None)
    if call is None or not call.spans:
        return ""
    ids = call.completion.ids_array().tolist()
    return describe_spans(call.spans, lambda start, end: run.text(ids[start:end]) or "")


def _facts(run: Run, ended: EndedEpisode) -> RenderableType:
    table = ScreenTable.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    detail = f": {detail}" if (detail := getattr(ended.event, "detail", "")) else ""
    rows = {
        "task": (
            ended.task_id
            + (f"  {json.dumps(ended.work.task.data, ensure_ascii=False, default=str)}" if ended.work else "")
        ),
        "outcome": ended.describe() + detail,
        "reward": "" if ended.reward is None else f"{ended.reward:g}",
        "feedback": "\n".join(describe_feedback(run.history, ended.episode, ended.attempt)),
        "ended by": describe_party(ended.event),
        "ended": (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.time))
            + (f", {ended.seconds:.1f} s after its group was granted" if ended.seconds is not None else "")
        ),
    }
    for label, value in rows.items():
        if value:
            table.add_row(label, Text(value))
    return table


def _call(call: dict[str, Any], title: str, before: str) -> Iterator[RenderableType]:
    """Yield the header of a call, then its new prompt and its completion."""
    oldest, newest = call["oldest_version"], call["newest_version"]
    facts = [
        count_of(call["prompt_tokens"], "prompt token") if call["prompt_tokens"] is not None else "",
        f"{call['completion_tokens']} sampled",
        f"weight version {oldest}" if oldest == newest else f"weight versions {oldest} to {newest}",
        call["finish_reason"],
        f"mean log p {call['mean_logprob']:.3f}" if call.get("mean_logprob") is not None else "",
        f"reward {call['reward']:g}" if call.get("reward") is not None else "",
        "" if call["trained"] else "not trained",
        f"continues {call['parent']}" if call["parent"] not in ("", before) else "",
        f"prompt is not an extension: {call['prefix_break_reason']}" if call["prefix_break_reason"] else "",
        f"tool call not read: {call['tool_call_error']}" if call["tool_call_error"] else "",
        f"trace {call['trace']}, span {call['trace_span']} {call['baggage']}".rstrip() if call["trace"] else "",
    ]
    yield Text(f"{title}  {call['interaction']}", style="bold cyan")
    yield Text(" · ".join(filter(None, facts)), style="dim")
    if call.get("prompt") is not None:
        yield Text(call["prompt"], style="bright_black")
    if call.get("completion") is not None:
        yield Text(call["completion"], style="green")


def _tokens(run: Run, ended: EndedEpisode, interaction: str) -> RenderableType:
    table = ScreenTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "id", "token", "log p", "version"):
        table.add_column(name, justify="left" if name == "token" else "right", no_wrap=True)
    for row in run.tokens(ended.episode):
        if row["interaction"] == interaction and row["attempt"] == ended.attempt:
            shown = (
                row["position"],
                row["token_id"],
                repr(row["token"]),
                f"{row['logprob']:.4f}",
                row["weight_version"],
            )
            table.add_row(*(Text(str(value)) for value in shown))
    return table
