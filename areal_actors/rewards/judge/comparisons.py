"""Comparisons of the answers of a group, in an order that is drawn from the seed of the run."""

from __future__ import annotations

import asyncio
import statistics
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from random import Random
from typing import Any, TypeVar

import msgspec

from areal_actors.core.errors import RewardError
from areal_actors.messages import JudgeAnswer, RunEpisode
from areal_actors.rewards.judge.inquiry import Inquiry
from areal_actors.rewards.judge.questions import list_answers
from areal_actors.rewards.judge.verdict_forms import score_form, winner_form
from areal_actors.runtime.actor import Context

T = TypeVar("T")

GROUPS_KEPT = 1024
"""Groups whose answers are kept for one that is late, or is tried again."""


class JudgeFinding(msgspec.Struct, frozen=True):
    """A judge's verdict about one answer."""

    reward: float
    """From 0 to 1."""
    samples: Sequence[float]
    """Rewards by sample; the reward is their mean."""
    answers: Sequence[JudgeAnswer]
    metrics: Mapping[str, float] = {}
    share: float = 1.0
    """Share of the answers' price: a comparison is spent on all that it compares."""


class Candidate(msgspec.Struct, frozen=True):
    """An answer of a group."""

    task: Mapping[str, Any]
    output: str


Round = tuple[dict[str, list[float]], dict[str, list[JudgeAnswer]]]
"""Scores of each answer, and the judge's answers that they follow from, by episode."""


async def compare(
    inquiry: Inquiry, group: str, candidates: Mapping[str, Candidate], expected: int
) -> dict[str, JudgeFinding]:
    """Returns the finding about each answer of a group, by episode.

    Args:
        inquiry: asks the judge.
        group: name of the group, of which the order is drawn.
        candidates: answers by episode.
        expected: number of answers that a whole group has.

    Raises:
        RewardError: the judge does not answer, or one answer has none to be compared with.
    """
    judge, episodes = inquiry.judge, sorted(candidates, key=_by_number)
    if judge.method == "pairwise" and len(episodes) < 2:
        raise RewardError(
            f"judge {judge.name}: group {group} has one answer of {expected}, which cannot be compared; raise"
            " group_seconds, or use method listwise"
        )
    method = _rank if judge.method == "listwise" else _pair
    rounds = await _together(
        method(inquiry, Random(f"{inquiry.seed} {group} {number}"), episodes, candidates, number)
        for number in range(judge.samples)
    )
    metrics = {
        "judge_compared": float(len(episodes)),
        "judge_missing": float(max(expected - len(episodes), 0)),
    }
    share = 1.0 / len(episodes) if judge.method == "listwise" else 0.5
    findings = {}
    for episode in episodes:
        samples = [statistics.fmean(scores[episode]) for scores, _ in rounds]
        answers = [answer for _, answers in rounds for answer in answers[episode]]
        findings[episode] = JudgeFinding(statistics.fmean(samples), samples, answers, metrics, share)
    return findings


async def _rank(
    inquiry: Inquiry, order: Random, episodes: Sequence[str], candidates: Mapping[str, Candidate], number: int
) -> Round:
    """Returns the scores of all answers in one prompt."""
    listed = order.sample(episodes, len(episodes))
    judge = inquiry.judge
    form = score_form([str(place) for place in range(1, len(listed) + 1)], judge.scale, explains=judge.explains)
    places = {
        "answers": list_answers([candidates[episode].output for episode in listed]),
        "count": str(len(listed)),
        "scale": str(judge.scale),
        "form": form.request,
    }
    verdict = await inquiry.ask(judge.template().render(candidates[listed[0]].task, places), form, number)
    scores = {episode: [verdict.scores[str(place)]] for place, episode in enumerate(listed, start=1)}
    return scores, {episode: [verdict.answer] for episode in listed}


async def _pair(
    inquiry: Inquiry, order: Random, episodes: Sequence[str], candidates: Mapping[str, Candidate], number: int
) -> Round:
    """Returns the share of pairs that each answer wins; which of a pair comes first is drawn."""
    judge = inquiry.judge
    template, form = judge.template(), winner_form(explains=judge.explains)
    pairs = [order.sample(pair, 2) for pair in _pairs_of(order.sample(episodes, len(episodes)), judge.opponents)]

    async def ask(first: str, second: str) -> tuple[Mapping[str, float], JudgeAnswer]:
        places = {
            "first": candidates[first].output,
            "second": candidates[second].output,
            "scale": str(judge.scale),
            "form": form.request,
        }
        verdict = await inquiry.ask(template.render(candidates[first].task, places), form, number)
        return {first: verdict.scores["A"], second: verdict.scores["B"]}, verdict.answer

    won: dict[str, list[float]] = {episode: [] for episode in episodes}
    answers: dict[str, list[JudgeAnswer]] = {episode: [] for episode in episodes}
    for scores, answer in await _together(ask(*pair) for pair in pairs):
        for episode, score in scores.items():
            won[episode].append(score)
            answers[episode].append(answer)
    return won, answers


def _pairs_of(ring: Sequence[str], opponents: int) -> list[tuple[str, str]]:
    """Returns all pairs, or those of each answer with the next `opponents` on a ring."""
    if not opponents or 2 * opponents >= len(ring) - 1:
        return list(combinations(ring, 2))
    return [
        (episode, ring[(place + step) % len(ring)])
        for place, episode in enumerate(ring)
        for step in range(1, opponents + 1)
    ]


async def _together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results of coroutines that run at once; if one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in running]


def _by_number(episode: str) -> tuple[int, str]:
    return len(episode), episode


class _Group:
    """Answers of a group that has begun to arrive."""

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        self.closed = asyncio.Event()
        """Set when no further answer is waited for."""
        self.comparison: asyncio.Task[dict[str, JudgeFinding]] | None = None
        self.compared: dict[str, Candidate] = {}


class GroupComparisons:
    """Gathers the answers of each group and has them compared once.

    The first answer waits for the others for at most `group_seconds`; then those that are there are compared, with
    the metric `judge_missing`. One that arrives later is compared with them.
    """

    def __init__(self, inquiry: Inquiry, group_size: int) -> None:
        self._inquiry, self._group_size = inquiry, group_size
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    async def finding(self, work: RunEpisode, output: str, context: Context) -> JudgeFinding:
        """Returns the finding about an answer, once those of its group are there.

        Raises:
            RewardError: as `compare`.
        """
        name, expected = work.group, self._group_size
        if work.purpose == "evaluate":  # each task is played once
            name, expected = work.episode, 1
        group = self._open(name)
        group.candidates[work.episode] = Candidate(work.task.data, output)
        if len(group.candidates) >= expected:
            group.closed.set()
        await self._wait_for_others(group, name, expected, context)
        if group.comparison is None or group.compared.get(work.episode) is not group.candidates[work.episode]:
            group.compared = dict(group.candidates)
            group.comparison = asyncio.create_task(compare(self._inquiry, name, group.compared, expected))
        try:
            findings = await asyncio.shield(group.comparison)
        except RewardError:
            if self._groups.get(name) is group:  # all are tried again, together
                del self._groups[name]
            raise
        return findings[work.episode]

    def _open(self, name: str) -> _Group:
        group = self._groups.setdefault(name, _Group())
        self._groups.move_to_end(name)
        for old in [key for key, entry in self._groups.items() if entry.closed.is_set()][:-GROUPS_KEPT]:
            del self._groups[old]
        return group

    async def _wait_for_others(self, group: _Group, name: str, expected: int, context: Context) -> None:
        if group.closed.is_set():
            return
        seconds = self._inquiry.judge.group_seconds
        missing = expected - len(group.candidates)
        wait = f"{missing} more answers of group {name} for judge {self._inquiry.judge.name}"
        with suppress(TimeoutError), context.waiting(wait, seconds):
            async with asyncio.timeout(seconds):
                await group.closed.wait()
        group.closed.set()
