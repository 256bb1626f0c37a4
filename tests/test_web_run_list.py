"""The pages of a folder: the list of its runs, runs side by side, and the page of each."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest
from support.page_server import until
from test_reader import RECIPE, printed, run_folder
from test_web_server import asked, found

from areal_actors import cli
from areal_actors.reader.comparison import compare
from areal_actors.web.access import Access
from areal_actors.web.run_list import list_server
from areal_actors.web.server import serving_page


@asynccontextmanager
async def list_of(folder, host="127.0.0.1"):
    server = list_server(folder)
    async with serving_page(server, Access(host), host, 0) as url:
        yield url, server


@pytest.fixture
def folder(tmp_path):
    run_folder(tmp_path / "runs", "a", rewards=[0.1, 0.9], held_out=[0.25, 0.75])
    run_folder(tmp_path / "runs", "b", recipe={**RECIPE, "seed": 4}, rewards=[0.2], error="no space")
    return tmp_path / "runs"


async def test_the_list_has_every_run_with_its_result_and_interval(folder):
    broken = folder / "c"
    broken.mkdir()
    (broken / "recipe.json").write_text("{")
    async with list_of(folder) as (url, _), aiohttp.ClientSession() as session:
        assert "runs.js" in (await asked(session, url, ""))[1]
        runs = {run["run"]: run for run in (await found(session, url, "api/runs"))["runs"]}
        assert runs["a"]["held_out"] == [0.25, 0.75]
        assert runs["a"]["change"].startswith("+0.500, 95 % interval ")
        assert (runs["b"]["status"], runs["b"]["error"], runs["b"]["change"]) == ("ended early", "no space", "")
        assert runs["c"]["status"] == "unreadable"
        assert "recipe.json cannot be read" in runs["c"]["error"]
        run_folder(folder, "d", rewards=[0.3])
        assert len((await found(session, url, "api/runs"))["runs"]) == 4, "a new run is there without a restart"


async def test_runs_side_by_side_are_what_the_command_compares(folder):
    printed_comparison = json.loads(printed(compare, ["a", "b"], folder=folder, as_json=True))
    async with list_of(folder) as (url, _), aiohttp.ClientSession() as session:
        shown = await found(session, url, "api/compare?run=a&run=b")
        assert shown["runs"] == ["a", "b"]
        assert shown["recipe"] == printed_comparison["recipe"] == {"seed": ["not set", 4]}
        results = {label: dict(zip(shown["runs"], values, strict=True)) for label, values in shown["results"]}
        assert results == printed_comparison["results"]
        assert results["  change, greedy"]["a"].startswith("+0.500, 95 % interval ")
        for name, series in printed_comparison["metrics"].items():
            assert [[value for _, value in points] for points in shown["curves"][name]] == list(series.values())
        assert shown["held_out"]["greedy"] == [[[0, 0.25], [1, 0.75]], []]
        status, text, _ = await asked(session, url, "api/compare?run=a&run=nowhere")
        assert (status, "has no run 'nowhere'" in text) == (404, True)


async def test_each_run_opens_below_the_list_and_no_other_folder_does(folder):
    async with list_of(folder) as (url, server), aiohttp.ClientSession() as session:
        assert "main.js" in (await asked(session, url, "run/a/"))[1]
        assert (await found(session, url, "run/a/api/run"))["name"] == "a"
        assert (await found(session, url, "run/b/api/run"))["name"] == "b"
        assert list(server._open) == ["a", "b"]
        for name in ("..", "%2e%2e", "%2e%2e%2fruns%2fa", "runs", "a%00"):
            assert (await asked(session, url, f"run/{name}/api/run"))[0] == 404, name


async def test_pages_that_no_browser_follows_are_closed_when_too_many_are_open(folder, monkeypatch):
    monkeypatch.setattr("areal_actors.web.run_list.MAX_OPEN", 1)
    async with list_of(folder) as (url, server), aiohttp.ClientSession() as session:
        stream = await session.get(f"{url}run/a/api/changes")
        await until(lambda: server._open["a"].server.streams)
        await found(session, url, "run/b/api/run")
        assert list(server._open) == ["a", "b"], "a browser follows the first"
        stream.close()
        await until(lambda: not server._open["a"].server.streams)
        copy = server._open["a"]._copy.path
        await found(session, url, "run/b/api/run")
        assert list(server._open) == ["b"]
        assert not copy.parent.exists()


async def test_the_list_is_read_by_this_machine_only_or_with_the_token(folder):
    async with list_of(folder) as (url, _), aiohttp.ClientSession() as session:
        for path in ("", "api/runs", "run/a/api/rows"):
            assert (await asked(session, url, path, headers={"Host": "evil.example"}))[0] == 403
    async with list_of(folder, host="0.0.0.0") as (url, _), aiohttp.ClientSession() as session:
        token = urlsplit(url).query.removeprefix("token=")
        for path in ("", "api/runs", "api/compare?run=a&run=b", "run/a/", "run/a/api/rows"):
            assert (await asked(session, url, path))[0] == 401, path
            known = {"Authorization": f"Bearer {token}"}
            assert (await asked(session, url, path, headers=known))[0] == 200, path


def test_a_folder_without_runs_is_answered_with_what_helps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["view"]) == cli.FAILED
    assert "start one with `areal-actors run RECIPE`" in capsys.readouterr().err
