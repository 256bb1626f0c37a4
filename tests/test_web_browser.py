"""The page of a run in a real headless Chromium: it loads, follows a growing log, moves to earlier events, and asks no
other host."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from support.browser import CHROMIUM, browser
from support.page_server import page_of, until, until_ended
from test_reader import RECIPE, run_folder

from areal_actors.core.values import Interaction, SamplingParams, Task, TokenColumns, Trajectory, pack_ids
from areal_actors.messages import CapacityGranted, EpisodeScored, RunEpisode, RunStarted, TrajectoryExported
from areal_actors.web.access import Access
from areal_actors.web.run_list import list_server
from areal_actors.web.server import serving_page
from areal_actors.web.what_if_curves import WhatIfCurves
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import FORMAT_VERSION, LogWriter, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"
VIEWS = (
    *("overview", "episodes", "groups", "episode", "batches", "actors", "events"),
    *("failures", "why", "summary", "what-if"),
)
KEYS = "1234567890w"
BREAKOUT = "</pre><script>document.title='broken'</script><img src=x onerror=document.title='broken'>"
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: `apt install chromium`"),
    pytest.mark.long,
]


def station(name):
    return f"Number(document.querySelector('[data-station=\"{name}\"] .value').textContent)"


@pytest.fixture
async def tab(tmp_path):
    async with browser(tmp_path / "browser") as opened:
        yield opened
        assert opened.console == []
        hosts = {urlsplit(url).hostname for url in opened.requested if not url.startswith(("about:", "data:"))}
        assert hosts <= {"127.0.0.1"}, hosts


@asynccontextmanager
async def page_in(tab, folder, **source):
    """Serve a page that the tab leaves before its server ends: that would be an error in the console."""
    async with page_of(folder, **source) as (url, read, _):
        yield url, read
        await tab.open("about:blank")
        await tab.until("location.href === 'about:blank'")


async def test_every_view_shows_a_finished_run_and_the_keys_reach_all_of_them(tab, tmp_path):
    over = WhatIfCurves(label="trainer.batch_size=8", steps=[{"reward_mean": 0.25, "loss": 0.5}], first_change=1)
    async with page_in(tab, tmp_path, file=LOG, what_ifs=[over]) as (url, source):
        await until_ended(source)
        await tab.open(url)
        await tab.until("document.querySelector('#status').textContent === 'finished'")
        assert await tab.run("document.title") == "gsm8k-grpo · areal"
        await tab.until(f"{station('trained')} === 64")
        await tab.until("document.querySelectorAll('.chart .u-over').length >= 8")
        legend = await tab.run("document.querySelector('[data-metric=reward_mean] .u-legend').textContent")
        assert "held out, sampled" in legend
        assert "what if trainer.batch_size=8" in legend
        shows = {
            "overview": "document.querySelector('.facts').textContent.includes('4 of 4')",
            "episodes": "document.querySelector('.lanes canvas').ariaLabel.startsWith('Swim lanes of 64 attempts')",
            "groups": "document.querySelectorAll('#view-groups .side article').length > 1",
            "episode": "document.querySelectorAll('.token').length > 0",
            "batches": "document.querySelectorAll('#view-batches table')[0].rows.length === 5",
            "actors": "document.querySelectorAll('.tree .actor').length === 11",
            "events": "document.querySelectorAll('#view-events td button').length === 100",
            "failures": "document.querySelector('#view-failures .empty').textContent.startsWith('Nothing has failed')",
            "why": "document.querySelector('#view-why .headline')?.textContent.includes('limits this run')",
            "summary": "document.querySelectorAll('#view-summary .side article').length > 0",
            "what-if": "document.querySelector('#view-what-if').textContent.includes('trainer.batch_size=8')",
        }
        for key, name in zip(KEYS, VIEWS, strict=True):
            await tab.run("document.activeElement.blur()")
            await tab.press(key)
            await tab.until(f"!document.querySelector('#view-{name}').hidden && {shows[name]}")
            assert await tab.run("[...document.querySelectorAll('main > section:not([hidden])')].length") == 1
            assert await tab.run("document.documentElement.scrollWidth <= innerWidth"), name
        unnamed = await tab.run(
            "[...document.querySelectorAll('button, input, select, a')].filter(one => !one.ariaLabel &&"
            " !one.textContent.trim() && !one.labels?.length).map(one => one.outerHTML).join()"
        )
        assert unnamed == ""
        await tab.press("?")
        await tab.until("document.querySelector('#keys').open")
        await tab.press("Escape")
        await tab.run("document.querySelector('#keys').close()")
        await tab.press("1")
        await tab.press("/")
        await tab.until("document.activeElement.ariaLabel === 'Search in messages, senders and ids'")
        await tab.run("document.activeElement.value = 'evaluator-0'; document.activeElement.form.requestSubmit()")
        await tab.until("document.querySelector('#view-events .legend').textContent.startsWith('9 found')")


@pytest.mark.parametrize("dark", [False, True])
async def test_no_view_is_wider_than_a_phone_and_tables_are_cards_there(tab, tmp_path, dark):
    async with page_in(tab, tmp_path, file=LOG) as (url, source):
        await until_ended(source)
        await tab.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        await tab.dark(dark=dark)
        await tab.open(url)
        await tab.until("document.querySelector('#status').textContent === 'finished'")
        headline = await tab.run("document.querySelector('.headline').textContent")
        assert headline.startswith("held-out accuracy, sampled: ")
        for name in VIEWS:
            await tab.run(f"location.hash = '{name}'")
            await tab.until(f"!document.querySelector('#view-{name}').hidden")
            wide = (
                "[...document.querySelectorAll('main > section:not([hidden]) *')].filter(one => one.offsetWidth > 390)"
            )
            assert await tab.run(f"{wide}.map(one => one.outerHTML.slice(0, 80)).join()") == "", name
            assert await tab.run("document.documentElement.scrollWidth <= innerWidth"), name
        headings = (
            "[...document.querySelectorAll('#view-events td')].slice(0, 3).map(one => one.dataset.heading).join()"
        )
        assert await tab.run(headings) == "event,after,subject"
        assert await tab.run("getComputedStyle(document.querySelector('#view-events thead')).display") == "none"


async def test_the_page_follows_a_log_that_grows(tab, tmp_path):
    log = list(read_log(LOG))
    async with page_in(tab, tmp_path) as (url, source):
        source.state = "live"
        await tab.open(url)
        await tab.until("document.querySelector('.charts').textContent.includes('Curves begin with the first step')")
        for share in (0.3, 0.6, 1.0):
            for envelope in log[source.history.progress.last : int(share * len(log))]:
                await source._receive(envelope)
            rows = source.tables.rows_changed_after(0)
            steps, trained = len(rows["steps"]), sum(row.trained > 0 for row in rows["episodes"])
            await tab.until(
                f"document.querySelector('.facts').textContent.includes('{steps} of 4') && {station('trained')} ==="
                f" {trained}"
            )
            slider = "document.querySelector('#slider')"
            await tab.until(
                f"[{slider}.value, {slider}.max].every(one => Number(one) === {source.history.progress.last})"
            )
        assert await tab.run("document.querySelector('#status').className") == "live"
        whole = [url for url in tab.requested if url.endswith("/api/rows?after=0")]
        assert len(whole) <= 2, "only what changed is asked for again"


def asked_of_the_log(tab):
    """Requests for parts of the log: not the icon, the notices and the telemetry, which a browser requests when it has
    time."""
    return [url for url in tab.requested if "/api/" in url and not url.endswith(("/api/changes", "/api/telemetry"))]


async def test_the_slider_takes_every_view_to_an_earlier_event_and_back(tab, tmp_path):
    log = list(read_log(LOG))
    middle = next(envelope.sequence for envelope in log if envelope.subject == "step.completed") + 3
    async with page_in(tab, tmp_path, file=LOG) as (url, source):
        await until_ended(source)
        rows = source.tables.episodes("true")
        await tab.open(url)
        await tab.until(f"{station('trained')} === 64")
        before = asked_of_the_log(tab)
        await tab.run(
            f"(s => {{ s.value = {middle}; s.dispatchEvent(new Event('input')); }})(document.querySelector('#slider'))"
        )
        trained = sum(0 < row.trained <= middle for row in rows)
        await tab.until(
            f"{station('trained')} === {trained} && document.querySelector('.facts').textContent.includes('1 of 4')"
        )
        assert asked_of_the_log(tab) == before, "the past is in the rows: nothing is asked for"
        await tab.run("document.querySelector('#slider').blur()")
        await tab.press("ArrowLeft")
        await tab.until(f"Number(document.querySelector('#slider').value) === {middle - 1}")
        await tab.press("ArrowRight", shift=True)
        await tab.until(f"Number(document.querySelector('#slider').value) === {middle + 99}")
        await tab.press("5")
        count = sum(row.position <= middle + 99 for row in source.tables.rows_changed_after(0)["batches"])
        await tab.until(f"document.querySelectorAll('#view-batches table')[0].rows.length === {count + 1}")
        await tab.press("Home")
        await tab.until(
            "document.querySelector('#view-batches').textContent.includes('No batch is formed at this event')"
        )
        await tab.press("1")
        await tab.until("document.querySelector('.charts').textContent.includes('Curves begin with the first step')")
        await tab.press("End")
        await tab.until(f"{station('trained')} === 64 && document.querySelector('#follow').disabled")


def long_episode(tokens):
    work = RunEpisode(
        episode="0.0", group="0", task=Task(id="t", data={"question": BREAKOUT}), sampling=SamplingParams()
    )
    half = tokens // 2
    columns = TokenColumns.of(
        range(1, tokens + 1), [-0.001 * number for number in range(tokens)], [0] * half + [1] * (tokens - half)
    )
    call = Interaction(id="i", prompt_suffix=pack_ids([1]), completion=columns, finish_reason="stop", worker=BREAKOUT)
    recipe = {"steps": 1, "algorithm": {"group_size": 1}, "staleness_gate": {"max_staleness": 1}}
    yield RunStarted(recipe=recipe, profile="embedded", reason=BREAKOUT, folder="runs/a")
    yield CapacityGranted(first_group=0, groups=1, weight_version=0)
    yield EpisodeScored(work=work, session="s", reward=1.0, output=BREAKOUT)
    trajectory = Trajectory(episode="0.0", group="0", attempt=1, task=BREAKOUT, reward=1.0, interactions=(call,))
    yield TrajectoryExported(trajectory=trajectory)


async def test_an_episode_of_5000_tokens_is_coloured_and_text_of_an_agent_stays_text(tab, tmp_path):
    async with page_in(tab, tmp_path) as (url, source):
        for number, event in enumerate(long_episode(5000), start=1):
            stamp = Stamp(id=f"m{number}", sender=BREAKOUT, time=1.7e9 + number)
            await source._receive(msgspec.structs.replace(Envelope.seal(event, stamp, "a"), sequence=number))
        await tab.open(f"{url}#episode")
        await tab.until("document.querySelectorAll('.token').length === 5000")
        colours = "new Set([...document.querySelectorAll('.token')].map(one => one.style.background)).size"
        assert await tab.run(colours) > 500
        await tab.run("document.querySelector('input[value=\"weight version\"]').click()")
        await tab.until(f"{colours} === 2")
        await tab.run("document.querySelector('.token').focus()")
        await tab.press("ArrowRight")
        await tab.until(
            "document.querySelector('#view-episode .tip').textContent.startsWith('token 1 of call 1 · id 2 · log p"
            " -0.0010')"
        )
        for view in VIEWS:
            await tab.run(f"location.hash = '{view}'")
            await tab.until(f"!document.querySelector('#view-{view}').hidden")
        await tab.run("location.hash = 'groups'")
        await tab.until(
            f"document.querySelector('.side pre')?.textContent === {msgspec.json.encode(BREAKOUT).decode()}"
        )
        await tab.run("location.hash = 'events'")
        await tab.until("document.querySelectorAll('#view-events td button').length === 4")
        await tab.run("document.querySelectorAll('#view-events td button')[1].click()")
        await tab.until("document.querySelector('.event pre')?.textContent.includes('onerror')")
        assert await tab.run("document.title") == "a · areal"
        assert await tab.run("document.querySelectorAll('img, script:not([src])').length") == 0


async def opened_afresh(tab, address):
    await tab.open("about:blank")
    await tab.until("location.href === 'about:blank'")
    await tab.open(address)


async def test_the_address_opened_afresh_shows_the_same_episode_group_and_moment(tab, tmp_path):
    async with page_in(tab, tmp_path, file=LOG) as (url, source):
        await until_ended(source)
        rows = [row for row in source.tables.episodes("true") if 0 < row.step < 4]
        others = {row.group: row.reward for row in rows}
        row = next(row for row in rows if row.reward != others[row.group])  # its advantage is not 0
        moment = source.history.progress.last - 5
        await opened_afresh(tab, f"{url}#episode?name={row.name}&colour=advantage&at={moment}")
        shown = "document.querySelector('#view-episode h2').textContent"
        await tab.until(f"{shown} === 'Episode {row.name}'")
        await tab.until("document.querySelector('#view-episode .scale').textContent.includes('abc')")
        assert await tab.run("document.querySelector('input[value=advantage]').checked")
        assert await tab.run("Number(document.querySelector('#slider').value)") == moment
        await tab.press("3")
        await tab.until("document.querySelectorAll('#view-groups .list button').length > 3")
        name = await tab.run("document.querySelectorAll('#view-groups .list b')[3].textContent")
        await tab.run("document.querySelectorAll('#view-groups .list button')[3].click()")
        address = await tab.until(f"location.href.includes('group={name}') && location.href")
        assert f"at={moment}" in address
        await opened_afresh(tab, address)
        await tab.until(f"document.querySelector('.answers h3')?.textContent.startsWith('group {name}:')")
        await opened_afresh(tab, f"{url}#events?event=3")
        await tab.until("document.querySelector('.event h3')?.textContent.startsWith('event 3:')")
        await opened_afresh(tab, f"{url}#what-if?set=staleness_gate.max_staleness%3D0")
        await tab.until("document.querySelectorAll('#view-what-if tr').length > 5")
        await tab.press("1")
        legend = "document.querySelector('[data-metric=reward_mean] .u-legend')?.textContent"
        await tab.until(f"{legend}?.includes('what if staleness_gate.max_staleness=0')")


async def test_equal_answers_are_one_and_differences_are_marked_by_more_than_colour(tab, tmp_path):
    async with page_in(tab, tmp_path, file=LOG) as (url, source):
        await until_ended(source)
        members = {}
        for row in source.tables.episodes("purpose = 'train'"):
            members.setdefault(row.group, []).append(row.reward)
        differing = [group for group, rewards in members.items() if len({*rewards} - {None}) > 1]
        await tab.open(f"{url}#groups")
        opened = await tab.until("document.querySelector('#view-groups [aria-pressed=true] b')?.textContent")
        assert opened == differing[-1], "the newest group whose answers differ"
        await tab.until("document.querySelectorAll('.side mark').length > 0")
        shapes = await tab.run("[...new Set(document.querySelector('[aria-pressed=true] .dots').textContent)].join('')")
        assert len(shapes) > 1
        counts = "[...document.querySelectorAll('.side h4')].map(one => parseInt(one.textContent) || 1)"
        assert sum(await tab.run(counts)) == len(members[opened])


async def test_two_people_watch_a_live_run_each_at_an_event_of_their_own(tab, tmp_path):
    log = list(read_log(LOG))
    async with page_in(tab, tmp_path) as (url, source), browser(tmp_path / "second") as other:
        source.state = "live"
        for envelope in log[:200]:
            await source._receive(envelope)
        slider = "Number(document.querySelector('#slider').value)"
        for one in (tab, other):
            await one.open(url)
            await one.until(f"{slider} === 200")
        await other.run("document.body.focus()")
        await other.press("Home")
        for envelope in log[200:]:
            await source._receive(envelope)
        await tab.until(f"{slider} === {len(log)} && {station('trained')} === 64")
        assert await other.run(slider) == 1
        await other.press("End")
        await other.until(f"{slider} === {len(log)} && {station('trained')} === 64")
        assert other.console == []
        await other.open("about:blank")


async def test_a_chart_is_saved_as_a_picture_and_a_token_has_its_values_beside_it(tab, tmp_path):
    async with page_in(tab, tmp_path, file=LOG) as (url, source):
        await until_ended(source)
        await tab.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        await tab.open(url)
        await tab.until("document.querySelector('[data-metric=loss] .save') !== null")
        await tab.run("document.querySelector('[data-metric=loss] .save').click()")
        picture = tmp_path / "gsm8k-grpo-areal-loss.png"
        await until(lambda: picture.is_file() and picture.read_bytes().startswith(b"\x89PNG"))
        await tab.press("4")
        await tab.until("document.querySelectorAll('.token').length > 0")
        await tab.run("document.querySelector('.token').focus()")
        near = (
            "(tip => !tip.hidden && Math.abs(tip.getBoundingClientRect().top - document.querySelector('.token')"
            ".getBoundingClientRect().bottom) < 120)(document.querySelector('.tip.at'))"
        )
        await tab.until(near)


async def test_the_list_opens_a_run_and_compares_two(tab, tmp_path):
    run_folder(tmp_path / "runs", "a", rewards=[0.1, 0.9], held_out=[0.25, 0.5, 0.75])
    run_folder(tmp_path / "runs", "b", recipe={**RECIPE, "seed": 4}, rewards=[0.2, 0.3])
    server = list_server(tmp_path / "runs")
    async with serving_page(server, Access("127.0.0.1"), "127.0.0.1", 0) as url:
        await tab.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        await tab.open(url)
        await tab.until("document.querySelectorAll('#view-runs tbody tr').length === 2")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        await tab.run("for (const one of document.querySelectorAll('#view-runs input[type=checkbox]')) one.click()")
        await tab.run(
            "[...document.querySelectorAll('button')].find(one => one.textContent === 'compare 2 runs').click()"
        )
        await tab.until("document.querySelectorAll('#view-compare .chart .u-over').length === 2")
        assert "95 % interval" in await tab.run("document.querySelector('#view-compare').textContent")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        await tab.run("document.querySelector('#view-compare a[href=\"run/a/\"]').click()")
        await tab.until("document.querySelector('#list') && document.querySelector('#name').textContent === 'a'")
        await tab.open("about:blank")
        await tab.until("location.href === 'about:blank'")


async def test_colours_follow_the_system_and_a_key_changes_them(tab, tmp_path):
    background = "getComputedStyle(document.body).backgroundColor"
    async with page_in(tab, tmp_path, file=LOG) as (url, source):
        await until_ended(source)
        await tab.dark(dark=True)
        await tab.open(url)
        await tab.until(f"{station('trained')} === 64")
        assert await tab.run(background) == "rgb(15, 19, 23)"
        await tab.dark(dark=False)
        await tab.until(f"{background} === 'rgb(255, 255, 255)'")
        await tab.press("d")
        await tab.until(f"{background} === 'rgb(15, 19, 23)'")
        await tab.open(url)
        await tab.until(f"{station('trained')} === 64")
        assert await tab.run(background) == "rgb(15, 19, 23)", "the choice is kept"


async def test_the_notice_of_a_damaged_log_and_a_server_that_ended_are_sentences(tab, tmp_path):
    log = tmp_path / "a.log"
    async with page_of(tmp_path, file=damaged(log)) as (url, source, _):
        await until_ended(source)
        await tab.open(url)
        await tab.until("!document.querySelector('#notice').hidden")
        text = await tab.run("document.querySelector('#notice').textContent")
        assert "this page shows what is before" in text
    await tab.until("document.querySelector('#status').textContent.startsWith('no connection')")
    assert all("ERR_" in message for message in tab.console), "failed connections only"
    tab.console.clear()


def damaged(path):
    with LogWriter(path, "a") as file:
        for envelope in list(read_log(LOG))[:200]:
            file.write(envelope)
    path.write_bytes(path.read_bytes()[:-20])
    return path
