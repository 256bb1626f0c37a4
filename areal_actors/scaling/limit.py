"""The one thing that limits a run most, what to change, and at most two further findings: pure functions.

All figures are of one interval, that of the measured loads. Three questions, in this order: does the trainer wait; what
are the running episodes in, while it waits; and is a core free. Where episodes are in the agent or in its reward, that
is the cause, whatever else the machine does. Where they are in model calls on a machine without a free core, the
process that uses most of them is. What has no effect on such a machine, as more workers, is not advised there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from areal_actors.messages import EventLoopBlocked, LoadMeasured, RoleLoad
from areal_actors.recipe.limits import limits
from areal_actors.recipe.recipe import Recipe

Party = Literal["trainer", "publishing", "engine", "gateway", "agents", "rewards", "gate", "machine"]
PROCESSES: dict[Party, str] = {
    "trainer": "trainer",
    "engine": "inference_worker",
    "agents": "rollout_worker",
    "gateway": "gateway",
    "rewards": "reward_worker",
}
"""Beginning of the names of the processes of each party."""
NO_LOAD = RoleLoad(workers=0, slots=0, busy=0.0, waiting=0.0)
WAITS = 0.1
"""Share of the time that the trainer waits from which something else than training limits the run."""
TRAINS = 0.25
"""Share of the time that training has to take for generation beside it to gain much."""
PUBLISHES = 0.25
"""Share of the time from which publishing weights is what limits it."""
MAIN = 0.5
"""Share of the running episodes, or of the waiting time, from which one thing is the cause."""
FULL = 0.9
"""Share of the cores in use from which none is free."""
BUSY = 0.8
"""CPU cores from which a process of Python counts as busy all the time."""
DOMINATES = 0.4
"""Share of the run's CPU time from which a party is what the others wait for."""
IDLE = 0.6
"""Share of the time below which agents that neither compute nor wait for a core wait for something outside."""
BLOCKED = 0.1
"""Share of the time for which an agent's code has to block its event loop to be named."""
MENTIONED = 0.25
"""Share of the cores that other programs use, or of the time that publishing takes, that is mentioned."""


class Raise(NamedTuple):
    """Advice to raise a limit of the staleness gate, which a run may follow by itself (`[autopilot]`)."""

    setting: Literal["max_staleness", "max_concurrent"]
    sentence: str


class LimitFound(NamedTuple):
    """The limit of a run."""

    party: Party
    sentence: str
    advice: tuple[str, ...]
    """Each has an effect on what limits it; empty if nothing is known that has."""
    further: tuple[str, ...]
    """At most two further findings with their figures."""
    raises: Raise | None = None
    """The advice that the run may follow by itself."""


Advice = Iterator[str | Raise]
Cause = tuple[Party, str, Advice]
"""Party, sentence and advice."""


class Blocked(NamedTuple):
    """Code of agents that blocked an event loop, in the measured time."""

    seconds: float
    line: str
    innermost: str


def find_limit(load: LoadMeasured, blocked: Sequence[EventLoopBlocked], recipe: Recipe) -> LimitFound:
    """Returns what limits a run.

    Args:
        load: mean load since the workers are as they are.
        blocked: one for each line of agents' code.
        recipe: as it ran.
    """
    return _Judgement(load, blocked, recipe).judge()


def has_free_core(load: LoadMeasured) -> bool:
    """Returns True if a core of the supervisor's machine is free, or its use is unknown."""
    return not load.cores or load.machine_cpu < FULL * load.cores


def cpu_of_parties(load: LoadMeasured) -> dict[Party, float]:
    """Returns the CPU cores that the processes of each party use."""
    return {
        party: sum(cores for name, cores in load.processes.items() if name.startswith(prefix))
        for party, prefix in PROCESSES.items()
    }


def share_episodes(load: LoadMeasured) -> tuple[float, float, float]:
    """Returns the shares of the running episodes in model calls, in rewards, and in agents, queues included."""
    engine, rewards = load.roles.get("inference_worker", NO_LOAD), load.roles.get("reward_worker", NO_LOAD)
    episodes = max(load.episodes, 1e-9)
    in_calls = min(max(engine.busy + engine.waiting, load.calls) / episodes, 1.0)
    in_rewards = min((rewards.busy + rewards.waiting) / episodes, 1.0 - in_calls)
    return in_calls, in_rewards, 1.0 - in_calls - in_rewards


class _Judgement:
    def __init__(self, load: LoadMeasured, blocked: Sequence[EventLoopBlocked], recipe: Recipe) -> None:
        self.load, self.recipe = load, recipe
        self.waits = load.trainer_waits
        self.engine = load.roles.get("inference_worker", NO_LOAD)
        self.rewards = load.roles.get("reward_worker", NO_LOAD)
        self.agents = load.roles.get("rollout_worker", NO_LOAD)
        self.in_calls, self.in_rewards, self.in_agents = share_episodes(load)
        self.blocked = max((_take_block(block) for block in blocked), default=None)
        self.has_free_core = has_free_core(load)
        self.cpu = cpu_of_parties(load)
        if recipe.task.runner != "inline":  # agents have processes of their own
            self.cpu["agents"] += max(load.run_cpu - sum(load.processes.values()), 0.0)

    def judge(self) -> LimitFound:
        party, sentence, given = self._find_cause()
        advice = list(given)
        raises = next((one for one in advice if isinstance(one, Raise)), None)
        sentences = tuple(one.sentence if isinstance(one, Raise) else one for one in advice)
        return LimitFound(party, sentence, sentences, tuple(self._find_further(party))[:2], raises)

    def _find_cause(self) -> Cause:
        bounds, gate, free = self.load.bounds, self.recipe.staleness_gate, self.has_free_core
        causes: tuple[tuple[bool, Callable[[], Cause]], ...] = (
            (self.waits <= WAITS, self._of_the_trainer),
            (bounds.get("evaluation", 0.0) >= MAIN, self._of_evaluations),
            (bounds.get("weights", 0.0) >= MAIN, self._of_loading),
            (self.in_rewards >= MAIN, self._of_rewards),
            (self._is_blocked(), self._of_agents),
            (gate.max_staleness == 0 and free and self.waits < 1.0 - TRAINS, self._of_turns),
            (self._queues(), self._of_the_engine),
            (self.in_agents >= MAIN and (free or self._waits_outside()), self._of_agents),
            (self.load.gateway_cpu >= BUSY, self._of_the_gateway),
            (not free and self._cpu_share("agents") >= DOMINATES, self._of_agents),
            (not free and self._cpu_share("gateway") >= DOMINATES, self._of_the_gateway),
            (not free and self._cpu_share("engine") < DOMINATES, self._of_the_machine),
            (bounds.get("concurrency", 0.0) >= MAIN and free, self._of_concurrency),
            (bounds.get("staleness", 0.0) >= MAIN and free and self._has_room(), self._of_staleness),
        )
        return next((cause for is_it, cause in causes if is_it), self._of_the_engine)()

    def _waits_outside(self) -> bool:
        """Returns True if agents neither compute nor wait for a core most of the time."""
        is_known = self.agents.cpu_waits > 0.0 or self.has_free_core
        is_idle = 0.0 < self.agents.cpu + self.agents.cpu_waits < IDLE
        return is_known and is_idle and self._cpu_share("agents") < DOMINATES

    def _cpu_share(self, party: Party) -> float:
        return self.cpu[party] / max(self.load.run_cpu, sum(self.cpu.values()), 1e-9)

    def _queues(self) -> bool:
        return self.engine.waiting >= max(0.1 * self.engine.slots, 0.5)

    def _has_room(self) -> bool:
        """Returns True if the engines could decode more completions at once."""
        return self.engine.busy < FULL * self.engine.slots

    def _is_blocked(self) -> bool:
        return self.blocked is not None and self.blocked.seconds >= BLOCKED * self.load.seconds

    def _waiting(self) -> str:
        return f"the trainer waits for batches in {self.waits:.0%} of the time"

    def _cores(self) -> str:
        load = self.load
        return f"{load.machine_cpu:.1f} of {load.cores} CPU cores are in use" if load.cores else ""

    # ---------------------------------------------------------------- causes

    def _of_the_trainer(self) -> Cause:
        if self.load.publishes >= PUBLISHES:
            sentence = (
                f"Publishing weights limits this run: it takes {self.load.publishes:.0%} of the time, and"
                f" {self._waiting()}."
            )
            return "publishing", sentence, self._publish_faster()
        trains = 1.0 - self.waits - self.load.publishes
        return (
            "trainer",
            f"Training limits this run: it takes {trains:.0%} of the time, and {self._waiting()}.",
            (self._train_faster()),
        )

    def _publish_faster(self) -> Advice:
        if self.recipe.trainer.published_dtype != "bfloat16":
            yield 'trainer.published_dtype = "bfloat16" halves the size of published weights'
        yield "trainer.weights_folder on a faster disk, or in shared memory (empty)"

    def _train_faster(self) -> Advice:
        if self.has_free_core:
            yield "more threads or devices for the trainer (trainer.threads, trainer.ranks)"
        yield "fewer tokens a step: a smaller trainer.batch_size, or shorter answers (sampling.max_tokens)"

    def _of_evaluations(self) -> Cause:
        held = self.load.bounds["evaluation"]
        sentence = (
            f"Evaluations limit this run: {self._waiting()}, and they hold back new groups in {held:.0%} of that."
        )
        return "gate", sentence, iter(["raise evaluation.every_steps, or lower evaluation.periodic_tasks"])

    def _of_loading(self) -> Cause:
        held = self.load.bounds["weights"]
        sentence = (
            f"Loading weights limits this run: {self._waiting()}, and engines load weights in {held:.0%} of that."
        )
        return "publishing", sentence, self._publish_faster()

    def _of_rewards(self) -> Cause:
        sentence = (
            f"Rewards limit this run: {self._waiting()}, and {self.in_rewards:.0%} of the running episodes are being"
            " scored or wait for it."
        )
        return "rewards", sentence, self._score_faster()

    def _score_faster(self) -> Advice:
        if self.has_free_core or self.rewards.cpu < MAIN:
            # a worker scores `slots` at once, so that twice as many take half the time while some wait
            yield (
                f"actors.reward_worker.count = {max(2, 2 * self.rewards.workers)}, now {self.rewards.workers}:"
                f" {self.rewards.waiting:.1f} scores wait, on average"
            )
        yield "a faster reward function, or task.reward_cache where answers repeat"

    def _of_agents(self) -> Cause:
        uses = f", and {self.in_agents:.0%} of the running episodes are in the agent's own code or wait for it"
        blocked = self._is_blocked()
        if blocked and self.blocked is not None:
            uses = (
                f", and {self.blocked.line} blocked the event loop of all agents for {self.blocked.seconds:.0f} of"
                f" {self.load.seconds:.0f} s"
            )
        elif self.cpu["agents"] >= 0.3:
            uses += f", using {self.cpu['agents']:.1f}{f' of {self.load.cores}' if self.load.cores else ''} CPU cores"
        return "agents", f"The agent limits this run: {self._waiting()}{uses}.", self._run_agents_faster()

    def _run_agents_faster(self) -> Advice:
        if self._is_blocked() and self.blocked is not None:
            below = f" ({self.blocked.innermost})" if self.blocked.innermost else ""
            yield (
                f"{self.blocked.line}{below}: do it once for all episodes, as in the agent's constructor, in a thread"
                ' (asyncio.to_thread), or in processes (task.runner = "process")'
            )
            return
        if self.agents.waiting >= 0.5:
            yield (
                f"actors.rollout_worker.concurrency: {self.agents.waiting:.1f} episodes wait for one of"
                f" {self.agents.slots} slots"
            )
        elif self.agents.cpu >= BUSY and self.has_free_core:
            yield f"actors.rollout_worker.count = {self.agents.workers + 1}: the busiest process is busy all the time"
        elif self._waits_outside():
            yield from self._more_at_once("agents mostly wait for something outside of the run")
        yield "less work between model calls"

    def _more_at_once(self, reason: str) -> Advice:
        """Yield the lowest limit of concurrent episodes, or the bound on staleness that holds groups back."""
        lowest = min(limits(self.recipe), key=lambda limit: limit.episodes)
        gate, bounds = self.recipe.staleness_gate, self.load.bounds
        if not lowest.setting.startswith("staleness_gate"):
            yield f"{lowest.setting} = {lowest.value} is the lowest limit of concurrent episodes: raise it, as {reason}"
        elif bounds.get("concurrency", 0.0) >= MAIN:
            advice = f"staleness_gate.max_concurrent = {gate.max_concurrent}: raise it, as {reason}"
            yield Raise("max_concurrent", advice)
        elif bounds.get("staleness", 0.0) >= MAIN:
            now = f"staleness_gate.max_staleness = {gate.max_staleness}"
            yield Raise("max_staleness", f"{now}: one more lets more groups start, as {reason}")

    def _of_the_machine(self) -> Cause:
        outside = self.load.machine_cpu - self.load.run_cpu
        used: dict[str, float] = {"other programs": outside} | {str(party): cores for party, cores in self.cpu.items()}
        listed = ", ".join(f"{name} {cores:.1f}" for name, cores in sorted(used.items(), key=lambda item: -item[1])[:4])
        sentence = f"The CPU of this machine limits this run: {self._waiting()}, and {self._cores()}: {listed}."
        return "machine", sentence, self._free_cores(outside)

    def _free_cores(self, outside: float) -> Advice:
        if outside >= MENTIONED * self.load.cores:
            yield "end the other programs, or run on another machine"
        yield "more cores; or shorter answers (sampling.max_tokens), and fewer evaluations (evaluation.every_steps)"

    def _of_the_gateway(self) -> Cause:
        used = f"{self.load.gateway_cpu:.1f} CPU cores"
        sentence = f"The gateway limits this run: {self._waiting()}, and the busiest uses {used}."
        count = self.recipe.actors.session_manager.count + 1
        return "gateway", sentence, iter([f"actors.session_manager.count = {count}"] if self.has_free_core else [])

    def _of_turns(self) -> Cause:
        sentence = (
            "Synchronous training limits this run: with staleness_gate.max_staleness = 0 generation and training take"
            f" turns, and {self._waiting()}."
        )
        advice = "staleness_gate.max_staleness = 1 lets generation go on while a step is trained"
        return "gate", sentence, iter([Raise("max_staleness", advice)])

    def _of_concurrency(self) -> Cause:
        gate = self.recipe.staleness_gate
        held = self.load.bounds["concurrency"]
        sentence = (
            f"Few episodes at once limit this run: {self._waiting()}, and staleness_gate.max_concurrent ="
            f" {gate.max_concurrent} is reached in {held:.0%} of that."
        )
        advice = "raise staleness_gate.max_concurrent: the engines have room"
        return "gate", sentence, iter([Raise("max_concurrent", advice)])

    def _of_staleness(self) -> Cause:
        gate, held = self.recipe.staleness_gate, self.load.bounds["staleness"]
        sentence = (
            f"The slowest episodes limit this run: {self._waiting()}, and staleness_gate.max_staleness ="
            f" {gate.max_staleness} holds back new groups in {held:.0%} of that."
        )
        advice = (
            f"staleness_gate.max_staleness = {gate.max_staleness + 1} lets more groups run beside them; or cut the"
            " longest answers (sampling.max_tokens)"
        )
        return "gate", sentence, iter([Raise("max_staleness", advice)])

    def _of_the_engine(self) -> Cause:
        cores = self._cores()
        sentence = (
            f"The inference engine limits this run: {self._waiting()}, and {self.in_calls:.0%} of the running episodes"
            f" are in a model call{f'; {cores}' if cores else ''}."
        )
        return "engine", sentence, self._generate_faster()

    def _generate_faster(self) -> Advice:
        engine = self.engine
        if self._queues():
            yield (
                f"generation.max_num_seqs and actors.inference_worker.concurrency: {engine.waiting:.1f} completions"
                f" wait for one of {engine.slots} slots"
            )
        elif self.has_free_core:
            yield f"actors.inference_worker.count = {engine.workers + 1}: each then decodes fewer completions, faster"
        if self.load.engine_full:
            yield "the KV cache of an engine is full: a larger generation.memory_fraction, or more inference workers"
        yield "shorter answers (sampling.max_tokens)"

    # ---------------------------------------------------------------- further findings

    def _find_further(self, party: Party) -> Iterator[str]:
        load = self.load
        others = load.machine_cpu - load.run_cpu
        if load.cores and others >= MENTIONED * load.cores and party != "machine":
            yield f"programs outside of this run use {others:.1f} of {load.cores} CPU cores"
        if self.blocked is not None and party != "agents" and self.blocked.seconds >= WAITS / 2 * load.seconds:
            yield f"{self.blocked.line} blocked the event loop of agents for {self.blocked.seconds:.0f} s"
        if party != "publishing" and load.publishes >= MENTIONED:
            yield f"publishing weights takes {load.publishes:.0%} of the time"
        elif not self.has_free_core and load.processes and party not in ("machine", "engine"):
            used = sorted(self.cpu.items(), key=lambda item: -item[1])
            shares = ", ".join(f"{name} {cores:.1f}" for name, cores in used[:3])
            yield f"no CPU core is free: {shares} of {load.cores}"


def _take_block(event: EventLoopBlocked) -> Blocked:
    return Blocked(event.seconds, event.line or "an agent's code", event.innermost)
