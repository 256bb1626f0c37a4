"""Agents that are programs in any language."""

from __future__ import annotations

import pytest
from test_subprocess_runner import episode

from areal_actors.core.errors import AgentError
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.agent_runner import AgentResult
from areal_actors.rollout.subprocess_runner import SubprocessRunner


async def ran(tmp_path, script, **data):
    runner = SubprocessRunner(AgentProgram(command=("sh", "-c", script), root=str(tmp_path)), processes=1)
    await runner.start()
    try:
        return await episode(runner, **data)
    finally:
        await runner.close()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("cat >/dev/null; echo on the way; echo '{\"reward\": 1}'", AgentResult(reward=1.0)),
        ('echo \'{"output": "42"}\'; echo', AgentResult(output="42")),
        ('echo \'{"rewards": {"a": 1}}\'', AgentResult(rewards={"a": 1.0})),
        ('echo \'{"reward": 1, "metrics": {"turns": 2}}\'', AgentResult(reward=1.0, metrics={"turns": 2.0})),
        ("echo null", AgentResult()),
        ("echo '{}'", AgentResult()),
        ("printf 0.5", AgentResult(reward=0.5)),
        ('printf \'{"output": %s}\' "$(sed s/.*:// | tr -d })"', AgentResult(output="why?")),
        ('printf \'"%s"\' "$OPENAI_BASE_URL $ANTHROPIC_API_KEY"', AgentResult(output="http://here/sk-0/v1 sk-0")),
        ("echo \"$AREAL_TASK\" | sed 's/question/output/'", AgentResult(output="why?")),
        ("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo 1", AgentResult(reward=1.0)),
    ],
)
async def test_a_program_in_any_language_prints_its_result_as_the_last_line(tmp_path, script, expected):
    assert await ran(tmp_path, script, question="why?") == expected


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo hello", 'printed `hello`, which is not JSON; print {"output"'),
        ("true", "printed nothing; print"),
        ("echo '{\"score\": 1}'", 'printed `{"score": 1}`; print'),
        ('echo \'{"reward": 1, "output": "a"}\'', "printed `{.*}`; print"),
        (
            'echo \'{"reward": null, "a": 1}\'; echo no >&2; exit 7',
            "ended its process with exit status 7; it last printed:\n(.*\n)?no",
        ),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ('echo \'{"reward": "high"}\'', "printed `.*high.*`; print"),
    ],
)
async def test_a_program_that_fails_or_prints_something_else_is_an_error(tmp_path, script, complaint):
    with pytest.raises(AgentError, match=complaint):
        await ran(tmp_path, script)


async def test_a_program_that_leaves_its_output_open_blocks_no_process(tmp_path):
    assert await ran(tmp_path, "sleep 100 & echo 1") == AgentResult(reward=1.0)
