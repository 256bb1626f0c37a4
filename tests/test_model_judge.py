"""The reward `judge`: rubrics and comparisons by a model at a real server, with the faults that servers have."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.judge_server import KEY, judge_server
from support.judging import CONTEXT, answer_with, panel_of, verdict_of, work

from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.messages import EpisodeAbandoned, EpisodeScored, ScoreEpisode
from areal_actors.rewards import resolve_reward
from areal_actors.rewards.judge import inquiry
from areal_actors.rewards.judge.answer_store import AnswerStore
from areal_actors.rewards.judge.inquiry import JudgeUnavailable, JudgeUnreadable
from areal_actors.rewards.judge.panel import JudgePanel
from areal_actors.rewards.judge.settings import judges_of
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.rewards.reward_worker import RewardWorker

CRITERIA = {"right": {"description": "It is right.", "weight": 3.0}, "brief": "It is brief."}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with judge_server(tmp_path_factory.mktemp("judge")) as running:
        yield running


async def judge(panel, episode, output, **options):
    return await panel.judge(ScoreEpisode(work=work(episode, **options), session="s", output=output), CONTEXT)


async def test_a_rubric_scores_each_criterion_and_counts_what_it_costs(server):
    panel = panel_of(server.url, name="quality", criteria=CRITERIA, input_price=2.0, output_price=8.0)
    judged = await judge(panel, "0.0", answer_with(4))
    await panel.close()
    assert verdict_of(judged, "quality") == {"reward": 0.8, "quality:right": 0.8, "quality:brief": 0.8}
    (answer,) = judged.answers
    assert judged.metrics["judge_calls"] == answer.calls == 1
    assert judged.metrics["judge_tokens"] == answer.tokens > 50
    assert 2e-6 * answer.tokens < answer.cost < 8e-6 * answer.tokens


async def test_64_at_once_are_all_scored_through_rate_limits_errors_slow_and_malformed_answers(server, monkeypatch):
    monkeypatch.setattr(inquiry, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(inquiry, "LONGEST_PAUSE_SECONDS", 0.5)
    panel = panel_of(server.url, model="flaky", retries=12, concurrency=64)
    judged = await asyncio.gather(
        *(judge(panel, f"{number}.0", answer_with(number % 5, number)) for number in range(128))
    )
    await panel.close()
    assert [verdict_of(one)["reward"] for one in judged] == [(number % 5) / 5 for number in range(128)]
    assert 32 < server.stats()["most_at_once"] <= 64
    assert sum(one.metrics["judge_calls"] for one in judged) > 128  # faults were repeated


async def test_a_rate_limit_is_waited_for_and_costs_no_retry(server):
    panel = panel_of(server.url, model="limited", retries=0)
    judged = await asyncio.gather(*(judge(panel, f"{number}.0", answer_with(number)) for number in range(4)))
    await panel.close()
    assert [verdict_of(one)["reward"] for one in judged] == [0.0, 0.2, 0.4, 0.6]
    assert [one.metrics["judge_calls"] for one in judged] == [1.0] * 4


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"model": "always-limited", "patience_seconds": 5.0}, JudgeUnavailable, "5 s at its rate limit: status 429"),
        ({"model": "down", "retries": 1}, JudgeUnavailable, "after 2 calls: status 503: no GPU"),
        ({"model": "with-key"}, JudgeUnavailable, "after 1 call: status 401: wrong key"),
        ({"model": "chatty", "retries": 2}, JudgeUnreadable, "unreadable after 3 calls: it has no JSON object with"),
    ],
)
async def test_a_judge_without_a_verdict_is_a_named_failure(server, options, error, text):
    before, panel = server.calls(), panel_of(server.url, **options)
    with pytest.raises(error, match=text):
        await judge(panel, "0.0", "good")
    await panel.close()
    assert server.calls() - before == options.get("retries", 0) + 1


async def test_a_server_that_is_not_there_is_a_named_failure():
    panel = panel_of("http://127.0.0.1:9", retries=0)
    with pytest.raises(JudgeUnavailable, match=r"judge judge: no answer of http://127.0.0.1:9 after 1 call: Client"):
        await judge(panel, "0.0", "good")
    await panel.close()


async def test_a_server_without_structured_answers_is_asked_for_text(server):
    panel, before = panel_of(server.url, model="plain-text"), server.calls()
    judged = [await judge(panel, f"{number}.0", answer_with(2, number)) for number in range(3)]
    await panel.close()
    assert [verdict_of(one)["reward"] for one in judged] == [0.4] * 3
    assert server.calls() - before == 4  # the first was refused


async def test_the_key_comes_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    panel = panel_of(server.url, model="with-key", key_variable="JUDGE_KEY")
    assert verdict_of(await judge(panel, "0.0", "good"))["reward"] == 0.2
    await panel.close()


async def test_a_question_is_asked_once_also_if_weights_and_aggregation_change(server):
    store, before = AnswerStore(), server.calls()
    for changed in ({}, {"aggregate": "min"}, {"criteria": {**CRITERIA, "right": {"description": "It is right."}}}):
        panel = panel_of(server.url, store=store, **{"criteria": CRITERIA, **changed})
        judged = await asyncio.gather(*(judge(panel, f"{number}.0", "good answer") for number in range(4)))
        await panel.close()
        assert [verdict_of(one)["reward"] for one in judged] == [pytest.approx(0.2)] * 4
    assert server.calls() - before == 1
    assert [one.metrics["judge_reused"] for one in judged] == [1.0] * 4


async def test_answers_in_a_file_are_known_to_the_next_store(server, tmp_path):
    file, before = tmp_path / "answers.jsonl", server.calls()
    for _ in range(2):
        panel = panel_of(server.url, store=AnswerStore(file=file))
        assert verdict_of(await judge(panel, "0.0", "good good"))["reward"] == 0.4
        await panel.close()
    file.write_bytes(file.read_bytes() + b'{"key": "cut')
    panel = panel_of(server.url, store=AnswerStore(file=file), criteria={"other": ""})
    assert verdict_of(await judge(panel, "0.0", "good good"))["reward"] == 0.4
    await panel.close()
    assert server.calls() - before == 2


async def test_samples_have_a_spread(server):
    panel, before = panel_of(server.url, samples=3, temperature=1.0), server.calls()
    judged = await judge(panel, "0.0", "good and short")
    await panel.close()
    assert judged.metrics["judge_disagreement"] == 0.0
    assert (server.calls() - before, len(judged.answers)) == (3, 3)


async def test_a_list_of_rewards_adds_judges_up_and_their_answers_are_in_the_log(server, send):
    table = {"url": server.url, "model": "steady"}
    options = {
        "length": {"weight": 1.0, "most": 100},
        "judge:a": {"weight": 2.0, "rule": "judge", "name": "a", **table},
        "judge:b": {
            "weight": 1.0,
            "rule": "judge",
            "name": "b",
            **table,
            "criteria": {"style": "Its style."},
            "only_if": "judge:a",
        },
    }
    pool = RewardPool("weighted", 1, 10.0, options=options)
    panel = JudgePanel(judges_of("weighted", options), seed=0, group_size=1)
    worker = RewardWorker(pool, concurrency=2, judges=panel)
    good, poor = await send(
        worker, *(ScoreEpisode(work=work(f"{n}.0"), session="s", output=answer_with(n)) for n in (4, 1))
    )
    await worker.stop()
    assert isinstance(good, EpisodeScored)
    assert isinstance(poor, EpisodeScored)
    assert good.reward == pytest.approx(1.0 + 2 * 0.8 + 0.8)
    assert poor.reward == pytest.approx(1.0 + 2 * 0.2)  # the gate is closed
    assert (poor.metrics["a:quality"], poor.metrics["b:style"], poor.metrics["judge:b"]) == (0.2, 0.2, 0.0)
    assert (poor.metrics["judge_calls"], poor.metrics["judges_apart"]) == (2.0, 0.0)
    assert [answer.judge for answer in poor.judged] == ["a", "b"]


async def test_a_judge_without_a_verdict_abandons_the_episode(server, send):
    options = {"url": server.url, "model": "chatty", "retries": 0}
    panel = JudgePanel(judges_of("judge", options), seed=0, group_size=1)
    worker = RewardWorker(RewardPool("judge", 1, 10.0, options=options), concurrency=1, judges=panel)
    (gone,) = await send(worker, ScoreEpisode(work=work("0.0"), session="s", output="good"))
    await worker.stop()
    assert isinstance(gone, EpisodeAbandoned)
    assert gone.reason == "reward"
    assert gone.detail.startswith("judge judge: unreadable after 1 call: it has no JSON object with quality")


async def test_a_list_compares_a_group_in_one_call_in_an_order_that_is_drawn(server):
    panel, before = panel_of(server.url, method="listwise", group_size=4), server.calls()
    judged = await asyncio.gather(*(judge(panel, f"7.{n}", answer_with(n, n)) for n in range(4)))
    await panel.close()
    assert [verdict_of(one)["reward"] for one in judged] == [0.0, 0.2, 0.4, 0.6]
    assert server.calls() - before == 1
    assert sum(one.metrics["judge_calls"] for one in judged) == 1.0
    assert {(one.metrics["judge_compared"], one.metrics["judge_missing"]) for one in judged} == {(4.0, 0.0)}
    orders = set()
    for seed in (0, 0, 1, 2):
        panel = panel_of(server.url, method="listwise", group_size=4, seed=seed)
        again = await asyncio.gather(*(judge(panel, f"7.{n}", answer_with(n, n)) for n in range(4)))
        orders.add(again[0].answers[0].key)
        await panel.close()
    assert len(orders) == 3


@pytest.mark.parametrize(("opponents", "calls"), [(0, 10), (1, 5)])
async def test_pairs_of_a_group_give_shares_of_wins(server, opponents, calls):
    before = server.calls()
    panel = panel_of(server.url, method="pairwise", group_size=5, opponents=opponents)
    judged = await asyncio.gather(*(judge(panel, f"7.{n}", answer_with(n, n)) for n in range(5)))
    await panel.close()
    rewards = [verdict_of(one)["reward"] for one in judged]
    assert rewards == [0.0, 0.25, 0.5, 0.75, 1.0] if not opponents else (rewards[0], rewards[-1]) == (0.0, 1.0)
    assert server.calls() - before == calls == round(sum(one.metrics["judge_calls"] for one in judged))


async def test_a_group_that_stays_incomplete_is_compared_at_the_deadline_and_a_late_answer_with_it(server):
    panel = panel_of(server.url, method="listwise", group_size=4, group_seconds=0.5)
    began = time.monotonic()
    judged = await asyncio.gather(*(judge(panel, f"7.{n}", answer_with(n, n)) for n in range(2)))
    assert 0.5 <= time.monotonic() - began < 5
    assert {(one.metrics["judge_compared"], one.metrics["judge_missing"]) for one in judged} == {(2.0, 2.0)}
    late = await judge(panel, "7.3", answer_with(5, 3))
    await panel.close()
    assert (verdict_of(late)["reward"], late.metrics["judge_compared"], late.metrics["judge_missing"]) == (
        1.0,
        3.0,
        1.0,
    )


async def test_one_answer_has_no_pair(server):
    panel = panel_of(server.url, method="pairwise", group_size=2, group_seconds=0.1)
    with pytest.raises(RewardError, match="group 7 has one answer of 2, which cannot be compared; raise"):
        await judge(panel, "7.0", "good")
    judged = await asyncio.gather(*(judge(panel, f"7.{n}", answer_with(n)) for n in range(2)))
    await panel.close()
    assert [verdict_of(one)["reward"] for one in judged] == [0.0, 1.0]


async def test_held_out_answers_wait_for_no_others(server):
    panel = panel_of(server.url, method="listwise", group_size=4)
    judged = await judge(panel, "evaluation-0-greedy.5", "good good", purpose="evaluate")
    await panel.close()
    assert (verdict_of(judged)["reward"], judged.metrics["judge_missing"]) == (0.4, 0.0)


def test_without_a_verdict_the_reward_is_a_failure_and_never_0():
    with pytest.raises(RewardError, match="judge judge: there is no verdict about this output"):
        resolve_reward("judge")({"question": "?"}, "good")


async def test_prompts_are_files_whose_places_are_filled_once(server, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Level {{level}}\n\n# Answer\n{{answer}}\n\n# Criteria\n{{criteria}}\n\n{{form}}")
    panel = panel_of(server.url, prompt=str(prompt))
    with pytest.raises(RewardError, match=r"has the place \{\{level\}\}, which task t has no field for; known: answer"):
        await judge(panel, "0.0", "good")
    await panel.close()
    template = judges_of("judge", {"prompt": str(prompt)})["judge"].template()
    places = {"answer": "{{level}} {{form}}", "criteria": "-", "form": "JSON"}
    assert template.render({"level": 3}, places) == "Level 3\n\n# Answer\n{{level}} {{form}}\n\n# Criteria\n-\n\nJSON"
    prompt.write_text("Nothing")
    with pytest.raises(RecipeError, match=r"has no \{\{answer\}\}; method rubric puts the answers there"):
        resolve_reward("judge", options={"prompt": str(prompt)})


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_judges_of_a_run_survive_the_end_of_their_worker_and_the_calls_of_its_engines_are_not_trained(
    live, server
):
    served = f'weight = 0.5, method = "listwise", url = "{server.url}", model = "steady"'
    own = "weight = 0.5, explains = false, max_tokens = 30, temperature = 1.0"
    run = live(
        *('task.reward=["math", "judge:self", "judge:order"]', "steps=4", "evaluation.tasks=0"),
        *(f'task.reward_options."judge:self"={{ {own} }}', f'task.reward_options."judge:order"={{ {served} }}'),
    )
    async with run.listening():
        await run.until(EpisodeScored, 8)
        run.kill("reward_worker")
    assert await run.ended() == 0, run.output()
    scored = [event for _, event in await run.log() if isinstance(event, EpisodeScored)]
    assert len(scored) >= 4 * 16
    for event in scored:
        assert {answer.judge for answer in event.judged} == {"self", "order"}
        assert 0 <= event.metrics["self:quality"] <= 1
        assert event.metrics["judge_compared"] + event.metrics["judge_missing"] == 4
