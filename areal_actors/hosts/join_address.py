"""The address and credential with which remote workers join a run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import ServerAddress
from areal_actors.supervision.nats_server import JOINER
from areal_bus.tls import FINGERPRINT
from areal_bus.users import without_credentials


def join_address(url: str, *, token: str = "", credential: Path | None = None) -> ServerAddress:
    """Returns the bus of a run from its address, and a token or a copy of join.json.

    The address is `nats://HOST:PORT/RUN` or `tls://HOST:PORT/RUN#FINGERPRINT`, which may contain user and password.

    Raises:
        SetupError: the address or the credential is incomplete or cannot be read.
    """
    try:
        given = msgspec.json.decode(credential.read_bytes(), type=ServerAddress) if credential is not None else None
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(f"{credential} cannot be read ({error}): copy join.json from the run's folder") from error
    url = url or (given.url if given is not None else "")
    parts = urlsplit(url)
    run = parts.path.strip("/") or (given.run if given is not None else "")
    if parts.scheme not in ("nats", "tls") or not parts.hostname or not run:
        raise SetupError(
            f"'{url}' is not the address of a run; write nats://HOST:PORT/RUN, as `{COMMAND} run` printed it"
        )
    fingerprint = parts.fragment or (
        urlsplit(given.url).fragment if given is not None and parts.scheme == "tls" else ""
    )
    if fingerprint and not FINGERPRINT.fullmatch(fingerprint):
        raise SetupError(
            f"'#{fingerprint}' of the address is no fingerprint of a certificate; copy all 64 digits, as `{COMMAND}"
            " run` printed them"
        )
    if parts.scheme == "tls" and given is None and token and not (fingerprint or parts.username):
        raise SetupError(
            f"'{without_credentials(url)}' is encrypted, and a token does not show whether its server is that of the"
            f" run: write tls://HOST:PORT/RUN#FINGERPRINT, as `{COMMAND} run` printed it, or take --credential"
            " join.json in place of --token"
        )
    place = parts.netloc.rpartition("@")[2]
    login = parts.netloc.rpartition("@")[0] or (f"{JOINER}:{quote(token)}" if token else "")
    login = login or (urlsplit(given.url).netloc.rpartition("@")[0] if given is not None else "")
    return ServerAddress(
        url=f"{parts.scheme}://{login}{'@' if login else ''}{place}{'#' if fingerprint else ''}{fingerprint}",
        run=run,
        pid=0,
    )
