"""The shares of several gateways: every group, session and generated key belongs to one of them.

With one gateway nothing has a mark. Several are numbered from 0; the names of their sessions, and the keys that they
generate, end with the number, as in `17.3-1-5f0c2a9e-g1`. Gateway 0 hands out the slots of external agents, whose
sessions stay where they were started.
"""

from __future__ import annotations

import re
from zlib import crc32

from areal_actors.core.values import Value

GATEWAY = "session_manager"
"""Kind of the actor that serves a gateway."""
MARK = re.compile(r"-g(\d{1,4})$")


def gateway_name(number: int) -> str:
    """Returns the name of the actor of a gateway."""
    return f"{GATEWAY}-{number}"


def gateway_of_group(group: str, count: int) -> str:
    """Returns the gateway of a group's episodes; empty if there is only one.

    Numbered groups take turns, others go by their hash.
    """
    return gateway_name(_number_of_group(group, count)) if count > 1 else ""


def gateway_of_session(session: str) -> str:
    """Returns the gateway that the name of a session, or a generated key, ends with; empty if it has no mark."""
    return gateway_name(int(match[1])) if (match := MARK.search(session)) else ""


def without_mark(session: str) -> str:
    """Returns the name of a session without the number of its gateway."""
    return MARK.sub("", session)


def _number_of_group(group: str, count: int) -> int:
    return (int(group) if group.isdecimal() else crc32(group.encode(errors="surrogateescape"))) % count


class GatewayShare(Value):
    """The share of one of several gateways."""

    number: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """Name of this gateway's actor."""
        return gateway_name(self.number)

    def owns_group(self, group: str) -> bool:
        """True if the episodes of a group are at this gateway."""
        return _number_of_group(group, self.count) == self.number

    def owns_session(self, session: str) -> bool:
        """True if a session is at this gateway.

        Those of a gateway that this launch does not have are lost, and end at gateway 0.
        """
        match = MARK.search(session) if self.count > 1 else None
        number = int(match[1]) if match else 0
        return (number if number < self.count else 0) == self.number

    def mark(self, name: str, number: int | None = None) -> str:
        """Returns the name of a session, or a generated key, with the number of its gateway.

        That is this gateway, unless another is given.
        """
        return f"{name}-g{self.number if number is None else number}" if self.count > 1 else name

    def elsewhere(self, named: str) -> str:
        """Returns the other gateway that the name of a session or a key ends with; empty if there is none."""
        gateway = gateway_of_session(named) if self.count > 1 else ""
        return "" if gateway == self.name else gateway


ONLY = GatewayShare()
"""The share of the one gateway of most runs: everything."""
