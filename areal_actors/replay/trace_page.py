"""An episode as one HTML file, which needs no other file and no network."""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors.replay.episode_trace import EpisodeTrace

TEMPLATE = Path(__file__).parent / "trace.html"
DATA = "@DATA@"
"""Place of the data in it."""


def html_page(traced_episode: EpisodeTrace, facts: dict[str, str], call_facts: list[list[str]]) -> str:
    """Returns the page.

    Args:
        traced_episode: the episode.
        facts: lines above its calls, by label.
        call_facts: facts of each call.
    """
    data = msgspec.json.encode({"trace": traced_episode, "facts": facts, "callFacts": call_facts}).decode()
    # a script element ends at the first `</script`, also inside of a string; `<!--` begins a comment in it
    return TEMPLATE.read_text(encoding="utf-8").replace(DATA, data.replace("<", "\\u003c"))
