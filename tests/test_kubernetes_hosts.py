"""Jobs whose number of pods follows decisions, and what their follower asks of an API server;
tests/test_kubernetes_run.py runs it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from support.authority import Authority
from test_launch import HOSTS, RECIPE, manifests, plan, refused

from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.decision_reader import ScaleChange
from areal_actors.hosts.launchers.kubernetes_api import ACCOUNT, FOLLOWED, JobRequestRefused, JobsApi, KubernetesJob
from areal_actors.hosts.launchers.kubernetes_hosts import CHECK_SECONDS, DISMISS_SECONDS, RETRY_SECONDS, ScaledJobs

BOUNDS = ("autoscale.enabled=true", "autoscale.rollout_worker.max=4", "autoscale.reward_worker.max=3")
ROLLOUT, REWARD = "areal-gsm8k-grpo-added-rollout", "areal-gsm8k-grpo-added-reward"


class Cluster:
    """Jobs by name, and what was asked of them."""

    def __init__(self) -> None:
        self.jobs = {name: job() for name in (ROLLOUT, REWARD)}
        self.changes: list[tuple[str, int]] = []
        self.refusal: SetupError | None = None
        self.reads = 0
        self.time = 0.0

    def read(self, name: str) -> KubernetesJob:
        self.reads += 1
        if self.refusal:
            raise self.refusal
        if name not in self.jobs:
            raise JobRequestRefused(f"no {name}", 404)
        return self.jobs[name]

    def change(self, name: str, parallelism: int, followed: float) -> None:
        if self.refusal:
            raise self.refusal
        self.changes.append((name, parallelism))
        self.jobs[name] = job(parallelism, followed)

    def follower(self) -> ScaledJobs:
        return ScaledJobs(plan(*BOUNDS), self, lambda: self.time)


def job(parallelism: int = 0, followed: float = 0.0, over: str = "") -> KubernetesJob:
    annotations = {FOLLOWED: repr(followed)} if followed else {}
    conditions = (
        [{"type": over, "status": "True", "reason": "BackoffLimitExceeded", "message": "too many"}] if over else []
    )
    return msgspec.convert(
        {
            "metadata": {"annotations": annotations},
            "spec": {"parallelism": parallelism},
            "status": {"conditions": conditions},
        },
        KubernetesJob,
    )


def change(before: int, workers: int, time: float, role: str = "rollout_worker") -> ScaleChange:
    return ScaleChange(role=role, before=before, workers=workers, time=time)


def decide(follower: ScaledJobs, *decisions: ScaleChange) -> None:
    for decision in decisions:
        follower.receive(decision)
    follower.settle()


def test_a_job_gets_as_many_pods_as_decisions_have_added():
    cluster = Cluster()
    follower = cluster.follower()
    decide(follower, change(1, 3, 10.0))
    decide(follower, change(1, 2, 11.0, "reward_worker"))
    decide(follower, change(3, 2, 12.0))
    assert cluster.changes == [(ROLLOUT, 2), (REWARD, 1), (ROLLOUT, 1)]
    assert cluster.jobs[ROLLOUT].decision_time() == 12.0
    decide(follower, change(1, 2, 13.0, "inference_worker"))
    assert len(cluster.changes) == 3, "a role without added hosts has no Job"


def test_pods_are_never_more_than_the_bounds_leave_nor_less_than_none():
    cluster = Cluster()
    follower = cluster.follower()
    for time in (1.0, 2.0, 3.0):  # pods that wait for a node do not serve yet, and the run decides again
        decide(follower, change(1, 3, time))
    assert cluster.jobs[ROLLOUT].spec.parallelism == 3
    decide(follower, change(9, 1, 4.0))
    assert cluster.jobs[ROLLOUT].spec.parallelism == 0


def test_a_follower_that_starts_again_goes_on_from_the_job():
    cluster = Cluster()
    history = [change(1, 3, 10.0), change(3, 1, 20.0), change(1, 2, 30.0)]
    decide(cluster.follower(), *history)
    assert cluster.changes == [(ROLLOUT, 1)]
    again = cluster.follower()
    for decision in history:
        decide(again, decision)
    assert cluster.changes == [(ROLLOUT, 1)], "its monitor reads the log from the beginning"
    decide(again, change(2, 3, 40.0))
    assert cluster.changes == [(ROLLOUT, 1), (ROLLOUT, 2)]
    decide(cluster.follower(), change(3, 2, 50.0))  # the log was trimmed
    assert cluster.jobs[ROLLOUT].spec.parallelism == 1


def test_a_follower_that_stood_still_follows_what_was_decided_meanwhile():
    cluster = Cluster()
    decide(cluster.follower(), change(1, 2, 10.0))
    decide(cluster.follower(), change(1, 2, 10.0), change(2, 4, 20.0), change(4, 3, 30.0))
    assert cluster.changes == [(ROLLOUT, 1), (ROLLOUT, 2)]


def test_a_job_that_was_changed_or_replaced_is_corrected():
    cluster = Cluster()
    follower = cluster.follower()
    decide(follower, change(1, 3, 10.0))
    cluster.jobs[ROLLOUT] = job()
    follower.settle()
    assert len(cluster.changes) == 1, "not looked at yet"
    cluster.time += CHECK_SECONDS
    follower.settle()
    assert cluster.changes == [(ROLLOUT, 2), (ROLLOUT, 2)]


def test_a_server_that_refuses_is_asked_again_and_reported_once(capsys):
    cluster = Cluster()
    follower = cluster.follower()
    cluster.refusal = SetupError("the API server answered 503; it is asked again")
    decide(follower, change(1, 2, 10.0))
    reads = cluster.reads
    follower.settle()
    assert cluster.reads == reads, "not at once"
    cluster.time += RETRY_SECONDS
    follower.settle()
    assert cluster.reads > reads
    assert capsys.readouterr().err.splitlines() == ["autoscale: the API server answered 503; it is asked again"] * 2, (
        "for each Job"
    )
    cluster.refusal = None
    cluster.time += RETRY_SECONDS
    follower.settle()
    assert cluster.changes == [(ROLLOUT, 1)]
    assert capsys.readouterr().err == f"autoscale: {ROLLOUT}: 1 pods, 0 before\n"


def test_a_change_that_is_refused_is_made_later():
    cluster = Cluster()
    follower = cluster.follower()
    follower.settle()
    cluster.refusal = JobRequestRefused("conflict", 409)
    decide(follower, change(1, 2, 10.0), change(2, 4, 20.0))
    cluster.refusal = None
    cluster.time += RETRY_SECONDS
    follower.settle()
    assert cluster.changes == [(ROLLOUT, 3)]


@pytest.mark.parametrize("over", ["Failed", "Complete"])
def test_a_job_that_is_over_is_reported_with_the_remedy_until_it_was_replaced(capsys, over):
    cluster = Cluster()
    cluster.jobs[ROLLOUT] = job(1, 5.0, over)
    follower = cluster.follower()
    for _ in range(3):
        decide(follower, change(2, 3, 10.0))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"autoscale: {ROLLOUT} starts no pods any more ({over}: BackoffLimitExceeded: too many): see `kubectl logs "
    )
    assert f"`kubectl delete job {ROLLOUT}`" in line
    cluster.jobs[ROLLOUT] = job()
    cluster.time += RETRY_SECONDS
    follower.settle()
    assert cluster.jobs[ROLLOUT].spec.parallelism == 3


def test_all_pods_leave_at_the_end():
    cluster = Cluster()
    follower = cluster.follower()
    decide(follower, change(1, 3, 10.0))
    del cluster.jobs[REWARD]
    follower.dismiss(sleep=lambda _: pytest.fail("nothing is to be tried again"))
    assert cluster.changes[1:] == [(ROLLOUT, 0)]
    cluster.jobs[ROLLOUT] = job(2, 10.0)
    cluster.follower().dismiss()
    assert cluster.jobs[ROLLOUT].spec.parallelism == 0, "also of one that has just started"


def test_the_end_does_not_wait_for_a_server_for_ever(capsys):
    cluster = Cluster()
    follower = cluster.follower()
    decide(follower, change(1, 3, 10.0))
    capsys.readouterr()
    cluster.refusal = SetupError("the API server does not answer")

    def sleep(seconds: float) -> None:
        cluster.time += seconds

    follower.dismiss(sleep)
    assert DISMISS_SECONDS <= cluster.time <= DISMISS_SECONDS + RETRY_SECONDS
    assert f"{REWARD}, {ROLLOUT}: pods were not asked to leave within 30 s" in capsys.readouterr().err


# ---------------------------------------------------------------- requests

Served = Callable[..., JobsApi]


class Answers(BaseHTTPRequestHandler):
    """Answers with the attributes of its server, and keeps the requests there."""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.requests.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_PATCH = do_GET  # noqa: N815 - as the base class names it

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server with a certificate for localhost, and the folder of a service account for it, `account`."""
    authority, account = Authority(), tmp_path / "account"
    account.mkdir()
    made = authority.issue(tmp_path, "localhost")
    authority.file(tmp_path).rename(account / "ca.crt")
    (account / "token").write_text("first\n")
    (account / "namespace").write_text("research")
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    serving.requests, serving.status, serving.body, serving.account = [], 200, b"{}", account
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


def api(server: ThreadingHTTPServer, host: str = "localhost") -> JobsApi:
    return JobsApi(host, server.server_address[1], server.account)


def test_number_and_decision_are_changed_at_once_with_the_token_of_now(server):
    jobs = api(server)
    answer = {"kind": "Job", "metadata": {"annotations": {FOLLOWED: "7.5"}}, "spec": {"parallelism": 2}, "status": {}}
    server.body = json.dumps(answer).encode()
    read = jobs.read("areal-a-added-rollout")
    assert (read.spec.parallelism, read.decision_time(), read.over()) == (2, 7.5, "")
    (server.account / "token").write_text("second")
    jobs.change("areal-a-added-rollout", 3, 1764000000.125)
    (_, _, asked, _), (method, path, headers, body) = server.requests
    assert (method, path) == ("PATCH", "/apis/batch/v1/namespaces/research/jobs/areal-a-added-rollout")
    assert (asked["Authorization"], headers["Authorization"]) == ("Bearer first", "Bearer second")
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(body) == {"metadata": {"annotations": {FOLLOWED: "1764000000.125"}}, "spec": {"parallelism": 3}}


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "was the ServiceAccount deleted?"),
        (403, "lacks its Role: `kubectl create --filename FILE`"),
        (404, "the Job was deleted: `kubectl create --filename FILE`"),
        (409, "it is asked again"),
        (503, "it is asked again"),
    ],
)
def test_a_refusal_names_request_reason_and_remedy(server, status, remedy):
    server.status, server.body = status, b'{"kind": "Status", "message": "the reason"}'
    with pytest.raises(JobRequestRefused) as raised:
        api(server).change("areal-a-added-rollout", 1, 2.0)
    assert str(raised.value).startswith(
        f"changing Job areal-a-added-rollout: the API server answered {status}, the reason; "
    )
    assert remedy in str(raised.value)


def test_answers_that_are_no_job_are_refusals(server):
    server.body = b"<html>a proxy</html>"
    with pytest.raises(
        JobRequestRefused, match="reading Job a: the API server answered 200, <html>a proxy</html>; it is asked again"
    ):
        api(server).read("a")


def test_only_the_server_of_the_cluster_gets_the_token(server, tmp_path):
    with pytest.raises(SetupError, match=r"does not answer \(SSLCertVerificationError: .*IP address mismatch"):
        api(server, "127.0.0.1").read("a")
    (tmp_path / "other").mkdir()
    Authority().file(tmp_path / "other").replace(server.account / "ca.crt")
    with pytest.raises(SetupError, match=r"does not answer \(SSLCertVerificationError"):
        api(server).read("a")
    assert server.requests == []


def test_a_server_that_is_gone_and_an_account_that_is_not_there_are_reported(server, tmp_path):
    with pytest.raises(SetupError, match=r"the service account in .*missing cannot be read"):
        JobsApi("localhost", 1, tmp_path / "missing").read("a")
    with pytest.raises(
        SetupError, match=r"the API server localhost:1 does not answer \(ConnectionRefusedError: .*; it is asked again"
    ):
        JobsApi("localhost", 1, server.account).read("a")


# ---------------------------------------------------------------- manifests


def test_the_follower_may_change_the_jobs_of_added_workers_and_nothing_else(capsys):
    found = manifests(capsys, *HOSTS, *BOUNDS, "autoscale.rollout_worker.max=8")
    account = "areal-gsm8k-grpo-follower"
    assert found["Role", account]["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": [REWARD, ROLLOUT], "verbs": ["get", "patch"]}
    ]
    assert found["RoleBinding", account]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    pod = found["Job", "areal-gsm8k-grpo-run"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (account, False)
    (follower,), (run,) = pod["initContainers"], pod["containers"]
    assert follower["command"] == ["areal-actors", "run", *run["command"][2:], "--on", "kubernetes", "--follow"]
    assert follower["restartPolicy"] == "Always"
    (folder,) = [one["value"] for one in follower["env"] if one["name"] == ACCOUNT]
    assert folder in [mount["mountPath"] for mount in follower["volumeMounts"]]
    assert folder not in [mount["mountPath"] for mount in run["volumeMounts"]]
    assert list(found).index(("ServiceAccount", account)) < list(found).index(("Job", "areal-gsm8k-grpo-run"))


def test_a_job_for_added_workers_starts_with_none_and_has_what_one_of_them_needs(capsys):
    found = manifests(capsys, *HOSTS, *BOUNDS, "autoscale.rollout_worker.max=8", "run=" + "a" * 40)
    assert ("Job", f"areal-{'a' * 40}-added-reward") in found
    assert all(len(name) <= 63 for _, name in found)
    spec = found["Job", f"areal-{'a' * 40}-added-rollout"]["spec"]
    assert (spec["parallelism"], spec["backoffLimit"]) == (0, 2 + 5), "six of eight are those of [hosts]"
    pod = spec["template"]["spec"]
    assert pod["containers"][0]["command"][3:] == ["--role", "rollout_worker", "--wait", "900"]
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "4"
    assert pod["terminationGracePeriodSeconds"] > 30  # areal-actors join drains for 30 s
    assert "initContainers" not in pod


def test_without_decisions_that_add_workers_nothing_follows(capsys):
    found = manifests(capsys, *HOSTS)
    assert {kind for kind, _ in found} == {"Secret", "ConfigMap", "PersistentVolumeClaim", "Service", "Job"}
    assert "initContainers" not in found["Job", "areal-gsm8k-grpo-run"]["spec"]["template"]["spec"]


def test_the_follower_of_a_pod_is_refused_elsewhere(capsys, monkeypatch):
    monkeypatch.delenv(ACCOUNT, raising=False)
    assert f"{ACCOUNT} is not set" in refused(capsys, "launch", str(RECIPE), "--on", "kubernetes", "--follow", *BOUNDS)
