"""Two-player Nim, a zero-sum game: take 1, 2 or 3 nuts in turn; the last one wins, an illegal move loses.

The trained player plays `role` of its task, `first` or `second`, against `opponent`: `optimal` or `random`, which are
code, or the name of a policy of the recipe, which is asked through the same client as `model` and scored by its own
`reward` there. `default` plays against itself.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

from areal_actors.client import LightClient

MOST = 3
HEAPS = range(4, 13)  # numbers of nuts at the start: with at least 4 both players have a turn
ROLES = ("first", "second")
FIXED_PLAYERS = ("optimal", "random")
TRAINED = "default"
TRAIN_ROWS, TEST_ROWS = 4000, 200


class TwoPlayerNimAgent:
    """Plays a game. A position is its number of nuts, so every call has only that, without the moves before."""

    def __init__(self, opponent: str = "optimal") -> None:
        """Play against `opponent` in tasks that name none."""
        self._opponent = opponent

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str | dict[str, Any]:
        """Returns `won`, `lost` or `illegal`, which `reward` scores.

        Where the model plays against itself, all calls are trained: returns 1 for each call of the winner, -1 for each
        of the loser, by the id of the response.
        """
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        opponent, rng = task.get("opponent") or self._opponent, random.Random(task["question"])
        players = {role: TRAINED if role == task["role"] else opponent for role in ROLES}
        calls: dict[str, list[str]] = {role: [] for role in ROLES}
        heap, moving, resting = task["heap"], *ROLES
        while True:
            if players[moving] in FIXED_PLAYERS:
                taken = choose_move(players[moving], heap, rng)
            else:
                completion = await client.chat.completions.create(
                    model=players[moving],
                    messages=[{"role": "user", "content": f"{heap} nuts. Take 1, 2 or 3."}],
                    extra_headers={"X-Session-ID": moving},  # the call's role, for `task.baseline_over = "roles"`
                )
                calls[moving].append(completion.id)
                taken = read_move(completion.choices[0].message.content or "")
            is_legal = 1 <= taken <= min(MOST, heap)
            heap -= taken
            if not is_legal or heap == 0:
                break
            moving, resting = resting, moving
        winner, loser = (moving, resting) if is_legal else (resting, moving)
        result = "won" if winner == task["role"] else "lost" if is_legal else "illegal"
        if opponent != TRAINED:
            return result
        rewards = dict.fromkeys(calls[winner], 1.0) | dict.fromkeys(calls[loser], -1.0)
        return {"rewards": rewards, "metrics": {"won": float(result == "won")}}


def choose_move(player: str, heap: int, rng: random.Random) -> int:
    """The move of a fixed player: `optimal` leaves a multiple of 4 where it can, and else plays as `random` does."""
    best = heap % (MOST + 1) if player == "optimal" else 0
    return best or rng.randint(1, min(MOST, heap))


def read_move(answer: str) -> int:
    """The last number of an answer; 0 if there is none."""
    numbers = re.findall(r"\d+", answer)
    return int(numbers[-1][:9]) if numbers else 0


def reward(task: Mapping[str, Any], output: str) -> dict[str, float]:
    """1 for a game that is won, else -1; further the share won, also by opponent, and that of illegal moves."""
    won = float(output == "won")
    opponent = task.get("opponent", "policy")
    return {"reward": 2 * won - 1, "won": won, f"won_{opponent}": won, "illegal": float(output == "illegal")}


def tasks() -> dict[str, list[dict[str, Any]]]:
    """Games against the fixed players, half against each: to train on, and held out.

    Those against `optimal` begin with a number of nuts from which the trained player can win.
    """
    return {"train": _games("train", TRAIN_ROWS), "test": _games("test", TEST_ROWS)}


def self_play_tasks() -> dict[str, list[dict[str, Any]]]:
    """Games to train on against the agent's `opponent`, and the same held-out ones against the fixed players."""
    trained = [{**game, "heap": HEAPS[number // 2 % len(HEAPS)]} for number, game in enumerate(_games("train"))]
    for game in trained:
        del game["opponent"]
    return {"train": trained, "test": _games("test", TEST_ROWS)}


def _games(split: str, count: int = TRAIN_ROWS) -> list[dict[str, Any]]:
    """Returns games; four in a row have each role against each fixed player."""
    rng = random.Random(f"two-player nim {split}")
    kinds = ((number, ROLES[number % 2], FIXED_PLAYERS[number // 2 % 2]) for number in range(count))
    return [_game(f"{split} game {number}", role, opponent, rng) for number, role, opponent in kinds]


def _game(name: str, role: str, opponent: str, rng: random.Random) -> dict[str, Any]:
    winnable = [heap for heap in HEAPS if (heap % (MOST + 1) == 0) == (role == "second")]
    heap = rng.choice(HEAPS if opponent == "random" else winnable)
    question = f"{name}: {heap} nuts, {role} against {opponent}"
    return {
        "question": question,
        "answer": str(heap % (MOST + 1) or 1),
        "heap": heap,
        "role": role,
        "opponent": opponent,
    }
