"""The names of AReaL that this package has.

They are in `areal_actors.compat.areal` itself, and in the modules that have them in AReaL.
"""

from __future__ import annotations

from collections.abc import Mapping

PACKAGE = "areal_actors.compat.areal"

MEMBERS: Mapping[str, str] = {
    "AReaLOpenAICompatibleModel": "camel_model:CamelModel",
    "AgentWorkflow": "workflow:ArealAgent",
    "ArealOpenAI": "client:RecordingOpenAI",
    "AsyncRewardWrapper": "reward:AsyncRewardWrapper",
    "GRPOConfig": "config:GRPOConfig",
    "GenerationHyperparameters": "generation:GenerationHyperparameters",
    "InferenceEngine": "engine:InferenceEngine",
    "InferenceEngineConfig": "config:InferenceEngineConfig",
    "InteractionWithTokenLogpReward": "interactions:TokenInteraction",
    "MathVerifyWorker": "reward:MathVerifyWorker",
    "ModelRequest": "generation:TokenRequest",
    "ModelResponse": "generation:TokenResponse",
    "NormConfig": "config:NormConfig",
    "OptimizerConfig": "config:OptimizerConfig",
    "PPOActorConfig": "config:PPOActorConfig",
    "PPOConfig": "config:PPOConfig",
    "PPOTrainer": "trainer:PPOTrainer",
    "RLVRWorkflow": "rlvr:RLVRWorkflow",
    "RolloutWorkflow": "workflow:ArealWorkflow",
    "apply_chat_template": "data:apply_chat_template",
    "get_custom_dataset": "data:get_custom_dataset",
    "get_math_verify_worker": "reward:get_math_verify_worker",
    "gsm8k_reward_fn": "reward:gsm8k_reward_fn",
    "import_from_string": "data:import_from_string",
    "load_expr_config": "load_config:load_expr_config",
    "load_hf_tokenizer": "data:load_hf_tokenizer",
    "run_and_submit_rewards": "proxy:run_and_submit_rewards",
    "stats_tracker": "stats_tracker",
    "workflow_context": "workflow_context",
}
"""Names of AReaL, and where they are here: a module of this package, or `module:name`."""

_WORKFLOWS = ("RolloutWorkflow", "AgentWorkflow")
_REQUESTS = ("ModelRequest", "ModelResponse")
_CONFIGS = (
    *(
        "GRPOConfig",
        "GenerationHyperparameters",
        "InferenceEngineConfig",
        "NormConfig",
        "OptimizerConfig",
        "PPOActorConfig",
        "PPOConfig",
    ),
    "load_expr_config",
)
MODULES: Mapping[str, tuple[str, ...]] = {
    "areal": ("PPOTrainer", "workflow_context"),
    "areal.api": (*_WORKFLOWS, *_REQUESTS, "AsyncRewardWrapper", "InferenceEngine"),
    "areal.api.cli_args": _CONFIGS,
    "areal.api.engine_api": ("InferenceEngine",),
    "areal.api.io_struct": _REQUESTS,
    "areal.api.reward_api": ("AsyncRewardWrapper",),
    "areal.api.workflow_api": _WORKFLOWS,
    "areal.dataset": ("get_custom_dataset",),
    "areal.experimental": (),
    "areal.experimental.camel": (),
    "areal.experimental.camel.openai_model": ("AReaLOpenAICompatibleModel",),
    "areal.experimental.openai": ("ArealOpenAI", "InteractionWithTokenLogpReward"),
    "areal.experimental.openai.client": ("ArealOpenAI",),
    "areal.experimental.openai.types": ("InteractionWithTokenLogpReward",),
    "areal.infra": ("workflow_context",),
    "areal.reward": ("MathVerifyWorker", "get_math_verify_worker", "gsm8k_reward_fn"),
    "areal.reward.gsm8k": ("gsm8k_reward_fn",),
    "areal.trainer": ("PPOTrainer",),
    "areal.utils": ("stats_tracker",),
    "areal.utils.dynamic_import": ("import_from_string",),
    "areal.utils.hf_utils": ("apply_chat_template", "load_hf_tokenizer"),
    "areal.utils.proxy_utils": ("run_and_submit_rewards",),
    "areal.workflow": (),
    "areal.workflow.rlvr": ("RLVRWorkflow",),
}
"""Names by module of AReaL. A module that is here as a whole (`areal.utils.stats_tracker`) is in `WHOLE`."""
WHOLE: Mapping[str, str] = {
    "areal.infra.workflow_context": f"{PACKAGE}.workflow_context",
    "areal.utils.logging": "logging",
    "areal.utils.stats_tracker": f"{PACKAGE}.stats_tracker",
}
"""Modules of AReaL that are a module here."""


def location(name: str) -> tuple[str, str]:
    """The module of a name of `MEMBERS`, and its name in it; empty if it is the module itself."""
    module, _, member = MEMBERS[name].partition(":")
    return f"{PACKAGE}.{module}", member
