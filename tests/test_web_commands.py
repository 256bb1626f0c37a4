"""Answers of other commands on the page: advantages of an own algorithm, why, summary and other settings."""

from __future__ import annotations

import asyncio
import json

import aiohttp
from support.page_server import page_of, until_ended
from test_web_server import LOG, found

from areal_actors import cli
from areal_actors.reader import open_run
from areal_actors.replay.episode_trace import trace_episode


async def test_of_an_algorithm_of_a_file_another_process_computes_the_advantages(tmp_path, monkeypatch):
    monkeypatch.setattr("areal_actors.web.details.CUSTOM", "grpo")
    async with page_of(tmp_path, file=LOG) as (url, source, server), aiohttp.ClientSession() as session:
        await until_ended(source)
        row = next(row for row in source.tables.episodes("true") if row.step and row.reward)
        trace = trace_episode(open_run(LOG), row.name, row.attempt)
        trained = await found(session, url, f"api/episode/{row.id}/trained")
        assert [call["advantages"] for call in trained["calls"]] == [call.advantages for call in trace.calls]
        assert server._commands._answers, "it is kept"


async def test_the_page_answers_why_and_summary_as_the_terminal_does(tmp_path, capsys):
    assert await asyncio.to_thread(cli.main, ["why", str(LOG), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert await asyncio.to_thread(cli.main, ["why", str(LOG)]) == 0
    lines = capsys.readouterr().out.splitlines()
    async with page_of(tmp_path, file=LOG) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        shown = await found(session, url, "api/why")
        assert [shown[name] for name in ("verdict", "advice", "limits", "shares")] == [
            printed[name] for name in ("verdict", "advice", "limits", "shares")
        ]
        assert lines[-len(shown["figures"]) :] == shown["figures"]
        summary = await found(session, url, "api/summary")
        rows = dict(summary["rows"])
        assert rows["steps"].startswith("4 of 4 in ")
        assert " → " in rows["held out, sampled"]
        assert "95 % interval" in rows["held out, sampled"]
        (_, answers), *_ = summary["answers"]
        assert [label.split(",")[0] for label, _ in answers] == ["step 0", "step 4"]


async def test_other_settings_are_compared_for_the_page_alone_and_never_with_code_of_a_file(tmp_path, capsys):
    settings = ["staleness_gate.max_staleness=0"]
    assert await asyncio.to_thread(cli.main, ["what-if", str(LOG), *settings, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    page = {"X-Requested-With": "page"}

    async def ask(body, headers=page):
        async with session.post(f"{url}api/what-if", data=body, headers=headers) as answer:
            return answer.status, await answer.text()

    async with page_of(tmp_path, file=LOG) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        status, text = await ask(json.dumps(settings))
        assert status == 200
        shown = json.loads(text)
        assert (shown["comparison"]["rows"], shown["comparison"]["verdict"]) == (printed["rows"], printed["verdict"])
        assert shown["curves"]["label"] == settings[0]
        assert (await ask(json.dumps(settings), {}))[0] == 403
        assert (await ask('{"a": 1}'))[0] == 400
        for code in ("task.reward=mine.py:score", "task.reward=math", "algorithm.path=x", "a.b=../c", "--train"):
            status, text = await ask(json.dumps([code]))
            assert (status, "the page takes KEY=VALUE" in text) == (409, True), code
        status, text = await ask('["trainer.threads=3"]')
        assert (status, "which a log cannot answer" in text) == (409, True)
