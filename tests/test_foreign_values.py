"""Values of other people's code: scalars of numpy, rounding, `true` as a reward, texts that begin with BOS, answers of
weight 0."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest
import torch
from support.fake_engine import FakeEngine
from support.framework_harness import chat_tokenizer
from support.gateway_harness import GatewayHarness, client, opened, post, root
from support.samples import work
from tokenizers.processors import TemplateProcessing

from areal_actors.batching.assembler import BatcherConfig, group_filter, has_signal
from areal_actors.core.errors import RecipeError, RewardError, SetupError
from areal_actors.rewards.acceptance import Acceptance
from areal_actors.rewards.spans import check_reward
from areal_actors.supervised.example_sequences import sequences_of_example, trained_segments
from areal_actors.supervised.examples import open_examples
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.algorithms import groups

ROUNDED = ((0.3, 0.1 + 0.2), (0.0, 0.1 + 0.2 - 0.3), (1e6 / 3, sum([1e6 / 9] * 3)), (1.0, 1.0), ())
DIFFERENT = ((0.0, 1e-9), (0.3, 0.3001), (-1.0, 1.0), (1e-6, 2e-6))


@pytest.mark.parametrize(
    ("rewards", "differ"), [*[(pair, False) for pair in ROUNDED], *[(pair, True) for pair in DIFFERENT]]
)
def test_rewards_that_differ_by_rounding_are_no_signal_at_the_filter_and_in_the_advantages(rewards, differ):
    assert has_signal(rewards) is differ
    if rewards:
        same = groups.has_signal(
            torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.int64)
        )
        assert same.tolist() == [differ] * len(rewards)


@pytest.mark.parametrize(
    "returned", ["np.bool_(rewards[0] > 0)", "np.array(rewards[0] > 0)", "torch.tensor(rewards[0] > 0)"]
)
def test_a_filter_may_return_a_bool_of_numpy_or_torch(tmp_path, returned):
    (tmp_path / "own.py").write_text(f"import numpy as np\nimport torch\ndef keep(rewards):\n    return {returned}\n")
    keeps = group_filter(BatcherConfig(filter="own.py:keep"), tmp_path)
    assert (keeps((1.0, 0.0)), keeps((0.0, 1.0))) == (True, False)


def test_a_filter_that_returns_several_bools_is_refused(tmp_path):
    (tmp_path / "own.py").write_text("import numpy as np\ndef keep(rewards):\n    return np.array(rewards) > 0\n")
    with pytest.raises(RecipeError, match="return True to train the group, or False"):
        group_filter(BatcherConfig(filter="own.py:keep"), tmp_path)((1.0, 0.0))


async def test_rewards_and_should_accept_may_be_bools_of_numpy(tmp_path):
    assert check_reward(np.bool_(True)) == 1.0
    acceptance = Acceptance(lambda episode: np.bool_(episode["reward"] > 0), tmp_path, retry=False)
    assert await acceptance.outcome(work(), reward=1.0, rewards={}) is None
    assert (await acceptance.outcome(work(), reward=0.0, rewards={})).reason == "rejected"


class Recorder(FakeEngine):
    """Answers with its end at once."""

    async def completion(self, prompt_ids, sampling, resumed):
        return [tokenizer_with_bos().stop_ids[0]], "stop"


@cache
def tokenizer_with_bos():
    """A tokenizer that puts a BOS before every text."""
    chat = chat_tokenizer()
    tokenizer = type(chat.tokenizer).from_str(chat.tokenizer.to_str())
    bos = tokenizer.id_to_token(0)
    tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])
    return ChatTokenizer(tokenizer, chat.template.source, {}, chat.stop_ids)


async def test_a_raw_prompt_begins_with_the_bos_of_the_tokenizer_once():
    async with opened(GatewayHarness(chat=tokenizer_with_bos())) as harness:
        engine = await harness.engine("inference_worker-0", Recorder())
        session = await harness.open()
        async with client(session) as clients:
            bos = tokenizer_with_bos().decode([0], skip_special=False)
            first = await clients.completions.create(model="m", prompt="hello", max_tokens=5)
            await clients.completions.create(model="m", prompt=bos + "world", max_tokens=5)
            await clients.completions.create(
                model="m", prompt="bare", max_tokens=5, extra_body={"add_special_tokens": False}
            )
            stop = tokenizer_with_bos().decode(tokenizer_with_bos().stop_ids[:1], skip_special=False)
            again = await clients.completions.create(model="m", prompt=f"hello{stop} more", max_tokens=5)
            await clients.completions.create(model="m", prompt=[5, 6], max_tokens=5)
        plain = tokenizer_with_bos().encode
        assert engine.prompts[:3] == [[0, *plain("hello")], [0, *plain("world")], plain("bare")]
        assert engine.prompts[3:] == [[0, *plain("hello"), tokenizer_with_bos().stop_ids[0], *plain(" more")], [5, 6]]
        calls = {call.interaction: call for call in harness.recorded()}
        assert calls[again.id].prefix == first.id
    assert chat_tokenizer().leading_ids == ()


async def test_true_is_a_reward_over_http():
    async with opened(GatewayHarness(chat=tokenizer_with_bos())) as harness:
        await harness.engine("inference_worker-0", Recorder())
        session = await harness.open()
        async with client(session) as clients:
            await clients.completions.create(model="m", prompt="hello", max_tokens=5)
        base = msgspec.structs.replace(session, base_url=root(session))
        assert (await post(base, {"reward": True}, "/rl/set_reward"))[0] == 200
        assert (await harness.trajectory(session, reward=None)).interactions[0].reward == 1.0


def rows(tmp_path, *lines, kind="demonstrations"):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return open_examples(str(path), kind, seed=0, held_out=0, columns={}).train


def test_messages_of_weight_0_are_context_and_not_trained(tmp_path):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "wrong", "weight": 0},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "right", "weight": 1},
    ]
    chat = chat_tokenizer()
    ((ids, learned),) = trained_segments(rows(tmp_path, {"messages": messages})[0].conversations[0], chat)
    trained = chat.decode(
        [number for number, is_learned in zip(ids, learned, strict=True) if is_learned], skip_special=False
    )
    assert trained.startswith("right")
    assert "wrong" in chat.decode(ids)


def pair(**rejected):
    begun = [{"role": "user", "content": "a"}]
    sides = [
        [
            *begun,
            {"role": "assistant", "content": text, "weight": 0},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": end},
        ]
        for text, end in (("wrong", "right"), ("bad", "worse"))
    ]
    sides[1][-1] |= rejected
    return {"chosen": sides[0], "rejected": sides[1]}


def test_messages_of_weight_0_of_a_preference_pair_are_context_and_not_compared(tmp_path):
    chat = chat_tokenizer()
    example = rows(tmp_path, pair(), kind="pairs")[0]
    trained = [
        chat.decode(made.token_ids[made.loss_mask].tolist(), skip_special=False)
        for made in sequences_of_example(example, 0, chat)
    ]
    assert [text.startswith(end) for text, end in zip(trained, ("right", "worse"), strict=True)] == [True, True]
    with pytest.raises(SetupError, match="message 1 has weight 0, which has no meaning where a reward model scores"):
        sequences_of_example(example, 0, chat, scored=True)


def test_a_pair_whose_sides_differ_in_their_weights_only_or_learn_nothing_is_refused(tmp_path):
    with pytest.raises(SetupError, match="`rejected`: every assistant message has weight 0"):
        rows(tmp_path, pair(weight=0), kind="pairs")[0]
    same = pair()
    same["rejected"] = [*same["chosen"][:-1], {**same["chosen"][-1], "weight": 1}]
    with pytest.raises(SetupError, match="are the same"):
        rows(tmp_path, same, kind="pairs")[0]


@pytest.mark.parametrize(
    ("weight", "complaint"), [(0, "every assistant message has weight 0"), (0.5, "has weight 0.5; write 1")]
)
def test_weights_that_leave_nothing_or_are_no_choice_are_refused(tmp_path, weight, complaint):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x", "weight": weight}]
    with pytest.raises(SetupError, match=complaint):
        rows(tmp_path, {"messages": messages})[0]


@pytest.mark.parametrize("reward", [1e300, -2e9, float("inf")])
def test_a_reward_that_would_swamp_all_others_is_refused(reward):
    with pytest.raises(RewardError, match="a reward must be"):
        check_reward(reward)
