"""Users and accounts of a run's NATS server.

All processes of the run are users of one account, each with a password and permissions by subject. Monitors have an
account of their own, which only imports the run's messages and read access to its log; not even a reply with a forged
reply subject reaches the run from there.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from areal_bus.message import FrozenMeta
from areal_bus.subjects import inbox_of, log_stream, subject_of, values_bucket

OWNER: Final = "supervisor"
"""User that creates the streams and has all permissions in the run."""
MONITOR: Final = "monitor"
"""User with read-only permissions."""
ACCOUNT: Final = "RUN"
"""Account of the run, and name of the store's folder."""
MONITOR_ACCOUNT: Final = "MONITOR"

_USER_NAME = re.compile(r"[A-Za-z0-9_-]+")


class Permissions(msgspec.Struct, metaclass=FrozenMeta):
    """Subjects that a user may publish or subscribe to; all others are denied."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def config(self) -> dict[str, Any]:
        """Returns the permissions in nats-server's configuration format."""
        return {"publish": _only(self.publish), "subscribe": _only(self.subscribe)}


def _only(subjects: tuple[str, ...]) -> dict[str, Any]:
    # For nats-server an empty `allow` list allows everything.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


class BusUsers(msgspec.Struct, metaclass=FrozenMeta):
    """Users of one run's server."""

    run: str
    permissions: Mapping[str, Permissions]
    """Permissions by user."""
    passwords: Mapping[str, str]
    """Passwords by user, generated for this run."""

    @classmethod
    def make(cls, run: str, permissions: Mapping[str, Permissions]) -> BusUsers:
        """Create the owner, a monitor and these users, with new passwords.

        Raises:
            ValueError: a name is not valid for a user.
        """
        users = {OWNER: owner_permissions(run), MONITOR: monitor_permissions(run), **permissions}
        for name in permissions:
            if not _USER_NAME.fullmatch(name) or name in (OWNER, MONITOR):
                raise ValueError(
                    f"{name!r} is not valid as a user of the bus: use letters, digits, '-' and '_', and neither {OWNER}"
                    f" nor {MONITOR}"
                )
        return cls(run=run, permissions=users, passwords={name: secrets.token_hex(16) for name in users})

    def with_user(self, name: str, permissions: Permissions) -> BusUsers:
        """Returns these users and another, with a new password."""
        added = {**self.permissions, name: permissions}
        return BusUsers(run=self.run, permissions=added, passwords={**self.passwords, name: secrets.token_hex(16)})

    def with_password(self, name: str, password: str) -> BusUsers:
        """Returns these users, one of them with a given password."""
        return BusUsers(run=self.run, permissions=self.permissions, passwords={**self.passwords, name: password})

    def without_user(self, name: str) -> BusUsers:
        """Returns these users without one."""
        left = {user: permissions for user, permissions in self.permissions.items() if user != name}
        return BusUsers(run=self.run, permissions=left, passwords={user: self.passwords[user] for user in left})

    def members(self) -> list[str]:
        """Returns the users other than owner and monitor."""
        return [name for name in self.permissions if name not in (OWNER, MONITOR)]

    def url(self, user: str, address: str) -> str:
        """Returns the server's address, such as `nats://host:port`, with this user's name and password."""
        scheme, _, host = address.partition("://")
        return f"{scheme}://{quote(user)}:{self.passwords[user]}@{host}"

    def config(self) -> dict[str, Any]:
        """Returns the `accounts` block of the server's configuration."""
        shared = monitored_services(self.run)
        members = [self._user(name) for name in self.permissions if name != MONITOR]
        watched = subject_of(self.run, ">")
        return {
            ACCOUNT: {
                "jetstream": "enabled",
                "users": members,
                "exports": [
                    {"stream": watched},
                    *({"service": subject, "response_type": "stream"} for subject in shared),
                ],
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
    """Returns all permissions in the run, including creation of its streams."""
    return Permissions(
        publish=(
            subject_of(run, ">"),
            f"$KV.{values_bucket(run)}.>",
            "$JS.API.>",
            "$JS.ACK.>",
            f"{inbox_of('*')}.answers.>",
        ),
        subscribe=(subject_of(run, ">"), f"{inbox_of(OWNER)}.>"),
    )


def monitored_services(run: str) -> tuple[str, ...]:
    """Returns the server API subjects that a monitor may request: log events by sequence."""
    return (f"$JS.API.DIRECT.GET.{log_stream(run)}",)


def monitor_permissions(run: str) -> Permissions:
    """Returns permissions to subscribe to all messages and read the log."""
    return Permissions(publish=monitored_services(run), subscribe=(subject_of(run, ">"), f"{inbox_of(MONITOR)}.>"))


def owner_account(password: str) -> dict[str, Any]:
    """Returns the `accounts` of a server with one user with all permissions.

    It reads a store that was written under users.
    """
    return {ACCOUNT: {"jetstream": "enabled", "users": [{"user": OWNER, "password": password}]}}


def user_of(url: str) -> str:
    """Returns the user in a URL; empty for a bare address or a token."""
    parts = urlsplit(url)
    return unquote(parts.username or "") if parts.password is not None else ""


def servers_of(url: str) -> list[str]:
    """Returns the URL of each server that a URL names, `nats://user:password@one:4222,two:4222`, without credentials.

    The others may repeat scheme and credentials, which are the first one's for all.
    """
    scheme = url.partition("://")[0]
    url = url.partition("#")[0]
    return [
        f"{scheme}://{address.rpartition('://')[2].rpartition('@')[2]}" for address in url.split(",") if address.strip()
    ]


def credentials_of(url: str) -> dict[str, Any]:
    """Returns the credentials in a URL as options of the client.

    They are `user` and `password`, or `token`; empty if there are none. As options they hold for servers that a cluster
    announces, too.
    """
    parts = urlsplit(url)
    if parts.password is not None:
        return {"user": unquote(parts.username or ""), "password": unquote(parts.password)}
    return {"token": unquote(parts.username)} if parts.username else {}


def without_credentials(url: str) -> str:
    """Returns a URL, or several separated by commas, without credentials and fingerprint, for errors and logs."""
    return ",".join(re.sub(r"(?<=//)[^/@]*@", "", address) for address in url.partition("#")[0].split(","))
