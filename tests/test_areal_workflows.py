"""Workflows of AReaL's documentation, unchanged, on the real gateway; only the engine is a toy."""

from __future__ import annotations

import sys
import textwrap
from contextlib import asynccontextmanager

import pytest
from support.areal_programs import CLIENT_WORKFLOW, MULTI_TURN_WORKFLOW, TENSOR_WORKFLOW, LettersTokenizer, episode
from support.fake_engine import FixedTextEngine
from support.samples import work

from areal_actors.compat.areal import aliases, stats_tracker
from areal_actors.core.agent_host.agent_loader import load
from areal_actors.core.errors import AgentError
from areal_actors.core.values import Task
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.episode_context import EpisodeContext, workflow_context
from areal_actors.rollout.inline_runner import InlineRunner

ROW = {"messages": [{"role": "user", "content": "hello"}], "answer": "hi there"}


@pytest.fixture(autouse=True)
def _areal():
    """`import areal` gives our names."""
    aliases.install()
    yield
    sys.path.remove(str(aliases.FOLDER))
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
        del sys.modules[name]


@asynccontextmanager
async def playing(tmp_path, program, name="MyWorkflow", engine=None, **options):
    """A function that runs the workflow on a row and returns the result, and one that returns its trajectory."""
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    workflow = load(f"program.py:{name}", tmp_path)(tokenizer=LettersTokenizer(), **options)
    async with episode(engine or FixedTextEngine()) as (harness, opened, trajectory):

        async def play(**row):
            with workflow_context.running(EpisodeContext.of(work(), 0)):
                runner = InlineRunner(workflow, name)
                return await runner.run(Task(id="t", data=row), base_url=opened.base_url, api_key=opened.api_key)

        yield play, trajectory, harness


async def test_a_tensor_dict_is_trained_as_the_engine_recorded_it(tmp_path):
    stats_tracker.export_all()
    async with playing(tmp_path, TENSOR_WORKFLOW) as (play, trajectory, _):
        result = await play(prompt="u:hello\na:", reward=0.25)
        (call,) = (await trajectory(result)).interactions
        assert (call.reward, call.trained, bytes(call.completion.ids_array().tolist())) == (0.25, True, b"hi there\n")
        assert bytes(call.prompt_suffix[::4]) == b"u:hello\na:"
    assert stats_tracker.export_all() == {"rollout/reward": 0.25, "rollout/reward__count": 1}


async def test_none_rejects_the_episode(tmp_path):
    async with playing(tmp_path, TENSOR_WORKFLOW) as (play, _, _):
        assert await play(prompt="u:hello\na:", reward=-1.0) == AgentResult()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            "row['input_ids'][0, -2] = 65",
            r"row 0: token 10 \(id 104\) has loss_mask 1, but it is not part of a completion",
        ),
        (
            "row['input_ids'][0, 0] = 65",
            r"row 0: token 10 \(id 104\) has loss_mask 1, .* after exactly the tokens before it",
        ),
        ("row['loss_mask'][0, :] = 1", r"row 0: token 0 \(id 117\) has loss_mask 1"),
        (
            "row['loss_mask'][0, -1] = 0",
            "loss_mask is 1 for 8 of the 9 sampled tokens of call 0.0-1-1; a call is trained as a whole",
        ),
        ("row['loss_mask'][0, :] = 0", "without a token whose loss_mask is 1; return None"),
        (
            "row['logprobs'][0, -1] = -0.25",
            r"`logprobs` of token 18 is -0.25, but the engine recorded -0.5 for call 0.0-1-1",
        ),
        ("row['versions'][0, -1] = 3", r"`versions` of token 18 is 3, but the engine recorded 0"),
        ("row['rewards'][0] = float('nan')", "a reward must be finite"),
        ("row['attention_mask'][0, 0] = False", "`attention_mask` has zeros before ones; pad rows at their end"),
        (
            "del row['loss_mask']",
            "tensors without `loss_mask`; it must have input_ids, attention_mask, loss_mask, rewards",
        ),
        ("row['rewards'] = row['rewards'].reshape(1, 1)", r"`rewards` has shape \[1, 1\]; expected \[1\]"),
        ("row['input_ids'] = row['input_ids'][0]", r"`input_ids` has shape \[19\]; expected \[rows, tokens\]"),
    ],
)
async def test_a_tensor_dict_with_tokens_that_were_not_sampled_so_fails_the_episode(tmp_path, change, complaint):
    program = TENSOR_WORKFLOW.replace(
        "return self.build_tensor_dict(resp, reward)", f"row = self.build_tensor_dict(resp, reward); {change}"
    )
    async with playing(tmp_path, program.replace(change, f"{change}; return row", 1)) as (play, _, _):
        with pytest.raises(AgentError, match=complaint):
            await play(prompt="u:hello\na:")


BEST_OF_TWO = """
    from areal.api import ModelRequest, RolloutWorkflow
    from areal.api.cli_args import GenerationHyperparameters
    import torch

    class MyWorkflow(RolloutWorkflow):
        def __init__(self, tokenizer, rows):
            self.tokenizer = tokenizer
            self.rows = rows

        async def arun_episode(self, engine, data):
            gconfig = GenerationHyperparameters(max_new_tokens=4)
            request = ModelRequest(input_ids=self.tokenizer.encode("u:hello\\na:"), gconfig=gconfig)
            sampled = [await engine.agenerate(request) for _ in range(2)]
            assert sampled[0].stop_reason == "length" and engine.get_version() == 0
            rows = [sampled[number] for number, _ in self.rows]
            return {
                "input_ids": torch.tensor([row.input_tokens + row.output_tokens for row in rows]),
                "attention_mask": torch.ones(len(rows), 14, dtype=torch.bool),
                "loss_mask": torch.tensor([[0] * row.input_len + [1] * row.output_len for row in rows]),
                "rewards": torch.tensor([reward for _, reward in self.rows]),
            }
"""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, 0.0), (1, 1.0)], [(0.0, True), (1.0, True)]),
        ([(1, 0.5)], [(0.5, True), (None, False)]),
    ],
)
async def test_only_the_calls_that_are_returned_are_trained(tmp_path, rows, expected):
    async with playing(tmp_path, BEST_OF_TWO, rows=rows) as (play, trajectory, _):
        result = await play()
        assert [(call.reward, call.trained) for call in (await trajectory(result)).interactions] == expected


async def test_a_conversation_of_token_ids_is_one_row_of_several_calls(tmp_path):
    program = """
        from areal.api import ModelRequest, RolloutWorkflow
        from areal.api.cli_args import GenerationHyperparameters
        import torch

        class MyWorkflow(RolloutWorkflow):
            def __init__(self, tokenizer):
                self.tokenizer = tokenizer

            async def arun_episode(self, engine, data):
                seq, mask, ids = [], [], self.tokenizer.encode("u:hello\\na:")
                for _ in range(2):
                    gconfig = GenerationHyperparameters(max_new_tokens=20)
                    resp = await engine.agenerate(ModelRequest(input_ids=ids, gconfig=gconfig))
                    new = resp.input_len - len(seq)
                    assert resp.input_tokens[:-new] == seq
                    seq += resp.input_tokens[-new:] + resp.output_tokens
                    mask += [0] * new + [1] * resp.output_len
                    ids = seq + self.tokenizer.encode("u:again\\na:")
                return {
                    "input_ids": torch.tensor([seq + [0, 0]]),
                    "attention_mask": torch.tensor([[True] * len(seq) + [False] * 2]),
                    "loss_mask": torch.tensor([mask + [0, 0]]),
                    "rewards": torch.tensor([0.5]),
                }
    """
    async with playing(tmp_path, program) as (play, trajectory, _):
        calls = (await trajectory(await play())).interactions
        assert [(call.reward, call.trained, call.prefix) for call in calls] == [
            (0.5, True, ""),
            (0.5, True, calls[0].id),
        ]


# ---------------------------------------------------------------- ArealOpenAI


async def test_a_client_sets_its_reward_at_once_and_exports_its_interactions(tmp_path):
    async with playing(tmp_path, CLIENT_WORKFLOW) as (play, trajectory, _):
        result = await play(**ROW)
        assert [call.reward for call in (await trajectory(result)).interactions] == [1.0]
    async with playing(tmp_path, CLIENT_WORKFLOW, style="concat") as (play, _, _):
        with pytest.raises(AgentError, match=r"style = 'concat' needs ArealOpenAI\(chat_template_type='concat'\)"):
            await play(**ROW)


@pytest.mark.parametrize(("style", "expected"), [("individual", [0.9, 1.0]), ("concat", [1.0, 1.0])])
async def test_several_turns_with_discounted_rewards(tmp_path, style, expected):
    class Corrected(FixedTextEngine):
        def answer(self, prompt):
            return self.text if "Wrong" in prompt else "no\n"

    async with playing(tmp_path, MULTI_TURN_WORKFLOW, "MultiturnWorkflow", Corrected(), export_style=style) as (
        play,
        trajectory,
        _,
    ):
        calls = (await trajectory(await play(**ROW))).interactions
        assert [(call.reward, call.prefix) for call in calls] == list(zip(expected, ["", calls[0].id], strict=True))


USING = """
    from areal.api import RolloutWorkflow
    from areal.experimental.openai import ArealOpenAI

    class MyWorkflow(RolloutWorkflow):
        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        async def arun_episode(self, engine, data):
            async with ArealOpenAI(engine=engine, tokenizer=self.tokenizer, api_key="none") as client:
                answer = await client.chat.completions.create(messages=data["messages"])
                %s
"""


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("client.set_reward('other', 1.0)", "KeyError: .there is no completed call 'other'; this client has 0.0-1-1"),
        ("client.set_last_reward(float('inf'))", "RewardError: a reward must be finite"),
        (
            "ArealOpenAI(engine=engine).set_last_reward(1.0)",
            "RuntimeError: set_last_reward: this client has completed no call",
        ),
        ("client.apply_reward_discount(0.9)", "RuntimeError: apply_reward_discount: no call has a reward"),
        (
            "client.set_last_reward(1); client.apply_reward_discount(); client.apply_reward_discount()",
            "was called before; call it once",
        ),
        ("return client.export_interactions('individual')", "returned interactions without a reward"),
        ("return client.export_interactions('tree')", "the export style is 'tree'; write one of individual, concat"),
        (
            "await client.chat.completions.create(messages=data['messages'], n=2)",
            "n=2: this client keeps whole calls of one answer",
        ),
        (
            "await client.chat.completions.create(messages=data['messages'], stream=True)",
            "stream=True: this client keeps whole calls",
        ),
    ],
)
async def test_what_the_client_cannot_do_fails_the_episode_with_the_remedy(tmp_path, line, complaint):
    async with playing(tmp_path, USING % line) as (play, _, _):
        with pytest.raises(AgentError, match=complaint):
            await play(**ROW)


async def test_an_interaction_has_its_tokens_as_tensors(tmp_path):
    line = """
                interaction = client.get_interaction(answer.id)
                client.set_last_reward(0.5)
                tensors = interaction.to_tensor_dict()
                assert {name: list(tensor.shape) for name, tensor in tensors.items() if name != "rewards"} == {
                    name: [1, 19] for name in ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask")
                }
                assert bytes(tensors["input_ids"][0].tolist()) == b"u:hello\\\\na:hi there\\\\n"
                return tensors
    """.strip()
    async with playing(tmp_path, (USING % line).replace("\\\\", "\\")) as (play, trajectory, _):
        assert (await trajectory(await play(**ROW))).reward == 0.5


async def test_a_workflow_of_areal_can_be_sampled_greedily_in_evaluation_only(tmp_path):
    program = TENSOR_WORKFLOW.replace(
        "GenerationHyperparameters(max_new_tokens=20)", "GenerationHyperparameters(max_new_tokens=20, greedy=True)"
    )
    async with playing(tmp_path, program) as (play, _, _):
        with pytest.raises(AgentError, match=r"'temperature' is 0, but this run trains at 1: leave it out"):
            await play(prompt="u:hello\na:")
