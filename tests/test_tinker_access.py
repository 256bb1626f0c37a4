"""Programs of this machine use `areal-actors serve tinker`; pages in a browser, other hosts without the key, and
unbounded requests do not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from support.tinker_harness import NAME, recorded, serving
from support.tiny_trainer import write_model

from areal_actors.tinker.access import TinkerAccess

CHROMIUM = os.environ.get("AREAL_CHROMIUM", "") or shutil.which("chromium") or ""
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom")
WRONG_TYPES = b'{"seq_id": "x", "session_id": 5, "request_id": 5, "tags": 5}'
PAGE = """<!doctype html><body><script>
async function attempt(path, options) {
    try {
        const answer = await fetch("ROOT/api/v1/" + path, options);
        return answer.type + answer.status;
    } catch (error) {
        return "refused";
    }
}
(async () => {
    const found = [];
    for (const type of ["text/plain", "application/x-www-form-urlencoded", "application/json"])
        for (const mode of ["no-cors", "cors"]) {
            const headers = {"Content-Type": type};
            found.push(await attempt("create_session", {method: "POST", mode, body: "{}", headers}));
        }
    for (const mode of ["no-cors", "cors"])
        found.push(await attempt("training_runs/RUN/checkpoints/weights/kept", {method: "DELETE", mode}));
    document.body.innerText = "attempts: " + found.join(" ");
})();
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def client(folder, tmp_path):
    async with serving(folder, tmp_path / "state", tmp_path / "temporary") as harness:
        yield harness


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Origin": "https://example.org"}, 403, "requests of web pages are refused; found one of https://example.org"),
        ({"Origin": "null"}, 403, "requests of web pages are refused"),
        ({"Host": "example.org:8423"}, 403, "found the host example.org"),
        (
            {"Content-Type": "text/plain"},
            415,
            "the content type of a body is application/json or application/x-protobuf; found text/plain",
        ),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "the content type of a body"),
    ],
)
async def test_what_a_page_can_have_a_browser_send_is_refused(client, headers, status, words):
    sent = {"Content-Type": "application/json", **headers}
    sessions = len(client.service.sessions)
    async with client.http.post(f"{client.root}/api/v1/create_session", data=b"{}", headers=sent) as answer:
        assert answer.status == status
        assert words in (await answer.json())["detail"]
    assert len(client.service.sessions) == sessions


@pytest.mark.parametrize("host", ["localhost:8423", "127.0.0.1:8423", "[::1]:8423", "127.0.0.1"])
def test_this_machine_may_be_named_in_each_way(host):
    assert TinkerAccess().refuse(make_mocked_request("GET", "/", headers={"Host": host})) is None


def test_off_the_loopback_interface_the_key_is_needed():
    access = TinkerAccess("0.0.0.0")
    assert access.key.startswith("tml-")
    for headers in ({}, {"X-API-Key": "tml-local"}, {"X-API-Key": ""}, {"X-API-Key": "tml-ü"}):
        status, reason = access.refuse(make_mocked_request("GET", "/", headers={"Host": "gpu7:8423", **headers}))
        assert (status, reason) == (
            401,
            "the key is not the one that `areal-actors serve tinker` has printed: set TINKER_API_KEY to it",
        )
    for headers in ({"X-API-Key": access.key}, {"Authorization": f"Bearer {access.key}"}):
        assert access.refuse(make_mocked_request("GET", "/", headers={"Host": "gpu7:8423", **headers})) is None


@pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium")
async def test_a_page_in_a_genuine_browser_changes_nothing(client, tmp_path):
    model_id = await client.model()
    await client.done("save_weights", {"model_id": model_id, "path": "kept"})
    sessions = len(client.service.sessions)
    page = PAGE.replace("ROOT", client.root).replace("RUN", model_id)

    async def show(_: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", show)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        words = [CHROMIUM, *OPTIONS, f"--user-data-dir={tmp_path}/profile", address]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate()
    finally:
        await runner.cleanup()
    assert "attempts: opaque0 " in output.decode(), "the page has sent its requests"
    assert len(client.service.sessions) == sessions
    assert [one["checkpoint_id"] for one in (await client.get("checkpoints"))["checkpoints"]] == ["weights/kept"]


async def test_requests_beyond_reason_are_refused_before_anything_is_made(client):
    body = recorded("create_model", session_id=client.session_id, model_seq_id=0, base_model=NAME)
    refused = await client.call("create_model", body | {"lora_config": {"rank": 10**9}}, status=400)
    assert refused["detail"].endswith("Expected `int` <= 1024 - at `$.lora_config.rank`")
    model_id = await client.model()
    refused = await client.call("optim_step", {"model_id": model_id, "adam_params": {"learning_rate": 1e6}}, status=400)
    assert refused["detail"].endswith("Expected `float` <= 1.0 - at `$.adam_params.learning_rate`")
    promise = await client.call("asample", client.sample_body(await client.sampler(), num_samples=10**9))
    assert (await client.result(promise))["error"] == "num_samples is 1000000000: write 1 to 1024"


@pytest.mark.parametrize("path", ["create_session", "forward_backward", "retrieve_future"])
@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b'{"a":' * 100_000, WRONG_TYPES])
async def test_json_that_cannot_be_read_is_400_with_the_reason(client, path, data):
    async with client.http.post(
        f"{client.root}/api/v1/{path}", data=data, headers={"Content-Type": "application/json"}
    ) as answer:
        text = await answer.text()
        assert answer.status == 400, text
        assert json.loads(text)["detail"]
