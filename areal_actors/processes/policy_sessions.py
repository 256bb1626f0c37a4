"""Session managers of runs with several policies: one that routes calls, and that of each policy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from areal_actors.folder.connections import connect_to_run
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.policies.call_router import PolicyRouter
from areal_actors.policies.policy_session_manager import PolicySessionManager
from areal_actors.policies.session_route import PolicySessionRoute
from areal_actors.recipe.policies import POLICIES, main_folder
from areal_actors.recipe.recipe import Recipe
from areal_actors.rollout.rollout_worker import LEASE_GRACE_SECONDS
from areal_bus.base import Envelope
from areal_bus.errors import ServerUnavailable


def manager_of_policies(
    recipe: Recipe, folder: RunFolder, options: dict[str, Any]
) -> tuple[Callable[..., SessionManager], dict[str, Any]]:
    """Returns the class and the options of the session manager of a run with policies, or of a policy.

    `options` are those of an ordinary one: the sessions of a policy are neither granted to external agents nor judged.
    """
    if recipe.policy is None:
        router = PolicyRouter(recipe.policies, folder.path / POLICIES, recipe.gateway.completion_seconds)
        return SessionManager, {**options, "add_routes": router.add_routes}
    seconds = recipe.task.timeout_seconds + recipe.task.reward_timeout_seconds + LEASE_GRACE_SECONDS
    return PolicySessionManager, {
        "role": recipe.policy,
        "follow_run": lambda: follow_run(RunFolder(main_folder(folder.path))),
        "group_size": recipe.algorithm.group_size,
        "lease_seconds": seconds,
        "waits_for_grants": not recipe.is_served(),
        "add_routes": PolicySessionRoute(folder.admin_key(recipe)).add_routes,
    }


async def follow_run(folder: RunFolder) -> AsyncGenerator[Envelope, None]:
    """Read the log of a live run from its first event on, and follow it until cancelled.

    Raises:
        BusError: it cannot be reached; it may be starting.
    """
    try:
        address = folder.monitor()
    except FileNotFoundError as missing:
        raise ServerUnavailable(f"run '{folder.path.name}' has no address yet") from missing
    async with connect_to_run(address, folder, monitors=True) as bus:
        async for envelope in bus.log(follow=True):
            yield envelope
