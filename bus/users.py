"""The users of a run's server, and the accounts in which they live.

Everybody who belongs to the run is in one account, with a password and permissions by subject. Monitors are in an account of
their own, which imports the run's messages and the reading of its log and nothing else: not even an answer that they have
sent elsewhere by its reply subject arrives in the run.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from bus.message import FrozenMeta
from bus.subjects import inbox_of, log_stream

OWNER: Final = "supervisor"
"""The user that makes the streams and may do everything in the run."""
MONITOR: Final = "monitor"
"""The user that hears everything and changes nothing."""
ACCOUNT: Final = "RUN"
"""The store lies in a folder of this name."""
MONITOR_ACCOUNT: Final = "MONITOR"

_USER_NAME = re.compile(r"[A-Za-z0-9_-]+")


class Permissions(msgspec.Struct, metaclass=FrozenMeta):
    """Subjects that a user may publish to and subscribe to; nothing else."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def config(self) -> dict[str, Any]:
        """As nats-server reads them."""
        return {"publish": _only(self.publish), "subscribe": _only(self.subscribe)}


def _only(subjects: tuple[str, ...]) -> dict[str, Any]:
    # nats-server takes an empty list for one that allows everything.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


class BusUsers(msgspec.Struct, metaclass=FrozenMeta):
    """Everybody who may connect to the server of one run."""

    run: str
    permissions: Mapping[str, Permissions]
    """By user."""
    passwords: Mapping[str, str]
    """By user; made for this run."""

    @classmethod
    def make(cls, run: str, permissions: Mapping[str, Permissions]) -> BusUsers:
        """The owner, a monitor and these users, with fresh passwords.

        Raises:
            ValueError: a name cannot be a user's.
        """
        everybody = {OWNER: owner_permissions(run), MONITOR: monitor_permissions(run), **permissions}
        for name in permissions:
            if not _USER_NAME.fullmatch(name) or name in (OWNER, MONITOR):
                raise ValueError(
                    f"{name!r} cannot be a user of the bus: use letters, digits, '-' and '_', and neither {OWNER} nor {MONITOR}"
                )
        return cls(run=run, permissions=everybody, passwords={name: secrets.token_hex(16) for name in everybody})

    def members(self) -> list[str]:
        """The users that were asked for."""
        return [name for name in self.permissions if name not in (OWNER, MONITOR)]

    def url(self, user: str, address: str) -> str:
        """The server's address `nats://host:port` with this user's name and password."""
        scheme, _, host = address.partition("://")
        return f"{scheme}://{quote(user)}:{self.passwords[user]}@{host}"

    def config(self) -> dict[str, Any]:
        """The server's `accounts`."""
        shared = monitored_services(self.run)
        members = [self._user(name) for name in self.permissions if name != MONITOR]
        watched = f"areal.{self.run}.>"
        return {
            ACCOUNT: {
                "jetstream": "enabled",
                "users": members,
                "exports": [{"stream": watched}, *({"service": subject, "response_type": "stream"} for subject in shared)],
            },
            MONITOR_ACCOUNT: {
                "users": [self._user(MONITOR)],
                "imports": [
                    {"stream": {"account": ACCOUNT, "subject": watched}},
                    *({"service": {"account": ACCOUNT, "subject": subject}} for subject in shared),
                ],
            },
        }

    def _user(self, name: str) -> dict[str, Any]:
        return {"user": name, "password": self.passwords[name], "permissions": self.permissions[name].config()}


def owner_permissions(run: str) -> Permissions:
    """Everything that is the run's, the making of its streams included."""
    return Permissions(
        publish=(f"areal.{run}.>", f"$KV.areal_{run}.>", "$JS.API.>", "$JS.ACK.>", f"{inbox_of('*')}.answers.>"),
        subscribe=(f"areal.{run}.>", f"{inbox_of(OWNER)}.>"),
    )


def monitored_services(run: str) -> tuple[str, ...]:
    """What of the server's API a monitor may ask: events of the log by their place in it."""
    return (f"$JS.API.DIRECT.GET.{log_stream(run)}",)


def monitor_permissions(run: str) -> Permissions:
    """Hear everything, read the log, say nothing."""
    return Permissions(publish=monitored_services(run), subscribe=(f"areal.{run}.>", f"{inbox_of(MONITOR)}.>"))


def owner_account(password: str) -> dict[str, Any]:
    """The `accounts` of a server that somebody starts to read a store written under users: one user, who may do everything."""
    return {ACCOUNT: {"jetstream": "enabled", "users": [{"user": OWNER, "password": password}]}}


def user_of(url: str) -> str:
    """The user that a URL names; empty for a bare address or a token."""
    parts = urlsplit(url)
    return unquote(parts.username or "") if parts.password is not None else ""


def without_credentials(url: str) -> str:
    """A URL, or several with commas between them, as messages and logs may show it."""
    return ",".join(re.sub(r"(?<=//)[^/@]*@", "", one) for one in url.split(","))
