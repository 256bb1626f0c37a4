"""`areal-actors show`: the episodes of a run, and one of them call by call."""

from __future__ import annotations

import json
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
from areal_actors.display.sentences import counted
from areal_actors.messages.episode_ends import describe_party
from areal_actors.reader.listing import output
from areal_actors.reader.records import EndedEpisode
from areal_actors.reader.run import Run, open_run

LINE_CHARACTERS = 120
LONGEST_NAME = 24
NAMES_SHOWN = 8


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

    def of(self, run: Run) -> list[EndedEpisode]:
        """Returns the latest episodes that match, oldest first."""
        found = [
            ended
            for ended in run.records.ended.values()
            if self.outcome in ("", ended.outcome)
            and (self.step is None or run.records.trained.get(ended.sequence) == self.step)
            and self.task in ("", ended.task_id)
        ]
        return found[-self.last :]


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
        episode: name of an episode; empty for the list.
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
    found = list(opened.records.of(episode)) if episode else (chosen or EpisodeFilter()).of(opened)
    if episode and not found:
        raise SetupError(_not_found(opened, episode))
    if as_json:
        for row in _rows(opened, found):
            screen.print(escape_controls(json.dumps(row, ensure_ascii=False, default=str)), markup=False, highlight=False, soft_wrap=True)
    elif episode:
        for ended in found:
            screen.print(_page(opened, ended, tokens=tokens))
    else:
        screen.print(_list(opened, found), Text(f"\nOne episode, call by call: {COMMAND} show {opened.name} EPISODE", style="dim"))
    return 0


def _not_found(run: Run, episode: str) -> str:
    names = list(dict.fromkeys(ended.episode for ended in run.records.ended.values()))
    if not names:
        return f"run '{run.name}' has no ended episode yet"
    shown = ", ".join(names[-NAMES_SHOWN:])
    return f"run '{run.name}' has no ended episode '{episode}'; the latest of its {len(names):,}: {shown}"


def _rows(run: Run, found: Iterable[EndedEpisode]) -> Iterator[dict[str, Any]]:
    wanted = {ended.sequence for ended in found}
    calls: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for call in run.interactions:
        calls.setdefault((call["episode"], call["attempt"]), []).append(call)
    for row in run.episodes:
        if row["sequence"] in wanted:
            yield row | {"interactions": calls.get((row["episode"], row["attempt"]), [])}


def _list(run: Run, found: Iterable[EndedEpisode]) -> RenderableType:
    table = ScreenTable(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for name in ("episode", "outcome", "reward", "calls", "tokens", "task"):
        table.add_column(name, justify="right" if name in ("reward", "calls", "tokens") else "left", no_wrap=True, max_width=LONGEST_NAME)
    table.add_column("output", ratio=1, overflow="ellipsis", no_wrap=True)
    for ended in found:
        calls = ended.trajectory.interactions if ended.trajectory else ended.recorded
        sampled = ended.trajectory.sampled_tokens() if ended.trajectory else sum(one.completion_tokens for one in ended.recorded)
        reward = "" if ended.reward is None else f"{ended.reward:.3g}"
        output = " ".join(ended.output.split())[:LINE_CHARACTERS]
        outcome = run.records.outcome_of(ended)
        table.add_row(*map(Text, (ended.episode, outcome, reward, str(len(calls)), str(sampled), ended.task_id, output)))
    return table


def _page(run: Run, ended: EndedEpisode, *, tokens: bool) -> RenderableType:
    calls = [call for call in run.interactions if (call["episode"], call["attempt"]) == (ended.episode, ended.attempt)]
    parts: list[RenderableType] = [Rule(f"{run.name} · episode {ended.episode} · attempt {ended.attempt}"), _facts(run, ended)]
    before = ""
    for number, call in enumerate(calls, start=1):
        parts += [Text(), *_call(call, f"call {number} of {len(calls)}", before)]
        if tokens and ended.trajectory:
            parts.append(_tokens(run, ended, call["interaction"]))
        before = call["interaction"]
    if not ended.trajectory and calls:
        parts.append(Text(f"\nTexts of calls are in the log for exported episodes only; this one was {ended.outcome}.", style="dim"))
    if ended.output:
        parts += [Text("\nThe agent returned", style="bold"), Text(ended.output)]
    return Group(*parts)


def _facts(run: Run, ended: EndedEpisode) -> RenderableType:
    table = ScreenTable.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    detail = f": {detail}" if (detail := getattr(ended.event, "detail", "")) else ""
    rows = {
        "task": ended.task_id + (f"  {json.dumps(ended.work.task.data, ensure_ascii=False, default=str)}" if ended.work else ""),
        "outcome": run.records.outcome_of(ended) + detail,
        "reward": "" if ended.reward is None else f"{ended.reward:g}",
        "ended by": describe_party(ended.event),
        "ended": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.time))
        + (f", {ended.seconds:.1f} s after its group was granted" if ended.seconds is not None else ""),
    }
    for label, value in rows.items():
        if value:
            table.add_row(label, Text(value))
    return table


def _call(call: dict[str, Any], title: str, before: str) -> Iterator[RenderableType]:
    """Yield the header of a call, then its new prompt and its completion."""
    oldest, newest = call["oldest_version"], call["newest_version"]
    facts = [
        counted(call["prompt_tokens"], "prompt token") if call["prompt_tokens"] is not None else "",
        f"{call['completion_tokens']} sampled",
        f"weight version {oldest}" if oldest == newest else f"weight versions {oldest} to {newest}",
        call["finish_reason"],
        f"mean log p {call['mean_logprob']:.3f}" if call.get("mean_logprob") is not None else "",
        f"reward {call['reward']:g}" if call.get("reward") is not None else "",
        "" if call["trained"] else "not trained",
        f"continues {call['parent']}" if call["parent"] not in ("", before) else "",
        f"prompt is not an extension: {call['prefix_break_reason']}" if call["prefix_break_reason"] else "",
        f"tool call not read: {call['tool_call_error']}" if call["tool_call_error"] else "",
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
            shown = (row["position"], row["token_id"], repr(row["token"]), f"{row['logprob']:.4f}", row["weight_version"])
            table.add_row(*(Text(str(value)) for value in shown))
    return table
