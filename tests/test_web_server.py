"""The server of a run's page: who may read it, its answers, its notices, and browsers that hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from support.audit_logs import STARTED, given_up, sound_log
from support.page_server import PATIENT, page_of, until, until_ended
from support.samples import interaction
from test_reader import exported_log

from areal_actors import cli
from areal_actors.core.errors import SetupError
from areal_actors.messages import ConversationKept, RunFinished, StepCompleted
from areal_actors.reader import open_run
from areal_actors.replay.episode_trace import trace_episode
from areal_actors.web.what_if_curves import read_curves
from areal_bus.base import LogSpan
from areal_bus.recorded import FORMAT_VERSION, read_log

ROOT = Path(__file__).parent.parent
LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


async def asked(session, url, path, **options):
    async with session.get(url.partition("?")[0] + path, **options) as answer:
        return answer.status, await answer.text(), answer.headers


async def found(session, url, path):
    status, text, _ = await asked(session, url, path)
    assert status == 200, text
    return json.loads(text)


async def test_the_page_and_its_files_allow_scripts_of_this_host_only(tmp_path):
    async with page_of(tmp_path, file=LOG) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        files = ["", *(f"static/{path.relative_to(STATIC)}" for path in STATIC.rglob("*") if path.is_file())]
        assert len(files) > 15
        for path in files:
            status, text, headers = await asked(session, url, path)
            assert status == 200
            assert text
            assert headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert headers["X-Content-Type-Options"] == "nosniff"
        assert (await asked(session, url, "static/../server.py"))[0] == 404
        assert (await asked(session, url, "static/%2e%2e/server.py"))[0] in (403, 404)


STATIC = ROOT / "areal_actors" / "web" / "static"


def test_no_file_of_the_page_names_another_host_or_parses_text_as_html():
    for path in [*STATIC.glob("*.js"), *STATIC.glob("*.css"), STATIC / "index.html"]:
        text = path.read_text()
        assert len(text.splitlines()) <= 400
        for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "https://"):
            assert banned not in text, (path.name, banned)
        assert text.count("http://") == text.count("http://www.w3.org/2000/svg"), path.name
        assert "onclick=" not in text.replace("onclick:", "")


async def test_on_loopback_only_names_of_this_machine_are_answered(tmp_path):
    async with page_of(tmp_path, file=LOG) as (url, _, __), aiohttp.ClientSession() as session:
        port = urlsplit(url).port
        for name in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert (await asked(session, url, "api/run", headers={"Host": name}))[0] == 200
        for name in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "10.0.0.1"):
            status, text, headers = await asked(session, url, "api/run", headers={"Host": name})
            assert status == 403
            assert "this machine only" in text
            assert "Content-Security-Policy" in headers


async def test_off_loopback_everything_needs_the_token(tmp_path):
    async with page_of(tmp_path, host="0.0.0.0", file=LOG) as (url, source, _):
        await until_ended(source)
        token = urlsplit(url).query.removeprefix("token=")
        assert len(token) >= 32
        jar = aiohttp.CookieJar(unsafe=True)  # of addresses without a name
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            for path in (
                "",
                "static/main.js",
                "api/run",
                "api/rows",
                "api/changes",
                "api/run?token=wrong",
                "api/run?token=",
            ):
                status, text, _ = await asked(session, url, path)
                assert (status, "needs the token" in text) == (401, True), path
            async with session.get(url) as answer:  # sets the cookie, and leaves the address without the token
                assert answer.status == 200
                assert "token" not in str(answer.url)
            assert (await asked(session, url, "api/run"))[0] == 200
        async with aiohttp.ClientSession() as session:
            assert (await asked(session, url, "api/run", headers={"Authorization": f"Bearer {token}"}))[0] == 200


async def test_a_browser_that_asks_for_changes_has_at_last_all_rows(tmp_path):
    log = list(read_log(LOG))
    async with page_of(tmp_path) as (url, source, _), aiohttp.ClientSession() as session:
        tables, after, notices = {}, 0, []
        stream = await session.get(f"{url}api/changes")
        for part in range(0, len(log), 60):
            for envelope in log[part : part + 60]:
                await source._receive(envelope)
            async with asyncio.timeout(PATIENT):
                while after < log[min(part + 59, len(log) - 1)].sequence:
                    line = await stream.content.readline()
                    if not line.startswith(b"data: "):
                        continue
                    notices.append(json.loads(line[6:])["last"])
                    answer = await found(session, url, f"api/rows?after={after}")
                    after = answer["head"]["last"]
                    for name, rows in answer["tables"].items():
                        tables.setdefault(name, {}).update({row[0]: row for row in rows})
        stream.close()
        whole = await found(session, url, "api/rows")
        assert {name: list(rows.values()) for name, rows in tables.items() if rows}.keys() == {
            name for name, rows in whole["tables"].items() if rows
        }
        for name, rows in whole["tables"].items():
            assert sorted(map(str, tables[name].values())) == sorted(map(str, rows))
        assert len(notices) <= 2 * (len(log) // 60 + 1), "notices are coalesced"
        assert notices == sorted(notices)


async def test_browsers_that_hang_do_not_hold_memory_and_do_not_keep_others_waiting(tmp_path):
    async with page_of(tmp_path) as (url, source, server), aiohttp.ClientSession() as session:
        first = list(read_log(LOG))
        for envelope in first:
            await source._receive(envelope)
        hung = []
        for path in ("/api/changes", "/api/rows", "/api/changes", "/api/rows") * 5:
            reader = socket.create_connection(("127.0.0.1", urlsplit(url).port))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            hung.append(reader)  # never reads
        async with asyncio.timeout(PATIENT):
            await until(lambda: server.streams == 10)
            for number in range(2000):
                source.history.progress.last += number % 2  # every look at it is another notice
                if number % 100 == 0:
                    await asyncio.sleep(0.01)
            assert (await found(session, url, "api/run"))["name"] == "gsm8k-grpo"
            for reader in hung:
                reader.close()
            while server.streams:
                await asyncio.sleep(0.05)
                source.history.progress.last += 1  # a connection that is gone is noticed by the next notice


async def test_more_browsers_than_may_be_notified_are_refused_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("areal_actors.web.server.MAX_STREAMS", 1)
    async with page_of(tmp_path, file=LOG) as (url, _, server), aiohttp.ClientSession() as session:
        stream = await session.get(f"{url}api/changes")
        await until(lambda: server.streams)
        status, text, _ = await asked(session, url, "api/changes")
        assert status == 503
        assert "close one" in text
        stream.close()


async def test_a_closed_browser_gives_its_stream_back_although_nothing_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("areal_actors.web.server.KEEP_ALIVE_SECONDS", 1e9)
    async with page_of(tmp_path, file=LOG) as (url, source, server), aiohttp.ClientSession() as session:
        await until_ended(source)
        stream = await session.get(f"{url}api/changes")
        await until(lambda: server.streams)
        stream.close()
        await until(lambda: not server.streams)


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5000, "1" + "0" * 4299, "-1", "٣", "1_0"])
async def test_a_number_that_is_none_or_too_long_is_a_400(tmp_path, digits):
    async with page_of(tmp_path, file=LOG) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        for path in ("api/rows?after=", "api/events?before=", "api/events?limit=", "api/event/", "api/episode/"):
            status, text, _ = await asked(session, url, path + digits)
            if "?" in path or digits.startswith(("9", "10")):
                assert (status, "write a whole number of at most 18 digits" in text) == (400, True), path
            else:
                assert status == 404, path
        assert (await asked(session, url, f"api/event/{'9' * 18}"))[0] == 404


async def test_the_tokens_and_advantages_of_an_episode_are_those_of_its_trace(tmp_path):
    run = open_run(LOG)
    async with page_of(tmp_path, file=LOG) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        row = next(row for row in source.tables.episodes("true") if row.step and row.reward)
        detail = await found(session, url, f"api/episode/{row.id}")
        trace = trace_episode(run, row.name, row.attempt)
        assert [call["token_ids"] for call in detail["calls"]] == [call.token_ids for call in trace.calls]
        assert [call["logprobs"] for call in detail["calls"]] == [call.logprobs for call in trace.calls]
        assert [call["weight_versions"] for call in detail["calls"]] == [call.weight_versions for call in trace.calls]
        assert detail["output"] == trace.output
        assert detail["task"] == trace.task_data
        trained = await found(session, url, f"api/episode/{row.id}/trained")
        assert [call["advantages"] for call in trained["calls"]] == [call.advantages for call in trace.calls]
        assert any(value for call in trained["calls"] for value in call["advantages"])
        group = await found(session, url, f"api/group/{row.group}")
        assert len(group["episodes"]) == 4
        assert row.name in [one["row"][2] for one in group["episodes"]]


async def test_an_abandoned_episode_has_its_conversation_or_the_reason_why_there_is_none(tmp_path):
    call = interaction("4.0-1-1", "hey", 1)
    kept = ConversationKept(session="s", episode="4.0", group="4", attempt=1, interactions=(call,), unanswered_calls=1)
    log = exported_log(tmp_path / "a.log", [STARTED, given_up("4.0", 1), kept, given_up("4.0", attempt=2)])
    async with page_of(tmp_path, file=log) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        first, second = [row.id for row in source.tables.episodes("true")]
        detail = await found(session, url, f"api/episode/{first}")
        assert [shown["logprobs"] for shown in detail["calls"]] == [[-0.5, -0.625, -0.75]]
        assert "ValueError" in detail["detail"]
        assert detail["gaps"] == "At the end 1 call had no answer; nothing of that is in the log."
        detail = await found(session, url, f"api/episode/{second}")
        assert (detail["calls"], detail["gaps"]) == ([], "The episode ended without a completed call.")


async def test_events_are_searched_by_subject_and_text_newest_first(tmp_path):
    async with page_of(tmp_path, file=LOG) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        answer = await found(session, url, "api/events?subject=step.&limit=2")
        steps = [envelope.sequence for envelope in read_log(LOG) if envelope.subject == StepCompleted.subject]
        assert [one["position"] for one in answer["events"]] == steps[::-1][:2]
        rest = await found(session, url, f"api/events?subject=step.&before={answer['before']}")
        assert [one["position"] for one in rest["events"]] == steps[::-1][2:]
        assert not rest["more"]
        question = await found(session, url, "api/events?text=HOW+MANY+COINS&subject=episode.")
        assert question["events"]
        event = await found(session, url, f"api/event/{steps[0]}")
        assert event["message"]["step"] == 1
        assert (await asked(session, url, "api/event/99999"))[0] == 404
        assert (await asked(session, url, "api/episode/99999"))[0] == 404
        status, text, _ = await asked(session, url, "api/rows?after=x")
        assert (status, text) == (400, "after: found 'x'; write a whole number of at most 18 digits.\n")


async def test_of_a_damaged_export_the_good_part_is_shown_with_a_sentence(tmp_path):
    log = exported_log(tmp_path / "a.log", sound_log())
    log.write_bytes(log.read_bytes()[:-10])
    async with page_of(tmp_path, file=log) as (url, source, _), aiohttp.ClientSession() as session:
        await until_ended(source)
        answer = await found(session, url, "api/rows")
        assert answer["head"]["last"] == len(sound_log()) - 1
        assert "ends in the middle of an entry" in answer["head"]["notice"]
        assert len(answer["tables"]["steps"]) == 3


@pytest.mark.parametrize("other", [False, True])
async def test_a_new_run_of_the_same_name_is_not_mixed_with_the_earlier_one(tmp_path, other):
    async with page_of(tmp_path) as (_, source, __):
        log = list(read_log(LOG))
        for envelope in log:
            await source._receive(envelope)
        there = [msgspec.structs.replace(envelope, id=f"other-{envelope.id}") for envelope in log] if other else log
        if not other:
            await source._begin(KeptLog(there), None)
            return
        for kept in (there, there[:100]):
            with pytest.raises(SetupError, match="Another run has the name 'gsm8k-grpo' now"):
                await source._begin(KeptLog(kept), None)


class KeptLog:
    """A bus with this log."""

    def __init__(self, log):
        self.log = log

    async def span(self):
        return LogSpan(first=1, last=len(self.log), bytes=0)

    async def read(self, sequences):
        return [self.log[sequence - 1] for sequence in sequences]


def test_curves_of_a_what_if_have_the_metrics_of_its_steps(tmp_path, capsys):
    assert cli.main(["what-if", str(LOG), "staleness_gate.max_staleness=0", "--json"]) == 0
    file = tmp_path / "what-if.json"
    file.write_text(capsys.readouterr().out)
    curves = read_curves(file)
    assert curves.label == "staleness_gate.max_staleness=0"
    assert curves.steps
    assert "reward_mean" in curves.steps[0]
    file.write_text("{}")
    with pytest.raises(SetupError, match="is not the output of `areal-actors what-if RUN KEY=VALUE --json`"):
        read_curves(file)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["view", "no-such"], "has no run 'no-such'"),
        (["view", "notes.txt"], "notes.txt cannot be read as an exported log"),
        (["view", str(LOG), "--what-if", "nowhere.json"], "--what-if nowhere.json: cannot be read: No such file"),
        (["view", str(LOG), "--host", "192.0.2.1"], "choose another with --host and --port"),
    ],
)
def test_a_wrong_word_is_answered_with_what_helps(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "runs").mkdir()
    assert cli.main(words) == cli.FAILED
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_without_torch_until_it_is_ended_and_leaves_nothing(tmp_path, number):
    log = exported_log(tmp_path / "a.log", [STARTED, *sound_log()[1:], RunFinished(steps=3)])
    program = (
        "import atexit, sys\n"
        "from areal_actors import cli\n"
        "status = cli.main(sys.argv[1:])\n"
        "sys.exit('torch' in sys.modules and 9 or status)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, "view", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENT)
    assert process.returncode == 0, errors
    assert "Ctrl-C ends it" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
