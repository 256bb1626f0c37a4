"""AReaL's bundled workflows and agents on the real gateway, and the small functions of its programs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PIL import Image
from support.areal_programs import LettersTokenizer, episode
from support.fake_engine import FixedTextEngine
from support.samples import work

from areal_actors.compat.areal import perf_tracer, stats_tracker, utilities
from areal_actors.compat.areal.allocation import AllocationMode, ModelAllocation
from areal_actors.compat.areal.bundled_agents import anthropic_math, openai_math
from areal_actors.compat.areal.config import DatasetConfig, ServerConfig
from areal_actors.compat.areal.data import get_custom_dataset
from areal_actors.compat.areal.example_trainer import example_row
from areal_actors.compat.areal.generation import GenerationHyperparameters
from areal_actors.compat.areal.multi_turn import MultiTurnWorkflow
from areal_actors.compat.areal.schedulers import SlurmScheduler
from areal_actors.compat.areal.vision_workflow import image2base64, place_images
from areal_actors.core.errors import AgentError, RecipeError
from areal_actors.core.values import Task
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context
from areal_actors.rollout.inline_runner import InlineRunner

ROW = {"messages": [{"role": "user", "content": "2 + 3?"}], "answer": "#### 5"}
SAMPLED = GenerationHyperparameters(max_new_tokens=16)


def ends_with_five(prompt, completions, prompt_ids, completion_ids, answer, **_):
    """A reward over texts and tokens, as AReaL's."""
    del prompt, prompt_ids, completion_ids, answer
    return float(completions.strip().endswith("5"))


async def played(agent, text):
    """The result of an agent whose model always answers this text, and the trajectory."""
    async with episode(FixedTextEngine(text)) as (_, opened, trajectory):
        with workflow_context.running(EpisodeContext.of(work(), 0)):
            runner = InlineRunner(agent, "agent")
            await runner.start()
            result = await runner.run(Task(id="t", data=ROW), base_url=opened.base_url, api_key=opened.api_key)
            await runner.close()
        return result, await trajectory(result)


@pytest.mark.parametrize(("text", "turns", "reward"), [("it is 5", 1, 1.0), ("it is 6", 3, 0.0)])
async def test_a_workflow_of_several_turns_ends_at_the_first_reward(text, turns, reward):
    stats_tracker.export_all()
    workflow = MultiTurnWorkflow(ends_with_five, SAMPLED, LettersTokenizer(), max_turns=3, turn_discount=0.5)
    _, trajectory = await played(workflow, f"{text}\n")
    assert [(call.reward, call.trained) for call in trajectory.interactions] == [(reward, True)] * turns
    assert stats_tracker.export_all()["rollout/num_turns"] == turns


async def test_bundled_agents_of_mathematics_are_trained_like_any_agent():
    single, _ = await played(
        openai_math.OpenAIMathAgent(max_tokens=2048, max_turns=1, temperature=1.0), "The result is 5\n"
    )
    assert single.reward == 1.0
    several, trajectory = await played(openai_math.OpenAIMultiTurnMathAgent(max_turns=2), "The result is 6\n")
    assert sorted(several.rewards.values()) == [0.0, 0.0]
    assert [call.reward for call in trajectory.interactions] == [0.0, 0.0]
    other, _ = await played(
        anthropic_math.AnthropicMathAgent(max_completion_tokens=64, max_turns=1), "The result is 5\n"
    )
    assert other.reward == 1.0


def test_pictures_take_their_places_in_the_messages():
    picture = Image.new("RGB", (2, 2), "red")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]
    (message,) = place_images(messages, [picture])
    assert message["content"][0]["image_url"]["url"] == f"data:image/png;base64,{image2base64(picture)[0]}"
    assert message["content"][1] == messages[0]["content"][1]
    assert place_images("What is it?", [picture])[0]["content"][0]["type"] == "image_url"
    with pytest.raises(AgentError, match="a row has 2 images, and 1 places"):
        place_images(messages, [picture, picture])


def test_rows_have_the_form_of_their_type(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "answer": "bc"}\n')
    tokenizer = LettersTokenizer()
    tokenizer.eos_token = "\n"

    def rows(kind):
        return get_custom_dataset(
            split="train", dataset_config=DatasetConfig(path=str(path), type=kind), tokenizer=tokenizer
        )

    assert rows("rl") == [{"messages": [{"role": "user", "content": "a"}], "answer": "bc"}]
    assert rows("sft") == [{"input_ids": list(b"abc\n"), "loss_mask": [0, 1, 1, 1]}]
    assert example_row(rows("sft")[0]) == {"input_ids": list(b"abc\n"), "completion_mask": [0, 1, 1, 1]}
    path.write_text('{"chosen": "ab", "rejected": "acd"}\n')
    (pair,) = rows("dpo")
    assert pair == {"chosen_ids": list(b"ab\n"), "rejected_ids": list(b"acd\n")}
    assert example_row(pair) == {"prompt_ids": list(b"a"), "chosen_ids": list(b"b\n"), "rejected_ids": list(b"cd\n")}
    with pytest.raises(RecipeError, match="a row has chosen, rejected; expected one of messages, question, problem"):
        rows("rl")
    with pytest.raises(RecipeError, match="the dataset's type is 'other'; write one of rl, sft, dpo, rw"):
        rows("other")
    assert get_custom_dataset(split=None, dataset_config=None) is None


async def test_scopes_are_timings():
    stats_tracker.export_all()

    @perf_tracer.trace_perf("call", category=perf_tracer.Category.COMPUTE)
    async def call():
        async with perf_tracer.atrace_session_phase("generate"):
            return 3

    assert await perf_tracer.session_context()(call)() == 3
    exported = stats_tracker.export_all()
    assert exported["timeperf/call"] >= exported["timeperf/generate"] >= 0


def test_allocations_and_server_arguments_are_read():
    allocation = ModelAllocation.from_str("sglang:d4p1t2", name="rollout")
    assert (allocation.backend, allocation.parallel.tp_size, allocation.parallel.world_size) == ("sglang", 2, 8)
    assert ModelAllocation.from_str("megatron:(attn:d1p12t4|ffn:d1p12e4)").parallel.pp_size == 12
    mode = AllocationMode.from_str("sglang:d2p1t2+d2p1t1c2")
    assert (mode.gen.parallel.tp_size, mode.train.backend, mode.train.parallel.world_size) == (2, "fsdp", 4)
    with pytest.raises(ValueError, match="is no allocation; write one such as sglang:d4p1t1"):
        ModelAllocation.from_str("d4")
    built = ServerConfig.build_args(sglang_config=ServerConfig(context_length=64), tp_size=2)
    assert built == {"context_length": 64, "dtype": "bfloat16", "tp_size": 2}
    with pytest.raises(RecipeError, match="found slurm, but the processes of a program are on its machine"):
        SlurmScheduler(exp_config=None)


def test_seeds_loaders_and_tables():
    utilities.set_random_seed(3, "trainer0")
    drawn = random.random(), np.random.random()  # noqa: NPY002 - the global generators
    utilities.set_random_seed(3, "trainer0")
    assert drawn == (random.random(), np.random.random())  # noqa: NPY002
    loader = utilities.create_dataloader(list(range(5)), dataset_config=DatasetConfig(batch_size=2, shuffle=True))
    first, second = ([row for batch in loader for row in batch] for _ in range(2))
    assert (len(loader), len(first), len(set(first)), first == second) == (2, 4, 4, False)
    assert utilities.tabulate_stats({"a": 1.0, "bb": 2.0}, col=1, floatfmt=".1f") == "a: 1.0\nbb: 2.0"
    assert len(set(utilities.find_free_ports(2))) == 2
