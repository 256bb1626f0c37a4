"""The names of AReaL that this package has.

They are in `areal_actors.compat.areal` itself, and in the modules that have them in AReaL.
"""

from __future__ import annotations

from collections.abc import Mapping

PACKAGE = "areal_actors.compat.areal"
AGENTS = f"{PACKAGE}.bundled_agents"

MEMBERS: Mapping[str, str] = {
    "AReaLOpenAICompatibleModel": "camel_model:CamelModel",
    "AgentWorkflow": "workflow:ArealAgent",
    "AllocationMode": "allocation:AllocationMode",
    "ArealOpenAI": "client:RecordingOpenAI",
    "AsyncRewardWrapper": "reward:AsyncRewardWrapper",
    "BaseExperimentConfig": "config:BaseExperimentConfig",
    "Category": "perf_tracer:Category",
    "DPOConfig": "example_config:DPOConfig",
    "DPOEngineConfig": "example_config:DPOEngineConfig",
    "DPOTrainer": "example_trainer:DPOTrainer",
    "GRPOConfig": "config:GRPOConfig",
    "GenerationHyperparameters": "generation:GenerationHyperparameters",
    "InferenceEngine": "engine:InferenceEngine",
    "InferenceEngineConfig": "config:InferenceEngineConfig",
    "InteractionCache": "interactions:InteractionCache",
    "InteractionWithTokenLogpReward": "interactions:TokenInteraction",
    "LocalScheduler": "schedulers:LocalScheduler",
    "MathVerifyWorker": "reward:MathVerifyWorker",
    "MicroBatchSpec": "config:MicroBatchSpec",
    "ModelAllocation": "allocation:ModelAllocation",
    "ModelRequest": "generation:TokenRequest",
    "ModelResponse": "generation:TokenResponse",
    "MultiTurnWorkflow": "multi_turn:MultiTurnWorkflow",
    "NormConfig": "config:NormConfig",
    "OptimizerConfig": "config:OptimizerConfig",
    "PPOActorConfig": "config:PPOActorConfig",
    "PPOConfig": "config:PPOConfig",
    "PPOCriticConfig": "config:PPOCriticConfig",
    "PPOTrainer": "trainer:PPOTrainer",
    "RLVRWorkflow": "rlvr:RLVRWorkflow",
    "RWConfig": "example_config:RWConfig",
    "RWTrainer": "example_trainer:RWTrainer",
    "RayScheduler": "schedulers:RayScheduler",
    "RemoteSGLangEngine": "rollout_engine:RemoteSGLangEngine",
    "RemotevLLMEngine": "rollout_engine:RemotevLLMEngine",
    "RolloutWorkflow": "workflow:ArealWorkflow",
    "SFTConfig": "example_config:SFTConfig",
    "SFTTrainer": "example_trainer:SFTTrainer",
    "SGLangConfig": "config:ServerConfig",
    "SlurmScheduler": "schedulers:SlurmScheduler",
    "StatsLogger": "utilities:StatsLogger",
    "TrainDatasetConfig": "config:DatasetConfig",
    "ValidDatasetConfig": "config:HeldOutDatasetConfig",
    "VisionRLVRWorkflow": "vision_workflow:VisionRLVRWorkflow",
    "apply_chat_template": "data:apply_chat_template",
    "atrace_scope": "perf_tracer:atrace_scope",
    "atrace_session_phase": "perf_tracer:atrace_session_phase",
    "build_math_agent": "bundled_agents.openai_agents_math:build_math_agent",
    "create_dataloader": "utilities:create_dataloader",
    "find_free_ports": "utilities:find_free_ports",
    "get_custom_dataset": "data:get_custom_dataset",
    "get_math_verify_worker": "reward:get_math_verify_worker",
    "get_seed": "utilities:get_seed",
    "gethostip": "utilities:gethostip",
    "gsm8k_reward_fn": "reward:gsm8k_reward_fn",
    "image2base64": "vision_workflow:image2base64",
    "import_from_string": "data:import_from_string",
    "is_single_controller": "utilities:is_single_controller",
    "kill_process_tree": "utilities:kill_process_tree",
    "load_expr_config": "load_config:load_expr_config",
    "load_hf_processor_and_tokenizer": "data:load_hf_processor_and_tokenizer",
    "load_hf_tokenizer": "data:load_hf_tokenizer",
    "run_and_submit_rewards": "proxy:run_and_submit_rewards",
    "session_context": "perf_tracer:session_context",
    "set_random_seed": "utilities:set_random_seed",
    "stats_tracker": "stats_tracker",
    "tabulate_stats": "utilities:tabulate_stats",
    "trace_perf": "perf_tracer:trace_perf",
    "trace_scope": "perf_tracer:trace_scope",
    "trace_session": "perf_tracer:trace_session",
    "vLLMConfig": "config:ServerConfig",
    "workflow_context": "workflow_context",
}
"""Names of AReaL, and where they are here: a module of this package, or `module:name`."""
IN_MODULE: Mapping[str, str] = {
    "areal.api.cli_args.dataclass": "dataclasses:dataclass",
    "areal.api.cli_args.field": "dataclasses:field",
    "areal.workflow.anthropic.claude_math_agent.MathToolAgent": f"{AGENTS}.claude_math:ClaudeMathToolAgent",
    "areal.workflow.anthropic.math_agent.MathAgent": f"{AGENTS}.anthropic_math:AnthropicMathAgent",
    "areal.workflow.langchain.math_agent.MathAgent": f"{AGENTS}.langchain_math:LangChainMathAgent",
    "areal.workflow.langchain.math_agent.MathToolAgent": f"{AGENTS}.langchain_math:LangChainMathToolAgent",
    "areal.workflow.openai.math_agent.MathAgent": f"{AGENTS}.openai_math:OpenAIMathAgent",
    "areal.workflow.openai.math_agent.MathToolAgent": f"{AGENTS}.openai_math:OpenAIMathToolAgent",
    "areal.workflow.openai.math_agent.MultiTurnMathAgent": f"{AGENTS}.openai_math:OpenAIMultiTurnMathAgent",
}
"""Names that several modules of AReaL have for different things, by their whole name, and where they are here."""

_WORKFLOWS = ("RolloutWorkflow", "AgentWorkflow")
_REQUESTS = ("ModelRequest", "ModelResponse")
_TRAINERS = ("DPOTrainer", "PPOTrainer", "RWTrainer", "SFTTrainer")
_SCHEDULERS = ("LocalScheduler", "RayScheduler", "SlurmScheduler")
_CONFIGS = (
    *("BaseExperimentConfig", "DPOConfig", "DPOEngineConfig", "GRPOConfig", "GenerationHyperparameters"),
    *("InferenceEngineConfig", "MicroBatchSpec", "NormConfig", "OptimizerConfig", "PPOActorConfig", "PPOConfig"),
    *("PPOCriticConfig", "RWConfig", "SFTConfig", "SGLangConfig", "TrainDatasetConfig", "ValidDatasetConfig"),
    *("load_expr_config", "vLLMConfig"),
)
MODULES: Mapping[str, tuple[str, ...]] = {
    "areal": (*_TRAINERS, "workflow_context"),
    "areal.api": (
        *_WORKFLOWS,
        *_REQUESTS,
        "AllocationMode",
        "AsyncRewardWrapper",
        "InferenceEngine",
        "ModelAllocation",
    ),
    "areal.api.alloc_mode": ("AllocationMode", "ModelAllocation"),
    "areal.api.cli_args": _CONFIGS,
    "areal.api.engine_api": ("InferenceEngine",),
    "areal.api.io_struct": _REQUESTS,
    "areal.api.reward_api": ("AsyncRewardWrapper",),
    "areal.api.workflow_api": _WORKFLOWS,
    "areal.dataset": ("get_custom_dataset",),
    "areal.engine": ("RemoteSGLangEngine", "RemotevLLMEngine"),
    "areal.engine.sglang_remote": ("RemoteSGLangEngine",),
    "areal.engine.vllm_remote": ("RemotevLLMEngine",),
    "areal.experimental": (),
    "areal.experimental.camel": (),
    "areal.experimental.camel.openai_model": ("AReaLOpenAICompatibleModel",),
    "areal.experimental.openai": ("ArealOpenAI", "InteractionWithTokenLogpReward"),
    "areal.experimental.openai.cache": ("InteractionCache",),
    "areal.experimental.openai.client": ("ArealOpenAI",),
    "areal.experimental.openai.types": ("InteractionWithTokenLogpReward",),
    "areal.experimental.trainer": ("PPOTrainer",),
    "areal.infra": (*_SCHEDULERS, "workflow_context"),
    "areal.infra.scheduler": (),
    "areal.infra.scheduler.local": ("LocalScheduler",),
    "areal.infra.scheduler.ray": ("RayScheduler",),
    "areal.infra.scheduler.slurm": ("SlurmScheduler",),
    "areal.reward": ("MathVerifyWorker", "get_math_verify_worker", "gsm8k_reward_fn"),
    "areal.reward.gsm8k": ("gsm8k_reward_fn",),
    "areal.trainer": _TRAINERS,
    "areal.utils": ("stats_tracker",),
    "areal.utils.dataloader": ("create_dataloader",),
    "areal.utils.dynamic_import": ("import_from_string",),
    "areal.utils.environ": ("is_single_controller",),
    "areal.utils.hf_utils": ("apply_chat_template", "load_hf_processor_and_tokenizer", "load_hf_tokenizer"),
    "areal.utils.image": ("image2base64",),
    "areal.utils.network": ("find_free_ports", "gethostip"),
    "areal.utils.perf_tracer": (
        *("Category", "atrace_scope", "atrace_session_phase", "session_context"),
        *("trace_perf", "trace_scope", "trace_session"),
    ),
    "areal.utils.printing": ("tabulate_stats",),
    "areal.utils.proc": ("kill_process_tree",),
    "areal.utils.proxy_utils": ("run_and_submit_rewards",),
    "areal.utils.seeding": ("get_seed", "set_random_seed"),
    "areal.utils.stats_logger": ("StatsLogger",),
    "areal.workflow": (),
    "areal.workflow.anthropic": (),
    "areal.workflow.anthropic.claude_math_agent": (),
    "areal.workflow.anthropic.math_agent": (),
    "areal.workflow.langchain": (),
    "areal.workflow.langchain.math_agent": (),
    "areal.workflow.multi_turn": ("MultiTurnWorkflow",),
    "areal.workflow.openai": (),
    "areal.workflow.openai.math_agent": (),
    "areal.workflow.openai_agent": (),
    "areal.workflow.openai_agent.math_agent": ("build_math_agent",),
    "areal.workflow.rlvr": ("RLVRWorkflow",),
    "areal.workflow.vision_rlvr": ("VisionRLVRWorkflow",),
}
"""Names by module of AReaL, besides those of `IN_MODULE`. A module that is here as a whole is in `WHOLE`."""
WHOLE: Mapping[str, str] = {
    "areal.infra.workflow_context": f"{PACKAGE}.workflow_context",
    "areal.utils.logging": f"{PACKAGE}.logging",
    "areal.utils.stats_tracker": f"{PACKAGE}.stats_tracker",
}
"""Modules of AReaL that are a module here."""


def place_of(module: str, name: str) -> tuple[str, str] | None:
    """The module and name, here, of a name in a module of AReaL; None if it has no such name.

    The name is empty if it is a module itself.
    """
    if whole := IN_MODULE.get(f"{module}.{name}"):
        place, _, member = whole.partition(":")
        return place, member
    return location(name) if name in MODULES.get(module, ()) else None


def names_of(module: str) -> list[str]:
    """The names of a module of AReaL that are here."""
    own = [name.rpartition(".")[2] for name in IN_MODULE if name.rpartition(".")[0] == module]
    return sorted([*MODULES.get(module, ()), *own])


def location(name: str) -> tuple[str, str]:
    """The module of a name of `MEMBERS`, and its name in it; empty if it is the module itself."""
    module, _, member = MEMBERS[name].partition(":")
    return f"{PACKAGE}.{module}", member
