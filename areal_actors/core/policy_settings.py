"""The tables `[policies.NAME]` of a recipe: further models that an agent calls by name, with weights of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.config import Config, PositiveFloat, PositiveInt

PolicyName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=32)]
PolicyEngine = Literal["own", "shared"]
PolicyKind = Literal["trained", "frozen", "past", "remote"]
METRIC = "metric:"
"""Before the name of the metric of an episode that is a policy's reward."""


class PolicySettings(Config):
    """One table `[policies.NAME]`: the calls of an agent with `model = NAME` are answered by this policy."""

    kind: PolicyKind = "trained"
    """`trained` has a trainer, batches and staleness of its own; `frozen` answers with the weights it starts with;
    `past` answers with earlier versions of the recipe's own policy; `remote` is a model at `url`."""
    reward: str = "same"
    """Reward of a trained policy at the end of an episode: `same` as the recipe's own policy, `opposite` for its
    negative, as in a game of two, or `metric:NAME` for a metric of the episode's reward."""
    model: str = ""
    """Its model, as in `model` of the recipe; empty for the recipe's."""
    engine: PolicyEngine = "own"
    """`own` starts engines for this policy; `shared` loads its adapters into the servers of the recipe's own policy,
    beside those of that policy: for `trainer.lora` with SGLang or vLLM."""
    settings: dict[str, Any] = {}
    """Changes to the recipe for this policy, as in `settings.trainer.optimizer.lr = 1e-4`."""
    start_seconds: PositiveFloat = 300.0
    """Maximum wait of a call for the staleness gate of the policy, in seconds; beyond it the call fails."""
    every_versions: PositiveInt = 4
    """A `past` policy takes up every n-th version of the recipe's own policy, and then draws another one to play
    with."""
    keep_versions: PositiveInt = 8
    """Number of versions, the newest, from which a `past` policy draws."""
    url: str = ""
    """Address of a `remote` policy, an OpenAI-compatible one that ends with `/v1`."""
    served_model: str = ""
    """Name of a `remote` policy at its server; empty for the name of the table."""
    api_key_variable: str = ""
    """Environment variable with the API key of a `remote` policy; empty for none."""

    def has_processes(self) -> bool:
        """Returns True if this run starts processes for it."""
        return self.kind != "remote"

    def shares_engine(self) -> bool:
        """Returns True if it is sampled by the servers of the recipe's own policy."""
        return self.engine == "shared"


class PolicyRole(Config):
    """`[policy]`: the part that a run of its own plays in another; written by the run that has it in `[policies]`."""

    name: PolicyName
    """Name of the policy, by which agents call it."""
    run: str
    """Name of the run whose agents call it; its folder is two above this run's."""
    settings: PolicySettings = PolicySettings()
