"""An OpenEnv package as `openenv init` lays it out, whose action has two fields and whose observation has two."""

import os

from openenv.core.env_server import Action, Environment, Observation, State, create_app


class NoteAction(Action):
    title: str
    stars: int


class NoteObservation(Observation):
    written: str = ""
    process: int = 0


class Notes(Environment[NoteAction, NoteObservation, State]):
    """Notes get a reward for each star; an empty title breaks it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **options):
        self._state = State(episode_id=episode_id)
        return NoteObservation(written=f"{options.get('book', 'none')} {seed}", process=os.getpid())

    def step(self, action, timeout_s=None, **_):
        if action.title == "break":
            raise RuntimeError("this title breaks the environment")
        self._state.step_count += 1
        return NoteObservation(written=action.title, reward=action.stars / 10, done=self._state.step_count == 3)

    @property
    def state(self):
        return self._state


app = create_app(Notes, NoteAction, NoteObservation, env_name="notes", max_concurrent_envs=1)
