"""Word problems of two steps, as an OpenEnv environment with a second attempt at half the reward.

`openenv:agents/openenv_problems.py:app` starts its server with the run. It is one like any other of OpenEnv, which
`uvicorn openenv_problems:app --app-dir agents` starts too.
"""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from openenv.core.env_server import Action, Environment, Observation, State, create_app

PROBLEMS = Path(__file__).parent / "tasks" / "word_problems.jsonl"
ATTEMPTS = 2


class ProblemAction(Action):
    """An answer."""

    number: int


class ProblemObservation(Observation):
    """The problem, or a remark on an answer."""

    text: str


class ProblemEnvironment(Environment[ProblemAction, ProblemObservation, State]):
    """The problem of a seed; 1 for a right answer, 0.5 for one at the second attempt."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._rows = [json.loads(line) for line in PROBLEMS.read_text(encoding="utf-8").splitlines()]
        self._row, self._state = self._rows[0], State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_options: Any) -> ProblemObservation:
        """Ask the problem of the seed."""
        self._row = self._rows[(seed or 0) % len(self._rows)]
        self._state = State(episode_id=episode_id or str(uuid4()))
        return ProblemObservation(text=self._row["question"])

    def step(self, action: ProblemAction, **_options: Any) -> ProblemObservation:
        """Compare an answer."""
        self._state.step_count += 1
        attempts = self._state.step_count
        if action.number == int(self._row["answer"]):
            return ProblemObservation(text="Right.", done=True, reward=1 / attempts)
        return ProblemObservation(text="Your answer is wrong. Try again.", done=attempts == ATTEMPTS, reward=0.0)

    @property
    def state(self) -> State:
        """The number of attempts so far."""
        return self._state


app = create_app(
    ProblemEnvironment, ProblemAction, ProblemObservation, env_name="openenv_problems", max_concurrent_envs=64
)
