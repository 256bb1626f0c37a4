"""Verdicts of judges about the recorded outputs of a run: questions whose answers are in the log cost nothing."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.messages import EpisodeScored, JudgeAnswer, RunEpisode
from areal_actors.processes.judge_models import model_outside_run
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.judge.answer_store import AnswerStore
from areal_actors.rewards.judge.comparisons import Candidate
from areal_actors.rewards.judge.engine_model import EngineModel
from areal_actors.rewards.judge.judge_client import JudgeModel
from areal_actors.rewards.judge.panel import JudgePanel
from areal_actors.rewards.judge.settings import ModelJudge, judges_of
from areal_bus.base import Envelope

UNBOUNDED = 2**62


class JudgeBill(msgspec.Struct):
    """Questions to judges about recorded outputs, and what was new among them."""

    questions: int = 0
    """Different questions."""
    calls: int = 0
    """Calls of models; 0 if the log, or a file beside it, has every answer."""
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def sentence(self) -> str:
        """Returns the bill as a sentence."""
        return (
            f"judges: {self.questions:,} questions, {self.calls:,} calls ({self.tokens:,} tokens, cost {self.cost:.4g})"
            f" in {self.seconds:.1f} s"
        )


class RecordedOutputs(msgspec.Struct):
    """Outputs of trained episodes in a log, and the answers of judges about them."""

    answers: list[JudgeAnswer]
    works: dict[str, tuple[RunEpisode, str]]
    """Attempt and output of each episode."""


async def read_outputs(log: AsyncGenerator[Envelope, None]) -> RecordedOutputs:
    """Returns what a log has for judges; of several scored attempts at an episode, the last."""
    outputs = RecordedOutputs([], {})
    async with aclosing(log):
        async for envelope in log:
            if envelope.subject == EpisodeScored.subject:
                event = envelope.open(EpisodeScored)
                outputs.answers += event.judged
                if event.reward is not None and event.work.purpose == "train":
                    outputs.works[event.work.episode] = (event.work, event.output)
    return outputs


async def rejudge(
    outputs: RecordedOutputs, recipe: Recipe, answers: Path
) -> tuple[dict[str, Mapping[str, Any]], JudgeBill]:
    """Returns the rows of trained tasks with the verdicts about their outputs, by episode, and the bill.

    Args:
        outputs: those of the recorded run.
        recipe: the recipe, with the judges of now.
        answers: file beside the log with the answers of earlier comparisons; new ones are added.
    """
    groups: dict[str, dict[str, Candidate]] = defaultdict(dict)
    for episode, (work, output) in outputs.works.items():
        groups[work.group][episode] = Candidate(work.task.data, output)
    began = time.monotonic()
    panel = JudgePanel(
        judges_of(recipe.task.reward, recipe.task.reward_options),
        seed=recipe.seed,
        group_size=recipe.algorithm.group_size,
        model_of=partial(_model_of, recipe),
        store=AnswerStore(outputs.answers, file=answers, size=UNBOUNDED),
    )
    try:
        judged = await panel.judge_groups(groups)
    finally:
        await panel.close()
    bill = JudgeBill(seconds=time.monotonic() - began)
    given = {answer.key: answer for one in judged.values() for answer in one.answers}
    new = {answer.key: answer for one in judged.values() for answer in one.answers if answer.calls}
    bill.questions = len(given)
    for answer in new.values():
        bill.calls, bill.tokens, bill.cost = (
            bill.calls + answer.calls,
            bill.tokens + answer.tokens,
            bill.cost + answer.cost,
        )
    return {episode: one.task for episode, one in judged.items()}, bill


def _model_of(recipe: Recipe, judge: ModelJudge) -> JudgeModel:
    if judge.url or judge.policy:
        return model_outside_run(recipe, judge)
    return EngineModel(judge, lambda: recipe.model, recipe.generation.max_model_len)
