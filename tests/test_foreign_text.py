"""Text of models, agents and data sets reaches a person without escape sequences and marks of direction, and files as
it is."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
import unicodedata

import pytest
import structlog
from rich.table import Table
from rich.text import Text
from support.live_run import ROOT, LiveRun

from areal_actors.core.foreign_text import HARMFUL, escape_controls, show_controls
from areal_actors.display.safe_console import SafeConsole
from areal_actors.folder.process_logs import logging_to_terminal

ATTACKS = (
    "\x1b]0;TITLE\x07\x1b]52;c;ZWNobw==\x07",  # title and clipboard
    "\x1b[2J\x1b[41m\x1bc",  # clears the screen
    "\x9b31m\x9d0;TITLE\x9c",  # the same in one character of eight bits
    "a\x08\x08b\rc\x7f",
    "\u202etxt.exe\u2066\u200f",
    "\u2028\u2029",
    "\U000e0041\U000e007f",
    "\ud800",
)
HARMLESS = "tab\tline\nÄrger 你好 مرحبا 👩\u200d🔬 é [red]x[/red] {{7*7}}"


@pytest.mark.parametrize("text", ATTACKS)
def test_every_character_that_acts_on_a_terminal_is_shown_as_another(text: str) -> None:
    shown = show_controls(text)
    assert len(shown) == len(text)
    assert not HARMFUL.search(shown)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_text_that_does_no_harm_stays_as_it_is() -> None:
    assert show_controls(HARMLESS) == HARMLESS


@pytest.mark.parametrize("text", ATTACKS)
def test_json_is_read_as_before_and_holds_none_of_them(text: str) -> None:
    shown = escape_controls(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert not HARMFUL.search(shown)


def test_a_table_keeps_its_columns() -> None:
    table = Table("id", "answer")
    for text in (*ATTACKS, "plain"):
        table.add_row(Text(text), Text("\x1b[31mred"))
    file = io.StringIO()
    SafeConsole(file=file, width=60).print(table)
    assert not HARMFUL.search(file.getvalue())
    widths = {
        len(line) for line in file.getvalue().splitlines() if "plain" in line or "TITLE" in line or "␛[2J" in line
    }
    assert len(widths) == 1


def test_the_consoles_own_colours_reach_a_terminal() -> None:
    file = io.StringIO()
    SafeConsole(file=file, force_terminal=True, color_system="standard").print(Text("\x1b[2Jbad", style="red"))
    assert file.getvalue() == "\x1b[31m␛[2Jbad\x1b[0m\n"


def test_warnings_on_a_terminal_and_their_tracebacks_hold_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_terminal():
        try:
            raise ValueError(ATTACKS[0])
        except ValueError:
            structlog.get_logger("test").warning(ATTACKS[1], answer=ATTACKS[2], exc_info=True)
    shown = capsys.readouterr().err
    assert "␛[2J" in shown
    assert "ValueError: ␛]0;TITLE␇" in shown
    assert not HARMFUL.search(shown)


@pytest.mark.long
@pytest.mark.slow
async def test_a_run_of_foreign_tasks_and_answers_shows_none_of_them(tmp_path) -> None:
    rows = [
        {
            "id": f"{text.encode('utf-8', 'replace').decode()}{number}",
            "question": f"{number}+3? \x1b[41m<b>",
            "answer": "5",
        }
        for number, text in enumerate(ATTACKS * 3)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "agent.py").write_text(
        textwrap.dedent("""
            from openai import AsyncOpenAI

            class Agent:
                async def run(self, task, *, base_url, api_key, http_client=None):
                    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
                    message = {"role": "user", "content": task["question"]}
                    await client.chat.completions.create(model="default", messages=[message])
                    if task["question"].startswith("2"):
                        raise ValueError("\\x1b]0;ERROR\\x07\\u202e" + task["question"])
                    return "\\x1b]52;c;ZWNobw==\\x07\\u202eanswer\\x9b31m"

            def reward(task, output):
                return float(len(task["question"]) % 2)
            """)
    )
    run = LiveRun(
        tmp_path / "runs",
        f"task.dataset={tmp_path}/tasks.jsonl",
        f"task.agent={tmp_path}/agent.py:Agent",
        f"task.reward={tmp_path}/agent.py:reward",
        *("steps=2", "task.held_out=6", "evaluation.tasks=6", "evaluation.every_steps=1", "task.retries=0"),
    )
    try:
        assert await run.ended() == 0, run.output()
    finally:
        run.abort()
    shown = {"run": run.output(), "summary": (run.folder / "summary.txt").read_text()}
    episode, *_ = (json.loads(line) for line in _areal("show", str(run.folder), "--json").splitlines())
    for words in (["show", "--last", "40"], ["show", "--json"], ["why"], ["audit"]):
        shown[" ".join(words)] = _areal(words[0], str(run.folder), *words[1:])
    for words in (["show"], ["show", "--trace"], ["show", "--trace", "--json"]):
        shown[" ".join(words) + " EPISODE"] = _areal(words[0], str(run.folder), episode["episode"], *words[1:])
    for name, text in shown.items():
        assert not HARMFUL.search(text), (name, HARMFUL.search(text))
    assert all("␛]52;c;ZWNobw==" in shown[name] for name in ("summary", "run", "show EPISODE"))


def _areal(*words: str) -> str:
    command = [sys.executable, "-m", "areal_actors", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
