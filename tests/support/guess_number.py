"""A text environment with Gymnasium's interface, as a user would write and register it."""

import gymnasium
from gymnasium.spaces import Text


class GuessNumber(gymnasium.Env):
    """Find a number from 1 to 9; each wrong guess costs a tenth."""

    def __init__(self, penalty=0.1):
        self.penalty = penalty
        self.action_space = Text(2, charset="0123456789")
        self.observation_space = Text(40)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.number = int(self.np_random.integers(1, 10))
        return "Guess a number from 1 to 9.", {}

    def step(self, action):
        guess = int(action)
        if guess == 0:
            raise RuntimeError("0 breaks this environment")
        if guess == self.number:
            return "Right.", 1.0, True, False, {}
        return ("Higher." if guess < self.number else "Lower."), -self.penalty, False, False, {}


gymnasium.register("GuessNumber-v0", entry_point=GuessNumber, max_episode_steps=4)
