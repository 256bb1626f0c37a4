"""Run with `python -m pytest`: the reward, and the agent against a server with a fixed answer."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from reward import reward

HERE = Path(__file__).parent
TASK = json.loads((HERE / "tasks.jsonl").read_text(encoding="utf-8").splitlines()[0])


class Model(BaseHTTPRequestHandler):
    """Answers each chat completion with the task's answer."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": f"#### {TASK['answer']}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "default", "choices": [choice]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def base_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_the_reward_is_for_the_right_answer_only() -> None:
    assert reward(TASK, f"#### {TASK['answer']}") == 1.0
    assert reward(TASK, f"{TASK['answer']} or {int(TASK['answer']) + 1}") == 0.0
    assert reward(TASK, "no number") == 0.0


def test_the_agent_returns_an_output_that_can_be_scored(base_url: str) -> None:
    given = os.environ | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "any"}
    done = subprocess.run(
        ["node", HERE / "agent.mjs"], input=json.dumps(TASK), env=given, capture_output=True, text=True, check=True
    )
    assert reward(TASK, json.loads(done.stdout.splitlines()[-1])["output"]) == 1.0
