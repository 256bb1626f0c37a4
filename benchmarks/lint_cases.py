"""Runs of `run_lint.py`.

20 whose learning signal is broken, with the finding that names it, and 20 that are healthy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AGENTS = Path(__file__).parent / "lint_agents.py"


@dataclass(frozen=True)
class Case:
    """A small run."""

    name: str
    settings: tuple[str, ...] = ()
    expected: str = ""
    """Name of the finding; empty for a healthy run."""
    recipe: str = "gsm8k_grpo"
    quick: bool = False
    """True if it is played with `--quick`."""


def agent(chosen: str, **options: object) -> tuple[str, ...]:
    """Settings that choose an agent of `lint_agents.py`."""
    return (f"task.agent={AGENTS}:{chosen}", *(f"task.agent_options.{key}={value}" for key, value in options.items()))


def reward(name: str) -> str:
    """The setting that chooses a reward of `lint_agents.py`."""
    return f"task.reward={AGENTS}:{name}"


def dataset(name: str) -> str:
    """The setting that chooses tasks of `lint_agents.py`."""
    return f"task.dataset={AGENTS}:{name}"


DISCOUNT = "task.turn_discount=0.9"
CALLING = ('warm_start.skills=["tools"]', "warm_start.steps=400", "warm_start.tail_steps=0", "sampling.max_tokens=96")
"""A model that calls the calculator in most of its answers."""

SICK = (
    Case("top_k = 1 in the recipe", ("sampling.top_k=1",), "equal samples"),
    Case(
        "an agent that sends temperature 0.1",
        (*agent("Asking", temperature=0.1), "gateway.temperature_policy=as_asked"),
        "equal samples",
    ),
    Case("a reward that is always 1", (reward("always_one"),), "constant rewards", quick=True),
    Case("rewards that differ by rounding", (reward("noise"),), "constant rewards"),
    Case("exceptions of the agent's own are wrong answers", agent("Catching"), "constant rewards"),
    Case("a reward of the task, not of the answer", (reward("by_task"),), "equal rewards in groups"),
    Case("answers are compared with the whole solution", (reward("same_text"),), "right answers without reward"),
    Case("a reward for a form that the model does not write", (reward("boxed"),), "right answers without reward"),
    Case(
        "half of the references are remarks",
        (dataset("half_unreadable"), "task.unreadable_references=warn"),
        "unreadable references",
    ),
    Case("a column that the rows do not have", agent("Misreading"), "equal prompts"),
    Case("a stop string that answers begin with", agent("Asking", stop='["#"]'), "empty answers"),
    Case("answers are cut after 2 tokens", ("sampling.max_tokens=2",), "cut answers"),
    Case("a tool under another name", (*agent("UsingTools", name="solve"), *CALLING), "lost tool calls"),
    Case("named conversations, one of them rewarded", (*agent("Named"), DISCOUNT), "calls without credit"),
    Case("solver 0 or 1 beside judge 4 or 5", agent("SolverAndJudge", lowest=4.0), "roles with one baseline"),
    Case(
        "the conversation fills the context",
        (*agent("Overflowing"), "generation.max_model_len=192"),
        "ended by the model",
    ),
    Case("answers are read as JSON", agent("ReadingJson"), "ended by the model"),
    Case("marks in tasks are control tokens", (dataset("marked"), "gateway.marks_in_text=control"), "forged marks"),
    Case("a reward that divides by 0", (reward("not_a_number"),), "failed attempts"),
    Case("the time in the first message", agent("Dated"), "rewritten histories"),
)

HEALTHY = (
    Case("one answer, GRPO", quick=True),
    Case("synchronous", ("staleness_gate.max_staleness=0",)),
    Case("temperature 0.7, top_p 0.95", ("sampling.temperature=0.7", "sampling.top_p=0.95")),
    Case("seed 42 in every request", agent("Asking", seed=42)),
    Case("two turns, discount 0.9", (*agent("Retrying"), DISCOUNT)),
    Case("two turns, no discount", agent("Retrying")),
    Case("compaction, discount 0.9", (*agent("Compacting"), DISCOUNT)),
    Case("candidates beside each other, discount 1", (*agent("Choosing"), "task.turn_discount=1.0")),
    Case("a reward for each call", (*agent("RewardingCalls"), "task.baseline_over=calls")),
    Case(
        "solver and judge with baselines of their own",
        (*agent("SolverAndJudge", lowest=4.0), "task.baseline_over=roles"),
    ),
    Case("solver and checker of one scale", agent("SolverAndJudge", lowest=0.0)),
    Case("tools", (*agent("UsingTools"), *CALLING)),
    Case("rewards of any size", (reward("dense"),)),
    Case("rewards 1 and -1", (reward("signed"),)),
    Case("a task with few successes", (reward("rare"), "trainer.batch_size=8")),
    Case("an easy task", (reward("easy"),)),
    Case("a reward without references", (reward("short"), dataset("unanswered"))),
    Case("one attempt in ten fails", agent("Failing", every=10)),
    Case(
        "the model ends one episode in ten",
        (*agent("Failing", every=10, error="GaveUp"), f'task.model_errors=["{AGENTS}:GaveUp"]'),
    ),
    Case("marks in tasks are text", (dataset("marked"),)),
)

CASES = (*SICK, *HEALTHY)
