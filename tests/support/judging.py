"""Panels of judges and the episodes that they judge, for tests."""

from __future__ import annotations

from random import Random

from conftest import FakeContext

from areal_actors.core.values import SamplingParams, Task
from areal_actors.messages import RunEpisode
from areal_actors.rewards.judge.panel import JudgePanel
from areal_actors.rewards.judge.settings import judges_of

CONTEXT = FakeContext(1, 0.0, {}, False, {})


def panel_of(url, *, group_size=1, seed=0, store=None, **options):
    """A panel with one judge at this URL."""
    table = {"url": url, "model": "steady", "scale": 10, "call_seconds": 2.0, **options}
    return JudgePanel(judges_of("judge", table), seed=seed, group_size=group_size, store=store)


def work(episode, *, purpose="train", question="How good is it?"):
    """An attempt at an episode; its group is what stands before the point."""
    task = Task(id="t", data={"id": "t", "question": question})
    group = episode.rpartition(".")[0]
    return RunEpisode(episode=episode, group=group, task=task, purpose=purpose, sampling=SamplingParams())


def verdict_of(judged, name="judge"):
    """The verdict that the reward `judge` reads."""
    return judged.task["__judge_verdicts__"][name]


def answer_with(good, number=0):
    """An answer that the scripted judge scores with 2 for each `good`, each number in other words."""
    words = ["good"] * good + Random(number).sample(["tall", "blue", "round", "late", "wide", "calm"], 5)
    return " ".join([*words, str(number)])
