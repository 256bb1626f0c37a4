"""The warm start: supervised steps on demonstrations, with the same trainer as reinforcement learning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from areal_actors.core.values import TrainingSequence
from areal_actors.embedded.demonstrations import Demonstration, DemonstrationSource, demonstration
from areal_actors.embedded.settings import WarmStart
from areal_actors.supervised.example_sequences import sequence, trained_segments
from areal_actors.supervised.examples import ExampleConversation
from areal_actors.tasks.arithmetic import problems
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.algorithms.sft import Sft
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

Progress = Callable[[int, int, dict[str, float]], None]
"""Called with steps done, total steps, and metrics."""

WARMUP_STEPS = 20
MICROBATCH_TOKENS = 1024
"""Conversations differ in length; small micro-batches need little padding."""


def warm_up(folder: Path, settings: WarmStart, seed: int, threads: int, progress: Progress) -> None:
    """Train the model in this folder in place: first on mostly good demonstrations, then on mostly shortcuts."""
    demonstrations = Demonstrations(folder, settings.skills, seed)
    total = settings.steps + settings.tail_steps
    worked = OptimizerSettings(lr=settings.lr, schedule="cosine", warmup_steps=WARMUP_STEPS)
    tail = OptimizerSettings(lr=settings.tail_lr, schedule="cosine")
    phases = (
        (0, settings.steps, worked, settings.shortcut_fraction),
        (settings.steps, settings.tail_steps, tail, settings.tail_shortcut_fraction),
    )
    for before, steps, optimizer, shortcut_fraction in phases:
        trainer = TorchTrainer(
            str(folder),
            Sft(),
            TrainerSettings(
                device="cpu",
                threads=threads,
                optimizer=optimizer,
                logprob_check_sequences=0,
                microbatch_tokens=MICROBATCH_TOKENS,
            ),
            total_steps=steps,
            seed=seed,
        )
        for step in range(steps):
            metrics = trainer.step(demonstrations.take(settings.batch_size, shortcut_fraction))
            progress(before + step + 1, total, metrics)
        trainer.save_model(str(folder))


class Demonstrations:
    """Good demonstrations and shortcuts as sequences, tokenized turn by turn like the gateway."""

    def __init__(self, folder: Path, skills: Sequence[str], seed: int) -> None:
        self._tokenizer = ChatTokenizer.load(folder)
        self._skills = skills
        self._problems = problems("train", seed)
        self._rng = random.Random(seed)
        self._surroundings = random.Random(f"surroundings {seed}")

    def take(self, count: int, shortcut_fraction: float) -> list[TrainingSequence]:
        """Returns the next `count` demonstrations.

        About `shortcut_fraction` of the problems are solved by the shortcut.
        """
        source = DemonstrationSource(self._problems, self._surroundings, lambda: self._rng.random() < shortcut_fraction)
        return [sequence_of(demonstration(self._skills, source), self._tokenizer, group) for group in range(count)]


def sequence_of(shown: Demonstration, tokenizer: ChatTokenizer, group: int) -> TrainingSequence:
    """Converts a demonstration to a sequence.

    It is always a single one, because the embedded model's template only appends.
    """
    conversation = ExampleConversation(tuple(shown.messages), 0, tuple(shown.tools), frozenset(shown.mistakes))
    ((ids, learned),) = trained_segments(conversation, tokenizer)
    return sequence(ids, learned, group, reward=0.0)
