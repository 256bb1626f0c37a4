"""Streams in a cluster of NATS servers: what the API answers while a stream has no leader.

A stream with several replicas has one leader, which alone writes, and which the others replace within seconds when it
is gone. Meanwhile the API is silent, reports a passing error, or describes the stream as empty.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

_PASSING: Final = frozenset({10008, 10009, 10118, 10119})
"""Error codes: the cluster is without its own leader, this server does not lead it, the stream or the consumer is
offline."""
_STREAM_INFO: Final = "STREAM.INFO."

Json = dict[str, Any]


def is_passing(code: int) -> bool:
    """True for an error that ends with the election of a leader."""
    return code in _PASSING


def lacks_leader(verb: str, answer: Json) -> bool:
    """True if an answer describes a stream without a leader: its state is then reported as empty."""
    return verb.startswith(_STREAM_INFO) and "cluster" in answer and not answer["cluster"].get("leader")


def message_of(answer: Json) -> Msg:
    """Returns a message that the leader of its stream has read, as a direct read returns it."""
    headers = {"Nats-Sequence": str(answer["seq"]), "Nats-Subject": answer["subject"]}
    return Msg(Client(), subject=answer["subject"], data=base64.b64decode(answer.get("data", "")), headers=headers)
