"""The recipe's tables for engines. Kept apart from the engines so that a recipe can be read without loading torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from areal_actors.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

TENSOR_ENGINES = ("transformers",)
"""Engines that load torch."""
ENGINES = (*TENSOR_ENGINES, "scripted")


class ScriptedSettings(Config):
    """`[generation.scripted]`: what the engine without a model says, for load tests."""

    token_seconds: NonNegativeFloat = 0.0
    """How long it takes for a token."""
    shortest: PositiveInt = 4
    """Tokens of a completion, its end-of-turn token among them; drawn anew for each."""
    longest: PositiveInt = 32


class GenerationSettings(Config):
    """`[generation]`: the engine that samples completions."""

    engine: str = "transformers"
    """`transformers`, `scripted` (says random tokens), or `path.py:Class` of a class that is called as
    `Class(model_folder, settings)` and does what `areal_actors.engines.base.GenerationEngine` says."""
    scripted: ScriptedSettings = ScriptedSettings()
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    slots: PositiveInt = 128
    """Completions decoded together; more wait in line."""
    context: PositiveInt = 512
    """Longest prompt plus completion, in tokens."""
    threads: PositiveInt = 1
    """CPU threads of the engine's process."""


class OptimizerSettings(Config):
    """`[trainer.optimizer]`: AdamW and its schedule."""

    lr: PositiveFloat = 8e-4
    """As the embedded model likes it; a model of a billion parameters wants about 1e-6."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.0
    grad_clip: PositiveFloat = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0


class TrainerSettings(Config):
    """`[trainer]`: the engine that learns."""

    batch_size: PositiveInt = 16
    """Groups per optimizer step."""
    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the forward and backward pass; master weights and optimizer state are float32."""
    microbatch_tokens: PositiveInt = 4096
    """Padded tokens per forward and backward pass."""
    threads: PositiveInt = 1
    optimizer: OptimizerSettings = OptimizerSettings()
    parity_rows: NonNegativeInt = 16
    """Rows per weight version and step whose sampled log-probabilities are checked against the trainer's own; 0 checks none."""


Skill = Literal["answer", "instructed", "tools", "functions", "retry"]
"""What the embedded model can be shown; the functions of these names in `datasets/demonstrations.py`."""


class WarmStart(Config):
    """`[warm_start]`: the supervised steps that make the embedded model."""

    skills: Annotated[tuple[Skill, ...], msgspec.Meta(min_length=1)] = ("answer",)
    """What is demonstrated, besides the bare question: each skill has a way that pays, and a shortcut."""
    steps: NonNegativeInt = 1000
    """Steps on mostly good demonstrations; the learning rate falls to 0 along a cosine."""
    batch_size: PositiveInt = 8
    lr: PositiveFloat = 6e-3
    direct_share: Fraction = 0.1
    """Share of these steps' demonstrations that take the shortcut: answer at once."""
    tail_steps: NonNegativeInt = 100
    """Steps after these, in which most demonstrations take the shortcut: what reinforcement learning then unlearns."""
    tail_lr: PositiveFloat = 2e-3
    tail_direct_share: Fraction = 0.85
    """Share of the tail's demonstrations that take the shortcut."""
