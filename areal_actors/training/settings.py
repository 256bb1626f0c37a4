"""The recipe's tables of training. Kept apart from the trainer so that a recipe can be read without loading torch."""

from __future__ import annotations

from typing import Literal

from areal_actors.core.config import Config, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


class OptimizerSettings(Config):
    """`[trainer.optimizer]`: an optimizer of torch and its learning rate schedule."""

    lr: NonNegativeFloat = 8e-4
    """The default suits the embedded model. Unstated, a pretrained model gets 1e-6, and up to 1e-5 below 1.5 billion
    parameters (SFT and reward models 1e-5, DPO 5e-7), with LoRA 20 times that. With 0 nothing is learned: the run
    samples and scores episodes, as for `areal-actors export --sft`."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """For `adamw`, `adam` and `muon`."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay of `adamw` and `muon`, L2 penalty of the others."""
    grad_clip: PositiveFloat = 1.0
    """Maximum norm of the gradient of all trained weights together."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; decaying schedules reach `minimum_ratio` at the last step."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up to `lr`."""
    minimum_ratio: Fraction = 0.0
    """Final learning rate of a decaying schedule, as a fraction of `lr`."""
    name: Literal["adamw", "adam", "sgd", "adafactor", "muon"] = "adamw"
    """Optimizer of torch. `muon`: Muon for the matrices of the blocks, AdamW for embeddings, head and vectors."""
    muon_lr: PositiveFloat | None = None
    """Learning rate of the matrices under `muon`, whose steps are as large as AdamW's; `lr` if not set."""
    epsilon: PositiveFloat = 1e-8
    """For `adamw`, `adam` and `muon`: added to the root of the second moment."""
    momentum: Fraction = 0.0
    """For `sgd`."""
    allow_high_lr: bool = False
    """Accept a rate with which Adam destroys a pretrained model within a few steps."""


class LoraSettings(Config):
    """`[trainer.lora]`: train low-rank updates of frozen weights (arXiv:2106.09685)."""

    rank: PositiveInt = 16
    """Rank of the added factors."""
    alpha: PositiveInt = 32
    """The product of the two factors is scaled by `alpha / rank`."""
    targets: tuple[str, ...] = ()
    """Names of the adapted linear layers, such as `q_proj`; empty for all but the head."""
    rank_stabilized: bool = False
    """Scale by `alpha / sqrt(rank)` instead (arXiv:2312.03732)."""
    quantize_base: Literal["off", "bitsandbytes", "torchao", "float8"] = "off"
    """Hold the frozen matrices of the linear layers in 4 bits (NF4, QLoRA, arXiv:2305.14314), packed by this library,
    which is an extra, or in 8 bits (FP8 E4M3, arXiv:2209.05433, a scale for each row). Engines sample from the same
    rounded base."""
    published: Literal["adapter", "merged"] = "adapter"
    """Contents of published weights: the adapter alone, or the whole model with the adapter merged into it. Unstated:
    `merged` for servers that were started elsewhere (`generation.server.urls`), which may not take adapters, else
    `adapter`."""


class TrainerSettings(Config):
    """`[trainer]`: the training engine."""

    batch_size: PositiveInt = 16
    """Groups per optimizer step."""
    device: Literal["cpu", "cuda", "auto"] = "auto"
    """`cpu`, `cuda`, or `auto`: cuda if available."""
    devices: tuple[NonNegativeInt, ...] = ()
    """CUDA devices of the ranks, one each, as `areal-actors check` numbers them. Empty: chosen on the machine."""
    memory_fraction: Fraction = 0.0
    """Share of the memory of each device for a rank. 0: all of it, and half of what an inference worker shares."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the forward and backward pass; master weights and optimizer state are float32."""
    published_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of published weights. Unstated: `generation.dtype`, in which the engines hold them. Checkpoints stay in
    float32."""
    weights_folder: str = ""
    """Absolute path of a folder for published weights that engines on other hosts see at the same path. Empty: shared
    memory of this host, or the run's folder if it lacks room."""
    microbatch_tokens: PositiveInt = 4096
    """Computed tokens per forward and backward pass. The default is at least `generation.max_model_len`."""
    prefix_sharing: Literal["auto", "on", "off"] = "auto"
    """Compute the shared prefixes of a group's rows once (the gradient is the same): on a CPU, always, or never."""
    threads: PositiveInt = 1
    """CPU threads of each of the trainer's processes."""
    ranks: PositiveInt = 1
    """Processes that train together, each with a CUDA device of its own. Unstated: one, or half of the machine's CUDA
    devices for a model that is not embedded. Divided by the product of the next three settings, the number of
    data-parallel replicas."""
    tensor_parallel: PositiveInt = 1
    """Ranks that split the heads and hidden units, or experts, of every block."""
    sequence_parallel: PositiveInt = 1
    """Ranks that split the positions of every sequence."""
    pipeline_parallel: PositiveInt = 1
    """Pipeline stages: ranks that split the blocks, and process different micro-batches at the same time."""
    ranks_address: str = ""
    """`host:port` at which the trainer waits for ranks that `torchrun` starts; empty starts them on this host."""
    rank_timeout_seconds: PositiveFloat = 1800.0
    """Timeout of a rank for a step or a checkpoint, and for waiting for the other ranks in it."""
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings | None = None
    """All weights are trained without this table."""
    max_skipped_steps: PositiveInt = 5
    """Maximum number of consecutive steps that changed no weight (no trainable row, or loss or gradient not finite);
    then the run saves a checkpoint and ends."""
    routing_replay: Literal["auto", "on", "off"] = "auto"
    """Train a mixture of experts on the experts that the engine chose (arXiv:2510.11370): `auto` where model and engine
    can, which a server that was started elsewhere is not asked; `on`: refuse those that cannot."""
    recompute_activations: bool = False
    """Gradient checkpointing: save only the inputs of each block and recompute the rest in the backward pass; a third
    more time."""
    compile: bool = False
    """Compile the model's blocks with `torch.compile`. It takes minutes at the first step of a process; on a CPU it
    gains little."""
    logprob_check_sequences: NonNegativeInt = 16
    """Rows per weight version and step whose sampled log-probabilities are compared with the trainer's own; 0 for
    none."""
    older_weights: Literal["auto", "on", "host", "off"] = "auto"
    """Keep copies of the weights of the last `staleness_gate.max_staleness` steps; without them only tokens of the
    current version are checked and corrected by `[algorithm.correction.mismatch]`. `on`: on the trainer's device and in
    checkpoints; `host`: in the machine's memory only. `auto`: `on` for up to 50 million trained parameters; for larger
    models `off` where a correction needs the copies, else the published files on a single rank on a CPU with
    `published_dtype = "float32"`, which take no memory of their own, or `host`, if the copies take at most a quarter of
    that memory."""
    retaken_steps: Literal["auto", "exact", "report"] = "auto"
    """Handling of a step replayed from the log whose weights differ from the logged ones: `exact` ends the run with
    both checksums, `report` continues and emits `StepDiffered`. `auto` is exact on a CPU, where arithmetic is
    deterministic, without `compile` and unless settings that affect it were changed since."""
