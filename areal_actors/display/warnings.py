"""Causes for which a run may not learn, in sentences, from the metrics of its last steps.

docs/not-learning.md has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.display.run_state import RunState

WINDOW = 5
"""Steps over which metrics are averaged; before as many there are no sentences."""
WITHOUT_SIGNAL = 0.75
"""Share of groups with equal rewards from which it is mentioned, as all shares below."""
CUT = 0.25
MASKED = 0.25
SKIPPED = 0.25
EFFECTIVE = 0.3
"""Effective sample size below which it is mentioned."""
COLLAPSED = 0.1
"""Entropy, as a share of that of the first steps, below which it is mentioned, if the reward has fallen from its best
mean, too."""
HIDDEN = 0.1
"""Share of the advantage below which a reward that varies is mentioned."""
VARIES = 0.25
"""Share of groups in which a reward must vary for that."""
FALLEN = 0.05
"""Share of its range that the reward must have lost for that."""
IDLE = 0.5
"""Share of the completions that engines could run below which it is mentioned that the rollout workers limit them."""


def attention(state: RunState) -> list[str]:
    """Returns a sentence for each cause that the last steps show; empty for a run that learns, or is too young."""
    if len(state.steps) < WINDOW:
        return []
    return [
        *_signal(state),
        *_hidden_rewards(state),
        *_constant_spans(state),
        *_credit(state),
        *_collapse(state),
        *_lengths(state),
        *_staleness(state),
        *_skipped_steps(state),
        *_workers(state),
    ]


def _signal(state: RunState) -> Iterator[str]:
    groups, equal = _mean(state, "groups"), _mean(state, "groups_without_signal")
    reward, spread = _mean(state, "reward_mean"), _mean(state, "reward_std")
    if reward is None or spread is None:
        return
    if spread == 0:
        yield (
            f"all rewards of the last {WINDOW} steps are {reward:.3g}: nothing to learn from;"
            f" {_easier_or_harder(reward)}"
        )
    elif groups and equal is not None and equal >= WITHOUT_SIGNAL * groups:
        remedy = (
            _easier_or_harder(reward)
            if not 0.1 < reward < 0.9
            else "batcher.dynamic_sampling = true draws others in their place"
        )
        yield f"{equal:.0f} of {groups:.0f} groups have equal rewards: nothing to learn from; {remedy}"


def _hidden_rewards(state: RunState) -> Iterator[str]:
    """Yields the rewards of a sum that vary within groups and have hardly a share in the advantage."""
    if state.setting("algorithm", "reward_normalization") == "separate":
        return
    prefix = "reward_share"
    names = {name: None for step in state.steps[-WINDOW:] for name in step.metrics if name.startswith(f"{prefix}/")}
    for name in (name.removeprefix(f"{prefix}/") for name in names):
        share, constant = _mean(state, f"{prefix}/{name}"), _mean(state, f"reward_constant/{name}")
        if share is not None and constant is not None and share < HIDDEN and constant <= 1.0 - VARIES:
            yield (
                f"the sum of rewards hides {name}: it differs in {1.0 - constant:.0%} of the groups, and is"
                f' {share:.0%} of the advantage; write algorithm.reward_normalization = "separate", or raise its weight'
            )


def _constant_spans(state: RunState) -> Iterator[str]:
    """Yields the names of spans whose rewards are compared with their like only."""
    if state.setting("algorithm", "spans", "baseline") == "none":
        return
    prefix = "span_constant/"
    names = {name: None for step in state.steps[-WINDOW:] for name in step.metrics if name.startswith(prefix)}
    for name in names:
        constant = _mean(state, name)
        if constant is not None and constant >= WITHOUT_SIGNAL:
            yield (
                f"the rewards of spans called {name.removeprefix(prefix)} have one value in {constant:.0%} of their"
                ' groups, where they credit nothing; write algorithm.spans.baseline = "none", or reward spans that are'
                " right, too"
            )


def _credit(state: RunState) -> Iterator[str]:
    missing = _mean(state, "calls_without_credit")
    if missing:
        discount = state.setting("task", "turn_discount")
        yield (
            f"{missing:.1f} calls a step are trained with reward 0, since neither they nor calls that continue them"
            f" have one (task.turn_discount = {discount}): reward each conversation that the client names, or leave"
            " task.turn_discount out"
        )


def _easier_or_harder(reward: float) -> str:
    return "use harder tasks" if reward > 0.5 else "use easier tasks, a stronger model, or a reward with partial credit"


def _collapse(state: RunState) -> Iterator[str]:
    entropies, rewards = state.history("entropy"), state.history("reward_mean")
    if len(entropies) < 2 * WINDOW or len(rewards) < 2 * WINDOW:
        return
    first, last = sum(entropies[:WINDOW]) / WINDOW, sum(entropies[-WINDOW:]) / WINDOW
    means = [sum(rewards[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(rewards) + 1)]
    if last < COLLAPSED * first and means[-1] < max(means) - FALLEN * (max(rewards) - min(rewards)):
        yield (
            f"entropy has collapsed from {first:.2g} to {last:.2g} nats and the reward has fallen: lower"
            " trainer.optimizer.lr, or set algorithm.clip_higher or algorithm.kl.coefficient"
        )


def _lengths(state: RunState) -> Iterator[str]:
    cut = _mean(state, "truncated_frac")
    if cut is not None and cut >= CUT:
        limit = state.setting("sampling", "max_tokens")
        yield f"{cut:.0%} of the answers are cut at sampling.max_tokens = {limit}: raise it, or reward short answers"


def _staleness(state: RunState) -> Iterator[str]:
    masked, effective = _mean(state, "masked_frac"), _mean(state, "effective_sample_size")
    bound = state.setting("staleness_gate", "max_staleness")
    if masked is not None and masked >= MASKED:
        yield (
            f"{masked:.0%} of the sampled tokens are older than staleness_gate.max_staleness = {bound} and not trained:"
            " raise it, or lower staleness_gate.max_concurrent"
        )
    if effective is not None and effective < EFFECTIVE:
        is_recorded = state.learns_from_examples()
        remedy = (
            "take fewer steps, lower trainer.optimizer.lr, or learn from newer sessions"
            if is_recorded
            else f"lower staleness_gate.max_staleness = {bound} or trainer.optimizer.lr"
        )
        yield f"the weights have moved away from those that sampled (effective sample size {effective:.2f}): {remedy}"


def _skipped_steps(state: RunState) -> Iterator[str]:
    skipped = _mean(state, "skipped")
    if skipped is not None and skipped >= SKIPPED:
        yield (
            f"{skipped:.0%} of the last steps changed no weight: loss or gradient is not finite; lower"
            " trainer.optimizer.lr"
        )


def _workers(state: RunState) -> Iterator[str]:
    workers = [beat for actor, beat in state.beats.items() if actor.startswith("rollout_worker")]
    taken = sum(beat.handling.get("RunEpisode", 0) for beat in workers)
    each = int(state.setting("actors", "rollout_worker", "concurrency") or 0)
    bound, batch = state.setting("staleness_gate", "max_staleness"), state.setting("trainer", "batch_size")
    groups = state.setting("staleness_gate", "max_concurrent")
    groups = (int(bound or 0) + 1) * int(batch or 0) if groups == "auto" else int(groups or 0)
    allowed = groups * int(state.setting("algorithm", "group_size") or 0)
    engines = {
        throughput.actor: throughput.concurrent for throughput in state.throughputs if throughput.side == "generation"
    }
    could = min(int(state.setting("generation", "max_num_seqs") or 0) * len(engines), allowed)
    if each and taken >= each * len(workers) and each * len(workers) < allowed and sum(engines.values()) < IDLE * could:
        yield (
            f"all {taken} places of the rollout workers are taken, and engines run {sum(engines.values())} of {could}"
            f" completions: raise actors.rollout_worker.concurrency = {each}"
        )


def _mean(state: RunState, name: str) -> float | None:
    """Returns the mean of a metric over the last steps that have it; None if none of them has it."""
    values = [step.metrics[name] for step in state.steps[-WINDOW:] if name in step.metrics]
    return sum(values) / len(values) if values else None
