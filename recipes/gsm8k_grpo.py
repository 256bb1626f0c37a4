"""The recipe gsm8k_grpo.toml as a hand-written training loop: `python recipes/gsm8k_grpo.py [KEY=VALUE ...]`.

Rollouts continue in the background while a batch is trained, at most `staleness_gate.max_staleness` versions ahead.
"""

import sys
import time
from itertools import count
from pathlib import Path

from areal_actors.library.controllers import RolloutController, TrainController, recipe
from areal_actors.library.workflow import ArealOpenAI, Engine, RolloutWorkflow
from areal_actors.tasks.datasets import open_dataset

HELD_OUT = 200


class Solve(RolloutWorkflow):
    """One question, one answer; the recipe's reward function scores the text."""

    async def arun_episode(self, engine: Engine, data: dict) -> str:
        """Send the question to the model that is being trained."""
        async with ArealOpenAI(engine) as client:
            question = [{"role": "user", "content": data["question"]}]
            completion = await client.chat.completions.create(model="default", messages=question)
        return completion.choices[0].message.content or ""


def main(overrides: list[str]) -> None:
    """Train with the recipe, and print the metrics."""
    config = recipe(Path(__file__).with_suffix(".toml"), "run=gsm8k-grpo-loop", *overrides)
    dataset = open_dataset(config.task.dataset, seed=config.seed, held_out=HELD_OUT)
    tasks = map(dataset.train.task, count())
    held_out = [dataset.held_out.task(number) for number in range(HELD_OUT)]
    with RolloutController(config) as rollouts, TrainController(config, rollouts) as trainer:
        rollouts.update_weights(trainer.upload_weights())
        print(f"held out, before: {rollouts.evaluate(held_out, Solve, greedy=True).accuracy:.1%}", flush=True)
        began = time.monotonic()
        for step in range(1, config.steps + 1):
            batch = rollouts.prepare_batch(tasks, Solve)
            metrics = trainer.train_batch(batch)
            rollouts.update_weights(trainer.upload_weights())
            print(
                f"step {step:3}  reward {metrics['reward_mean']:.3f}  staleness {metrics['token_staleness_mean']:.2f}"
                f"  tokens {metrics['mean_tokens']:.1f}  {time.monotonic() - began:.0f} s",
                flush=True,
            )
        rollouts.pause()
        print(f"held out, after: {rollouts.evaluate(held_out, Solve, greedy=True).accuracy:.1%}")
        trainer.save(Path(config.folder) / config.run / "checkpoints" / f"step-{config.steps}")


if __name__ == "__main__":
    main(sys.argv[1:])
