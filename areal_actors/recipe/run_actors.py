"""Sets of actors: which a kind of run has, and which may have several instances."""

from __future__ import annotations

ONLINE = "online"
"""Value of `task.agent` for runs with external agents."""

NOT_ONLINE = frozenset({"task_source", "rollout_worker", "reward_worker", "evaluator"})
"""Actors that an online run does not have, since they run agents."""

NOT_IN_ENVIRONMENTS = frozenset({"reward_worker"})
"""Actors that a run in an environment does not have, since the environment scores its episodes."""

ONLY_WITH_EXAMPLES = frozenset({"example_source"})
"""Actors of supervised runs only."""

NOT_WITH_EXAMPLES = frozenset(
    {
        "staleness_gate",
        "task_source",
        "batcher",
        "evaluator",
        "session_manager",
        "rollout_worker",
        "reward_worker",
        "inference_worker",
    }
)
"""Actors that a supervised run does not have, since it runs no episodes."""

SERVING = frozenset({"session_manager", "inference_worker"})
"""Actors that `areal-actors serve` starts."""

SEVERAL = frozenset({"rollout_worker", "reward_worker", "inference_worker"})
"""Actors that may have several instances: they share work and have no state."""

COUNTED = SEVERAL | {"session_manager"}
"""Actors that may have several instances, and be on other hosts; gateways divide the sessions among them."""

CONCURRENT = SEVERAL | {"session_manager"}
"""Actors that handle several messages concurrently, since handlers wait for other actors."""
