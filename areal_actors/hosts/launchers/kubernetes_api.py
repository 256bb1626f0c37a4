"""The API server of Kubernetes, as a pod asks it: reads Jobs, and changes how many pods they have at once."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.values import Value

ACCOUNT: Final = "AREAL_SERVICE_ACCOUNT"
"""Variable in which the manifests name the folder with token, authority and namespace of the follower's service
account."""
FOLLOWED: Final = "areal-actors/followed"
"""Annotation of a Job: when the last decision was made that its number of pods follows, in seconds since the epoch."""
REQUEST_SECONDS: Final = 10.0
"""Time limit for the server to accept a connection, and for each part of its answer."""
OK: Final = 200
ASKED_AGAIN: Final = "it is asked again"
MAKE_MISSING: Final = f"`kubectl create --filename FILE` with the file of `{COMMAND} run --on` makes what is missing"
"""The remedy; `kubectl apply` would also set the number of pods of existing Jobs to 0."""
REMEDIES: Final[Mapping[int, str]] = {
    401: "the token of the service account is not accepted: was the ServiceAccount deleted?",
    403: f"the service account lacks its Role: {MAKE_MISSING}, or ask who grants rights in this namespace",
    404: f"the Job was deleted: {MAKE_MISSING}",
}


class _Metadata(Value):
    annotations: dict[str, str] = {}


class _Spec(Value):
    parallelism: int = 1


class _Condition(Value):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Status(Value):
    conditions: tuple[_Condition, ...] = ()


class KubernetesJob(Value):
    """A Job, as far as its number of pods is concerned."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def over(self) -> str:
        """Returns why the Job starts no pod any more; empty while it does."""
        for condition in self.status.conditions:
            if condition.type in ("Complete", "Failed") and condition.status == "True":
                return ": ".join(filter(None, (condition.type, condition.reason, condition.message)))
        return ""

    def decision_time(self) -> float:
        """Returns when the last decision was made that it follows; 0 if it follows none."""
        try:
            return float(self.metadata.annotations.get(FOLLOWED, "0"))
        except ValueError:
            return 0.0


class _Refusal(Value):
    message: str = ""


class JobRequestRefused(SetupError):
    """Raised when the API server answers with an error; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class JobsApi:
    """Requests with the service account in a folder.

    The kubelet renews its token there, so that each request reads it.
    """

    def __init__(self, host: str, port: int, account: Path) -> None:
        self._host, self._port, self._account = host, port, account

    @classmethod
    def of_this_pod(cls) -> Self:
        """Returns the API of the cluster in which this process runs.

        Raises:
            SetupError: it runs in no pod of the manifests.
        """
        host, port, account = (
            os.environ.get(name) for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", ACCOUNT)
        )
        if not host or not port or not account:
            raise SetupError(
                f"--follow: {ACCOUNT} is not set; the manifests of `--on kubernetes` start this command, leave"
                " --follow out"
            )
        return cls(host, int(port), Path(account))

    def read(self, name: str) -> KubernetesJob:
        """Returns a Job.

        Raises:
            SetupError: there is none, or it cannot be read now; the message has the remedy.
        """
        return self._ask("GET", name)

    def change(self, name: str, parallelism: int, followed: float) -> None:
        """Set the number of a Job's pods, and the time of the decision that asks for it, at once.

        Raises:
            SetupError: as for `read`.
        """
        self._ask(
            "PATCH",
            name,
            {"metadata": {"annotations": {FOLLOWED: repr(followed)}}, "spec": {"parallelism": parallelism}},
        )

    def _ask(self, method: str, name: str, change: Mapping[str, Any] | None = None) -> KubernetesJob:
        token, namespace, context = self._identity()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if change is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        body = None if change is None else msgspec.json.encode(change)
        connection = HTTPSConnection(self._host, self._port, timeout=REQUEST_SECONDS, context=context)
        try:
            connection.request(method, f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", body, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, HTTPException) as error:
            fault = f"{type(error).__name__}: {error}"
            raise SetupError(
                f"the API server {self._host}:{self._port} does not answer ({fault}); {ASKED_AGAIN}"
            ) from error
        finally:
            connection.close()
        try:
            if status == OK:
                return msgspec.json.decode(text, type=KubernetesJob)
            reason = msgspec.json.decode(text, type=_Refusal).message
        except msgspec.MsgspecError:
            reason = text.decode(errors="replace")[:200]
        asked = "reading" if change is None else "changing"
        raise JobRequestRefused(
            f"{asked} Job {name}: the API server answered {status}, {reason}; {REMEDIES.get(status, ASKED_AGAIN)}",
            status,
        )

    def _identity(self) -> tuple[str, str, ssl.SSLContext]:
        try:
            token, namespace = ((self._account / name).read_text().strip() for name in ("token", "namespace"))
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except OSError as error:
            raise SetupError(f"the service account in {self._account} cannot be read: {error}") from error
        # Authorities of many clusters lack an extension that Python 3.13 requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return token, namespace, context
