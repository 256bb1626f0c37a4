"""Run with `python -m pytest`: the reward, and the agent against a server with a fixed answer."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agent import TURNS, Agent, Environment, reward

TASK = json.loads((Path(__file__).parent / "tasks.jsonl").read_text(encoding="utf-8").splitlines()[0])


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
    output = asyncio.run(Agent().run(TASK, base_url=base_url, api_key="any"))
    assert reward(TASK, output) == 1.0


def test_the_environment_ends_with_the_right_answer_or_its_last_turn() -> None:
    environment = Environment(TASK)
    assert environment.reset() == TASK["question"]
    for _ in range(TURNS - 1):
        assert "wrong" in environment.step("no number")
        assert not environment.done
    environment.step("no number")
    assert environment.done
    won = Environment(TASK)
    won.step(f"#### {TASK['answer']}")
    assert won.done
