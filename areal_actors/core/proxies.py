"""Proxies of the environment: agents call the gateway without them.

HTTP clients of agents and judges take `http_proxy` and its relatives for every host that `no_proxy` does not name. A
proxy cannot reach a gateway on this machine's loopback, so that every call would time out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
EXCEPTIONS = ("no_proxy", "NO_PROXY")
"""Clients read one or the other."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def describe_proxies(environment: Mapping[str, str]) -> str:
    """Return the proxies of an environment, without passwords; empty if there are none."""
    return ", ".join(f"{name}={_without_password(environment[name])}" for name in PROXIES if environment.get(name))


def proxy_exceptions(environment: Mapping[str, str], urls: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that also exempt this machine and the hosts of these URLs from the proxies."""
    names = [name.strip() for variable in EXCEPTIONS for name in environment.get(variable, "").split(",")]
    hosts = [host for url in urls if (host := urlsplit(url).hostname)]
    value = "*" if "*" in names else ",".join(dict.fromkeys([*filter(None, names), *LOOPBACK, *hosts]))
    return dict.fromkeys(EXCEPTIONS, value)


def exempt_from_proxies(*urls: str) -> None:
    """Exempt this machine and the hosts of these URLs from the proxies of this process and of those that it starts."""
    os.environ.update(proxy_exceptions(os.environ, urls))


def _without_password(url: str) -> str:
    credentials, at, host = url.rpartition("@")
    return (
        f"{credentials.partition('://')[0]}://…@{host}" if at and "://" in credentials else f"…@{host}" if at else url
    )
