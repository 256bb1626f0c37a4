"""Live runs of which a fifth succeeds, half is ended by the model itself, and the rest fails early: the reported
success is a fifth."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.live_run import ROOT

from areal_actors.messages import EpisodeAbandoned, StepCompleted, TrajectoryExported
from areal_actors.sequences.build import sequences_of

pytestmark = pytest.mark.long

STEPS = 2
QUICK = (
    *(
        "warm_start.steps=1",
        "warm_start.tail_steps=0",
        "evaluation.tasks=0",
        "generation.engine=scripted",
        "sampling.max_tokens=40",
    ),
    *(f"steps={STEPS}", "algorithm.group_size=10", "trainer.batch_size=2", "staleness_gate.max_concurrent=20"),
    *("generation.max_model_len=320", "task.retries=2"),
)
AGENT = """
import json
from openai import AsyncOpenAI
from areal_actors.library.workflow import workflow_context

PARAMETERS = {"type": "object", "properties": {"row": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]

class TurnsExceeded(Exception):
    pass

class Agent:
    def __init__(self, deeds):
        self.deeds = deeds

    async def run(self, task, *, base_url, api_key):
        member = int(workflow_context.get().episode.partition(".")[2])
        deed = self.deeds[member % len(self.deeds)]
        messages = [{"role": "user", "content": task["question"]}]
        async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            while True:
                if deed == "writes no JSON in arguments":
                    completion = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
                    message = completion.choices[0].message
                    for call in message.tool_calls:
                        json.loads(json.loads(call.function.arguments)["row"])
                completion = await client.chat.completions.create(model="m", messages=messages)
                answer = completion.choices[0].message.content or ""
                if deed in ("succeeds", "fails"):
                    return float(deed == "succeeds")
                if deed == "writes no JSON":
                    json.loads(answer)
                if deed != "overflows":
                    raise TurnsExceeded("2 turns")
                messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on, " * 6}]
"""
ENGINE = """
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.tokenization.tokenizer import ChatTokenizer

CALL = '<tool_call>\\n{"name": "add", "arguments": {"row": "{\\\\"a\\\\": 1,"}}\\n</tool_call>'

class Engine(ScriptedEngine):
    def __init__(self, model_folder, settings):
        tokenizer = ChatTokenizer.load(model_folder)
        answer = [(token, -0.5) for token in (*tokenizer.encode(CALL), tokenizer.stop_ids[0])]
        vocabulary = tokenizer.vocabulary_size
        super().__init__(lambda prompt, seed: answer, vocabulary_size=vocabulary, context=settings.max_model_len)
"""
OTHERS = {
    "overflow": (["overflows"] * 5, "its conversation no longer fits the context"),
    "turns": (["takes too many turns"] * 5, "TurnsExceeded"),
    "arguments": (["writes no JSON in arguments"] * 5, "it wrote text that is not JSON"),
    "json": (["writes no JSON"] * 5, "it wrote text that is not JSON"),
}


def explain(run):
    """The output of `areal-actors why`."""
    command = [sys.executable, "-m", "areal_actors", "why", run.folder.name, "--folder", str(run.folder.parent)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("deed", "overflow_reward"),
    [("overflow", 0.0), ("overflow", -0.5), ("turns", 0.0), ("json", 0.0), ("arguments", 0.0)],
)
async def test_half_of_the_episodes_that_the_model_ends_is_trained_and_a_fifth_is_the_success(
    live, tmp_path, deed, overflow_reward
):
    deeds, cause = OTHERS[deed]
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    engine = tmp_path / "engine.py"
    engine.write_text(ENGINE)
    engines = (
        (f"generation.engine={engine}:Engine", "sampling.max_tokens=100", "generation.max_model_len=500")
        if deed == "arguments"
        else ()
    )
    options = ["succeeds"] * 2 + deeds + ["fails"] * 3
    run = live(
        *QUICK,
        *engines,
        f"task.agent={file}:Agent",
        f"task.agent_options={{deeds={options!r}}}",
        f"task.model_errors=['{file}:TurnsExceeded']",
        f"task.overflow_reward={overflow_reward}",
    )
    assert await run.ended() == 0, run.output()
    log = [message for _, message in await run.log()]
    assert not [event for event in log if isinstance(event, EpisodeAbandoned) and event.reason == "agent"]
    made = [event.trajectory for event in log if isinstance(event, TrajectoryExported)]
    for trajectory in made:
        of_model = 2 <= int(trajectory.episode.partition(".")[2]) < 7
        assert trajectory.ended_by == ("model" if of_model else "agent")
        assert not of_model or (trajectory.reward == overflow_reward and cause in trajectory.end_cause)
        assert all(row.truncated == of_model for row in sequences_of(trajectory, 0, 0))
    steps = [event.metrics for event in log if isinstance(event, StepCompleted)]
    assert [(step["reward_mean"], step["ended_by_model"]) for step in steps] == [
        (pytest.approx(0.2 + overflow_reward / 2), 0.5)
    ] * STEPS
    ended = sum(trajectory.ended_by == "model" for trajectory in made)
    sentence = f"the model itself ended {ended} of {len(made)} episodes"
    why = explain(run)
    for text in (run.output(), why):
        assert sentence in " ".join(text.split()), text
    lines = re.findall(r"step \d+: reward (\S+), .*", run.output())
    assert lines == [f"{0.2 + overflow_reward / 2:.3f}"] * STEPS
    assert run.output().count("50% ended by the model") == STEPS
