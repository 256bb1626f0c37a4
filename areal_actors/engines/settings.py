"""The recipe's tables for engines. Kept apart from the engines so that a recipe can be read without loading torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from areal_actors.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

TENSOR_ENGINES = ("transformers",)
"""Engines that load torch."""
ENGINES = (*TENSOR_ENGINES, "scripted")


class ScriptedSettings(Config):
    """`[generation.scripted]`: completions of the engine without a model, for load tests."""

    token_seconds: NonNegativeFloat = 0.0
    """Seconds per token."""
    shortest: PositiveInt = 4
    """Tokens of a completion, its end-of-turn token among them; drawn anew for each."""
    longest: PositiveInt = 32


class GenerationSettings(Config):
    """`[generation]`: the engine that samples completions."""

    engine: str = "transformers"
    """`transformers`, `scripted` (random tokens), or `path.py:Class` of a class that is called as
    `Class(model_folder, settings)` and implements `areal_actors.engines.base.GenerationEngine`."""
    scripted: ScriptedSettings = ScriptedSettings()
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    slots: PositiveInt = 128
    """Completions decoded together; others queue. Default of an inference worker: one slot per concurrent episode, limited to
    131,072 tokens of `context` together (at least 128 slots); no such limit for the embedded model."""
    context: PositiveInt = 1024
    """Longest prompt plus completion, in tokens. Unstated, at least twice a stated `sampling.max_tokens`."""
    threads: PositiveInt = 1
    """CPU threads of the engine's process."""
    batch_invariant: Literal["auto", "on", "off"] = "auto"
    """Makes the results of a completion independent of the batch, to the last bit; `auto`: on if `staleness_gate.max_staleness`
    is 0. For `transformers` on a CPU with one thread; costs a few percent of the speed with many concurrent completions, and
    40 % with a single one."""


class OptimizerSettings(Config):
    """`[trainer.optimizer]`: an optimizer of torch, and how its learning rate goes over the steps."""

    lr: PositiveFloat = 8e-4
    """As the embedded model likes it; a model of a billion parameters wants about 1e-6."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Of `adamw` and `adam`."""
    weight_decay: NonNegativeFloat = 0.0
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient of all trained weights together."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; the falling ones reach `minimum_ratio` at the last step."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which the learning rate rises, in a line, to `lr`."""
    minimum_ratio: Fraction = 0.0
    """Share of `lr` that a falling schedule ends at."""
    name: Literal["adamw", "adam", "sgd", "adafactor"] = "adamw"
    epsilon: PositiveFloat = 1e-8
    """Of `adamw` and `adam`: added to the root of the second moment."""
    momentum: Fraction = 0.0
    """Of `sgd`."""


class LoraSettings(Config):
    """`[trainer.lora]`: train low-rank additions to frozen weights (arXiv:2106.09685), and publish only them."""

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    """An addition is its two factors' product times `alpha / rank`."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get one, as `q_proj`; all but the head if none is named."""
    rank_stabilized: bool = False
    """Times `alpha / sqrt(rank)` instead (arXiv:2312.03732)."""


class TrainerSettings(Config):
    """`[trainer]`: the engine that learns."""

    batch_size: PositiveInt = 16
    """Groups per optimizer step."""
    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the forward and backward pass; master weights and optimizer state are float32."""
    microbatch_tokens: PositiveInt = 4096
    """Computed tokens per forward and backward pass. Unstated, at least `generation.context`."""
    prefix_sharing: Literal["auto", "on", "off"] = "auto"
    """Whether what the rows of a group begin with in common is computed once (the gradient is the same): where it saves enough,
    always, or never."""
    threads: PositiveInt = 1
    """CPU threads of each of the trainer's processes."""
    ranks: PositiveInt = 1
    """Processes that train together; those that none of the next three counts asks for hold replicas, which share out the batch."""
    tensor_parallel: PositiveInt = 1
    """Ranks that share out the heads and hidden units of every block."""
    sequence_parallel: PositiveInt = 1
    """Ranks that share out the positions of every sequence."""
    pipeline_parallel: PositiveInt = 1
    """Stages: ranks that share out the blocks, and work on different micro-batches at the same time."""
    ranks_address: str = ""
    """`host:port` at which the trainer waits for ranks that `torchrun` starts; empty starts them on this host."""
    rank_seconds: PositiveFloat = 1800.0
    """How long a rank may take for a step or a checkpoint, and wait for the others in it."""
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings | None = None
    """All weights are trained if there is no such table."""
    max_skipped_steps: PositiveInt = 5
    """Steps in a row that changed no weight (nothing in them could be trained, or their loss or gradient was not finite), after which
    the run saves a checkpoint and ends."""
    recompute_activations: bool = False
    """Keep only the inputs of each block for the backward pass, and compute the rest again: less memory, a third more time."""
    parity_rows: NonNegativeInt = 16
    """Rows per weight version and step whose sampled log-probabilities are checked against the trainer's own; 0 checks none."""
    older_weights: Literal["auto", "on", "off"] = "auto"
    """Whether copies of the weights of the last `staleness_gate.max_staleness` steps are kept, on the trainer's device and in
    checkpoints: without them only tokens of the current version are checked, and `[algorithm.correction.mismatch]` knows no other.
    `auto` keeps them of up to 50 million trained parameters."""
    retaken_steps: Literal["auto", "exact", "report"] = "auto"
    """What becomes of a step that is taken again from the log and comes to other weights than the log has: `exact` ends the run with
    both checksums, `report` goes on and emits `StepDiffered`. `auto` is exact on a CPU, where arithmetic repeats to the last bit,
    unless settings that change it were changed since."""


class RewardModelSettings(Config):
    """`[task.reward_options]` of a reward that is a trained model."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: PositiveInt = 8192
    """Padded tokens per forward pass; a longer conversation gets its own."""
    window_seconds: NonNegativeFloat = 0.005
    """Seconds that the first conversation of a batch waits for others."""
    threads: PositiveInt = 1


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
