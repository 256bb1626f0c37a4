"""`areal-actors trace`: prints one episode with all of its sampled tokens, or writes it as one HTML file."""

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

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.core.foreign_text import escape_controls
from areal_actors.display.sentences import counted
from areal_actors.reader.listing import output
from areal_actors.reader.run import open_run
from areal_actors.replay.episode_trace import CallTrace, EpisodeTrace, traced
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
    found = traced(opened, episode, attempt)
    if html is not None:
        try:
            atomic_write(html, html_page(found, facts(found), [call_facts(call) for call in found.calls]).encode())
        except OSError as error:
            raise SetupError(f"--html: {html} cannot be written: {error.strerror or error}") from error
        sys.stdout.write(f"{html.absolute()}\n")
    elif as_json:
        sys.stdout.write(f"{escape_controls(msgspec.json.encode(found).decode())}\n")
    else:
        (console or output()).print(page(found))
    return 0


def page(found: EpisodeTrace) -> RenderableType:
    """Returns the episode for a terminal."""
    parts: list[RenderableType] = [Rule(f"{found.run} · episode {found.episode} · attempt {found.attempt}"), _facts(found)]
    for number, call in enumerate(found.calls, start=1):
        parts += [Text(), *(Padding(part, (0, 0, 0, INDENT * call.depth)) for part in _call(call, number, found))]
    if found.calls and not any(call.token_ids for call in found.calls):
        parts.append(Text(f"\nTokens are in the log for exported episodes only; this one was {found.outcome}.", style="dim"))
    if found.output:
        parts += [Text("\nThe agent returned", style="bold"), Text(found.output)]
    return Group(*parts)


def facts(found: EpisodeTrace) -> dict[str, str]:
    """Returns what is shown of an episode before its calls, without empty entries."""
    numbers = "".join(f", {name} {value:g}" for name, value in found.metrics.items())
    batch = ""
    if found.batch_event is not None and found.oldest_version is not None:
        bound = f"; tokens of weights older than version {found.oldest_version} are not trained" if found.oldest_version > 0 else ""
        batch = f"{found.batch_episodes} episodes, formed by event {found.batch_event:,}{bound}"
    rows = {
        "task": found.task + (f"  {json.dumps(found.task_data, ensure_ascii=False, default=str)}" if found.task_data else ""),
        "outcome": found.outcome + (f": {found.detail}" if found.detail else ""),
        "reward": "" if found.reward is None else f"{found.reward:g}{numbers}",
        "group": ", ".join(f"{name} {'← ' if name == found.episode else ''}{reward:g}" for name, reward in found.group_rewards.items()),
        "batch": batch,
        "advantages": f"not known: {found.without_advantages}" if found.without_advantages else "",
    }
    return {label: value for label, value in rows.items() if value}


def call_facts(call: CallTrace) -> list[str]:
    """Returns what is shown of a call before its tokens."""
    versions = sorted(set(call.weight_versions))
    trained = sum(call.trained)
    found = [
        counted(call.prompt_tokens, "prompt token") if call.prompt_tokens is not None else "",
        f"{call.completion_tokens} sampled" + (f" by {call.worker}" if call.worker else ""),
        "" if not versions else f"weight version {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else ""),
        call.finish_reason,
        f"reward {call.reward:g}" if call.reward is not None else "",
        f"set by the agent: {call.set_reward:g}" if call.set_reward is not None and call.set_reward != call.reward else "",
        f"{trained} of {len(call.trained)} tokens trained" if call.trained else "",
        call.untrained,
        f"continues {call.parent}" if call.parent else "",
        f"its tokens extend {call.prefix}" if call.prefix and call.prefix != call.parent else "",
    ]
    return [fact for fact in found if fact]


def _facts(found: EpisodeTrace) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, value in facts(found).items():
        table.add_row(label, Text(value))
    return table


def _call(call: CallTrace, number: int, found: EpisodeTrace) -> Iterator[RenderableType]:
    yield Text(f"call {number} of {len(found.calls)}  {call.interaction}", style="bold cyan")
    yield Text(" · ".join(call_facts(call)), style="dim")
    if call.prompt is not None:
        yield Text(call.prompt, style="bright_black")
    if call.token_ids:
        yield _tokens(call, found)


def _tokens(call: CallTrace, found: EpisodeTrace) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "id", "token", "log p", "version", "advantage"):
        table.add_column(name, justify="left" if name == "token" else "right", no_wrap=True)
    for position, identifier in enumerate(call.token_ids):
        advantage, trained = call.advantages[position], call.trained[position]
        last = "not trained" if not trained else "" if advantage is None else f"{advantage:+.3f}"
        text = "" if call.tokens[position] is None else repr(call.tokens[position])
        row = (position, identifier, text, f"{call.logprobs[position]:.4f}", call.weight_versions[position], last)
        style = "dim" if not trained and found.step else ""
        table.add_row(*(Text(str(value)) for value in row), style=style)
    return table
