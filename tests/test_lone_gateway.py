"""`areal-actors serve gateway --engine URL`: the real OpenAI and Anthropic clients, a server with a model, and the file
of recorded calls."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anthropic
import numpy as np
import openai
import pytest
import torch
from support.genuine_servers import started
from support.regions import base_environment
from support.tiny_engine import random_qwen, save

from areal_actors.cli import main
from areal_actors.generation.engine import EnginePlace
from areal_actors.tokenization.tokenizer import ChatTokenizer

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "tests" / "support" / "completions_server.py"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}<mark>{% endfor %}assistant: "
pytestmark = pytest.mark.slow
QUESTION = [{"role": "user", "content": "2 + 3 ="}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    network = random_qwen(3)
    save(network, folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "chat_template": TEMPLATE}))
    return network, folder


@pytest.fixture(scope="module")
def server(model):
    with process([sys.executable, str(SERVER), str(model[1])], ROOT) as running:
        yield running.stdout.readline().strip()


@contextmanager
def process(command, cwd, env=None):
    """A process that ends with the block."""
    running = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.terminate()  # a shell that starts the tests in the background takes Ctrl-C from Python's programs
        try:
            running.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()


@contextmanager
def gateway(url, folder, *words):
    """The command, without the packages of extras; yields address, key, admin key and process."""
    command = [sys.executable, "-m", "areal_actors", "serve", "gateway", "--engine", url, "--port", "0", *words]
    with process(command, folder, base_environment()) as running:
        shown = ""
        while "admin key" not in shown:
            line = running.stdout.readline()
            assert line, running.stderr.read()
            shown += line
        base_url, key = re.search(r'base_url="(.+)", api_key="(.+)"', shown).groups()
        yield base_url, key, shown.rpartition(": ")[2].strip(), running


def recorded(folder, name="calls.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def plain_logprobs(network, prompt, token_ids):
    with torch.no_grad():
        logits = network(torch.tensor([prompt + token_ids])).logits[0]
    scores = torch.log_softmax(logits, -1)
    return [scores[len(prompt) - 1 + place, token].item() for place, token in enumerate(token_ids)]


def test_every_call_is_recorded_with_its_ids_and_their_logprobs(server, model, tmp_path):
    network, folder = model
    chat = ChatTokenizer.load(folder)
    with gateway(server, tmp_path) as (base_url, key, _, running):
        client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
        first = client.chat.completions.create(
            model="default", messages=QUESTION, max_tokens=8, logprobs=True, temperature=0
        )
        answer = {"role": "assistant", "content": first.choices[0].message.content}
        more = [*QUESTION, answer, {"role": "user", "content": "and 4 ="}]
        parts = list(client.chat.completions.create(model="default", messages=more, max_tokens=8, stream=True))
        other = anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0)
        other.messages.create(model="default", messages=QUESTION, max_tokens=8)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    calls = recorded(tmp_path)
    assert len(calls) == 3
    assert [call["interaction"] for call in calls][:2] == [first.id, parts[0].id]
    assert chat.tokenizer.decode(calls[0]["prompt_ids"], skip_special_tokens=False) == "user: 2 + 3 =<mark>assistant: "
    assert calls[0]["logprobs"] == pytest.approx(
        [token.logprob for token in first.choices[0].logprobs.content], abs=1e-5
    )
    assert calls[1]["prefix"] == first.id
    assert calls[1]["prompt_ids"][: len(calls[0]["prompt_ids"])] == calls[0]["prompt_ids"]
    for call in calls:
        assert call["subject"] == "interaction.recorded"
        assert 0 < len(call["token_ids"]) <= 8
        assert call["completion_tokens"] == len(call["token_ids"]) == len(call["logprobs"])
        expected = plain_logprobs(network, call["prompt_ids"], call["token_ids"])
        assert np.abs(np.array(call["logprobs"]) - expected).max() < 1e-4


def test_calls_in_which_a_rule_matches_are_recorded_without_tokens_and_texts(server, tmp_path):
    with gateway(server, tmp_path, "--redact", "email", "phone") as (base_url, key, _, running):
        client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
        for text in ("2 + 3 =", "of ann@example.com"):
            messages = [{"role": "user", "content": text}]
            answer = client.chat.completions.create(model="default", messages=messages, max_tokens=8, temperature=0)
        messages += [answer.choices[0].message.model_dump(include={"role", "content"}), *QUESTION]
        client.chat.completions.create(model="default", messages=messages, max_tokens=8)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    first, *matched = recorded(tmp_path)
    assert {"prompt_ids", "token_ids", "logprobs", "answer"} <= first.keys()
    assert [call["redacted"] for call in matched] == [{"email": 1}] * 2
    assert all(not {"prompt_ids", "token_ids", "logprobs", "answer"} & call.keys() for call in matched)
    assert b"ann@example" not in (tmp_path / "calls.jsonl").read_bytes()


def test_a_key_of_ones_own_and_sessions_over_http(server, tmp_path):
    with gateway(server, tmp_path, "--key", "my-key", "--record", "mine.jsonl") as (base_url, key, admin, _):
        assert key == "my-key"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=base_url, api_key="another", max_retries=0).chat.completions.create(
                model="m", messages=QUESTION
            )
        http = openai.OpenAI(base_url=base_url.removesuffix("/v1"), api_key=admin, max_retries=0)
        opened = http.post("/rl/start_session", body={"task_id": "hello"}, cast_to=object)
        client = openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"], max_retries=0)
        client.chat.completions.create(model="m", messages=QUESTION, max_tokens=4)
        openai.OpenAI(base_url=base_url, api_key=key, max_retries=0).chat.completions.create(
            model="m", messages=QUESTION, max_tokens=4
        )
        sessions = [call["session"] for call in recorded(tmp_path, "mine.jsonl")]
        assert len(set(sessions)) == 2
        assert sessions[0] == opened["session_id"]


def test_the_session_of_the_key_is_opened_again_when_it_has_ended(server, tmp_path):
    with gateway(server, tmp_path) as (base_url, key, _, _):
        client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
        client.chat.completions.create(model="m", messages=QUESTION, max_tokens=4)
        openai.OpenAI(base_url=base_url.removesuffix("/v1"), api_key=key, max_retries=0).post(
            "/rl/end_session", cast_to=object
        )
        openai.OpenAI(base_url=base_url, api_key=key, max_retries=5).chat.completions.create(
            model="m", messages=QUESTION, max_tokens=4
        )
        assert len({call["session"] for call in recorded(tmp_path)}) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--engine", "http://127.0.0.1:9"], "does not answer"),
        (["--engine", "{server}", "--model", "{empty}"], "holds no tokenizer.json"),
        (
            ["--engine", "{server}", "--record", "nowhere/calls.jsonl"],
            "--record: nowhere/calls.jsonl cannot be written",
        ),
    ],
)
def test_what_cannot_be_used_is_named(server, tmp_path, monkeypatch, capsys, words, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert (
        main(
            [
                "serve",
                "gateway",
                "--port",
                "0",
                *(word.format(server=server, empty=tmp_path / "empty") for word in words),
            ]
        )
        == 1
    )
    assert complaint in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_genuine_servers(name, model, tmp_path):

    network, folder = model
    with ExitStack() as stack:
        _, url = started(stack, name, str(folder), tmp_path, EnginePlace())
        with gateway(url, tmp_path, "--model", str(folder), "--kind", name) as (base_url, key, _, _):
            client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
            client.chat.completions.create(model="m", messages=QUESTION, max_tokens=8)
        (call,) = recorded(tmp_path)
    expected = plain_logprobs(network, call["prompt_ids"], call["token_ids"])
    assert np.abs(np.array(call["logprobs"]) - expected).max() < 1e-3
