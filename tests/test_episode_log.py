from __future__ import annotations

import json

import pytest
from support.samples import abandoned, interaction, published, trajectory, work

from areal_actors.messages import (
    CapacityGranted,
    EpisodeEvaluated,
    EpisodeScored,
    InteractionRecorded,
    InteractionsRecorded,
    TrajectoryExported,
)
from areal_actors.metrics.episode_log import EpisodeLog


class Letters:
    def decode(self, ids, *, skip_special):
        assert not skip_special
        return "".join(map(chr, ids))


@pytest.fixture
def log(tmp_path):
    return EpisodeLog(tmp_path / "episodes.jsonl", lambda folder: Letters())


def recorded(episode, name, *, parent="", version=0, purpose="train"):
    return InteractionRecorded(
        session="s",
        episode=episode,
        interaction=name,
        parent=parent,
        prompt_tokens=5,
        completion_tokens=2,
        finish_reason="stop",
        weight_version=version,
        purpose=purpose,
    )


def lines(log):
    return [json.loads(line) for line in log.path.read_text().splitlines()]


async def test_an_exported_episode_is_printed_with_its_texts(send, log):
    turns = (interaction("a", "hi", 0, 1, prompt="hello?"), interaction("b", "ho", 2, parent="a", prompt="more?"))
    await send(log, published(0), CapacityGranted(first_group=2, groups=2, weight_version=0), now=100.0)
    await send(log, InteractionsRecorded(recorded=(recorded("3.1", "a"),)))
    await send(log, EpisodeScored(work=work("3.1"), session="s", reward=1.0, output="ho"))
    made = trajectory("3.1", *turns, reward=0.5)
    await send(log, TrajectoryExported(trajectory=made, recorded=(recorded("3.1", "b"),)), now=107.5)
    (line,) = lines(log)
    assert {key: value for key, value in line.items() if key != "interactions"} == {
        "time": 107.5,
        "outcome": "exported",
        "task_id": "task",
        "task": {"question": "why?"},
        "episode": "3.1",
        "group": "3",
        "attempt": 1,
        "purpose": "train",
        "output": "ho",
        "reward": 0.5,
        "ended_by": "agent",
        "end_cause": "",
        "completion_tokens": 4,
        "weight_versions": [0, 2],
        "seconds": 7.5,
    }
    first, second = line["interactions"]
    assert (first["prompt"], first["completion"], first["prompt_tokens"], first["weight_versions"]) == (
        "hello?",
        "hi",
        5,
        [0, 1],
    )
    assert (second["id"], second["parent"], second["finish_reason"], second["reward"]) == ("b", "a", "stop", None)
    assert second["prompt_tokens"] == 5


async def test_evaluated_and_abandoned_episodes_are_printed_without_texts(send, log):
    evaluated = EpisodeEvaluated(
        work=work("evaluation-0-greedy.1", purpose="evaluate"), reward=1.0, output="42", completion_tokens=2
    )
    await send(log, recorded("evaluation-0-greedy.1", "a", version=3, purpose="evaluate"), evaluated, abandoned("1.0"))
    solved, lost = lines(log)
    assert (solved["outcome"], solved["purpose"], solved["output"], solved["reward"], solved["seconds"]) == (
        "evaluated",
        "evaluate",
        "42",
        1.0,
        None,
    )
    assert (solved["interactions"][0]["id"], solved["weight_versions"], solved["completion_tokens"]) == ("a", [3, 3], 2)
    assert (lost["outcome"], lost["reason"], lost["detail"], lost["interactions"]) == (
        "abandoned",
        "agent",
        "as it happens",
        [],
    )


async def test_nothing_is_kept_of_episodes_that_are_over_nor_written_twice(send, log):
    await send(
        log, recorded("1.0", "a"), abandoned("1.0", attempts_left=1), recorded("1.0", "b"), abandoned("1.0", attempt=2)
    )
    assert [[turn["id"] for turn in line["interactions"]] for line in lines(log)] == [["a"], ["b"]]
    assert (log.recorded, log.scored) == ({}, {})
    await send(log, abandoned("2.0"), replayed=True)
    assert len(lines(log)) == 2
