"""Every framework unmodified, in an interpreter with its own pins, against the gateway on its real port."""

from __future__ import annotations

import pytest
from support.framework_harness import (
    FINAL,
    THINKING_TEMPLATE,
    agent_in,
    assert_extends,
    call,
    chat_tokenizer,
    opened_chat_gateway,
    parents,
    prefixes,
)
from support.framework_sdks import AnthropicSdk, OpenAiSdk

from areal_actors.rollout.client_environment import KEYS, PLACEHOLDER

pytestmark = pytest.mark.slow

CALCULATE = call("calculate", '{"expression": "9 * 2"}')
MULTIPLY = call("multiply", '{"a": 9, "b": 2}')
TEN_CALLS = [*(call("multiply", f'{{"a": {number}, "b": 2}}') for number in range(1, 10)), FINAL]
REASONED = [
    f"<think>\n{thought}\n</think>\n\n{text}" for thought, text in (("I multiply.", MULTIPLY), ("It is 18.", FINAL))
]
ANSWER = call("final_answer", '{"answer": "18"}')
HAND_OVER = call("transfer_to_solver", "{}")
PROGRAM, LAST_PROGRAM = "I multiply.\n<code>\nprint(multiply(9, 2))\n", "Done.\n<code>\nfinal_answer(18)\n"

ALL_THREE = [(over, streamed) for over in ("chat", "responses", "messages") for streamed in (False, True)]
OPENAI_TWO = ALL_THREE[:4]
WHOLE = [(over, False) for over in ("chat", "responses", "messages")]


@pytest.fixture(autouse=True)
def _nothing_calls_home(monkeypatch):
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


FRAMEWORKS = pytest.mark.parametrize(
    ("environment", "agent", "variants"),
    [
        ("frameworks", "framework_openai_agents.py:OpenAIAgents", OPENAI_TWO),
        ("frameworks", "framework_langchain.py:LangChain", ALL_THREE),
        ("frameworks", "framework_pydantic_ai.py:PydanticAi", ALL_THREE),
        ("frameworks", "framework_agent_framework.py:AgentFramework", OPENAI_TWO),
        ("frameworks", "framework_autogen.py:AutoGen", [("loop", False), ("loop", True)]),
        ("litellm", "framework_litellm.py:LiteLlm", WHOLE),
        ("crewai", "framework_crewai.py:CrewAi", WHOLE[:1]),
    ],
)


async def calls_ten_times(harness, run, over, streamed):
    """Nine calls of a tool and an answer; every prompt extends the one before to the token."""
    answer, trajectory = await harness.play(run, TEN_CALLS, over=over, streamed=streamed)
    assert answer == FINAL, (over, streamed)
    assert len(trajectory.interactions) == 10, (over, streamed)
    assert_extends(harness, trajectory)
    for number in range(1, 10):
        assert f"<tool_response>\n{2 * number}" in harness.prompt_text(number), (over, streamed)


async def calls_with_reasoning(harness, run, over, streamed):
    """A model that reasons before its call and before its answer: the reasoning stays in the prompt, whether or not it
    is sent back."""
    answer, trajectory = await harness.play(run, REASONED, over=over, streamed=streamed)
    assert answer == FINAL, (over, streamed)
    assert_extends(harness, trajectory)
    assert "<think>\nI multiply." in harness.prompt_text(1), (over, streamed)


@pytest.mark.long
@FRAMEWORKS
async def test_a_framework_calls_its_tool_nine_times_and_every_prompt_extends_the_one_before_to_the_token(
    environment, agent, variants
):
    async with opened_chat_gateway() as harness, agent_in(environment, f"tests/support/{agent}") as run:
        for over, streamed in variants:
            await calls_ten_times(harness, run, over, streamed)


@pytest.mark.long
@FRAMEWORKS
async def test_with_a_model_that_reasons_the_second_prompt_of_a_framework_extends_the_first_to_the_token(
    environment, agent, variants
):
    async with (
        opened_chat_gateway(chat=chat_tokenizer(THINKING_TEMPLATE)) as harness,
        agent_in(environment, f"tests/support/{agent}") as run,
    ):
        for over, streamed in variants:
            await calls_with_reasoning(harness, run, over, streamed)


@pytest.mark.long
async def test_text_beside_a_call_is_read_once_by_a_framework_that_reads_events_in_their_order():
    async with (
        opened_chat_gateway() as harness,
        agent_in("frameworks", "tests/support/framework_agent_framework.py:AgentFramework") as run,
    ):
        for over, streamed in OPENAI_TWO:
            answer, trajectory = await harness.play(
                run, [f"Let me see.\n{MULTIPLY}", FINAL], over=over, streamed=streamed
            )
            assert answer == f"Let me see.{FINAL}", (over, streamed)
            assert_extends(harness, trajectory)


WITHOUT_KEY = [
    ("frameworks", "framework_sdks:OpenAiSdk", ("chat", "responses")),
    ("frameworks", "framework_sdks:AnthropicSdk", ("messages",)),
    ("frameworks", "framework_openai_agents:OpenAIAgents", ("chat", "responses")),
    ("frameworks", "framework_langchain:LangChain", ("chat", "responses", "messages")),
    ("frameworks", "framework_pydantic_ai:PydanticAi", ("chat", "responses", "messages")),
    ("frameworks", "framework_agent_framework:AgentFramework", ("chat", "responses")),
    ("frameworks", "framework_autogen:AutoGen", ("loop",)),
    ("frameworks", "framework_smolagents:SmolAgents", ("tools",)),
    ("litellm", "framework_litellm:LiteLlm", ("chat", "responses", "messages")),
    ("crewai", "framework_crewai:CrewAi", ("chat",)),
    ("camel", "framework_camel:Camel", ("openai", "compatible")),
]


@pytest.mark.long
@pytest.mark.parametrize(("environment", "agent", "protocols"), WITHOUT_KEY)
async def test_a_client_that_a_framework_makes_without_a_key_calls_the_session_of_its_address(
    environment, agent, protocols, monkeypatch
):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    wrapped = "tests/support/framework_without_key.py:WithoutKey"
    script = [MULTIPLY, ANSWER if "smolagents" in agent else FINAL]
    async with opened_chat_gateway() as harness, agent_in(environment, wrapped, wraps=agent) as run:
        for over in protocols:
            for key in ("", PLACEHOLDER):
                answer, trajectory = await harness.play(run, script, over=over, streamed=False, key=key)
                assert answer == ("18" if "smolagents" in agent else FINAL), (over, key)
                assert len(trajectory.interactions) == 2, (over, key)


@pytest.mark.long
@pytest.mark.parametrize(("sdk", "variants"), [(OpenAiSdk, OPENAI_TWO), (AnthropicSdk, ALL_THREE[4:])])
async def test_an_sdk_has_a_conversation_of_ten_calls_and_one_with_reasoning(sdk, variants):
    async with opened_chat_gateway(chat=chat_tokenizer(THINKING_TEMPLATE)) as harness:
        for over, streamed in variants:
            await calls_ten_times(harness, sdk().run, over, streamed)
            await calls_with_reasoning(harness, sdk().run, over, streamed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("agent", "over", "script", "answer", "parent", "reason"),
    [
        (
            "framework_autogen.py:AutoGen",
            "reflection",
            [MULTIPLY, FINAL],
            FINAL,
            0,
            "the tools or the template's settings changed",
        ),
        (
            "framework_smolagents.py:SmolAgents",
            "tools",
            [MULTIPLY, ANSWER],
            "18",
            -1,
            "message 2 (assistant) is not what it was",
        ),
        (
            "framework_smolagents.py:SmolAgents",
            "code",
            [PROGRAM, LAST_PROGRAM],
            "18",
            -1,
            "message 2 (assistant) is not what it was",
        ),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_where_a_framework_rewrites_history_the_next_call_extends_no_tokens_and_the_reason_is_recorded(
    agent, over, script, answer, parent, reason, streamed
):
    async with opened_chat_gateway() as harness, agent_in("frameworks", f"tests/support/{agent}") as run:
        returned, trajectory = await harness.play(run, script, over=over, streamed=streamed)
        assert returned == answer
        assert (parents(trajectory), prefixes(trajectory)) == ([-1, parent], [-1, -1])
        assert reason in harness.recorded()[1].prefix_break_reason


@pytest.mark.long
@pytest.mark.parametrize(("over", "streamed"), OPENAI_TWO[1:3])
async def test_a_handoff_to_an_agent_with_other_instructions_continues_the_conversation_but_not_its_tokens(
    over, streamed
):
    async with (
        opened_chat_gateway() as harness,
        agent_in("frameworks", "tests/support/framework_openai_agents.py:OpenAIAgents") as run,
    ):
        answer, trajectory = await harness.play(
            run, [HAND_OVER, MULTIPLY, FINAL], over=over, streamed=streamed, handoff=True
        )
        assert answer == FINAL
        assert (parents(trajectory), prefixes(trajectory)) == ([-1, 0, 1], [-1, -1, 1])
        assert [bool(recorded.prefix_break_reason) for recorded in harness.recorded()] == [False, True, False]


OURS = [
    ("frameworks", "openai_agents_sdk.py:OpenAIAgentsSdkAgent"),
    ("frameworks", "langgraph_tools.py:LangGraphAgent"),
    ("frameworks", "anthropic_tools.py:AnthropicToolsAgent"),
    ("camel", "camel_chat.py:CamelChatAgent"),
]


@pytest.mark.long
@pytest.mark.parametrize(("environment", "agent"), OURS)
async def test_an_agent_in_a_framework_ends_well_whatever_the_model_does(environment, agent):
    async with opened_chat_gateway() as harness, agent_in(environment, f"agents/{agent}") as run:
        answer, trajectory = await harness.play(run, [CALCULATE, FINAL])
        assert answer == FINAL
        assert len(trajectory.interactions) == 2
        assert_extends(harness, trajectory)
        assert "<tool_response>\n18\n</tool_response>" in harness.prompt_text(1)

        answer, trajectory = await harness.play(
            run, [call("calculate", '{"sum": "9 * 2"}'), call("calculate", '{"expression": "2 / 0"}'), FINAL]
        )
        assert answer == FINAL
        assert len(trajectory.interactions) == 3
        assert_extends(harness, trajectory)

        answer, trajectory = await harness.play(run, [CALCULATE] * 10)
        assert answer == ""
        assert len(trajectory.interactions) == 6
        assert_extends(harness, trajectory)

        answer, trajectory = await harness.play(run, [call("no_such_tool", "{}"), FINAL])
        assert answer in ("", FINAL)  # some frameworks answer a call of an unknown tool, others end there
        assert_extends(harness, trajectory)

        for odd in ('<tool_call>\n{"name": "calc', ""):
            answer, trajectory = await harness.play(run, [odd])
            assert answer == odd
            assert len(trajectory.interactions) == 1


@pytest.mark.long
@pytest.mark.parametrize(("environment", "agent"), OURS)
async def test_an_answer_cut_off_by_length_is_scored_like_any_other(environment, agent):
    async with opened_chat_gateway() as harness, agent_in(environment, f"agents/{agent}") as run:
        text = "a long story " * 300
        answer, trajectory = await harness.play(run, [text], max_tokens=60)
        assert text.startswith(answer)
        assert [turn.finish_reason for turn in trajectory.interactions] == ["length"]
