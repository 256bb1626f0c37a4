"""The deduplication of a resumed run reaches back to its last events, whatever the clocks of the launches before it
were."""

from __future__ import annotations

import pytest

from areal_actors.messages import RunResumed
from areal_actors.recovery.log_answers import RECENT_EVENTS, AnsweredEvents
from areal_bus.base import Envelope


def answers_at(*times):
    answers = AnsweredEvents()
    for sequence, time in enumerate(times, start=1):
        about = {"subject": RunResumed.subject, "id": str(sequence), "sender": "supervisor", "run": "r"}
        answers.receive(Envelope(**about, time=time, checksum=0, body=b"", sequence=sequence))
    return answers


@pytest.mark.parametrize(
    ("times", "since_end", "since_beginning"),
    [
        ((10.0, 20.0, 90.0), 90.0, 90.0),
        ((10.0, *([90.0] * RECENT_EVENTS)), 10.0, 90.0),
        ((3700.0, 3800.0), 0.0, 0.0),  # the clock was an hour ahead, and is right now
        ((10.0, 3700.0, 80.0), 90.0, 90.0),  # it was ahead for a moment
        ((3700.0, 20.0, *([90.0] * RECENT_EVENTS)), 10.0, 80.0),  # at the beginning
        ((), 0.0, 0.0),
    ],
)
def test_repeats_of_the_last_events_are_recognised_although_a_clock_was_ahead(times, since_end, since_beginning):
    answers = answers_at(*times)
    assert answers.seconds_since_end(100.0) == since_end
    assert answers.seconds_since_beginning(100.0) == since_beginning
