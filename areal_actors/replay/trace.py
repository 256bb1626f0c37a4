"""`areal-actors show --trace`: prints one episode with all of its sampled tokens, or writes it as one HTML file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.core.foreign_text import escape_controls
from areal_actors.display.sentences import count_of
from areal_actors.reader.described_spans import describe_spans
from areal_actors.reader.listing import output
from areal_actors.reader.run import open_run
from areal_actors.replay.episode_trace import CallTrace, EpisodeTrace, trace_episode
from areal_actors.replay.trace_page import html_page

INDENT = 4
"""Columns by which a branch is indented."""


def trace(
    run: str,
    episode: str,
    *,
    folder: Path,
    attempt: int | None = None,
    html: Path | None = None,
    as_json: bool = False,
    console: Console | None = None,
) -> int:
    """Print an ended attempt at an episode call by call and token by token; returns the exit status.

    Args:
        run: name, folder or exported log; empty for the latest run.
        episode: name of an episode.
        folder: where runs are written.
        attempt: number of the attempt; None for the exported one, else the latest.
        html: write one HTML file here instead.
        as_json: print the same as JSON.
        console: prints.

    Raises:
        SetupError: there is no such run, episode or attempt, or the file cannot be written.
        BusError: the log cannot be read.
    """
    opened = open_run(run, folder=folder)
    if opened.notice:
        sys.stderr.write(f"{opened.notice}\n")
    episode_trace = trace_episode(opened, episode, attempt)
    if html is not None:
        try:
            atomic_write(
                html,
                html_page(
                    episode_trace, facts(episode_trace), [call_facts(call) for call in episode_trace.calls]
                ).encode(),
            )
        except OSError as error:
            raise SetupError(f"--html: {html} cannot be written: {error.strerror or error}") from error
        sys.stdout.write(f"{html.absolute()}\n")
    elif as_json:
        sys.stdout.write(f"{escape_controls(msgspec.json.encode(episode_trace).decode())}\n")
    else:
        (console or output()).print(page(episode_trace))
    return 0


def page(traced_episode: EpisodeTrace) -> RenderableType:
    """Returns the episode for a terminal."""
    parts: list[RenderableType] = [
        Rule(f"{traced_episode.run} · episode {traced_episode.episode} · attempt {traced_episode.attempt}"),
        _facts(traced_episode),
    ]
    for number, call in enumerate(traced_episode.calls, start=1):
        parts += [
            Text(),
            *(Padding(part, (0, 0, 0, INDENT * call.depth)) for part in _call(call, number, traced_episode)),
        ]
    if traced_episode.calls and not any(call.token_ids for call in traced_episode.calls):
        parts.append(
            Text(
                f"\nNone of it is trained; this episode was {traced_episode.outcome}. `{COMMAND} show"
                f" {traced_episode.run} {traced_episode.episode} --tokens` has the texts that the log has.",
                style="dim",
            )
        )
    if traced_episode.output:
        parts += [Text("\nThe agent returned", style="bold"), Text(traced_episode.output)]
    return Group(*parts)


def facts(traced_episode: EpisodeTrace) -> dict[str, str]:
    """Returns what is shown of an episode before its calls, without empty entries."""
    numbers = "".join(f", {name} {value:g}" for name, value in traced_episode.metrics.items())
    batch = ""
    if traced_episode.batch_event is not None and traced_episode.oldest_version is not None:
        bound = (
            f"; tokens of weights older than version {traced_episode.oldest_version} are not trained"
            if traced_episode.oldest_version > 0
            else ""
        )
        batch = f"{traced_episode.batch_episodes} episodes, formed by event {traced_episode.batch_event:,}{bound}"
    rows = {
        "task": (
            traced_episode.task
            + (
                f"  {json.dumps(traced_episode.task_data, ensure_ascii=False, default=str)}"
                if traced_episode.task_data
                else ""
            )
        ),
        "outcome": traced_episode.outcome + (f": {traced_episode.detail}" if traced_episode.detail else ""),
        "reward": "" if traced_episode.reward is None else f"{traced_episode.reward:g}{numbers}",
        "group": ", ".join(
            f"{name} {'← ' if name == traced_episode.episode else ''}{reward:g}"
            for name, reward in traced_episode.group_rewards.items()
        ),
        "batch": batch,
        "advantages": f"not known: {traced_episode.without_advantages}" if traced_episode.without_advantages else "",
    }
    return {label: value for label, value in rows.items() if value}


def call_facts(call: CallTrace) -> list[str]:
    """Returns what is shown of a call before its tokens."""
    versions = sorted(set(call.weight_versions))
    trained = sum(call.trained)
    pairs = [
        count_of(call.prompt_tokens, "prompt token") if call.prompt_tokens is not None else "",
        f"{call.completion_tokens} sampled" + (f" by {call.worker}" if call.worker else ""),
        "" if not versions else f"weight version {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else ""),
        call.finish_reason,
        f"reward {call.reward:g}" if call.reward is not None else "",
        (
            f"set by the agent: {call.set_reward:g}"
            if call.set_reward is not None and call.set_reward != call.reward
            else ""
        ),
        describe_spans(call.spans, lambda start, end: "".join(part or "" for part in call.tokens[start:end])),
        f"{trained} of {len(call.trained)} tokens trained" if call.trained else "",
        call.untrained,
        f"continues {call.parent}" if call.parent else "",
        f"its tokens extend {call.prefix}" if call.prefix and call.prefix != call.parent else "",
    ]
    return [fact for fact in pairs if fact]


def _facts(traced_episode: EpisodeTrace) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, value in facts(traced_episode).items():
        table.add_row(label, Text(value))
    return table


def _call(call: CallTrace, number: int, traced_episode: EpisodeTrace) -> Iterator[RenderableType]:
    yield Text(f"call {number} of {len(traced_episode.calls)}  {call.interaction}", style="bold cyan")
    yield Text(" · ".join(call_facts(call)), style="dim")
    if call.prompt is not None:
        yield Text(call.prompt, style="bright_black")
    if call.token_ids:
        yield _tokens(call, traced_episode)


def _tokens(call: CallTrace, traced_episode: EpisodeTrace) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "id", "token", "log p", "version", "advantage"):
        table.add_column(name, justify="left" if name == "token" else "right", no_wrap=True)
    for position, identifier in enumerate(call.token_ids):
        advantage, trained = call.advantages[position], call.trained[position]
        last = "not trained" if not trained else "" if advantage is None else f"{advantage:+.3f}"
        text = "" if call.tokens[position] is None else repr(call.tokens[position])
        row = (position, identifier, text, f"{call.logprobs[position]:.4f}", call.weight_versions[position], last)
        style = "dim" if not trained and traced_episode.step else ""
        table.add_row(*(Text(str(value)) for value in row), style=style)
    return table
