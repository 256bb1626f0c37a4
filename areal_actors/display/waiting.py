"""Describes in one sentence what the run waits for, from the status of its actors."""

from __future__ import annotations

from areal_actors.display.run_state import RunState

LONG_SECONDS = 5.0
"""Waits of at least this many seconds are mentioned."""

BOUNDS = {
    "none": "no limit reached",
    "staleness": "limit reached: max_staleness ({max_staleness})",
    "concurrency": "limit reached: max_concurrent ({max_concurrent})",
    "steps": "enough groups are running for the remaining steps",
    "baseline": "the evaluation before the first step is running",
    "evaluation": "an evaluation between two steps is running",
    "weights": "weights are still to be loaded",
    "stopped": "the run is stopping",
}
"""Words for the bound that the staleness gate has reached."""


def waiting_summary(state: RunState) -> str:
    """Returns the sentence; empty before the first heartbeats."""
    parts = [part for part in (_balance(state), _longest(state)) if part]
    return "; ".join(parts)


def awaited_end(state: RunState) -> str:
    """Returns what a run that ends before its last step waits for."""
    step = state.steps[-1].number if state.steps else 0
    if state.checkpoint is not None and state.checkpoint.step >= step > 0 and not state.is_handling("trainer"):
        return f"the processes to end; the checkpoint of step {state.checkpoint.step} is saved"
    if state.is_handling("trainer", "BatchFormed") or state.is_handling("trainer", "ExamplesDrawn"):
        return f"the trainer: step {step + 1}, then its checkpoint"
    return f"the trainer: the checkpoint of step {step}"


def _balance(state: RunState) -> str:
    """Describes if training waits for generation, or generation for training."""
    gate, batcher = state.status("staleness_gate"), state.status("batcher")
    if state.weight_version < 0:
        return "all actors wait for the trainer to prepare the first weights" if state.beats else ""
    if state.learns_from_examples():
        return _steps(state)
    if not gate or not batcher:
        return ""
    running, bound = f"{_number(gate, 'running'):.0f}", _describe_bound(state, str(gate.get("bound", "")))
    training = state.is_handling("trainer", "BatchFormed")
    if training and _number(gate, "running"):
        return f"step {state.weight_version + 1} is trained while {running} groups are generated"
    if training:
        return f"generation waits for the trainer: {bound}"
    ready = f"{_number(batcher, 'complete_groups'):.0f} of {_number(batcher, 'batch_size'):.0f} groups are complete"
    return f"the trainer waits for a batch: {ready}, {running} are running; {bound}"


def _steps(state: RunState) -> str:
    """Describes the wait of a run that learns from examples."""
    step = (state.steps[-1].number if state.steps else 0) + 1
    if state.is_handling("trainer", "ExamplesDrawn") and step <= state.steps_wanted():
        return f"step {step} is trained"
    if state.is_handling("trainer"):
        return f"the weights of step {step - 1} are measured or saved"
    return f"the trainer waits for the examples of step {step}" if step <= state.steps_wanted() else ""


def _longest(state: RunState) -> str:
    """Describes the longest wait with a deadline: for an answer, not for work to arrive."""
    waits = [
        (wait.since, actor, wait.name) for actor, beat in state.beats.items() for wait in beat.waits if wait.deadline
    ]
    if not waits or state.now - min(waits)[0] < LONG_SECONDS:
        return ""
    since, actor, name = min(waits)
    return f"{actor} waits longest, {state.now - since:.0f} s for {name}"


def _describe_bound(state: RunState, bound: str) -> str:
    words = BOUNDS.get(bound, bound)
    gate = state.setting("staleness_gate") or {}
    limits = gate | state.status("staleness_gate")
    return words.format(
        max_staleness=limits.get("max_staleness", "?"), max_concurrent=limits.get("max_concurrent", "?")
    )


def _number(status: dict[str, float | str], name: str) -> float:
    value = status.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
