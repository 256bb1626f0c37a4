"""A stand-in for a cluster of Kubernetes, for tests: an API server for Jobs, their controller, and a kubelet that
starts processes.

It keeps to what manifests ask for: only the token of a pod's service account is accepted, with the rules of its Role; a
Job has as many pods as its `parallelism`, and of too many the newest get SIGTERM, which then count neither as done nor
as failed; initial containers with `restartPolicy: Always` run beside those of a pod, are started again, and get SIGTERM
when these have ended.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web
from support.authority import Authority

NAMESPACE = "research"
TICK_SECONDS = 0.1
Start = Callable[[list[str], Path, Mapping[str, str]], psutil.Popen]
"""Starts a command with its output in a file, and with these variables."""


class Cluster:
    """Runs the Jobs of manifests, by their names."""

    def __init__(self, manifests: Sequence[dict[str, Any]], folder: Path, start: Start) -> None:
        self._objects = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
        self._folder, self._start = folder, start
        self.jobs: dict[str, dict[str, Any]] = {
            name: one for (kind, name), one in self._objects.items() if kind == "Job"
        }
        self.requests: list[tuple[str, str, int]] = []
        """Method, name of the Job and status of each."""
        self.numbers: list[int] = []
        """Numbers of pods that were asked for, of any Job."""
        self.refusing = 0
        """Status of all answers; 0 for the right ones."""
        self.pods: dict[str, list[psutil.Popen]] = {name: [] for name in self.jobs}
        """Containers of the pods that a Job has now, in the order of their starts."""
        self.sidecars: list[psutil.Popen] = []
        """Containers beside those of a pod, with those that have ended."""
        self._started = 0
        self._removed: list[psutil.Popen] = []
        self._port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve, and keep to the number of pods."""
        authority = Authority()
        made = authority.issue(self._folder, "localhost")
        authority.file(self._folder).rename(self._folder / "ca.crt")
        (self._folder / "token").write_text("token-of-the-follower")
        (self._folder / "namespace").write_text(NAMESPACE)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.certificate, made.key)
        application = web.Application()
        application.router.add_route("*", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{{name}}", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        controller = asyncio.create_task(self._control())
        try:
            yield
        finally:
            controller.cancel()
            await asyncio.gather(controller, return_exceptions=True)
            await runner.cleanup()

    # ---------------------------------------------------------------- API server

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        status = self.refusing or self._permitted(request, name)
        if not status and request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            change = await request.json()
            assert set(change["spec"]) == {"parallelism"}, "all else of a Job stays as it is"
            self.numbers.append(change["spec"]["parallelism"])
            _merge(self.jobs[name], change)
        self.requests.append((request.method, name, status or 200))
        answer = {"kind": "Status", "message": f"{name} is refused"} if status else self.jobs[name]
        return web.Response(body=json.dumps(answer), status=status or 200, content_type="application/json")

    def _permitted(self, request: web.Request, name: str) -> int:
        """Returns 0, or the status of a refusal."""
        if request.headers.get("Authorization") != "Bearer token-of-the-follower":
            return 401
        ((_, account),) = [key for key in self._objects if key[0] == "ServiceAccount"]
        bindings = [one for (kind, _), one in self._objects.items() if kind == "RoleBinding"]
        roles = [
            one["roleRef"]["name"] for one in bindings if {"kind": "ServiceAccount", "name": account} in one["subjects"]
        ]
        verb = {"GET": "get", "PATCH": "patch"}.get(request.method, "")
        for rule in (rule for role in roles for rule in self._objects["Role", role]["rules"]):
            if (
                verb in rule["verbs"]
                and "jobs" in rule["resources"]
                and "batch" in rule["apiGroups"]
                and name in rule["resourceNames"]
            ):
                return 0 if name in self.jobs else 404
        return 403

    # ---------------------------------------------------------------- controller and kubelet

    async def _control(self) -> None:
        while True:
            for name, job in self.jobs.items():
                self._reconcile(name, job)
            await asyncio.sleep(TICK_SECONDS)

    def _reconcile(self, name: str, job: dict[str, Any]) -> None:
        """Count the pods of a Job that have ended, and start or end others."""
        status, spec, pods = job.setdefault("status", {"failed": 0, "succeeded": 0}), job["spec"], self.pods[name]
        for pod in [pod for pod in pods if pod.poll() is not None]:
            pods.remove(pod)
            status["failed" if pod.returncode else "succeeded"] += 1
        left = spec.get("completions", 1) - status["succeeded"]
        if status["failed"] > spec["backoffLimit"]:
            status["conditions"] = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
        elif not left:
            status["conditions"] = [{"type": "Complete", "status": "True"}]
        wanted = 0 if "conditions" in status else min(spec.get("parallelism", 1), left)
        while len(pods) > wanted:
            self._removed.append(pods.pop())
            self._removed[-1].terminate()
        template = spec["template"]["spec"]
        self._keep_sidecars(template, wanted=bool(wanted))
        while len(pods) < wanted:
            pods.append(self._container(template["containers"][0]))

    def _keep_sidecars(self, template: dict[str, Any], *, wanted: bool) -> None:
        for container in template.get("initContainers", ()):
            assert container["restartPolicy"] == "Always"
            lives = bool(self.sidecars) and self.sidecars[-1].poll() is None
            if wanted and not lives:
                self.sidecars.append(self._container(container))
            elif lives and not wanted and self.sidecars[-1] not in self._removed:
                self._removed.append(self.sidecars[-1])
                self._removed[-1].terminate()

    def _container(self, container: dict[str, Any]) -> psutil.Popen:
        self._started += 1
        given = {one["name"]: self._secret(one) if "valueFrom" in one else one["value"] for one in container["env"]}
        mounts = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "account"}
        variables = {name: str(self._folder) if value in mounts else value for name, value in given.items()}
        server = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(self._port)}
        return self._start(
            container["command"], self._folder / f"{self._started}-{container['name']}.log", {**variables, **server}
        )

    def _secret(self, variable: dict[str, Any]) -> str:
        key = variable["valueFrom"]["secretKeyRef"]
        return str(self._objects["Secret", key["name"]]["stringData"][key["key"]])

    def output(self, container: str) -> str:
        """Output of all containers of this name."""
        return "".join(path.read_text() for path in sorted(self._folder.glob(f"*-{container}.log")))


def _merge(target: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Apply a merge patch (RFC 7396)."""
    for key, value in change.items():
        if isinstance(value, Mapping):
            _merge(target.setdefault(key, {}), value)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value
