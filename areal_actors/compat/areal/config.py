"""The configuration classes of AReaL's programs: sections, field names and defaults are AReaL's.

They have the keys that have a counterpart here, and those that must have a certain value. `keys.py` lists the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from areal_actors.compat.areal.generation import GenerationHyperparameters


@dataclass
class NormConfig:
    """`reward_norm` and `adv_norm`: levels are `group`, `batch` or null."""

    mean_level: str | None = "batch"
    mean_leave1out: bool = False
    std_level: str | None = "batch"
    std_unbiased: bool = True
    eps: float = 1e-5
    group_size: int = 1


@dataclass
class MicroBatchSpec:
    """`mb_spec`."""

    n_mbs: int | None = 1
    granularity: int = 1
    max_tokens_per_mb: int | None = None
    n_mbs_divisor: int = 1
    packing_algorithm: str = "ffd"


@dataclass
class OptimizerConfig:
    """`optimizer`."""

    type: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    min_lr_ratio: float = 0.0
    lr_scheduler_type: str = "constant"
    warmup_steps_proportion: float = 0.001
    gradient_clipping: float = 1.0


@dataclass
class RejectionSamplingConfig:
    """`rejection_sampling`: bounds of importance weights."""

    level: str = "token"
    action: str = "mask"
    metric: str = "ratio"
    agg: str = "mean"
    upper: float = 5.0
    lower: float | None = None


@dataclass
class TrainEngineConfig:
    """Fields of all trained and frozen models."""

    path: str = ""
    backend: str = ""
    experiment_name: str = ""
    trial_name: str = ""
    init_from_scratch: bool = False
    is_critic: bool = False
    temperature: float = 1.0
    mb_spec: MicroBatchSpec = field(default_factory=MicroBatchSpec)
    disable_dropout: bool = False
    gradient_checkpointing: bool = False
    dtype: str = "bfloat16"
    optimizer: OptimizerConfig | None = None
    use_lora: bool = False
    lora_rank: int = 32
    lora_alpha: int = 16
    target_modules: list[str] = field(default_factory=list)
    peft_type: str = "lora"


@dataclass
class PPOActorConfig(TrainEngineConfig):
    """`actor`, and `ref`."""

    ppo_n_minibatches: int = 4
    eps_clip: float = 0.2
    eps_clip_higher: float | None = None
    c_clip: float | None = None
    m2_threshold: float | None = None
    reward_norm: NormConfig | None = None
    reward_scaling: float = 1.0
    reward_bias: float = 0.0
    reward_clip: float = 20.0
    overlong_reward_penalty: bool = False
    overlong_tokens: int | None = None
    overlong_penalty_factor: float | None = None
    mask_no_eos_with_zero: bool = False
    discount: float = 1.0
    gae_lambda: float = 1.0
    adv_norm: NormConfig | None = None
    kl_ctl: float = 0.1
    kl_estimator: str = "k1"
    use_sapo_loss: bool = False
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    recompute_logprob: bool = False
    use_decoupled_loss: bool = False
    rejection_sampling: RejectionSamplingConfig | None = None
    importance_sampling_level: str = "token"
    prox_logp_method: str = "recompute"
    max_new_tokens: int = 1024
    behav_imp_weight_cap: float | None = None
    """Earlier name of `rejection_sampling.upper`; the next one is its misspelling in some files."""
    behave_imp_weight_cap: float | None = None
    behave_imp_weight_mode: str = "token_mask"


@dataclass
class TeacherConfig(PPOActorConfig):
    """`teacher`: a frozen model, to which the answers are drawn."""

    rl_loss_weight: float = 1.0
    distill_loss_weight: float = 0.005


@dataclass
class PPOCriticConfig(TrainEngineConfig):
    """`critic`."""

    ppo_n_minibatches: int = 4
    eps_clip: float = 0.5
    mask_no_eos_with_zero: bool = False


@dataclass
class AgentRunConfig:
    """`rollout.agent`: agents with `async def run(self, data, **extra_kwargs)`."""

    mode: str = "inline"
    turn_discount: float = 1.0
    export_style: str = "individual"
    subproc_max_workers: int = 4
    session_timeout_seconds: int = 3600


@dataclass
class InferenceEngineConfig:
    """`rollout`."""

    backend: str = ""
    experiment_name: str | None = None
    trial_name: str | None = None
    fileroot: str | None = None
    max_concurrent_rollouts: int | None = None
    consumer_batch_size: int = 1
    max_head_offpolicyness: int = 0
    tokenizer_path: str = ""
    dump_to_file: bool = False
    request_timeout: float = 3600.0
    use_lora: bool = False
    return_routed_experts: bool = False
    agent: AgentRunConfig = field(default_factory=AgentRunConfig)


@dataclass
class DatasetConfig:
    """`train_dataset`."""

    split: str = "train"
    path: str = ""
    type: str | None = "rl"
    batch_size: int = 1
    shuffle: bool = True
    drop_last: bool = True
    max_length: int | None = None


@dataclass
class HeldOutDatasetConfig(DatasetConfig):
    """`valid_dataset`."""

    split: str = "test"
    shuffle: bool = False
    drop_last: bool = False


@dataclass
class Frequency:
    """`saver` and `evaluator`: interval in epochs or steps; null for never."""

    experiment_name: str = ""
    trial_name: str = ""
    fileroot: str = ""
    freq_epochs: int | None = None
    freq_steps: int | None = None
    freq_secs: int | None = None
    eval_before_train: bool = False
    mode: str = "auto"

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """True after this step, counted from 1."""
        by_epoch = self.freq_epochs is not None and step % (self.freq_epochs * steps_per_epoch) == 0
        return by_epoch or (self.freq_steps is not None and step % self.freq_steps == 0)

    def steps_between(self, steps_per_epoch: int) -> int:
        """Steps from one time to the next; 0 for never."""
        by_epoch = (self.freq_epochs or 0) * steps_per_epoch
        return min((steps for steps in (by_epoch, self.freq_steps or 0) if steps), default=0)


@dataclass
class ClusterConfig:
    """`cluster`."""

    fileroot: str = "/tmp/areal/"  # noqa: S108 - AReaL's default
    n_nodes: int = 32
    n_gpus_per_node: int = 8


@dataclass
class StatsLoggerConfig:
    """`stats_logger`: names the folder of a program's own files; metrics are in metrics.jsonl."""

    experiment_name: str = ""
    trial_name: str = ""
    fileroot: str = ""


@dataclass
class ServerConfig:
    """`sglang` and `vllm`."""

    context_length: int | None = None
    max_model_len: int | None = None
    dtype: str = "bfloat16"

    @staticmethod
    def build_args(
        sglang_config: ServerConfig | None = None, vllm_config: ServerConfig | None = None, **placement: Any
    ) -> dict[str, Any]:
        """Returns the stated settings and the placement, the argument `server_args` of `initialize`."""
        stated = asdict(sglang_config or vllm_config or ServerConfig())
        return {name: value for name, value in {**stated, **placement}.items() if value is not None}


@dataclass
class Recover(Frequency):
    """`recover`: `mode` is `disabled`, or `on` (`auto`, `fault`, `resume`): the place of a loop is kept and found."""

    mode: str | bool = "disabled"  # type: ignore[assignment]  # YAML reads `on` and `off` as true and false
    retries: int = 3

    @property
    def is_on(self) -> bool:
        """True if a program continues where an earlier one stopped."""
        return self.mode not in ("disabled", "off", False)

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """True after this step, counted from 1; after each if no interval is stated."""
        return not (self.freq_epochs or self.freq_steps) or super().is_due(step, steps_per_epoch)


@dataclass
class SchedulerConfig:
    """`scheduler`."""

    type: str | None = None


@dataclass
class BaseExperimentConfig:
    """Sections of all programs."""

    experiment_name: str = ""
    trial_name: str = ""
    seed: int = 1
    total_train_epochs: int = 1
    total_train_steps: int | None = None
    total_train_n_seqs: int | None = None
    tokenizer_path: str = ""
    allocation_mode: str = ""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    train_dataset: DatasetConfig = field(default_factory=DatasetConfig)
    valid_dataset: HeldOutDatasetConfig | None = None
    saver: Frequency = field(default_factory=Frequency)
    evaluator: Frequency = field(default_factory=Frequency)
    recover: Recover = field(default_factory=Recover)
    stats_logger: StatsLoggerConfig = field(default_factory=StatsLoggerConfig)
    sglang: ServerConfig = field(default_factory=ServerConfig)
    vllm: ServerConfig = field(default_factory=ServerConfig)

    def __post_init__(self) -> None:
        """Complete the settings that follow from others."""
        self.tokenizer_path = self.tokenizer_path or getattr(getattr(self, "actor", None), "path", "")


@dataclass
class PPOConfig(BaseExperimentConfig):
    """A program's own class adds fields to this one."""

    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    eval_gconfig: GenerationHyperparameters | None = None
    rollout: InferenceEngineConfig = field(default_factory=InferenceEngineConfig)
    actor: PPOActorConfig = field(default_factory=PPOActorConfig)
    ref: PPOActorConfig | None = None
    critic: PPOCriticConfig | None = None
    teacher: TeacherConfig | None = None
    dynamic_bs: bool = False

    def __post_init__(self) -> None:
        """Complete the settings that follow from others."""
        super().__post_init__()
        self.eval_gconfig = self.eval_gconfig or self.gconfig.new()


@dataclass
class GRPOConfig(PPOConfig):
    """The same, by its other name."""
