"""Episodes that the model itself ended are counted by its deed wherever a run is shown, and not mentioned where there
are none."""

import io

import msgspec
import pytest
from rich.console import Console
from support import story

from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import model_ends_text, plain_line
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView
from areal_actors.messages import StepCompleted, TrajectoryExported

OVERFLOW = "its conversation no longer fits the context"
TURNS = "the agent raised agents.exceptions:MaxTurnsExceeded"


def ended(number, cause=""):
    event = story.exported().open(TrajectoryExported)
    by = {"ended_by": "model", "end_cause": cause} if cause else {}
    return story.sealed(
        TrajectoryExported(trajectory=msgspec.structs.replace(event.trajectory, episode=f"1.{number}", **by)),
        65 + number,
    )


ENDS = [
    ended(0, f"{OVERFLOW}: 300 of 256 tokens"),
    ended(1, f"{OVERFLOW}: 280 of 256 tokens"),
    ended(2, f"{TURNS}: 10 turns"),
    ended(3),
]
SENTENCE = f"the model itself ended 3 of 4 episodes (75%): {OVERFLOW} (2), {TURNS} (1)"


def shown(renderable):
    text = io.StringIO()
    Console(file=text, width=300).print(renderable)
    return text.getvalue()


@pytest.mark.parametrize(("ends", "is_shown"), [(ENDS, True), (ENDS[3:], False)])
def test_the_live_view_and_the_summary_count_episodes_that_the_model_ended(ends, is_shown):
    view, state = RunView(), RunState()
    for envelope in [story.sealed(story.STARTED), *ends, story.stepped(1)]:
        view.receive(envelope)
        state.receive(envelope)
    assert (SENTENCE in shown(view)) == is_shown
    assert (SENTENCE in shown(summary(state, []))) == is_shown
    assert ("the model itself" in shown(view)) == is_shown


def test_a_snapshot_has_the_counts():
    state, later = RunState(), RunState()
    for envelope in ENDS:
        state.receive(envelope)
    encoded = msgspec.msgpack.encode(state.snapshot())
    later.restore(msgspec.msgpack.decode(encoded, type=RunState.state_type))
    assert model_ends_text(later.episodes) == SENTENCE


def test_the_line_of_a_step_has_the_share_if_there_is_one():
    for share, expected in ((0.5, True), (0.0, False)):
        line = plain_line(
            StepCompleted(step=1, metrics={"reward_mean": 0.2, "ended_by_model": share}, sequences_checksum="")
        )
        assert ("50% ended by the model" in line) == expected
