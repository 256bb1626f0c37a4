"""The judges of a recipe's reward, which the reward worker asks about every answer."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from areal_actors.core.errors import RewardError
from areal_actors.messages import JudgeAnswer, RunEpisode, ScoreEpisode
from areal_actors.rewards.judge.answer_store import AnswerStore
from areal_actors.rewards.judge.comparisons import Candidate, GroupComparisons, JudgeFinding, compare
from areal_actors.rewards.judge.engine_model import HANDLING
from areal_actors.rewards.judge.inquiry import Inquiry
from areal_actors.rewards.judge.judge_client import JudgeModel, UrlModel
from areal_actors.rewards.judge.questions import describe_criteria
from areal_actors.rewards.judge.settings import VERDICTS, ModelJudge
from areal_actors.rewards.judge.verdict_forms import score_form
from areal_actors.runtime.actor import Context

SCORED: ContextVar[ScoreEpisode | None] = ContextVar("judge_scored", default=None)
"""The answer that is judged, for models that need its session."""
T = TypeVar("T")
ModelOf = Callable[[ModelJudge], JudgeModel]


class Judged(NamedTuple):
    """Verdicts of all judges about an answer."""

    task: Mapping[str, Any]
    """The task's row, with the verdicts for the reward `judge`."""
    metrics: Mapping[str, float]
    answers: tuple[JudgeAnswer, ...]


async def score_by_rubric(inquiry: Inquiry, task: Mapping[str, Any], output: str) -> JudgeFinding:
    """Returns the finding about an answer by a rubric; raises RewardError if the judge gives no verdict."""
    judge = inquiry.judge
    criteria = judge.rubric()
    form = score_form(list(criteria), judge.scale, explains=judge.explains)
    places = {
        "answer": output,
        "scale": str(judge.scale),
        "criteria": describe_criteria({name: criterion.description for name, criterion in criteria.items()}),
        "form": form.request,
    }
    prompt = judge.template().render(task, places)
    verdicts = await asyncio.gather(*(inquiry.ask(prompt, form, number) for number in range(judge.samples)))
    samples = [judge.aggregate_scores(verdict.scores) for verdict in verdicts]
    shares = {
        f"{judge.name}:{name}": statistics.fmean(verdict.scores[name] for verdict in verdicts) for name in criteria
    }
    return JudgeFinding(statistics.fmean(samples), samples, [verdict.answer for verdict in verdicts], shares)


class JudgePanel:
    """Asks all judges of a reward at once."""

    def __init__(
        self,
        judges: Mapping[str, ModelJudge],
        *,
        seed: int,
        group_size: int,
        model_of: ModelOf = UrlModel,
        store: AnswerStore | None = None,
    ) -> None:
        """`seed` is that of the run; `group_size` the number of answers that a comparison waits for."""
        store = store or AnswerStore()
        self._inquiries = [Inquiry(judge, model_of(judge), store, seed) for judge in judges.values()]
        self._comparisons = {
            inquiry.judge.name: GroupComparisons(inquiry, group_size)
            for inquiry in self._inquiries
            if inquiry.judge.compares()
        }

    def longest_seconds(self) -> float:
        """Returns the longest time that a verdict may take, over all judges."""
        judges = [inquiry.judge for inquiry in self._inquiries]
        return max(
            judge.patience_seconds
            + (judge.group_seconds if judge.compares() else 0.0)
            + (judge.retries + 1) * judge.call_seconds
            for judge in judges
        )

    async def judge(self, scored: ScoreEpisode, context: Context) -> Judged:
        """Returns the verdicts about an answer.

        Raises:
            RewardError: a judge gives none; the message names it.
        """
        HANDLING.set(context)
        SCORED.set(scored)
        work, output = scored.work, scored.output
        findings = await asyncio.gather(*(self._ask(inquiry, work, output, context) for inquiry in self._inquiries))
        return self._collect_verdicts(work.task.data, findings)

    async def judge_groups(self, groups: Mapping[str, Mapping[str, Candidate]]) -> dict[str, Judged]:
        """Returns the verdicts about recorded answers, by episode; that of a judge which fails is its failure."""
        by_group = await asyncio.gather(*(self._judge_group(name, members) for name, members in groups.items()))
        return {episode: judged for group in by_group for episode, judged in group.items()}

    async def _judge_group(self, name: str, members: Mapping[str, Candidate]) -> dict[str, Judged]:
        found = await asyncio.gather(*(self._find(inquiry, name, members) for inquiry in self._inquiries))
        return {
            episode: self._collect_verdicts(candidate.task, [findings[episode] for findings in found])
            for episode, candidate in members.items()
        }

    async def _find(
        self, inquiry: Inquiry, name: str, members: Mapping[str, Candidate]
    ) -> Mapping[str, JudgeFinding | RewardError]:
        if not inquiry.judge.compares():
            scored = (score_by_rubric(inquiry, member.task, member.output) for member in members.values())
            return dict(zip(members, await asyncio.gather(*map(_result_of, scored)), strict=True))
        compared = await _result_of(compare(inquiry, name, members, len(members)))
        return dict.fromkeys(members, compared) if isinstance(compared, RewardError) else compared

    def _collect_verdicts(self, task: Mapping[str, Any], findings: Sequence[JudgeFinding | RewardError]) -> Judged:
        verdicts: dict[str, Any] = {}
        for inquiry, finding in zip(self._inquiries, findings, strict=True):
            verdicts[inquiry.judge.name] = (
                str(finding)
                if isinstance(finding, RewardError)
                else {**_own_metrics(finding.metrics), "reward": finding.reward}
            )
        given = [finding for finding in findings if isinstance(finding, JudgeFinding)]
        answers = tuple(answer for finding in given for answer in finding.answers)
        return Judged({**task, VERDICTS: verdicts}, panel_metrics(given), answers)

    async def close(self) -> None:
        """Close all connections."""
        for inquiry in self._inquiries:
            await inquiry.close()

    async def _ask(self, inquiry: Inquiry, work: RunEpisode, output: str, context: Context) -> JudgeFinding:
        if comparisons := self._comparisons.get(inquiry.judge.name):
            return await comparisons.finding(work, output, context)
        return await score_by_rubric(inquiry, work.task.data, output)


async def _result_of(coroutine: Coroutine[Any, Any, T]) -> T | RewardError:
    try:
        return await coroutine
    except RewardError as error:
        return error


def panel_metrics(findings: Sequence[JudgeFinding]) -> dict[str, float]:
    """Returns what all judges spent on an answer, and how far they, or the samples of one, are apart.

    A comparison is spent on all answers that it compared, in equal shares.
    """
    metrics = dict.fromkeys(("judge_calls", "judge_tokens", "judge_cost", "judge_seconds", "judge_reused"), 0.0)
    for finding in findings:
        share = finding.share
        for answer in finding.answers:
            metrics["judge_calls"] += answer.calls * share
            metrics["judge_tokens"] += answer.tokens * share
            metrics["judge_cost"] += answer.cost * share
            metrics["judge_seconds"] = max(metrics["judge_seconds"], answer.seconds)
            metrics["judge_reused"] += share * (answer.calls == 0)
        metrics |= {name: finding.metrics[name] for name in COMPARISON if name in finding.metrics}
    spreads = [statistics.pstdev(finding.samples) for finding in findings if len(finding.samples) > 1]
    if spreads:
        metrics["judge_disagreement"] = statistics.fmean(spreads)
    if len(findings) > 1:
        rewards = [finding.reward for finding in findings]
        metrics["judges_apart"] = round(max(rewards) - min(rewards), 9)
    return metrics


COMPARISON = ("judge_compared", "judge_missing")
"""Metrics of comparisons."""


def _own_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if ":" in name}
