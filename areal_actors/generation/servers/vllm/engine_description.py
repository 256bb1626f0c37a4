"""Describes vLLM."""

from areal_actors.generation.abilities import SAMPLING_ABILITIES
from areal_actors.generation.engines import EngineDescription

LARGEST_RANK = 512
"""Largest rank of an adapter that vLLM loads."""

DESCRIPTION = EngineDescription(
    name="vllm",
    title="vLLM",
    factory="areal_actors.generation.servers.vllm.dialect:vllm_engine",
    abilities=SAMPLING_ABILITIES - {"seed"},
    weight_channels=("folder", "broadcast", "tensors", "delta"),
    is_server=True,
    plain_dialect="areal_actors.generation.servers.vllm.plain_dialect:PlainVLLM",
    can_sleep=True,
    largest_adapter_rank=LARGEST_RANK,
    implied={"warm_start": {"head_dim": 32}},  # it has no narrower heads on a CPU
    settings=frozenset({"server", "options", "tensor_parallel"}),
)
