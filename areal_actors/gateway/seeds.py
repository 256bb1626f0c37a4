"""What a model call is sampled with: a seed that follows from the run's, from whose call it is, and from what it asks.

So the same seed is the same run. Nothing here depends on a clock, on the order in which sessions are opened, or on the order in
which calls of one session arrive: calls that ask different things are distinguished by what they ask, calls that ask the same by
their number among those, so that they differ.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from areal_actors.sessions.table import Session
from areal_actors.values import SamplingParams

SEED_BYTES = 6
"""What any engine takes for a seed, and JSON keeps exactly; choices of one call count on from it."""


def call_digest(prompt_ids: bytes, sampling: SamplingParams) -> bytes:
    """16 bytes that stand for what a call asks: its prompt, and how it is to be sampled."""
    how = msgspec.structs.replace(sampling, logit_bias=dict(sorted(sampling.logit_bias.items())))
    return blake2b(msgspec.json.encode(how) + prompt_ids, digest_size=16).digest()


def sampling_seed(run_seed: int, session: Session, what: bytes) -> int:
    """The seed of the call last begun in a session among those that ask this (`call_digest`)."""
    parts = f"{run_seed}|{seed_label(session)}|{session.call_counts[what]}|".encode() + what
    return int.from_bytes(blake2b(parts, digest_size=SEED_BYTES).digest(), "big")


def seed_label(session: Session) -> str:
    """Who the session is to its seeds.

    A later attempt at an episode has seeds of its own, so that it does not fail by the same sample; an attempt redelivered after
    the death of a worker has the same seeds. A held-out episode is its place among the tasks, whatever version is evaluated: the same
    weights have the same accuracy, and different ones are compared on the same numbers.
    """
    work = session.work
    if work.purpose == "evaluate":
        return f"held-out {work.episode.rpartition('.')[2]} {work.attempt}"
    return session.label
