"""A frozen policy of the recipe as the model of a judge: its calls are in the session of the episode at the policy.

The policy's log has the judge's calls beside those of the agent, and both end with the episode.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from areal_actors.core.policy_settings import PolicySettings
from areal_actors.gateway.http_answers import RequestRefused
from areal_actors.messages import OpenPolicySession
from areal_actors.policies.call_router import REMEMBERED_SESSIONS, PolicyRouter
from areal_actors.rewards.judge.engine_model import COMPACT
from areal_actors.rewards.judge.judge_client import REFUSED_FORM, CallFailed, JudgeReply, UrlModel
from areal_actors.rewards.judge.panel import SCORED
from areal_actors.rewards.judge.settings import ModelJudge
from areal_actors.rewards.judge.verdict_forms import VerdictForm

GONE = frozenset({401, 403, 404, 410})
"""Statuses of a session that the policy no longer has: the next call opens another one."""


class PolicyModel(UrlModel):
    """The gateway of a policy, called with the key of the session of the answer that is judged."""

    refused_form = REFUSED_FORM - GONE
    schema_options = COMPACT

    def __init__(self, judge: ModelJudge, settings: PolicySettings, folder: Path, completion_seconds: float) -> None:
        """`folder` has the addresses of the policies."""
        super().__init__(judge)
        self.identity, self.served_name = policy_identity(judge, settings), judge.policy
        self._policy = judge.policy
        self._router = PolicyRouter({judge.policy: settings}, folder, completion_seconds)
        self._keys: OrderedDict[str, str] = OrderedDict()
        """Keys by session, the latest ones."""

    async def complete(self, prompt: str, form: VerdictForm, seed: int) -> JudgeReply:
        """Returns the policy's answer; raises CallFailed."""
        try:
            return await super().complete(prompt, form, seed)
        except CallFailed as error:
            if error.status and error.status not in GONE:
                raise
            if (scored := SCORED.get()) is not None:
                self._keys.pop(scored.session, None)
            raise CallFailed(str(error), is_final=error.is_final and not error.status) from error

    async def address(self) -> tuple[str, Mapping[str, str]]:
        """Returns the address of the policy's gateway, and the key of the session, which is opened on demand."""
        if (scored := SCORED.get()) is None:
            raise CallFailed("a policy answers in a run only", is_final=True)
        try:
            if (key := self._keys.get(scored.session)) is None:
                question = OpenPolicySession(session=scored.session, work=scored.work)
                key = self._keys[scored.session] = await self._router.open_session(self._policy, question)
                if len(self._keys) > REMEMBERED_SESSIONS:
                    self._keys.popitem(last=False)
            return f"{self._router.address(self._policy).url}/v1", {"Authorization": f"Bearer {key}"}
        except RequestRefused as refused:
            raise CallFailed(str(refused)) from refused
        except OSError as error:
            raise CallFailed(f"policy '{self._policy}' has no address: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._router.close()
        await super().close()


def policy_identity(judge: ModelJudge, settings: PolicySettings) -> str:
    """Returns the name of a policy in the keys of its answers."""
    return f"policy {judge.policy}: {settings.model}"
