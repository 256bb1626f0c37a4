"""Describes SGLang."""

from areal_actors.generation.abilities import ABILITIES
from areal_actors.generation.engines import EngineDescription

DESCRIPTION = EngineDescription(
    name="sglang",
    title="SGLang",
    factory="areal_actors.generation.servers.sglang.dialect:sglang_engine",
    abilities=ABILITIES - {"seed"},
    weight_channels=("folder", "broadcast", "tensors", "delta"),
    is_server=True,
    plain_dialect="areal_actors.generation.servers.sglang.dialect:plain_sglang",
    can_sleep=True,
    settings=frozenset({"server", "options", "tensor_parallel"}),
)
