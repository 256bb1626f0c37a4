"""A server of OpenAI's API whose model judges by rule, with the faults that such servers have; a process of its own.

`python tests/support/judge_server.py PORT_FILE`. The model judges an answer by the number of its words "good" and its
equals signs: the name of the model picks the faults. `GET /stats` returns the calls and how many ran at once.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

ANSWERS = re.compile(r"^# Answer ?(\w*)\n(.*?)(?=\n\n# |\n\nAnswer with one JSON|\Z)", re.DOTALL | re.MULTILINE)
KEY = "sk-judge"
SECONDS = 0.05


class JudgeServer:
    def __init__(self):
        self.calls = self.at_once = self.most_at_once = 0
        self.began: dict[str, float] = {}

    async def complete(self, request):
        self.calls += 1
        number, body = self.calls, await request.json()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.answer(number, body, request.headers.get("Authorization", ""))
        finally:
            self.at_once -= 1

    async def answer(self, number, body, authorization):
        model, prompt = body["model"], body["messages"][-1]["content"]
        if (fault := await self.fault(model, number, authorization, has_form="response_format" in body)) is not None:
            return fault
        await asyncio.sleep(SECONDS)
        text = "I like all of them." if model == "chatty" or (model == "flaky" and number % 5 == 0) else judge(prompt)
        if model in ("flaky", "plain-text"):
            text = f"Let me think {{hm}}.\n```json\n{text}\n```\nThat is my verdict."
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(text.split())}
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage})

    async def fault(self, model, number, authorization, *, has_form):
        """The answer of a server that fails in the way of this model; None if it does not."""
        if model == "flaky":
            return await flaky(number)
        is_early = time.monotonic() < self.began.setdefault(model, time.monotonic()) + 1.5
        faults = {
            "with-key": (authorization != f"Bearer {KEY}", refusal(401, "wrong key")),
            "plain-text": (has_form, refusal(400, "response_format is not supported")),
            "limited": (is_early, refusal(429, "slow down", "1")),
            "always-limited": (True, refusal(429, "slow down", "60")),
            "down": (True, refusal(503, "no GPU")),
        }
        fails, answer = faults.get(model, (False, None))
        return answer if fails else None

    async def stats(self, _request):
        return web.json_response({"calls": self.calls, "most_at_once": self.most_at_once})


def refusal(status, message, retry_after=""):
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


async def flaky(number):
    if number % 8 == 0:
        return refusal(429, "slow down", "0.3")
    if number % 9 == 0:
        return web.Response(text="<html>bad gateway</html>", status=502)
    if number % 11 == 0:
        await asyncio.sleep(30)
    if number % 13 == 0:
        return web.Response(text='{"choices": [{"mess', content_type="application/json")
    return None


def judge(prompt):
    """Scores of 2 for each word "good" and each equals sign, at most 10."""
    scores = {name: min(2 * len(re.findall(r"\bgood\b|=", text)), 10) for name, text in ANSWERS.findall(prompt)}
    if set(scores) == {"A", "B"}:
        difference = scores["A"] - scores["B"]
        return json.dumps({"reason": "goodness", "winner": "A" if difference > 0 else "B" if difference < 0 else "tie"})
    if set(scores) == {""}:
        criteria = re.findall(r"^- (\w+)", prompt.rpartition("# Criteria")[2], re.MULTILINE)
        return json.dumps({"reason": "goodness", **dict.fromkeys(criteria, scores[""])})
    return json.dumps({"reason": "goodness", "scores": scores})


async def serve(port_file):
    server = JudgeServer()
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", server.complete), web.get("/stats", server.stats)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    partial = port_file.with_suffix(".partial")
    partial.write_text(str(runner.addresses[0][1]))
    partial.rename(port_file)
    await asyncio.Event().wait()


class RunningServer:
    def __init__(self, url):
        self.url = f"{url}/v1"
        self._root = url

    def stats(self):
        with urllib.request.urlopen(f"{self._root}/stats", timeout=30) as answer:
            return json.load(answer)

    def calls(self):
        return self.stats()["calls"]


@contextmanager
def judge_server(folder):
    """Start the server; yields its address and counts."""
    port_file = Path(folder) / "judge-port"
    process = subprocess.Popen([sys.executable, __file__, str(port_file)])
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield RunningServer(f"http://127.0.0.1:{port_file.read_text()}")
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
