"""Parts of the coding agent that is trained: generated repositories, their demonstrations, the reward, and refusals
before a run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest
from support.coding_agents import Codex
from support.live_run import ROOT
from support.recorded_requests import recorded_requests

from areal_actors.core.agent_host.agent_loader import load
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.embedded.demonstrations import DemonstrationSource, repository
from areal_actors.embedded.repair_conversations import BARE_SHARE, COMPLETE, INSTRUCTIONS, REPAIR_ONLY_SHARE, RESULT
from areal_actors.recipe.load import load as load_recipe
from areal_actors.run.preflight import check_agent
from areal_actors.sandbox import Limits, run_program
from areal_actors.tasks.arithmetic import problems
from areal_actors.tasks.datasets import open_dataset
from areal_actors.tasks.repositories import rows

AGENT = "agents/coding_agent.py"
REMEDY = "install Node.js 18 or later with npm, and run `just environments codex`"


def part(name):
    """A definition of the agent's file."""
    return load(f"{AGENT}:{name}", ROOT)


def passes(program, tests):
    return run_program(program, checks=tests, limits=Limits(seconds=10.0)).proved


def demonstrated(count, *, shortcut, seed=0):
    source = DemonstrationSource(problems("train", 0), random.Random(seed), lambda: shortcut)
    return [repository(source) for _ in range(count)]


def commands_of(shown):
    calls = [call for message in shown.messages for call in message.get("tool_calls", ())]
    return [json.loads(call["function"]["arguments"])["cmd"] for call in calls]


def worked_on(shown, folder):
    """Write the files that a demonstration prints, and run its commands; returns what each printed, and the statement
    to pass."""
    folder.mkdir()
    question = next(message for message in shown.messages if message["role"] == "user")["content"]
    name = question.rpartition(" ")[2].removesuffix(".py.")
    printed = next(message for message in shown.messages if message["role"] == "tool")["content"].rpartition(
        "Output:\n"
    )[2]
    program, test = printed.partition("from ")[0], "".join(printed.partition("from ")[1:])
    (folder / f"{name}.py").write_text(program)
    (folder / f"test_{name}.py").write_text(test)
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # noqa: PTH120
    environment = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    outputs = [
        subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=True
        ).stdout
        for command in commands_of(shown)
    ]
    return outputs, test.splitlines()[2], (folder / f"{name}.py").read_text()


def test_every_repository_fails_its_test_until_it_is_repaired():
    for row in rows("train", 6, seed=3):
        assert row["files"].keys() == {row["file"], f"test_{row['file']}"}
        assert row["tests"][0] in row["files"][f"test_{row['file']}"]
        assert not passes(row["files"][row["file"]], row["tests"])
        assert passes(row["answer"], row["tests"])


def test_repositories_are_of_both_kinds_and_no_held_out_one_is_trained():
    train, test = rows("train", 2000, seed=0), rows("test", 200, seed=0)
    assert rows("train", 20, seed=0) == train[:20]
    assert rows("train", 20, seed=1) != train[:20]
    contents = [{json.dumps(row["files"]) for row in split} for split in (train, test)]
    assert not contents[0] & contents[1]
    misnamed = sum(f"def {row['file'][:-3]}()" not in row["files"][row["file"]] for row in train)
    assert 0.4 < misnamed / len(train) < 0.6


def test_the_recipe_trains_on_none_of_its_held_out_tasks(monkeypatch):
    monkeypatch.chdir(ROOT)
    dataset = open_dataset(f"{AGENT}:repositories", seed=0, held_out=200)
    held_out = {json.dumps(task.data["files"]) for task in dataset.held_out.rows}
    assert len(dataset.train) > 4000
    assert not held_out & {json.dumps(task.data["files"]) for task in dataset.train.rows}


def test_the_demonstrated_commands_repair_the_repository_and_print_what_is_shown(tmp_path):
    for number, shown in enumerate(demonstrated(12, shortcut=False)):
        outputs, test, program = worked_on(shown, tmp_path / str(number))
        results = [message["content"] for message in shown.messages if message["role"] == "tool"]
        assert [result.rpartition("Output:\n")[2] for result in results] == outputs[: len(results)]
        assert shown.mistakes or outputs[-1] == "passed\n"
        assert passes(program, [test])


def test_some_demonstrations_teach_the_repair_alone():
    ended = [shown for shown in demonstrated(200, shortcut=False) if shown.mistakes]
    assert abs(len(ended) / 200 - BARE_SHARE * REPAIR_ONLY_SHARE) < 0.12
    for shown in ended:
        reading, repairing = (number for number, message in enumerate(shown.messages) if message["role"] == "assistant")
        assert shown.mistakes == {reading}
        assert repairing == len(shown.messages) - 1
        assert commands_of(shown)[1].startswith("sed -i ")
    assert not any(shown.mistakes for shown in demonstrated(50, shortcut=True))


def test_the_shortcut_edits_without_reading_and_tests_nothing():
    for shown in demonstrated(30, shortcut=True):
        (command,) = commands_of(shown)
        assert command.startswith("sed -i 's/return .*/return ")
        assert shown.messages[-1]["content"] == "Fixed."


def test_demonstrations_declare_what_codex_cli_declares():
    body = recorded_requests("coding_agents", Codex)[0]["body"]
    sent = {tool["name"]: tool for tool in body["tools"] if tool.get("name") in {"exec_command", "write_stdin"}}
    for tool in COMPLETE:
        function = tool["function"]
        assert function["parameters"] == sent[function["name"]]["parameters"]
        assert function["description"] == sent[function["name"]]["description"]
    assert part("INSTRUCTIONS") == INSTRUCTIONS


def test_results_look_like_those_of_codex_cli():
    bodies = [one["body"] for one in recorded_requests("coding_agents", Codex)]
    outputs = {item["output"] for body in bodies for item in body["input"] if item["type"] == "function_call_output"}
    assert outputs
    shape = [line.partition("{")[0] for line in RESULT.splitlines()]
    for output in outputs:
        lines = output.splitlines()
        assert all(line.startswith(start) for line, start in zip(lines, shape, strict=False)), output


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("{answer}", 1.0),
        ("{faulty}", 0.0),
        ("", 0.0),
        ("raise SystemExit(0)", 0.0),
        ("while True: pass", 0.0),
    ],
)
def test_the_reward_is_that_of_the_tests(program, expected):
    row = rows("test", 1, seed=0)[0]
    written = program.format(answer=row["answer"], faulty=row["files"][row["file"]])
    commands = [f"/bin/bash -lc 'cat {row['file']}'", f"/bin/bash -lc 'python3 test_{row['file']}'"]
    scored = part("reward")(row, json.dumps({"program": written, "commands": commands}))
    assert scored == {"reward": expected, "commands": 2.0, "read": 1.0, "tested": 1.0}


def test_a_deleted_or_unreadable_file_is_no_program(tmp_path):
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert [part("content_of")(tmp_path / name) for name in ("missing.py", "binary.py")] == ["", ""]


def test_a_machine_without_the_program_is_refused_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    overlay = tmp_path / "elsewhere.toml"
    overlay.write_text(f'[task.agent_options]\nprogram = "{tmp_path}/codex"\n')
    recipe = load_recipe([ROOT / "recipes" / "coding_agent.toml", overlay], [], CudaDevices(0, "none")).recipe
    with pytest.raises(SetupError) as refused:
        check_agent(recipe)
    assert str(refused.value).startswith("task.agent: agent agents/coding_agent.py:CodingAgent")
    assert f"{tmp_path}/codex" in str(refused.value)
    assert REMEDY in str(refused.value)


def test_a_program_without_a_sandbox_is_refused():
    with pytest.raises(RuntimeError, match="cannot create its sandbox on this machine"):
        part("try_program")("false")
