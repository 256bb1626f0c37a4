"""A run as Prometheus metrics: served by a monitor, from the run's events and telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from areal_actors.core.errors import SetupError
from areal_actors.core.local_hosts import NUMBER, foreign_name, is_loopback
from areal_actors.display.run_state import RunState
from areal_actors.display.throughput import busy_share, tokens_per_second

WINDOW_SECONDS = 30.0
"""Window of throughput and busy shares, before the latest message."""
LOCAL = "127.0.0.1"
K = TypeVar("K", bound=tuple[str, ...])
"""Values of a metric's labels, without that of the run."""


@asynccontextmanager
async def serving(state: Callable[[], RunState], address: str) -> AsyncIterator[str]:
    """Serve `GET /metrics` at `PORT` or `HOST:PORT` (0 for a free port); yields the URL.

    Raises:
        SetupError: the address is not valid, or taken.
    """
    host, _, port = address.rpartition(":")
    if not NUMBER.fullmatch(port) or int(port) > 65535:
        raise SetupError(f"--prometheus: found {address!r}; write a port, as in 9464, or HOST:PORT")
    registry = CollectorRegistry()
    registry.register(RunCollector(state))

    async def metrics(request: web.Request) -> web.Response:
        if is_loopback(host or LOCAL) and (name := foreign_name(request.host)):
            return web.Response(
                status=403,
                text=f"These metrics are served to this machine only, as 127.0.0.1; found the name {name}.\n",
            )
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host or LOCAL, int(port)).start()
        except OSError as error:
            reason = f"--prometheus: cannot listen on {address} ({error.strerror})"
            raise SetupError(f"{reason}; choose another port, or 0 for a free one") from error
        yield f"http://{host or LOCAL}:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


class RunCollector(Collector):
    """Metrics of a run's present state; `run` labels each of them."""

    def __init__(self, state: Callable[[], RunState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yields all metric families."""
        state = self._state()
        yield from _course(state)
        yield from _results(state)
        yield from _failures(state)
        yield from _engines(state)
        yield from _actors(state)


def _gauge(state: RunState, name: str, meaning: str, values: Mapping[K, float], labels: tuple[str, ...] = ()) -> Metric:
    family = GaugeMetricFamily(f"areal_{name}", meaning, labels=("run", *labels))
    for key, value in values.items():
        family.add_metric((state.run, *key), value)
    return family


def _counter(
    state: RunState, name: str, meaning: str, values: Mapping[K, float], labels: tuple[str, ...] = ()
) -> Metric:
    family = CounterMetricFamily(f"areal_{name}", meaning, labels=("run", *labels))
    for key, value in values.items():
        family.add_metric((state.run, *key), value)
    return family


def _by(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(count) for name, count in counts.items()}


def _course(state: RunState) -> Iterator[Metric]:
    described = [str(state.setting(*path) or "") for path in (("model",), ("algorithm", "name"), ("task", "dataset"))]
    profile = state.started.profile if state.started else ""
    yield _gauge(
        state, "run_info", "The run's recipe.", {(*described, profile): 1}, ("model", "algorithm", "dataset", "profile")
    )
    yield _counter(state, "steps", "Optimizer steps taken.", {(): state.steps[-1].number if state.steps else 0})
    yield _gauge(state, "steps_wanted", "Optimizer steps of the recipe.", {(): state.steps_wanted()})
    if (left := state.seconds_left()) is not None:
        yield _gauge(state, "seconds_left", "Estimated seconds until the last step.", {(): left})
    yield _gauge(state, "weight_version", "Newest published weights; -1 before the first.", {(): state.weight_version})
    yield _gauge(
        state, "loaded_weight_version", "Weights of each inference worker.", _by(Counter(state.loaded)), ("worker",)
    )
    yield _gauge(
        state,
        "checkpoint_step",
        "Step of the newest checkpoint.",
        {(): state.checkpoint.step} if state.checkpoint else {},
    )
    yield _gauge(state, "stalled", "1 while the run is reported as stalled.", {(): state.stalled is not None})
    ended = {("failed" if state.finished.error else "finished",): 1.0} if state.finished else {}
    yield _gauge(state, "ended", "1 once the run has ended.", ended, ("status",))


def _results(state: RunState) -> Iterator[Metric]:
    step = {(name,): value for name, value in (state.steps[-1].metrics if state.steps else {}).items()}
    yield _gauge(state, "step", "Metrics of the last step, as in metrics.jsonl.", step, ("metric",))
    held_out: dict[tuple[str, ...], float] = {}
    for evaluation in state.evaluations:  # the last of each mode stays
        held_out[evaluation.mode, "accuracy"] = evaluation.accuracy
        held_out[evaluation.mode, "reward_mean"] = evaluation.reward_mean
        held_out[evaluation.mode, "mean_tokens"] = evaluation.mean_tokens
    if state.losses:
        held_out |= {("examples", name): value for name, value in state.losses[-1].metrics.items()}
    yield _gauge(state, "held_out", "Last evaluation on held-out tasks or examples.", held_out, ("mode", "metric"))


def _failures(state: RunState) -> Iterator[Metric]:
    counts = state.episodes
    yield _counter(state, "episodes_ended", "Episodes that ended, each counted once.", {(): counts.episodes})
    yield _counter(state, "trajectories_exported", "Episodes accepted for training.", {(): counts.exported})
    yield _counter(
        state, "trajectories_dropped", "Accepted episodes that are not trained.", _by(counts.dropped), ("reason",)
    )
    yield _counter(state, "attempts_abandoned", "Failed attempts of episodes.", _by(counts.abandoned), ("reason",))
    yield _counter(
        state, "attempts_rejected", "Attempts that the recipe rejected, which is no failure.", {(): counts.rejected}
    )
    yield _counter(state, "episodes_given_up", "Episodes without an attempt left.", {(): counts.given_up})
    meaning = "Episodes that the last batches did not need, complete or not, which is no failure."
    yield _counter(state, "episodes_surplus", meaning, {(): counts.surplus()})
    yield _counter(
        state, "completions_refused", "Completions that the gateway refused.", _by(state.refused), ("worker",)
    )
    yield _counter(state, "sequences_refused", "Sequences that could not be trained.", {(): state.refused_sequences})
    actors: Counter[str] = Counter()
    for described, count in state.actor_failures.items():
        actors[described.partition(":")[0]] += count
    yield _counter(state, "actor_failures", "Failures of actors, and other faults of the run.", _by(actors), ("actor",))
    yield _counter(state, "bus_restarts", "Restarts of the bus server.", {(): len(state.bus_outages)})


def _engines(state: RunState) -> Iterator[Metric]:
    window = (max(state.now - WINDOW_SECONDS, min(state.telemetry_since, state.now)), state.now)
    speed: dict[tuple[str, ...], float] = {}
    busy: dict[tuple[str, ...], float] = {}
    for side in ("generation", "training"):
        recent = [
            throughput
            for throughput in state.throughputs
            if throughput.side == side and throughput.started + throughput.seconds > window[0]
        ]
        if window[0] < window[1]:
            speed[side,], busy[side,] = tokens_per_second(recent), busy_share(recent, window)
    yield _gauge(
        state, "tokens_per_second", f"Tokens per busy second, of the last {WINDOW_SECONDS:.0f} s.", speed, ("side",)
    )
    yield _gauge(
        state, "busy_share", f"Share of the last {WINDOW_SECONDS:.0f} s in which engines were busy.", busy, ("side",)
    )


def _actors(state: RunState) -> Iterator[Metric]:
    beats = state.beats.items()
    quiet = {
        (actor, beat.process): max(state.now - state.beaten_at.get(actor, state.now), 0.0) for actor, beat in beats
    }
    yield _gauge(
        state, "actor_seconds_since_heartbeat", "Age of each actor's last heartbeat.", quiet, ("actor", "process")
    )
    handling = {(actor, name): float(count) for actor, beat in beats for name, count in beat.handling.items()}
    yield _gauge(
        state, "actor_messages_in_progress", "Messages that an actor is handling.", handling, ("actor", "message")
    )
    status = {
        (actor, name): float(value)
        for actor, beat in beats
        for name, value in beat.status.items()
        if isinstance(value, int | float)
    }
    yield _gauge(state, "actor_status", "Figures that an actor reports about itself.", status, ("actor", "name"))
    cpu = {(beat.process,): beat.cpu_seconds for _, beat in beats}
    yield _counter(state, "process_cpu_seconds", "CPU time of each process.", cpu, ("process",))
    memory = {(beat.process,): float(beat.peak_memory_bytes) for _, beat in beats}
    yield _gauge(state, "process_peak_memory_bytes", "Peak resident memory of each process.", memory, ("process",))
